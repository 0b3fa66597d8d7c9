//! What config servers and other shards ask of a shard.

mod add_shard;
mod collections;
mod donate;
mod indexes;
mod receive;
mod state;
mod user_write_block;

use banyan_node::commands::table::CommandSpec;

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
        &donate::SESSION_MODS,
        &donate::TRANSFER_MODS,
        &indexes::ALIGN,
        &indexes::PLAN,
        &receive::ABORT,
        &receive::COMMIT,
        &receive::FINISH,
        &receive::START,
        &receive::STATUS,
        &state::SHARDING_STATE,
        &user_write_block::SPEC,
    ]
}
