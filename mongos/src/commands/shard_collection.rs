//! `shardCollection`.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use banyan_access::check::Access;
use banyan_access::sharding;

pub const SPEC: CommandSpec = CommandSpec::new(
    "shardCollection",
    "cuts a collection into chunks",
    run!(run),
)
.access(Access::Checked(sharding::shard_collection))
.aliases(&["shardcollection"])
.admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = fields::full_name(context.request)?;
    let reply = pass::to_config(context, "_configsvrShardCollection", &[]).await?;
    let (database, _) = ns.split_once('.').unwrap_or((&ns, ""));
    context.router.catalog.forget_database(database);
    Ok(reply)
}
