//! `logRotate`: the log goes on in a new file, as with SIGUSR1.

use banyan_access::check::Access;
use banyan_access::log_rotation::rotate;
use banyan_security::Action;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("logRotate", "goes on in a new log file", run!(run))
    .access(Access::Cluster(Action::LogRotate))
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let kind = context.request.first_value();
    tokio::task::block_in_place(|| rotate(context.connection, kind))
}
