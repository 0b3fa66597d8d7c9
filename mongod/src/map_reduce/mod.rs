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
//! [`remote_script`] runs the scripts of what a router computes.
//!
//! [`explain`] tells how the first of them would be done.
//!
//! Replies count in 64-bit integers: `counts: {input, emit, reduce, output}`.

mod command;
mod error;
mod explain;
mod hosts;
mod input;
mod output;
mod parameters;
mod remote_script;
mod reply;
mod shard;
mod shard_cursor;

use banyan_node::commands::table::CommandSpec;

pub use hosts::{HOST_ARGUMENT, engine};

/// The commands that a data node adds to those of any node.
pub static COMMANDS: [&CommandSpec; 4] = [
    &command::SPEC,
    &shard::MAP_SPEC,
    &shard::FINISH_SPEC,
    &remote_script::SPEC,
];
