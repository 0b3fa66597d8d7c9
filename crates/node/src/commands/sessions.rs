//! Logical sessions as drivers and operators handle them: `startSession`, `refreshSessions`,
//! `endSessions`, `killSessions`, `killAllSessions`, `killAllSessionsByPattern`.

use banyan_replication::sessions::session_id::{self, SessionId};
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::access::check::Access;
use crate::context::CommandContext;
use crate::params::{self, Field};

pub static START: CommandSpec = CommandSpec::new("startSession", Run::Inline(start))
    .access(Access::LoggedIn)
    .needs(Needs::Any);

pub static REFRESH: CommandSpec = CommandSpec::new("refreshSessions", Run::Inline(refresh))
    .access(Access::LoggedIn)
    .needs(Needs::Any);

pub static END: CommandSpec = CommandSpec::new("endSessions", Run::Inline(end))
    .access(Access::LoggedIn)
    .needs(Needs::Any);

pub static KILL: CommandSpec = CommandSpec::new("killSessions", Run::Inline(kill))
    .access(Access::LoggedIn)
    .needs(Needs::Any);

pub static KILL_ALL: CommandSpec = CommandSpec::new("killAllSessions", Run::Inline(kill_all))
    .access(Access::Cluster(Action::KillAnySession))
    .parsed_as("KillAllSessionsCmd")
    .needs(Needs::Any);

pub static KILL_ALL_BY_PATTERN: CommandSpec =
    CommandSpec::new("killAllSessionsByPattern", Run::Inline(kill_by_pattern))
        .access(Access::Cluster(Action::KillAnySession))
        .parsed_as("KillAllSessionsByPatternCmd")
        .needs(Needs::Any);

/// What is known of sessions is never older than the last command: there is nothing to bring up to
/// date.
pub static REFRESH_CACHE: CommandSpec =
    CommandSpec::new("refreshLogicalSessionCacheNow", Run::Inline(refresh_cache))
        .access(Access::LoggedIn)
        .needs(Needs::Any);

fn start(ctx: &CommandContext<'_>) -> CommandResult {
    let id = *uuid::Uuid::new_v4().as_bytes();
    touch(ctx, id)?;
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
    for session in named(ctx)? {
        touch(ctx, session)?;
    }
    Ok(rawdoc! { "ok": 1.0 })
}

fn refresh_cache(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node.expire_sessions();
    Ok(rawdoc! { "ok": 1.0 })
}

fn end(ctx: &CommandContext<'_>) -> CommandResult {
    for session in named(ctx)? {
        ctx.node
            .end_own_session(ctx.owner.as_deref(), &session, false);
    }
    Ok(rawdoc! { "ok": 1.0 })
}

/// None named means all of one's own.
fn kill(ctx: &CommandContext<'_>) -> CommandResult {
    let sessions = named(ctx)?;
    if sessions.is_empty() {
        ctx.node
            .kill_own_sessions(ctx.owner.as_deref(), ctx.conn.id);
    }
    for session in sessions {
        ctx.node
            .end_own_session(ctx.owner.as_deref(), &session, true);
    }
    Ok(rawdoc! { "ok": 1.0 })
}

fn kill_all(ctx: &CommandContext<'_>) -> CommandResult {
    if let Some(user) = listed(ctx)?.first() {
        let part = |name: &'static str| match user.get(name) {
            Ok(Some(RawBsonRef::String(text))) => Ok(text),
            _ => Err(params::missing_field(
                "KillAllSessionsCmd.killAllSessions",
                name,
            )),
        };
        let (user, database) = (part("user")?, part("db")?);
        // Nobody logs in, so nobody has a name.
        return Err(CommandError::new(
            ErrorCode::UserNotFound,
            format!("Could not find user \"{user}\" for db \"{database}\""),
        ));
    }
    ctx.node.kill_all_sessions(ctx.conn.id);
    Ok(rawdoc! { "ok": 1.0 })
}

fn kill_by_pattern(ctx: &CommandContext<'_>) -> CommandResult {
    let patterns = listed(ctx)?;
    if patterns.is_empty() {
        ctx.node.kill_all_sessions(ctx.conn.id);
    }
    for pattern in patterns {
        for (name, value) in pattern.iter().flatten() {
            let field = Field {
                command: "KillAllSessionsByPattern",
                name: name.as_str(),
                value,
            };
            match name.as_str() {
                "lsid" => {
                    let session = session_id::parse(field.document()?)?;
                    ctx.node.end_session(&session, true);
                }
                "uid" => {
                    let everybody = matches!(
                        value,
                        RawBsonRef::Binary(uid) if uid.bytes == session_id::nobody().bytes
                    );
                    if everybody {
                        ctx.node.kill_all_sessions(ctx.conn.id);
                    }
                }
                "users" | "roles" => {}
                other => {
                    return Err(params::unknown_field("KillAllSessionsByPattern", other));
                }
            }
        }
    }
    Ok(rawdoc! { "ok": 1.0 })
}

/// The documents in the command's own array.
fn listed<'a>(ctx: &CommandContext<'a>) -> Result<Vec<&'a RawDocument>, CommandError> {
    let field = Field {
        command: ctx.spec.name,
        name: ctx.spec.name,
        value: ctx.argument().unwrap_or(RawBsonRef::Null),
    };
    params::documents(field)
}

/// The sessions in the command's own array.
fn named(ctx: &CommandContext<'_>) -> Result<Vec<SessionId>, CommandError> {
    listed(ctx)?.into_iter().map(session_id::parse).collect()
}
