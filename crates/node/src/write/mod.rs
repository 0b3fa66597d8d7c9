//! The life of a write.
//!
//! 1. A command takes its namespace's latch shared ([`latches::NamespaceLatches`]), so that the
//!    collection and its indexes stay what they are until the write is done.
//! 2. For each document it latches the record and the unique index keys it will change
//!    ([`latches::Latches`]), reads what it needs from a snapshot taken after that, and stages the
//!    effect ([`staging`], [`insert`], [`modify`]): operations for the log entry, and the storage batch that they amount
//!    to. Constraint violations are answered here.
//! 3. The entry ([`entry`]) is proposed, with the batch beside it. One command batch is one entry
//!    unless it grows too large or has to wait for a latch.
//! 4. A committed entry is applied ([`apply`]) in one atomic batch together with the applied
//!    position and the session's record ([`sessions`]). The proposer's batch is used as it is; a
//!    member that did not propose the entry works the same batch out of it ([`effects`]), of many
//!    entries at once ([`ahead`]).
//! 5. Then the latches open, the proposal's future resolves, and the write concern is waited for
//!    ([`concern`]).
//!
//! The entry's times are settled by the leader in the order of the log ([`entry::seal`]); what its
//! collections were called then stays known ([`names`]).
//!
//! Latches on records and keys travel with the prepared batch: they open when the entry is applied
//! or known to be lost. Those on the namespace and the session are the command's own.
//! A shard removes its orphans by record id ([`remove`]).
//! What sessions have done moves with the documents from shard to shard ([`histories`]).

mod ahead;
pub mod apply;
mod base;
pub mod concern;
pub mod context;
pub mod effects;
pub mod entry;
pub mod histories;
pub mod insert;
pub mod latches;
pub mod modify;
pub mod names;
pub mod op_observer;
pub mod propose;
pub mod remove;
pub mod session_id;
pub mod sessions;
pub mod shard_rules;
pub mod staging;

pub use apply::{Applied, ApplyCounts, Machine, Prepared, SnapshotSource};
pub use concern::WriteConcern;
pub use context::WriteContext;
pub use entry::{Entry, EntryBuilder, Operation};
pub use latches::{Latches, NamespaceLatches};
pub use propose::Outcome;
pub use staging::Staging;
