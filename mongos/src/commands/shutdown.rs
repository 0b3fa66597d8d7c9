//! `shutdown`.

use banyan_access::audit;
use banyan_access::check::Access;
use banyan_security::Action;
use bson::rawdoc;
use tracing::info;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("shutdown", "ends the process", run!(run))
    .access(Access::Cluster(Action::Shutdown))
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    info!(client = %context.connection.peer, "shutdown was asked for");
    audit::shutdown(Some(context.connection));
    context.router.identity.stop.cancel();
    Ok(rawdoc! {"ok": 1.0})
}
