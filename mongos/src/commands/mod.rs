//! What the router answers: one command, one file, and the table of them.

mod add_shard;
mod aggregate;
mod audit_config;
mod await_writes;
mod balancer;
mod build_info;
mod bulk_write;
mod cluster_catalog;
mod cluster_parameter;
mod coll_stats;
mod configure_fail_point;
mod conn_pool_stats;
mod connection_status;
mod count;
mod create;
mod create_indexes;
mod current_op;
mod data_size;
mod db_stats;
mod distinct;
mod drop;
mod drop_database;
mod drop_indexes;
mod enable_sharding;
mod everywhere;
mod explain;
mod file_md5;
mod find;
mod find_and_modify;
mod flush_router_config;
pub(crate) mod forward;
mod fsync;
mod get_cmd_line_opts;
mod get_log;
mod get_more;
mod get_parameter;
mod get_shard_map;
mod get_shard_version;
mod hello;
mod host_info;
mod index_changes;
mod is_db_grid;
mod kill_cursors;
mod kill_op;
mod list_collections;
mod list_commands;
mod list_databases;
mod list_indexes;
mod list_shards;
mod log_application_message;
mod log_rotate;
mod map_reduce;
mod move_chunk;
mod nested;
mod on_primary;
mod out;
mod own_sources;
mod pass;
mod ping;
mod pipeline;
mod plan_cache;
mod profile;
mod query_settings;
mod refused;
mod remove_shard;
mod rotate_certificates;
mod rw_concern_defaults;
mod sasl;
mod search_indexes;
mod server_status;
mod sessions;
pub mod set_parameter;
mod shard_collection;
mod sharded_data;
mod shutdown;
mod split;
mod user_management;
mod user_write_block;
mod viewed;
mod whats_my_uri;
mod write;
mod zones;

use std::sync::LazyLock;

use crate::context::{CommandSpec, CommandTable};

/// All of them.
pub static COMMANDS: LazyLock<CommandTable> = LazyLock::new(|| CommandTable::new(TABLE));

static TABLE: &[&[CommandSpec]] = &[
    &[
        find::SPEC,
        get_more::SPEC,
        write::INSERT,
        write::UPDATE,
        write::DELETE,
        bulk_write::SPEC,
        aggregate::SPEC,
        count::SPEC,
        distinct::SPEC,
        find_and_modify::SPEC,
        kill_cursors::SPEC,
        explain::SPEC,
        map_reduce::SPEC,
    ],
    &[
        hello::SPEC,
        ping::SPEC,
        build_info::SPEC,
        configure_fail_point::SPEC,
        host_info::SPEC,
        whats_my_uri::SPEC,
        connection_status::SPEC,
        profile::SPEC,
        fsync::SPEC,
        server_status::SPEC,
        get_cmd_line_opts::SPEC,
        get_log::SPEC,
        log_application_message::SPEC,
        log_rotate::SPEC,
        rotate_certificates::SPEC,
        get_parameter::SPEC,
        set_parameter::SPEC,
        list_commands::SPEC,
        current_op::SPEC,
        kill_op::SPEC,
        shutdown::SPEC,
    ],
    conn_pool_stats::SPECS,
    sasl::SPECS,
    user_management::SPECS,
    sessions::SPECS,
    &[
        list_databases::SPEC,
        list_collections::SPEC,
        list_indexes::SPEC,
        plan_cache::CLEAR,
        plan_cache::SET_FILTER,
        plan_cache::LIST_FILTERS,
        plan_cache::CLEAR_FILTERS,
        create::SPEC,
        create_indexes::SPEC,
        drop_indexes::SPEC,
        drop::SPEC,
        drop_database::SPEC,
        coll_stats::SPEC,
        data_size::SPEC,
        db_stats::SPEC,
        file_md5::SPEC,
    ],
    everywhere::SPECS,
    search_indexes::SPECS,
    on_primary::SPECS,
    &[
        add_shard::SPEC,
        list_shards::SPEC,
        remove_shard::SPEC,
        enable_sharding::SPEC,
        shard_collection::SPEC,
        split::SPEC,
        move_chunk::SPEC,
        flush_router_config::SPEC,
        get_shard_map::SPEC,
        get_shard_version::SPEC,
        is_db_grid::SPEC,
        await_writes::SPEC,
        audit_config::GET,
        audit_config::SET,
        cluster_parameter::GET,
        cluster_parameter::SET,
        query_settings::SET,
        query_settings::REMOVE,
        rw_concern_defaults::GET,
        rw_concern_defaults::SET,
        user_write_block::SPEC,
    ],
    balancer::SPECS,
    zones::SPECS,
    refused::SPECS,
];

#[cfg(test)]
mod tests {
    use banyan_access::check::Access;

    use super::*;

    #[test]
    fn every_command_says_what_it_needs() {
        for spec in COMMANDS.all() {
            let unnamed = matches!(spec.access, Access::Unnamed);
            assert!(!unnamed, "{} names no access", spec.name);
            // A client waits for its own writes; nothing else is for members.
            let is_internal = spec.name.starts_with('_') && spec.name != "_awaitWrites";
            assert!(!is_internal, "{} is for members", spec.name);
        }
    }

    #[test]
    fn every_spelling_is_there_once() {
        let specs = COMMANDS.all();
        let spellings: usize = specs.map(|spec| 1 + spec.aliases.len()).sum();
        assert_eq!(
            COMMANDS.spellings(),
            spellings,
            "a spelling stands for two commands"
        );
        for name in [
            "addshard",
            "enablesharding",
            "shardcollection",
            "movechunk",
            "mapreduce",
        ] {
            assert!(COMMANDS.find(name).is_some(), "{name}");
        }
    }
}
