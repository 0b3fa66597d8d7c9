//! `addShard`.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use banyan_access::check::Access;
use banyan_security::Action;

pub const SPEC: CommandSpec = CommandSpec::new("addShard", "a shard joins the cluster", run!(run))
    .access(Access::Cluster(Action::AddShard))
    .aliases(&["addshard"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let reply = pass::to_config(context, "_configsvrAddShard", &[]).await?;
    context.router.shards.reload().await?;
    // Databases that the shard brought along.
    context.router.catalog.forget_everything();
    Ok(reply)
}
