//! The router: takes a client's commands, sends each to the shards that hold its documents, and
//! puts their answers together.
//!
//! A request comes in through [`service`], which finds its command in the table of [`commands`].
//! The command asks the [`catalog`] where the collection's documents live, sends its request, with
//! the version of that picture attached, through [`dispatch`], and merges what comes back
//! ([`merge`], [`cursors`]). A shard that knows a newer picture refuses; then the catalog is
//! refreshed from the config servers and the command runs again, and the client never sees it.
//!
//! A router holds no state that matters: whatever it knows it can read again from the config
//! servers ([`config_servers`]), so there may be any number of them.

pub mod answer;
pub mod catalog;
mod cluster_parameters;
pub mod collation;
mod collection_uuid;
pub mod commands;
pub mod config_servers;
pub mod context;
pub mod cursors;
pub mod defaults;
pub mod dispatch;
pub mod ending;
pub mod errors;
mod failing;
pub mod fields;
pub mod figures;
pub mod flags;
pub mod gossip;
pub mod javascript;
pub mod merge;
pub mod piped;
mod query_shapes;
pub mod registration;
pub mod router;
pub mod scripting;
pub mod service;
pub mod shards;
pub mod sources;
pub mod targeting;
pub mod upkeep;
pub mod users;
pub mod views;
mod without_shard_key;
pub mod writes;
