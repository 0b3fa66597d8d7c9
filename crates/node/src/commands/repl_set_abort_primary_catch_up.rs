//! `replSetAbortPrimaryCatchUp`: ends the time in which a new primary fetches what it lacks.
//! A new primary here lacks nothing, so there is never anything to end.

use banyan_access::check::Access;
use banyan_security::Action;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetAbortPrimaryCatchUp", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetStateChange))
    .needs(Needs::Any)
    .admin_only()
    .help("ends a new primary's catching up");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    Err(ctx.node.replication.abort_catch_up())
}
