//! `startSession`, `refreshSessions`, `endSessions`: logical sessions as drivers keep them.
//!
//! A session needs no record of its own here: it exists by being named. What belongs to one are
//! its cursors, which end with it, and the outcome of its last write, which is kept with the data.

use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static START: CommandSpec =
    CommandSpec::new("startSession", Run::Inline(start)).needs(Needs::Any);

pub static REFRESH: CommandSpec =
    CommandSpec::new("refreshSessions", Run::Inline(refresh)).needs(Needs::Any);

pub static END: CommandSpec = CommandSpec::new("endSessions", Run::Inline(end)).needs(Needs::Any);

pub static KILL: CommandSpec = CommandSpec::new("killSessions", Run::Inline(end)).needs(Needs::Any);

fn start(ctx: &CommandContext<'_>) -> CommandResult {
    let id = uuid::Uuid::new_v4();
    let id = crate::params::uuid(id.as_bytes());
    let minutes = ctx
        .node
        .parameters
        .value("localLogicalSessionTimeoutMinutes");
    let minutes = i32::try_from(minutes).unwrap_or(i32::MAX);
    Ok(rawdoc! { "id": { "id": id }, "timeoutMinutes": minutes, "ok": 1.0 })
}

fn refresh(ctx: &CommandContext<'_>) -> CommandResult {
    named(ctx)?;
    Ok(rawdoc! { "ok": 1.0 })
}

fn end(ctx: &CommandContext<'_>) -> CommandResult {
    for session in named(ctx)? {
        ctx.node.cursors.kill_session(session);
    }
    Ok(rawdoc! { "ok": 1.0 })
}

/// The sessions in the command's own array.
fn named(ctx: &CommandContext<'_>) -> Result<Vec<[u8; 16]>, CommandError> {
    let Some(RawBsonRef::Array(sessions)) = ctx.argument() else {
        return Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "BSON field '{0}.{0}' is the wrong type, expected type 'array'",
                ctx.spec.name
            ),
        ));
    };
    sessions
        .into_iter()
        .map(|session| match session {
            Ok(RawBsonRef::Document(session)) => session_id(session),
            _ => Err(not_a_session()),
        })
        .collect()
}

/// The bytes of `{id: UUID(…)}`.
pub fn session_id(lsid: &RawDocument) -> Result<[u8; 16], CommandError> {
    match lsid.get("id") {
        Ok(Some(RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::Uuid,
            bytes,
        }))) => bytes.try_into().map_err(|_| not_a_session()),
        _ => Err(not_a_session()),
    }
}

fn not_a_session() -> CommandError {
    CommandError::new(
        ErrorCode::InvalidUUID,
        "a session's id must be a UUID of 16 bytes",
    )
}
