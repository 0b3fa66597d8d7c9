//! `moveChunk` and `moveRange`.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use banyan_access::check::Access;
use banyan_access::sharding;

pub const SPEC: CommandSpec =
    CommandSpec::new("moveChunk", "moves a chunk to another shard", run!(run))
        .access(Access::Checked(sharding::move_chunk))
        .aliases(&["movechunk", "moveRange"])
        .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = fields::full_name(context.request)?;
    let reply = pass::to_config(context, "_configsvrMoveRange", &[]).await;
    context.router.catalog.forget(&ns);
    reply
}
