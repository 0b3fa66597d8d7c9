//! Logical sessions as drivers and operators handle them: `startSession`, `refreshSessions`,
//! `endSessions`, `killSessions`, `killAllSessions`, `killAllSessionsByPattern`.

use banyan_access::users::Users;
use banyan_security::Action;
use banyan_wire::session_id::Lsid;
use banyan_wire::{CommandError, SessionId};
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::{self, Field};
use banyan_access::check::Access;
use banyan_access::identity::{self, digest_of};
use banyan_access::sessions::{self, Naming, Pattern};

pub static START: CommandSpec = CommandSpec::new("startSession", Run::Inline(start))
    .access(Access::LoggedIn)
    .needs(Needs::Any)
    .lenient();

pub static REFRESH: CommandSpec = CommandSpec::new("refreshSessions", Run::Inline(refresh))
    .access(Access::LoggedIn)
    .needs(Needs::Any);

pub static END: CommandSpec = CommandSpec::new("endSessions", Run::Inline(end))
    .access(Access::LoggedIn)
    .needs(Needs::Any);

pub static KILL: CommandSpec = CommandSpec::new("killSessions", Run::Inline(kill))
    .access(Access::LoggedIn)
    .parsed_as("KillSessionsCmd")
    .needs(Needs::Any)
    .lenient();

pub static KILL_ALL: CommandSpec = CommandSpec::new("killAllSessions", Run::Inline(kill_all))
    .access(Access::Cluster(Action::KillAnySession))
    .parsed_as("KillAllSessionsCmd")
    .needs(Needs::Any)
    .lenient();

pub static KILL_ALL_BY_PATTERN: CommandSpec =
    CommandSpec::new("killAllSessionsByPattern", Run::Inline(kill_by_pattern))
        .access(Access::Cluster(Action::KillAnySession))
        .parsed_as("KillAllSessionsByPatternCmd")
        .needs(Needs::Any)
        .lenient();

/// What is known of sessions is never older than the last command: there is nothing to bring up to
/// date.
pub static REFRESH_CACHE: CommandSpec =
    CommandSpec::new("refreshLogicalSessionCacheNow", Run::Inline(refresh_cache))
        .access(Access::LoggedIn)
        .needs(Needs::Any);

fn start(ctx: &CommandContext<'_>) -> CommandResult {
    let id = *uuid::Uuid::new_v4().as_bytes();
    let session = ctx.own_session(Lsid { id, uid: None }, Naming::Members)?;
    touch(ctx, session)?;
    let minutes = ctx
        .node
        .parameters
        .value("localLogicalSessionTimeoutMinutes");
    let minutes = i32::try_from(minutes).unwrap_or(i32::MAX);
    Ok(rawdoc! { "id": { "id": params::uuid(&id) }, "timeoutMinutes": minutes, "ok": 1.0 })
}

fn touch(ctx: &CommandContext<'_>, session: SessionId) -> Result<(), CommandError> {
    ctx.node.use_session(ctx.owner.as_deref(), session)
}

fn refresh(ctx: &CommandContext<'_>) -> CommandResult {
    let place = "refreshSessions.refreshSessionsFromClient";
    for session in named(ctx, place, Naming::Members)? {
        touch(ctx, session)?;
    }
    Ok(rawdoc! { "ok": 1.0 })
}

fn refresh_cache(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node.expire_sessions();
    Ok(rawdoc! { "ok": 1.0 })
}

fn end(ctx: &CommandContext<'_>) -> CommandResult {
    let place = "endSessions.endSessionsFromClient";
    for session in named(ctx, place, Naming::Members)? {
        ctx.node.end_session(&session);
    }
    Ok(rawdoc! { "ok": 1.0 })
}

/// None named means all of one's own.
fn kill(ctx: &CommandContext<'_>) -> CommandResult {
    let sessions = named(ctx, "KillSessionsCmd.killSessions", Naming::Killers)?;
    let mut patterns: Vec<_> = sessions.into_iter().map(Pattern::of_session).collect();
    if patterns.is_empty() {
        let own = sessions::user_of(ctx.owner.as_deref());
        patterns.push(Pattern::of_user(own));
    }
    ctx.node.kill_sessions(&patterns, ctx.conn.id);
    Ok(rawdoc! { "ok": 1.0 })
}

/// None named means those of everybody.
fn kill_all(ctx: &CommandContext<'_>) -> CommandResult {
    let users = sessions::users(ctx.argument().unwrap_or(RawBsonRef::Null))?;
    let mut patterns = Vec::new();
    for name in &users {
        if ctx.node.users().definition(name)?.is_none() {
            return Err(sessions::no_user(name));
        }
        patterns.push(Pattern::of_user(Some(digest_of(name))));
    }
    if patterns.is_empty() {
        patterns.push(Pattern::default());
    }
    ctx.node.kill_sessions(&patterns, ctx.conn.id);
    Ok(rawdoc! { "ok": 1.0 })
}

fn kill_by_pattern(ctx: &CommandContext<'_>) -> CommandResult {
    let identity = identity::known(ctx.conn);
    let identity = ctx.owner.as_ref().map(|_| &*identity);
    let argument = ctx.argument().unwrap_or(RawBsonRef::Null);
    let patterns = sessions::patterns(argument, identity)?;
    ctx.node.kill_sessions(&patterns, ctx.conn.id);
    Ok(rawdoc! { "ok": 1.0 })
}

/// The sessions in the command's own array.
fn named(
    ctx: &CommandContext<'_>,
    place: &str,
    naming: Naming,
) -> Result<Vec<SessionId>, CommandError> {
    let field = Field {
        command: ctx.spec.parsed_as,
        name: ctx.spec.name,
        value: ctx.argument().unwrap_or(RawBsonRef::Null),
    };
    let named = sessions::named(field, place)?;
    let own = |lsid| ctx.own_session(lsid, naming);
    named.into_iter().map(own).collect()
}
