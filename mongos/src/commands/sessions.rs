//! Logical sessions: they exist by being named. What belongs to one here are its cursors, and they
//! end with it.

use banyan_access::check::Access;
use banyan_access::identity::UserDigest;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("startSession", "names a new session", run!(start)).access(Access::LoggedIn),
    CommandSpec::new("refreshSessions", "keeps sessions alive", run!(refresh))
        .access(Access::LoggedIn),
    CommandSpec::new("endSessions", "ends sessions", run!(end)).access(Access::LoggedIn),
    CommandSpec::new("killSessions", "ends sessions", run!(kill)).access(Access::LoggedIn),
    CommandSpec::new("killAllSessions", "ends all sessions", run!(kill_all))
        .access(Access::Cluster(Action::KillAnySession)),
];

async fn start(_: &Context<'_>) -> CommandResult {
    let mut bytes: [u8; 16] = rand::random();
    // The marks of a random UUID.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    };
    Ok(rawdoc! {"id": {"id": id}, "timeoutMinutes": 30, "ok": 1.0})
}

/// A session that is named is alive: there is nothing to keep.
async fn refresh(context: &Context<'_>) -> CommandResult {
    named(context)?;
    Ok(rawdoc! {"ok": 1.0})
}

async fn end(context: &Context<'_>) -> CommandResult {
    let cursors = &context.router.cursors;
    let sessions = named(context)?;
    let owner = context.owner();
    let is_named = |session: &[u8]| sessions.iter().any(|ended| ended == session);
    let ids = cursors.of_sessions(owner.as_ref(), is_named);
    cursors.kill(&ids).await;
    Ok(rawdoc! {"ok": 1.0})
}

/// None named means all of one's own.
async fn kill(context: &Context<'_>) -> CommandResult {
    if named(context)?.is_empty() {
        return kill_of(context, context.owner()).await;
    }
    end(context).await
}

async fn kill_all(context: &Context<'_>) -> CommandResult {
    kill_of(context, None).await
}

/// `None`: everybody's.
async fn kill_of(context: &Context<'_>, owner: Option<UserDigest>) -> CommandResult {
    let cursors = &context.router.cursors;
    let ids = cursors.of_sessions(owner.as_ref(), |_| true);
    cursors.kill(&ids).await;
    Ok(rawdoc! {"ok": 1.0})
}

/// The ids of the sessions in the command's own array.
fn named(context: &Context<'_>) -> Result<Vec<Vec<u8>>, CommandError> {
    let request = context.request;
    let wrong = || {
        let text = format!(
            "BSON field '{0}.{0}' is the wrong type, expected type 'array' of sessions",
            request.name
        );
        CommandError::new(ErrorCode::TypeMismatch, text)
    };
    let Some(RawBsonRef::Array(sessions)) = request.first_value() else {
        return Err(wrong());
    };
    sessions
        .into_iter()
        .map(|session| {
            let session = session.ok().and_then(|session| session.as_document());
            match session.and_then(|session| fields::get(session, "id")) {
                Some(RawBsonRef::Binary(id)) => Ok(id.bytes.to_vec()),
                _ => Err(wrong()),
            }
        })
        .collect()
}
