//! `configureFailPoint`: what the server is to fail at, for tests.

use banyan_access::check::Access;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("configureFailPoint", Run::Inline(run))
    .access(Access::Anyone)
    .help("modifies the settings of a fail point")
    .needs(Needs::Any)
    .admin_only()
    .for_tests()
    .takes_concern()
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node.fail_points.configure(ctx.body())
}
