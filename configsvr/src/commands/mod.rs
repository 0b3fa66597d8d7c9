//! The config server's own commands, one file for each or for each pair that belongs together.

mod add_shard;
mod balancer_control;
mod change_indexes;
mod cluster_parameter;
mod commit_migration;
mod commit_split;
mod create_database;
mod drop;
mod fence;
pub mod move_range;
mod query_settings;
mod remove_shard;
mod rename_collection;
mod shard_collection;
mod split_chunk;
mod target;
mod user_write_block;
mod zones;

use banyan_node::commands::table::CommandSpec;

/// All of them, for the table of the process.
pub fn commands() -> Vec<&'static CommandSpec> {
    vec![
        &add_shard::SPEC,
        &balancer_control::START,
        &balancer_control::STOP,
        &balancer_control::STATUS,
        &change_indexes::SPEC,
        &cluster_parameter::SPEC,
        &commit_migration::SPEC,
        &commit_split::SPEC,
        &create_database::SPEC,
        &drop::COLLECTION,
        &drop::DATABASE,
        &fence::SPEC,
        &move_range::SPEC,
        &query_settings::SET,
        &query_settings::REMOVE,
        &remove_shard::SPEC,
        &rename_collection::SPEC,
        &shard_collection::SPEC,
        &split_chunk::SPEC,
        &user_write_block::SPEC,
        &zones::ADD,
        &zones::REMOVE,
        &zones::UPDATE_RANGE,
    ]
}
