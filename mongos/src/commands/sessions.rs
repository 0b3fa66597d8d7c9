//! Logical sessions: they exist by being named. What belongs to one are its cursors here, and its
//! cursors and running commands on shards; they end with it. Shards keep sessions for as long as they
//! are named there: what a client says to keep or to end, they are told.

use std::sync::Arc;
use std::time::Duration;

use banyan_access::check::Access;
use banyan_access::identity::{Identity, digest_of};
use banyan_access::sessions::{self, Naming, Pattern};
use banyan_security::Action;
use banyan_wire::params::Field;
use banyan_wire::{CommandError, ErrorCode, SessionId};
use bson::raw::CStr;
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use futures::future::join_all;
use tracing::debug;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::shards::Shard;

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("startSession", "names a new session", run!(start)).access(Access::LoggedIn),
    CommandSpec::new("refreshSessions", "keeps sessions alive", run!(refresh))
        .access(Access::LoggedIn),
    CommandSpec::new("endSessions", "ends sessions", run!(end)).access(Access::LoggedIn),
    CommandSpec::new("killSessions", "ends sessions", run!(kill)).access(Access::LoggedIn),
    CommandSpec::new("killAllSessions", "ends all sessions", run!(kill_all))
        .access(Access::Cluster(Action::KillAnySession)),
    CommandSpec::new(
        "killAllSessionsByPattern",
        "ends sessions that fit",
        run!(kill_by_pattern),
    )
    .access(Access::Cluster(Action::KillAnySession)),
];

/// A member of a shard that does not answer is left to itself: whatever it still does, nobody hears
/// of.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients that leave do not wait for it for long, and a session that nobody names ends by itself.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);

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

async fn refresh(context: &Context<'_>) -> CommandResult {
    let place = "refreshSessions.refreshSessionsFromClient";
    let sessions = named(context, "refreshSessions", place, Naming::Members)?;
    tell_all(context, cstr!("refreshSessions"), &sessions).await;
    Ok(rawdoc! {"ok": 1.0})
}

async fn end(context: &Context<'_>) -> CommandResult {
    let place = "endSessions.endSessionsFromClient";
    let sessions = named(context, "endSessions", place, Naming::Members)?;
    let cursors = &context.router.cursors;
    let ids = cursors.of_sessions(|session| sessions.contains(session));
    cursors.kill(&ids).await;
    tell_all(context, cstr!("endSessions"), &sessions).await;
    Ok(rawdoc! {"ok": 1.0})
}

/// Tells every member that may know sessions. Who cannot be told is left to itself.
async fn tell_all(context: &Context<'_>, command: &CStr, sessions: &[SessionId]) {
    if sessions.is_empty() {
        return;
    }
    let sessions: RawArrayBuf = sessions.iter().map(SessionId::document).collect();
    let mut told = RawDocumentBuf::new();
    told.append(command, sessions);
    let shards = &context.router.shards;
    let known = shards.all();
    let sets = known.values().chain([shards.config()]);
    let told = sets.map(|shard| tell_members(shard, &told, TELL_TIMEOUT));
    join_all(told).await;
}

/// None named means all of one's own.
async fn kill(context: &Context<'_>) -> CommandResult {
    let place = "KillSessionsCmd.killSessions";
    let sessions = named(context, "KillSessionsCmd", place, Naming::Killers)?;
    let mut patterns: Vec<_> = sessions.into_iter().map(Pattern::of_session).collect();
    if patterns.is_empty() {
        patterns.push(Pattern::of_user(user(context.identity().as_deref())));
    }
    kill_what_fits(context, &patterns).await
}

/// None named means those of everybody.
async fn kill_all(context: &Context<'_>) -> CommandResult {
    let users = sessions::users(argument(context))?;
    let mut patterns = Vec::new();
    for name in &users {
        if context.router.users.fetch(name).await?.is_none() {
            return Err(sessions::no_user(name));
        }
        patterns.push(Pattern::of_user(Some(digest_of(name))));
    }
    if patterns.is_empty() {
        patterns.push(Pattern::default());
    }
    kill_what_fits(context, &patterns).await
}

async fn kill_by_pattern(context: &Context<'_>) -> CommandResult {
    let identity = context.identity();
    let patterns = sessions::patterns(argument(context), identity.as_deref())?;
    kill_what_fits(context, &patterns).await
}

async fn kill_what_fits(context: &Context<'_>, patterns: &[Pattern]) -> CommandResult {
    let router = context.router;
    let cursors = &router.cursors;
    let fits = |session: &SessionId| patterns.iter().any(|pattern| pattern.matches(session));
    cursors.kill(&cursors.of_sessions(fits)).await;
    router.shards.reload().await?;
    let shards = router.shards.all();
    let command = sessions::kill_command(patterns);
    let told = shards.values().map(|shard| tell(shard, &command));
    for told in join_all(told).await {
        told?;
    }
    Ok(rawdoc! {"ok": 1.0})
}

/// Every member may run something for the session. One at least has to answer.
async fn tell(shard: &Arc<Shard>, command: &RawDocument) -> Result<(), CommandError> {
    if tell_members(shard, command, KILL_TIMEOUT).await {
        return Ok(());
    }
    Err(CommandError::new(
        ErrorCode::HostUnreachable,
        format!("no member of shard {} could be told", shard.id),
    ))
}

/// Whether one at least has answered.
async fn tell_members(shard: &Shard, command: &RawDocument, timeout: Duration) -> bool {
    let members = shard.set.members();
    let told = members.iter().map(|member| async move {
        let pool = shard.set.pool(member);
        let answer = pool.command("admin", command, Some(timeout)).await;
        answer.inspect_err(|error| debug!(member, %error, "not told of sessions"))
    });
    join_all(told).await.iter().any(Result::is_ok)
}

/// The user whose sessions the client's are; `None` where users do not count.
fn user(identity: Option<&Identity>) -> Option<[u8; 32]> {
    sessions::user_of(identity.map(|identity| &**identity.owner()))
}

fn argument<'a>(context: &Context<'a>) -> RawBsonRef<'a> {
    context.request.first_value().unwrap_or(RawBsonRef::Null)
}

/// The sessions in the command's own array.
fn named(
    context: &Context<'_>,
    command: &'static str,
    place: &str,
    naming: Naming,
) -> Result<Vec<SessionId>, CommandError> {
    let field = Field {
        command,
        name: &context.request.name,
        value: argument(context),
    };
    let identity = context.identity();
    let owner = identity.as_ref().map(|identity| &**identity.owner());
    let nobody = Identity::default();
    let own = |lsid| {
        let identity = identity.as_deref().unwrap_or(&nobody);
        sessions::resolve(lsid, owner, identity, naming)
    };
    let named = sessions::named(field, place)?;
    named.into_iter().map(own).collect()
}
