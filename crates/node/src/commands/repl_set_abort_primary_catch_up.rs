//! `replSetAbortPrimaryCatchUp`: ends the time in which a new primary fetches what it lacks.
//! A new primary here lacks nothing, so there is never anything to end.

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetAbortPrimaryCatchUp", Run::Inline(run))
    .needs(Needs::Any)
    .admin_only()
    .privilege("replSetStateChange")
    .help("ends a new primary's catching up");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    Err(ctx.node.replication.abort_catch_up())
}
