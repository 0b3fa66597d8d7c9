//! What config servers and other shards ask of a shard.

mod add_shard;
mod collections;
mod donate;
mod receive;
mod state;

use std::future::Future;

use banyan_node::commands::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use banyan_node::context::CommandContext;

/// All of them, for the table of the process.
pub fn commands() -> Vec<&'static CommandSpec> {
    vec![
        &add_shard::SPEC,
        &collections::CREATE,
        &collections::DESCRIBE,
        &collections::DROP,
        &collections::FLUSH,
        &collections::PREPARE,
        &collections::SPLIT_POINTS,
        &collections::STATS,
        &donate::CLONE,
        &donate::IS_OPEN,
        &donate::MOVE_RANGE,
        &donate::TRANSFER_MODS,
        &receive::ABORT,
        &receive::COMMIT,
        &receive::FINISH,
        &receive::START,
        &receive::STATUS,
        &state::SHARDING_STATE,
    ]
}

/// A command of the shard's primary.
const fn primary_only(
    name: &'static str,
    run: for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>,
) -> CommandSpec {
    CommandSpec::new(name, Run::Future(run))
        .needs(Needs::Primary)
        .admin_only()
        .lenient()
}

fn boxed<'a>(
    future: impl Future<Output = CommandResult> + Send + 'a,
) -> BoxFuture<'a, CommandResult> {
    Box::pin(future)
}
