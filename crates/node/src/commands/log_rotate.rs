//! `logRotate`: the log goes on in a new file, as with SIGUSR1.

use banyan_access::check::Access;
use banyan_access::log_rotation::rotate;
use banyan_execution::tickets::blocking;
use banyan_security::Action;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("logRotate", Run::Future(run))
    .access(Access::Cluster(Action::LogRotate))
    .needs(Needs::Any)
    .admin_only()
    .help("goes on in a new log file");

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move { blocking(|| rotate(ctx.conn, ctx.argument())) })
}
