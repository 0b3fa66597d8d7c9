//! `configureFailPoint`: what the router is to fail at, for tests.

use banyan_access::check::Access;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "configureFailPoint",
    "modifies the settings of a fail point",
    run!(run),
)
.access(Access::Anyone)
.admin_only()
.for_tests();

async fn run(context: &Context<'_>) -> CommandResult {
    context.router.fail_points.configure(&context.request.body)
}
