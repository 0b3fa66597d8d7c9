//! The process's script hosts.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use banyan_execution::Interrupt;
use banyan_node::context::CommandContext;
use banyan_node::node::Node;
use banyan_query::JavaScript;
use banyan_script::hosts::{Interrupted, MapReduceJob};
use banyan_script::{HostOptions, Hosts, MapReduceSpec};
use banyan_wire::CommandError;

use super::error::Failure;
use crate::javascript::Engine;

/// The argument that makes this program a script host.
pub const HOST_ARGUMENT: &str = "--script-host";

/// The process's pool of script hosts. The first job starts one.
pub(super) fn hosts(node: &Node) -> &'static Hosts {
    static HOSTS: OnceLock<Hosts> = OnceLock::new();
    HOSTS.get_or_init(|| Hosts::new(host_options(node)))
}

/// A job in a host of the pool.
pub(super) fn start(
    ctx: &CommandContext<'_>,
    functions: &MapReduceSpec,
) -> Result<MapReduceJob, CommandError> {
    let job = hosts(ctx.node).map_reduce(functions, interrupted(ctx.interrupt()));
    job.map_err(|error| Failure::Job(error).into_error(ctx.interrupt()))
}

fn interrupted(interrupt: &Interrupt) -> Interrupted {
    let interrupt = interrupt.clone();
    Arc::new(move || interrupt.check().is_err())
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
