//! The shard's part: what a data node does because it is one of many.
//!
//! A node becomes a shard when `addShard` writes its identity into it. From then on it holds, for
//! each collection that routers ask it about, the routing table as it last read it from the config
//! servers ([`metadata`]), refuses requests that were routed by another one, reads a newer one when
//! it knows less than the request ([`refresh`]), and hides documents that are not its own. It
//! watches what is written ([`role`]), cuts chunks that have grown ([`split`]), and gives and takes
//! chunks ([`migration`]).
//!
//! Routing tables are trusted for one term of this member as primary: a new primary reads them
//! anew, after it has settled the migrations that its predecessor left open.

mod cluster_parameters;
mod commands;
mod databases;
mod definitions;
mod errors;
mod index_rules;
mod keys;
mod logged;
mod metadata;
mod migration;
mod persisting;
mod refresh;
mod role;
mod signing_keys;
mod split;
mod state;

pub use commands::commands;
pub use state::ShardRole;
