//! `logApplicationMessage`: an application puts a line of its own into the audit log.

use banyan_access::audit;
use banyan_access::check::Access;
use banyan_security::Action;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "logApplicationMessage",
    "puts a message into the audit log",
    run!(run),
)
.access(Access::Cluster(Action::ApplicationMessage))
.admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    audit::application_message(context.connection, context.request.first_value())
}
