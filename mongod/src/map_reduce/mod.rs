//! Map-reduce on a data node.
//!
//! [`parameters`] reads the command. [`input`] feeds the matching documents to a job in a script
//! host ([`banyan_script::hosts`]), all lanes at once, and [`output`] puts the results where they
//! belong. Three commands are made of these:
//!
//! * [`command`]: `mapReduce`, the whole of it on one node.
//! * [`shard`]: `_shardMapReduce` maps and reduces one shard's part and answers a cursor over the
//!   partial results in key order; `_shardMapReduceFinish`, on the shard where the output lives,
//!   reads the cursors of all shards, reduces what shares a key, finalizes, and writes.
//!
//! Replies count in 64-bit integers: `counts: {input, emit, reduce, output}`.

mod command;
mod error;
mod input;
mod output;
mod parameters;
mod reply;
mod shard;
mod shard_cursor;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use banyan_execution::Interrupt;
use banyan_node::commands::table::CommandSpec;
use banyan_node::node::Node;
use banyan_query::JavaScript;
use banyan_script::{HostOptions, Hosts};

use crate::javascript::Engine;

/// The commands that a data node adds to those of any node.
pub static COMMANDS: [&CommandSpec; 3] = [&command::SPEC, &shard::MAP_SPEC, &shard::FINISH_SPEC];

/// The argument that makes this program a script host.
pub const HOST_ARGUMENT: &str = "--script-host";

/// The process's pool of script hosts. The first job starts one.
fn hosts(node: &Node) -> &'static Hosts {
    static HOSTS: OnceLock<Hosts> = OnceLock::new();
    HOSTS.get_or_init(|| Hosts::new(host_options(node)))
}

/// The engine of one command's `$where`, in the same pool.
pub fn engine(node: &Node, interrupt: &Interrupt) -> Arc<dyn JavaScript> {
    Arc::new(Engine::new(hosts(node), interrupt))
}

fn host_options(node: &Node) -> HostOptions {
    // The running program, even if its file has been replaced since.
    let program = PathBuf::from("/proc/self/exe");
    let spill_directory = node.info.dbpath.join("_tmp");
    if let Err(error) = std::fs::create_dir_all(&spill_directory) {
        // A job that needs it will say so.
        tracing::warn!(%error, directory = %spill_directory.display(), "cannot be created");
    }
    let mut options = HostOptions::new(program, vec![HOST_ARGUMENT.to_owned()], spill_directory);
    let positive = |name| {
        usize::try_from(node.parameters.value(name))
            .ok()
            .filter(|n| *n > 0)
    };
    if let Some(isolates) = positive("scriptIsolates") {
        options.lanes = isolates;
    }
    if let Some(megabytes) = positive("jsHeapLimitMB") {
        options.heap_bytes_max = megabytes << 20;
    }
    options
}
