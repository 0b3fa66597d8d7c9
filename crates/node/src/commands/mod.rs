//! The commands, one file each, and the table that they are found in.
//!
//! Read [`table`] first: a command is a [`table::CommandSpec`] in its file and a line below.

pub mod table;
mod time_series;

pub mod aggregate;
mod append_oplog_note;
mod applied_progress;
mod apply_ops;
mod audit_config;
mod authenticate;
mod auto_compact;
mod await_writes;
mod build_info;
mod bulk_write;
mod capped;
mod catalog_figures;
mod change_stream;
pub mod cluster_parameter;
pub(crate) mod clustered;
pub mod coll_mod;
mod coll_stats;
mod compact;
mod configure_fail_point;
mod conn_pool_stats;
mod connection_status;
mod convert_to_capped;
pub mod count;
mod create;
pub mod create_indexes;
mod create_options;
mod current_op;
mod data_size;
mod db_hash;
mod db_stats;
mod delete;
pub mod distinct;
mod drop;
mod drop_database;
pub mod drop_indexes;
mod engine_options;
pub(crate) mod expire_documents;
pub mod explain;
pub mod explanation;
mod fetch_snapshot;
mod file_md5;
pub mod find;
mod find_and_modify;
mod fsync;
mod geo_indexes;
mod get_cmd_line_opts;
mod get_log;
mod get_more;
mod get_parameter;
mod give_lead;
mod hello;
mod host_info;
mod images;
pub(crate) mod index_expiry;
mod index_filters;
mod index_key;
mod index_modification;
mod index_outline;
mod index_specification;
mod insert;
mod kill_cursors;
mod known_indexes;
mod list_catalog;
mod list_cluster_catalog;
mod list_collections;
mod list_commands;
mod list_databases;
mod list_indexes;
mod lock_info;
mod log_application_message;
mod log_rotate;
mod oplog_conditions;
mod out;
mod ping;
mod pipeline_rows;
mod pipeline_sources;
mod plan_cache;
mod profile;
pub mod query_settings;
mod query_stats;
mod raft_messages;
mod re_index;
mod rename_collection;
mod repl_set_abort_primary_catch_up;
mod repl_set_freeze;
mod repl_set_get_config;
mod repl_set_get_rbid;
mod repl_set_get_status;
mod repl_set_heartbeat;
mod repl_set_initiate;
mod repl_set_maintenance;
mod repl_set_reconfig;
mod repl_set_resize_oplog;
mod repl_set_step_down;
mod repl_set_step_up;
mod repl_set_sync_from;
mod role_management;
mod roles_info;
mod rotate_certificates;
mod rw_concern_defaults;
mod sasl;
mod search_indexes;
mod server_status;
pub mod sessions;
mod set_feature_compatibility_version;
mod set_index_commit_quorum;
mod set_parameter;
pub mod set_user_write_block_mode;
mod shutdown;
mod test_deprecation;
mod top;
mod unique_conversion;
mod update;
mod user_cache_generation;
mod user_management;
mod users_info;
mod validate;
mod validate_db_metadata;
mod validation;
mod vote_commit_index_build;
mod whats_my_uri;
pub mod write_report;

use table::CommandSpec;

/// The commands of every data-bearing member, by who answers them.
pub static BUILT_IN: &[&[&CommandSpec]] = &[SERVER, ACCESS, REPLICATION, READ, WRITE];

/// Who a client is, and what users may do.
static ACCESS: &[&CommandSpec] = &[
    &authenticate::LOGOUT,
    &authenticate::NONCE,
    &authenticate::SPEC,
    &connection_status::SPEC,
    &role_management::CREATE,
    &role_management::DROP,
    &role_management::DROP_ALL,
    &role_management::GRANT_PRIVILEGES,
    &role_management::GRANT_ROLES,
    &role_management::REVOKE_PRIVILEGES,
    &role_management::REVOKE_ROLES,
    &role_management::UPDATE,
    &roles_info::SPEC,
    &sasl::CONTINUE,
    &sasl::START,
    &user_cache_generation::SPEC,
    &user_management::CREATE,
    &user_management::DROP,
    &user_management::DROP_ALL,
    &user_management::GRANT_ROLES,
    &user_management::INVALIDATE_CACHE,
    &user_management::REVOKE_ROLES,
    &user_management::UPDATE,
    &users_info::SPEC,
];

/// About the process: nothing here touches a collection.
static SERVER: &[&CommandSpec] = &[
    &build_info::SPEC,
    &conn_pool_stats::SPEC,
    &conn_pool_stats::DROP,
    &configure_fail_point::SPEC,
    &current_op::SPEC,
    &current_op::KILL_SPEC,
    &fsync::SPEC,
    &fsync::UNLOCK_SPEC,
    &get_cmd_line_opts::SPEC,
    &get_log::SPEC,
    &get_parameter::SPEC,
    &host_info::SPEC,
    &list_commands::SPEC,
    &lock_info::SPEC,
    &audit_config::GET,
    &audit_config::SET,
    &log_application_message::SPEC,
    &log_rotate::SPEC,
    &ping::SPEC,
    &profile::SPEC,
    &rotate_certificates::SPEC,
    &server_status::SPEC,
    &sessions::START,
    &sessions::REFRESH,
    &sessions::END,
    &sessions::KILL,
    &sessions::KILL_ALL,
    &sessions::KILL_ALL_BY_PATTERN,
    &sessions::REFRESH_CACHE,
    &set_feature_compatibility_version::SPEC,
    &set_parameter::SPEC,
    &set_user_write_block_mode::SPEC,
    &shutdown::SPEC,
    &test_deprecation::SPEC,
    &top::SPEC,
    &whats_my_uri::SPEC,
];

/// Documents, indexes and what is known about them, without changing any.
static READ: &[&CommandSpec] = &[
    &aggregate::SPEC,
    &coll_stats::SPEC,
    &auto_compact::SPEC,
    &compact::SPEC,
    &count::SPEC,
    &data_size::SPEC,
    &db_hash::SPEC,
    &db_stats::SPEC,
    &distinct::SPEC,
    &explain::SPEC,
    &file_md5::SPEC,
    &find::SPEC,
    &get_more::SPEC,
    &index_filters::CLEAR,
    &index_filters::LIST,
    &index_filters::SET,
    &kill_cursors::SPEC,
    &list_collections::SPEC,
    &list_databases::SPEC,
    &list_indexes::SPEC,
    &plan_cache::CLEAR,
    &search_indexes::LIST,
    &validate::SPEC,
    &validate_db_metadata::SPEC,
];

/// What keeps a replica set together, and what tells clients about it.
static REPLICATION: &[&CommandSpec] = &[
    &append_oplog_note::SPEC,
    &applied_progress::SPEC,
    &await_writes::SPEC,
    &fetch_snapshot::SPEC,
    &expire_documents::SPEC,
    &give_lead::SPEC,
    &hello::SPEC,
    &raft_messages::SPEC,
    &repl_set_abort_primary_catch_up::SPEC,
    &repl_set_freeze::SPEC,
    &repl_set_get_config::SPEC,
    &repl_set_get_rbid::SPEC,
    &repl_set_get_status::SPEC,
    &repl_set_heartbeat::SPEC,
    &repl_set_initiate::SPEC,
    &repl_set_maintenance::SPEC,
    &repl_set_reconfig::SPEC,
    &repl_set_resize_oplog::SPEC,
    &repl_set_step_down::SPEC,
    &repl_set_step_up::SPEC,
    &repl_set_sync_from::SPEC,
    &cluster_parameter::GET,
    &cluster_parameter::SET,
    &query_settings::SET,
    &query_settings::REMOVE,
    &rw_concern_defaults::GET,
    &rw_concern_defaults::SET,
    &vote_commit_index_build::SPEC,
];

/// What changes documents, collections and indexes.
static WRITE: &[&CommandSpec] = &[
    &apply_ops::SPEC,
    &bulk_write::SPEC,
    &coll_mod::SPEC,
    &convert_to_capped::CLONE,
    &convert_to_capped::CONVERT,
    &create::SPEC,
    &create_indexes::SPEC,
    &delete::SPEC,
    &drop::SPEC,
    &drop_database::SPEC,
    &drop_indexes::SPEC,
    &find_and_modify::SPEC,
    &insert::SPEC,
    &re_index::SPEC,
    &rename_collection::SPEC,
    &search_indexes::CREATE,
    &search_indexes::DROP,
    &search_indexes::UPDATE,
    &set_index_commit_quorum::SPEC,
    &update::SPEC,
];

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_access::check::Access;

    #[test]
    fn every_command_says_what_it_needs() {
        for spec in BUILT_IN.iter().flat_map(|group| group.iter()) {
            let unnamed = matches!(spec.access, Access::Unnamed);
            assert!(!unnamed, "{} names no access", spec.name);
            // What only members tell each other begins so; a client waits for its own writes.
            if spec.name.starts_with('_') && spec.name != "_awaitWrites" {
                assert!(matches!(spec.access, Access::Member), "{}", spec.name);
            }
        }
    }
}
