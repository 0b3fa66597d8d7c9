//! `replSetGetStatus`: the members of the set, as this one sees them.

use banyan_access::check::Access;
use banyan_security::Action;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetGetStatus", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetGetStatus))
    .aliases(&["replsetgetstatus"])
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("the members of the replica set and their states")
    .ignored(&["initialSync", "forShell"])
    .vital();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node.replication.status_document()
}
