//! `removeShard`: starts draining a shard, and tells how far that is.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use banyan_access::check::Access;
use banyan_security::Action;

pub const SPEC: CommandSpec =
    CommandSpec::new("removeShard", "a shard leaves the cluster", run!(run))
        .access(Access::Cluster(Action::RemoveShard))
        .aliases(&["removeshard"])
        .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let reply = pass::to_config(context, "_configsvrRemoveShard", &[]).await?;
    context.router.shards.reload().await?;
    Ok(reply)
}
