//! The audit log, as far as every process of a cluster keeps one: where events go, and those about a
//! connection, its users, or the process itself. Its form is `banyan_security`'s, its place
//! `banyan_process`'s.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub use banyan_process::audit::SUCCESS_PARAMETER;
use banyan_process::audit::{AuditFlags, AuditFormat};
use banyan_security::audit::{self, Auditor, Client, Event, Wanted, auditor};
use banyan_security::{RoleName, UserName};
use banyan_wire::params::Field;
use banyan_wire::{CommandError, Connection, OWN_CONNECTION_ID, Request};
use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, Uuid, cstr, rawdoc};
use rand::RngCore;

use crate::identity::{self, Identity, Owner};
use crate::impersonation;
use crate::redaction;

/// Whether there is an audit log.
pub fn is_on() -> bool {
    auditor().is_some()
}

/// Puts events where the flags say. The place itself is open already.
pub fn install(flags: &AuditFlags) -> Result<(), String> {
    let Some(sink) = banyan_process::audit::sink() else {
        return Ok(());
    };
    let wrong = |error: String| format!("--auditFilter: {error}");
    let query = flags.query().map_err(wrong)?;
    let filter = query.map(|query| bson::serialize_to_raw_document_buf(&query));
    let filter = filter
        .transpose()
        .map_err(|error| wrong(error.to_string()))?;
    sink.note_rotations(|moved| note_own("rotateLog", rotation(moved)));
    let write = move |event: &RawDocument| match sink.format {
        AuditFormat::Bson => sink.write(event.as_bytes()),
        AuditFormat::Json => sink.write(audit::to_json(event).as_bytes()),
    };
    let wanted = Wanted::new(&filter.unwrap_or_default(), false, None).map_err(wrong)?;
    Auditor::new(wanted, flags.runtime_configuration, write).install();
    Ok(())
}

/// The same for all events of a connection, and for no other of any process.
fn connection_id(connection: &Connection) -> Uuid {
    static PROCESS: OnceLock<[u8; 8]> = OnceLock::new();
    let process = PROCESS.get_or_init(|| {
        let mut drawn = [0; 8];
        rand::rng().fill_bytes(&mut drawn);
        drawn
    });
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(process);
    bytes[8..].copy_from_slice(&connection.id.to_be_bytes());
    // As a random one is marked.
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Uuid::from_bytes(bytes)
}

/// Who has done something.
#[derive(Debug, PartialEq)]
pub struct Actor {
    users: Vec<UserName>,
    roles: Vec<RoleName>,
}

impl Actor {
    pub fn of(identity: &Identity) -> Actor {
        let roles = identity.users.iter().flat_map(|user| &user.granted.roles);
        Actor {
            users: identity.owner().names().to_vec(),
            roles: roles.cloned().collect(),
        }
    }

    /// Of a request that belongs to `owner`. Where that is not who sends it, `metadata` is what a
    /// router says of its client ([`impersonation`]).
    pub fn behind(
        identity: &Identity,
        owner: Option<&Owner>,
        metadata: Option<RawBsonRef<'_>>,
    ) -> Actor {
        match (owner, metadata) {
            (Some(owner), Some(metadata)) if *owner != **identity.owner() => Actor {
                users: owner.names().to_vec(),
                roles: impersonation::roles(metadata),
            },
            (Some(_), Some(metadata)) if impersonation::is_nobody(metadata) => {
                Actor::of(&Identity::default())
            }
            _ => Actor::of(identity),
        }
    }
}

/// An event of a client that is who it is now.
pub fn note(conn: &Connection, action: &str, param: RawDocumentBuf, result: i32) {
    if is_on() {
        note_of(
            conn,
            &Actor::of(&identity::known(conn)),
            action,
            param,
            result,
        );
    }
}

/// An event of somebody who came by a connection.
pub fn note_of(conn: &Connection, actor: &Actor, action: &str, param: RawDocumentBuf, result: i32) {
    let Some(auditor) = auditor() else { return };
    let client = (conn.id != OWN_CONNECTION_ID).then(|| Client {
        local: conn.local,
        remote: conn.peer,
        id: connection_id(conn),
    });
    auditor.note(&Event {
        action,
        at: DateTime::now(),
        client,
        users: actor.users.clone(),
        roles: actor.roles.clone(),
        param,
        result,
    });
}

/// An event of the process itself.
pub fn note_own(action: &str, param: RawDocumentBuf) {
    let Some(auditor) = auditor() else { return };
    auditor.note(&Event {
        action,
        at: DateTime::now(),
        client: None,
        users: Vec::new(),
        roles: Vec::new(),
        param,
        result: 0,
    });
}

/// What the first event of a new file says: where those before it are, if they were moved.
pub(crate) fn rotation(moved: Option<&Path>) -> RawDocumentBuf {
    let moved = moved.map_or_else(String::new, |path| path.display().to_string());
    rawdoc! {
        "pid": i64::from(std::process::id()),
        "logRotationStatus": { "status": "OK", "rotatedLogPath": moved, "errors": [] },
    }
}

/// The process ends: by a client's command, or by itself. There is one such event.
pub fn shutdown(conn: Option<&Connection>) {
    static NOTED: AtomicBool = AtomicBool::new(false);
    if !is_on() || NOTED.swap(true, Ordering::Relaxed) {
        return;
    }
    match conn {
        Some(conn) => note(conn, "shutdown", rawdoc! {}, 0),
        None => note_own("shutdown", rawdoc! {}),
    }
}

/// Somebody has tried to log in. `name`: as far as it is known who.
pub(crate) fn login(conn: &Connection, name: Option<&UserName>, mechanism: &str, result: i32) {
    let mut param = RawDocumentBuf::new();
    param.append(cstr!("user"), name.map_or("", |name| name.user.as_str()));
    param.append(cstr!("db"), name.map_or("", |name| name.database.as_str()));
    param.append(cstr!("mechanism"), mechanism);
    note(conn, "authenticate", param, result);
}

/// Users have left a connection.
pub(crate) fn logout(conn: &Connection, before: &Identity, after: &Identity, reason: &str) {
    if !is_on() || !before.is_authenticated() {
        return;
    }
    let param = rawdoc! {
        "reason": reason,
        "initialUsers": audit::users(before.owner().names()),
        "updatedUsers": audit::users(after.owner().names()),
    };
    note_of(conn, &Actor::of(before), "logout", param, 0);
}

/// A connection is gone, and who was logged in on it with it.
pub fn closed(conn: &Connection) {
    let reason = "Implicit logout due to client connection closure";
    if is_on() {
        logout(conn, &identity::known(conn), &Identity::default(), reason);
    }
}

/// `logApplicationMessage`: `message` is the command's own field.
///
/// # Errors
/// `TypeMismatch`.
pub fn application_message(
    conn: &Connection,
    message: Option<RawBsonRef<'_>>,
) -> Result<RawDocumentBuf, CommandError> {
    let field = message.map(|value| Field {
        command: "logApplicationMessage",
        name: "logApplicationMessage",
        value,
    });
    let message = field.map_or(Ok(""), |field| field.str())?;
    note(conn, "applicationMessage", rawdoc! { "msg": message }, 0);
    Ok(rawdoc! { "ok": 1.0 })
}

/// What a client says about itself.
pub fn greeting(conn: &Connection, metadata: RawBsonRef<'_>) {
    let local = conn.local;
    let mut param = rawdoc! {
        "localEndpoint": {
            "ip": local.ip().to_canonical().to_string(), "port": i32::from(local.port()),
        },
    };
    param.append(cstr!("clientMetadata"), metadata);
    note(conn, "clientMetadata", param, 0);
}

/// Whether a request was let in. `None`: it was.
pub fn authorization(
    conn: &Connection,
    actor: &Actor,
    request: &Request,
    refused: Option<&CommandError>,
) {
    let shown = redaction::redacted(request);
    let name = match banyan_document::first_value(&request.body) {
        Some(RawBsonRef::String(collection)) => format!("{}.{collection}", request.database),
        _ => request.database.clone(),
    };
    let mut args = RawDocumentBuf::new();
    args.append(cstr!("command"), request.name.as_str());
    args.append(cstr!("ns"), name);
    args.append(cstr!("args"), RawDocument::to_owned(&shown.body));
    let result = refused.map_or(0, |error| error.code.code());
    note_of(conn, actor, "authCheck", args, result);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::identity::AuthorizedUser;
    use crate::members::member;

    #[test]
    fn what_a_router_sends_for_a_client_is_the_clients() {
        let router = Identity::new(vec![Arc::new(member())], 1);
        let name = UserName::new("alice", "admin");
        let alice = AuthorizedUser {
            name: name.clone(),
            id: None,
            roles: vec![RoleName::new("read", "test")],
            granted: Default::default(),
            restrictions: Default::default(),
        };
        let alice = Identity::new(vec![Arc::new(alice)], 1);
        let sent = impersonation::of(&alice);
        let sent = banyan_document::field(&sent, impersonation::FIELD);
        let expected = Actor {
            users: vec![name],
            roles: vec![RoleName::new("read", "test")],
        };
        assert_eq!(Actor::behind(&router, Some(alice.owner()), sent), expected);
        // Its own requests name nobody, or itself.
        let own = Actor::of(&router);
        assert_eq!(Actor::behind(&router, Some(router.owner()), None), own);
        assert_eq!(Actor::behind(&router, None, None), own);
        // Who has not logged in is nobody, and not the router.
        let nobody = Identity::default();
        let sent = impersonation::of(&nobody);
        let sent = banyan_document::field(&sent, impersonation::FIELD);
        let expected = Actor::of(&nobody);
        assert_eq!(Actor::behind(&router, Some(router.owner()), sent), expected);
    }
}
