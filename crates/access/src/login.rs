//! What clients send to log in: `saslStart`, `saslContinue`, `authenticate`, and what comes within
//! `hello`.

use banyan_document::{elements, field};
use banyan_security::scram::Mechanism;
use banyan_security::{Privileges, RoleName, UserDefinition, UserName};
use banyan_wire::{CommandError, ErrorCode, params};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::administration::user_name;
use crate::audit;
use crate::certificates::{self, Claim};
use crate::check::is_true;
use crate::copies::without;
use crate::identity::Identity;
use crate::sasl::Start;
use crate::shape::shortened;

fn payload<'a>(
    command: &'static str,
    body: &'a RawDocument,
) -> Result<Option<&'a [u8]>, CommandError> {
    match field(body, "payload") {
        Some(RawBsonRef::Binary(binary)) => Ok(Some(binary.bytes)),
        Some(RawBsonRef::String(_)) | None => Ok(None),
        Some(value) => Err(params::Field {
            command,
            name: "payload",
            value,
        }
        .wrong_type("type 'binData'")),
    }
}

/// The first message of a conversation: a command's, or one that came within `hello`.
pub fn start<'a>(body: &'a RawDocument, database: &'a str) -> Result<Start<'a>, CommandError> {
    let Some(mechanism) = field(body, "mechanism").and_then(|value| value.as_str()) else {
        return Err(params::missing_field("saslStart", "mechanism"));
    };
    let Some(payload) = payload("saslStart", body)? else {
        return Err(params::missing_field("saslStart", "payload"));
    };
    let options = field(body, "options").and_then(|options| options.as_document());
    let skips_last = options
        .and_then(|options| field(options, "skipEmptyExchange"))
        .is_some_and(is_true);
    Ok(Start {
        database,
        mechanism,
        payload,
        skips_last,
    })
}

/// The id of the conversation that goes on, and what is said.
pub fn proceed(body: &RawDocument) -> Result<(i32, &[u8]), CommandError> {
    let Some(value) = field(body, "conversationId") else {
        return Err(params::missing_field("saslContinue", "conversationId"));
    };
    let conversation = params::Field {
        command: "saslContinue",
        name: "conversationId",
        value,
    }
    .i32()?;
    match payload("saslContinue", body)? {
        Some(payload) => Ok((conversation, payload)),
        None => Err(params::missing_field("saslContinue", "payload")),
    }
}

/// The first message of a login that a client sends along with `hello`. One that leads nowhere is
/// not answered: the client then begins anew, and is told why.
pub fn speculative(body: &RawDocument) -> Option<Start<'_>> {
    let database = field(body, "db")?.as_str()?;
    let command = elements(body).next()?;
    if command.name() != "saslStart" {
        return None;
    }
    start(body, database).ok()
}

/// What `authenticate` says beside the certificate of the connection.
///
/// # Errors
/// `MechanismUnavailable` for the login of 2012 and for mechanisms that nobody knows, `BadValue` for
/// those that take a conversation.
pub fn claim<'a>(body: &'a RawDocument, database: &'a str) -> Result<Claim<'a>, CommandError> {
    let text = |name| {
        let command = "authenticate";
        let text = |value| {
            params::Field {
                command,
                name,
                value,
            }
            .str()
        };
        field(body, name).map(text).transpose()
    };
    let (mechanism, user) = (text("mechanism")?, text("user")?);
    Err(match mechanism {
        Some(certificates::MECHANISM) => return Ok(Claim { database, user }),
        Some(other) if Mechanism::from_name(other).is_some() => CommandError::new(
            ErrorCode::BadValue,
            format!("Unsupported mechanism: {other}"),
        ),
        None | Some("MONGODB-CR") => too_old(),
        Some(other) => CommandError::new(
            ErrorCode::MechanismUnavailable,
            format!(
                "Received authentication for mechanism {} which is not enabled",
                shortened(other)
            ),
        ),
    })
}

/// `authenticate` that a client sends along with `hello`.
pub fn speculative_claim(body: &RawDocument) -> Option<Claim<'_>> {
    let database = field(body, "db")?.as_str()?;
    let is_meant = elements(body).next()?.name() == "authenticate";
    is_meant.then(|| claim(body, database).ok()).flatten()
}

/// The answer to MONGODB-CR.
pub fn too_old() -> CommandError {
    CommandError::new(
        ErrorCode::MechanismUnavailable,
        "MONGODB-CR is not supported: it proves a password by an MD5 digest, which whoever learns it \
         can log in with. Use a driver that knows SCRAM-SHA-1 or SCRAM-SHA-256",
    )
}

/// The parameter `authenticationMechanisms`: all of them.
pub fn enabled_mechanisms() -> RawArrayBuf {
    let passwords = Mechanism::ALL.iter().map(|mechanism| mechanism.name());
    std::iter::once(certificates::MECHANISM)
        .chain(passwords)
        .collect()
}

/// Whom `saslSupportedMechs` asks about: `"db.user"`, or `{user: "…", db: "…"}`.
pub fn asked_about(value: RawBsonRef<'_>) -> Result<UserName, CommandError> {
    let name = match value {
        RawBsonRef::String(text) => text
            .split_once('.')
            .map(|(database, user)| UserName::new(user, database)),
        value => user_name(value, ""),
    };
    name.ok_or_else(|| {
        CommandError::new(
            ErrorCode::BadValue,
            "UserName must contain a '.' separated database.user pair",
        )
    })
}

/// How a user may log in. One that does not exist seems to be able to as others do, so that nobody
/// learns which names there are.
pub fn mechanisms(user: Option<&UserDefinition>) -> RawArrayBuf {
    let has = |mechanism| {
        let known = |user: &UserDefinition| user.credentials.get(mechanism).is_some();
        user.is_none_or(known)
    };
    let all = [Mechanism::Sha256, Mechanism::Sha1].into_iter();
    all.filter(|mechanism| has(*mechanism))
        .map(Mechanism::name)
        .collect()
}

/// The reply to `hello` with what a client that is about to log in asks beside.
pub fn with_login(
    hello: RawDocumentBuf,
    mechanisms: Option<RawArrayBuf>,
    speculative: Option<RawDocumentBuf>,
) -> RawDocumentBuf {
    if mechanisms.is_none() && speculative.is_none() {
        return hello;
    }
    let mut out = without(&hello, &["ok"]);
    if let Some(mechanisms) = mechanisms {
        out.append(cstr!("saslSupportedMechs"), mechanisms);
    }
    if let Some(speculative) = speculative {
        out.append(
            cstr!("speculativeAuthenticate"),
            without(&speculative, &["ok"]),
        );
    }
    out.append(cstr!("ok"), 1.0);
    out
}

/// The reply to `connectionStatus`.
pub fn connection_status(identity: &Identity, show_privileges: bool) -> RawDocumentBuf {
    let mut users = RawArrayBuf::new();
    let mut roles: Vec<RoleName> = Vec::new();
    let mut privileges = Privileges::default();
    for user in &identity.users {
        users.push(rawdoc! { "user": user.name.user.as_str(), "db": user.name.database.as_str() });
        for role in &user.granted.roles {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
        privileges.add_all(user.granted.privileges());
    }
    let mut auth = rawdoc! {
        "authenticatedUsers": users,
        "authenticatedUserRoles": RoleName::array(&roles),
    };
    if show_privileges {
        auth.append(cstr!("authenticatedUserPrivileges"), privileges.to_array());
    }
    rawdoc! { "authInfo": auth, "ok": 1.0 }
}

/// `logout`: the client's user of this database has left.
pub fn leave(connection: &banyan_wire::Connection, database: &str) {
    if let Some(client) = crate::identity::Client::of(connection) {
        let known = client.identity();
        let rest = known.users.iter();
        let rest = rest.filter(|user| user.name.database != database);
        let rest = Identity::new(rest.cloned().collect(), known.generation);
        audit::logout(connection, &known, &rest, "Logging out on user request");
        client.set_identity(rest);
        *client.conversation.lock() = None;
    }
}
