//! Whom a router sends a request for.
//!
//! Every request of a router comes from `__system`, who may do everything: the router has checked
//! what its client may do. `$audit` names the client's users, as in MongoDB, so that cursors,
//! sessions and operations on shards belong to them; the users of one that has not logged in are none.
//! `mayBypassWriteBlocking` says whether blocked writes are open to them. Nobody else may send either.

use std::sync::Arc;

use banyan_document::field;
use banyan_security::{Action, Resource, RoleName, UserName};
use banyan_wire::{CommandError, Connection, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use crate::administration::user_name;
use crate::identity::{Client, Identity, Owner};

/// The field of a request.
pub const FIELD: &str = "$audit";
/// Another one.
pub const BYPASS: &str = "mayBypassWriteBlocking";

const USERS: &str = "$impersonatedUsers";
const ROLES: &str = "$impersonatedRoles";
/// A connection has at most one user of each database.
const USERS_MAX: usize = 10_000;

/// The fields that are sent along for a client.
pub fn of(identity: &Identity) -> Arc<RawDocumentBuf> {
    let told = || fields(metadata(identity), may_bypass_write_blocking(identity));
    identity.told(told).clone()
}

/// The same of a client that another process has told of.
pub fn fields(metadata: RawDocumentBuf, may_bypass: bool) -> RawDocumentBuf {
    let mut fields = rawdoc! { "$audit": metadata };
    if may_bypass {
        fields.append(cstr!("mayBypassWriteBlocking"), true);
    }
    fields
}

/// Whether blocked writes of users are open to who this is.
pub fn may_bypass_write_blocking(identity: &Identity) -> bool {
    identity.allows(Action::BypassWriteBlockingMode, Resource::Cluster)
}

fn metadata(identity: &Identity) -> RawDocumentBuf {
    let mut users = RawArrayBuf::new();
    let mut roles: Vec<RoleName> = Vec::new();
    for user in &identity.users {
        users.push(rawdoc! { "user": user.name.user.as_str(), "db": user.name.database.as_str() });
        for role in &user.roles {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
    }
    rawdoc! {
        "$impersonatedUsers": users,
        "$impersonatedRoles": RoleName::array(&roles),
    }
}

/// Whether a router says that its client has not logged in.
pub fn is_nobody(value: RawBsonRef<'_>) -> bool {
    let users = match value {
        RawBsonRef::Document(metadata) => field(metadata, USERS),
        _ => None,
    };
    matches!(users, Some(RawBsonRef::Array(users)) if users.is_empty())
}

/// Whom a request that came by a connection is sent for; `None`: nobody. The requests of one client
/// often follow each other.
pub fn spoken_for(
    connection: &Connection,
    value: RawBsonRef<'_>,
) -> Result<Option<Arc<Owner>>, CommandError> {
    let (Some(client), RawBsonRef::Document(metadata)) = (Client::of(connection), value) else {
        return parse(value);
    };
    if let Some((told, owner)) = &*client.spoken_for.lock()
        && told.as_bytes() == metadata.as_bytes()
    {
        return Ok(Some(owner.clone()));
    }
    let owner = parse(value)?;
    if let Some(owner) = &owner {
        *client.spoken_for.lock() = Some((metadata.to_owned(), owner.clone()));
    }
    Ok(owner)
}

/// Whom the value of the field names; `None`: nobody.
fn parse(value: RawBsonRef<'_>) -> Result<Option<Arc<Owner>>, CommandError> {
    let wrong = |message: String| Err(CommandError::new(ErrorCode::TypeMismatch, message));
    let RawBsonRef::Document(metadata) = value else {
        return wrong(format!("BSON field '{FIELD}' is the wrong type"));
    };
    let users = match field(metadata, USERS) {
        None => return Ok(None),
        Some(RawBsonRef::Array(users)) => users,
        Some(_) => return wrong(format!("BSON field '{FIELD}.{USERS}' is the wrong type")),
    };
    let mut names: Vec<UserName> = Vec::new();
    for user in users {
        let name = user.ok().and_then(|user| user_name(user, ""));
        match name {
            Some(name) if names.len() < USERS_MAX => names.push(name),
            _ => return wrong(format!("BSON field '{FIELD}.{USERS}' names no users")),
        }
    }
    Ok((!names.is_empty()).then(|| Arc::new(Owner::new(names))))
}

/// Their roles, for whoever notes what they do; none if they cannot be read.
pub fn roles(value: RawBsonRef<'_>) -> Vec<RoleName> {
    let named = match value {
        RawBsonRef::Document(metadata) => field(metadata, ROLES),
        _ => None,
    };
    match named {
        Some(RawBsonRef::Array(roles)) => RoleName::parse_all(roles, "").unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// [`BYPASS`] of somebody who is no member of the cluster.
pub fn bypass_refused() -> CommandError {
    CommandError::new(
        ErrorCode::Location(6_317_500),
        "Client is not properly authorized to propagate mayBypassWriteBlocking",
    )
}

/// A field that only members of the cluster may send.
pub fn refused() -> CommandError {
    CommandError::new(
        ErrorCode::Unauthorized,
        "Unauthorized use of impersonation metadata.",
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use banyan_security::Restrictions;
    use bson::RawBson;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::identity::AuthorizedUser;

    fn user(name: &str, database: &str) -> Arc<AuthorizedUser> {
        Arc::new(AuthorizedUser {
            name: UserName::new(name, database),
            id: None,
            roles: vec![RoleName::new("read", "a")],
            granted: Default::default(),
            restrictions: Restrictions::default(),
        })
    }

    #[test]
    fn who_is_named_is_who_logged_in() {
        let identity = Identity::new(vec![user("x", "a"), user("y", "b")], 1);
        let sent = metadata(&identity);
        let read = parse(RawBsonRef::Document(&sent))
            .unwrap()
            .expect("somebody");
        assert_eq!(*read, **identity.owner());
        assert_eq!(read.names().len(), 2);
        // The same, whoever came before.
        let other = metadata(&Identity::new(vec![user("z", "a")], 1));
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let connection = Connection::new(1, nowhere, nowhere, CancellationToken::new());
        for (told, count) in [(&sent, 2), (&sent, 2), (&other, 1), (&sent, 2)] {
            let owner = spoken_for(&connection, RawBsonRef::Document(told)).unwrap();
            assert_eq!(owner.expect("somebody").names().len(), count);
        }
        let roles = roles(RawBsonRef::Document(&sent));
        assert_eq!(roles, [RoleName::new("read", "a")]);
        assert!(!is_nobody(RawBsonRef::Document(&sent)));
        let nobody = metadata(&Identity::default());
        let nobody = RawBsonRef::Document(&nobody);
        assert!(is_nobody(nobody));
        assert_eq!(parse(nobody).unwrap(), None);
        assert!(!is_nobody(RawBsonRef::Document(&rawdoc! {})));
    }

    #[test]
    fn what_is_sent_along_says_whether_blocked_writes_are_open() {
        let sent = of(&Identity::new(vec![user("x", "a")], 1));
        assert!(field(&sent, FIELD).is_some());
        assert_eq!(field(&sent, BYPASS), None);
        let sent = of(&Identity::new(vec![Arc::new(crate::members::member())], 1));
        assert_eq!(field(&sent, BYPASS), Some(RawBsonRef::Boolean(true)));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let wrong: [RawBson; 4] = [
            "x".into(),
            rawdoc! { "$impersonatedUsers": 1 }.into(),
            rawdoc! { "$impersonatedUsers": [{ "user": "x" }] }.into(),
            rawdoc! { "$impersonatedUsers": [1] }.into(),
        ];
        for value in &wrong {
            let error = parse(value.as_raw_bson_ref()).unwrap_err();
            assert_eq!(error.code, ErrorCode::TypeMismatch, "{value:?}");
        }
    }
}
