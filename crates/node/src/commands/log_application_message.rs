//! `logApplicationMessage`: an application puts a line of its own into the audit log.

use banyan_access::audit;
use banyan_access::check::Access;
use banyan_security::Action;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("logApplicationMessage", Run::Inline(run))
    .access(Access::Cluster(Action::ApplicationMessage))
    .needs(Needs::Any)
    .admin_only()
    .help("puts a message into the audit log");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    audit::application_message(ctx.conn, ctx.argument())
}
