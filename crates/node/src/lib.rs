//! What every data-bearing member answers.
//!
//! A request comes in through [`service`], which finds its line in the table of [`commands`] and
//! runs it in a [`context`]. Reads are planned and executed over storage snapshots by
//! `banyan_execution`, and what does not fit into one reply waits in [`cursors`]. Writes are worked out and
//! proposed in [`write`], which also holds the state machine that every member of a set applies
//! the log to; [`replication`] keeps the set together. A [`node::Node`] is all of it, assembled.

pub mod account;
pub mod catalog_ops;
pub mod change_stream;
pub mod clock;
pub mod commands;
pub mod context;
pub mod counters;
pub mod cursors;
pub mod errors;
pub mod index_changes;
pub mod info;
mod light;
pub mod local;
pub mod logical_sessions;
pub mod node;
pub mod operations;
pub mod oplog;
pub mod parameters;
pub mod params;
pub mod program;
pub mod read_concern;
mod refusal;
pub mod replica;
pub mod replication;
pub mod role;
pub mod rw_defaults;
pub mod service;
pub mod shape;
pub mod snapshots;
pub mod top;
pub mod upkeep;
pub mod virtual_collections;
pub mod work;
pub mod write;
