//! What the router answers: one command, one file, and the table of them.

mod add_shard;
mod aggregate;
mod await_writes;
mod balancer;
mod build_info;
mod coll_stats;
mod connection_status;
mod count;
mod create;
mod create_indexes;
mod current_op;
mod db_stats;
mod distinct;
mod drop;
mod drop_database;
mod drop_indexes;
mod enable_sharding;
mod explain;
mod find;
mod find_and_modify;
mod flush_router_config;
mod forward;
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
mod log_rotate;
mod map_reduce;
mod move_chunk;
mod on_primary;
mod pass;
mod ping;
mod refused;
mod remove_shard;
mod rw_concern_defaults;
mod server_status;
mod sessions;
mod set_parameter;
mod shard_collection;
mod sharded_data;
mod shutdown;
mod split;
mod whats_my_uri;
mod write;
mod zones;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use banyan_query::QueryError;
use banyan_wire::{CommandError, Connection, ErrorCode, Request, Treatment};
use bson::RawDocumentBuf;
use tokio::time::Instant;

pub use forward::passed_on;
pub use host_info::hostname;

use crate::catalog::Route;
use crate::dispatch::{Answer, treatment};
use crate::ending::Ending;
use crate::router::Router;

/// What a command runs with.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub router: &'a Arc<Router>,
    pub connection: &'a Arc<Connection>,
    pub request: &'a Request,
    /// When the client's `maxTimeMS` ends.
    pub deadline: Option<Instant>,
}

impl Context<'_> {
    /// How the request, or one that is made for it, may be treated on its way to a shard.
    pub fn treatment(&self, writes: bool) -> Treatment {
        treatment(self.request, writes).deadline(self.deadline)
    }

    /// What ends the work that is done here for the command.
    pub fn ending(&self) -> Arc<Ending> {
        Ending::new(self.connection, self.deadline)
    }

    /// `database.collection` for the collection that the command's first field names.
    pub fn namespace(&self) -> Result<String, CommandError> {
        let collection = crate::fields::collection(self.request)?;
        Ok(format!("{}.{collection}", self.request.database))
    }
}

pub type CommandResult = Result<RawDocumentBuf, CommandError>;
pub type BoxFuture<'a> = Pin<Box<dyn Future<Output = CommandResult> + Send + 'a>>;

/// One line of the table.
pub struct CommandSpec {
    pub name: &'static str,
    /// Other spellings, such as the lower-case ones of the 2.x shell.
    pub aliases: &'static [&'static str],
    pub help: &'static str,
    pub admin_only: bool,
    pub run: for<'a> fn(&'a Context<'a>) -> BoxFuture<'a>,
}

impl CommandSpec {
    const fn new(
        name: &'static str,
        help: &'static str,
        run: for<'a> fn(&'a Context<'a>) -> BoxFuture<'a>,
    ) -> CommandSpec {
        CommandSpec {
            name,
            aliases: &[],
            help,
            admin_only: false,
            run,
        }
    }

    const fn aliases(mut self, aliases: &'static [&'static str]) -> CommandSpec {
        self.aliases = aliases;
        self
    }

    const fn admin_only(mut self) -> CommandSpec {
        self.admin_only = true;
        self
    }
}

/// A table line's function out of a command's `async fn`.
macro_rules! run {
    ($function:path) => {
        |context| Box::pin($function(context))
    };
}
use run;

pub static TABLE: &[&[CommandSpec]] = &[
    &[
        find::SPEC,
        get_more::SPEC,
        write::INSERT,
        write::UPDATE,
        write::DELETE,
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
        host_info::SPEC,
        whats_my_uri::SPEC,
        connection_status::SPEC,
        server_status::SPEC,
        get_cmd_line_opts::SPEC,
        get_log::SPEC,
        log_rotate::SPEC,
        get_parameter::SPEC,
        set_parameter::SPEC,
        list_commands::SPEC,
        current_op::SPEC,
        kill_op::SPEC,
        shutdown::SPEC,
    ],
    sessions::SPECS,
    &[
        list_databases::SPEC,
        list_collections::SPEC,
        list_indexes::SPEC,
        create::SPEC,
        create_indexes::SPEC,
        drop_indexes::SPEC,
        drop::SPEC,
        drop_database::SPEC,
        coll_stats::SPEC,
        db_stats::SPEC,
    ],
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
        rw_concern_defaults::GET,
        rw_concern_defaults::SET,
    ],
    balancer::SPECS,
    zones::SPECS,
    refused::SPECS,
];

/// Every command by every spelling, with its place in the table.
static BY_NAME: LazyLock<HashMap<&'static str, (usize, &'static CommandSpec)>> =
    LazyLock::new(|| {
        all()
            .enumerate()
            .flat_map(|(place, spec)| {
                std::iter::once(spec.name)
                    .chain(spec.aliases.iter().copied())
                    .map(move |name| (name, (place, spec)))
            })
            .collect()
    });

pub fn find(name: &str) -> Option<(usize, &'static CommandSpec)> {
    BY_NAME.get(name).copied()
}

/// The table's lines, in the order of their places.
pub fn all() -> impl Iterator<Item = &'static CommandSpec> {
    TABLE.iter().flat_map(|group| group.iter())
}

/// Passes a write on to the one shard that takes all of it.
pub async fn forward_write(
    context: &Context<'_>,
    route: &Route,
    shard: &str,
) -> Result<Answer, CommandError> {
    forward::forward(context, route, shard, true).await
}

/// A database that vanished between being made and being used.
fn no_database() -> CommandError {
    CommandError::new(
        ErrorCode::NamespaceNotFound,
        "the database was dropped meanwhile",
    )
}

pub fn query_error(error: QueryError) -> CommandError {
    CommandError::new(ErrorCode::from_code(error.kind.code()), error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_there_once() {
        let specs: Vec<_> = TABLE.iter().flat_map(|group| group.iter()).collect();
        let spellings: usize = specs.iter().map(|spec| 1 + spec.aliases.len()).sum();
        assert_eq!(
            BY_NAME.len(),
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
            assert!(find(name).is_some(), "{name}");
        }
    }
}
