//! What every data-bearing member answers.
//!
//! A request comes in through [`service`], which finds its line in the table of [`commands`] and
//! runs it in a [`context`]. Reads are planned and executed over storage snapshots by
//! `banyan_execution`, and what does not fit into one reply waits in [`cursors`]. Writes, the log
//! and the set are `banyan_replication`'s. A [`node::Node`] is all of it, assembled.

pub mod access;
pub mod account;
mod audited_changes;
mod auto_compaction;
pub mod blocked_writes;
pub mod cluster_parameters;
pub mod collation;
pub mod collection_uuid;
pub mod commands;
pub mod context;
pub mod counters;
pub mod cursors;
mod failing;
pub mod forms;
pub mod generic;
pub mod index_builds;
pub mod index_changes;
pub mod index_plans;
pub mod info;
pub mod key_generation;
mod light;
pub mod local;
pub mod logical_sessions;
pub mod names;
mod nested;
pub mod node;
pub mod operations;
pub mod parameters;
pub mod profiler;
pub mod profiling;
pub mod program;
mod query_notes;
pub mod query_shapes;
pub mod read_concern;
pub mod reads;
mod refusal;
pub mod role;
pub mod rw_defaults;
pub mod service;
mod session_ending;
pub mod specification;
mod stored_defaults;
pub mod top;
mod ttl;
pub mod upkeep;
pub mod user_writes;
pub mod views;
pub mod virtual_collections;
mod write_gate;

pub use banyan_access::shape;
pub use banyan_replication::errors;
pub use banyan_wire::params;
