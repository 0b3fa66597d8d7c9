//! `profile`: how slow a command has to be to be logged. Nothing is profiled into a collection.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("profile", Run::Inline(run))
    .access(Access::Checked(reads_and_writes::profile))
    .needs(Needs::Any)
    .fields(&["slowms", "sampleRate"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let Some(value) = ctx.argument() else {
        return Err(CommandError::new(ErrorCode::FailedToParse, "empty command"));
    };
    let level = Field {
        command: "profile",
        name: "profile",
        value,
    }
    .i64()?;
    if !(-1..=0).contains(&level) {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "the profiler's levels above 0 are not supported; slow commands are in the log",
        ));
    }
    let parameters = &ctx.node.parameters;
    let slow_ms = i32::try_from(parameters.slow_ms()).unwrap_or(i32::MAX);
    if level == 0
        && let Some(field) = ctx.field("slowms")
    {
        parameters.set("slowMS", RawBsonRef::Int64(field.i64()?), false)?;
    }
    Ok(rawdoc! { "was": 0, "slowms": slow_ms, "sampleRate": 1.0, "ok": 1.0 })
}
