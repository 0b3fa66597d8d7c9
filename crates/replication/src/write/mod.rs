//! The life of a write.
//!
//! 1. A command locks its collection with the intent to write to it ([`crate::locks`]), so that the
//!    collection and its indexes stay what they are until the write is done.
//! 2. For each document it latches the record and the unique index keys it will change
//!    ([`crate::latches::Latches`]), reads what it needs from a snapshot taken after that, and
//!    stages the effect ([`staging`], [`insert`], [`modify`]): operations for the log entry, and the
//!    storage batch that they amount to. Constraint violations are answered here.
//!    A later statement reads through a view that has what was staged before it ([`unit`]).
//! 3. The entry ([`crate::entry`]) is proposed ([`crate::propose`]), with the batch beside it. One
//!    command batch is one entry unless it grows too large, takes long, or has to wait for a latch.
//! 4. A committed entry is applied ([`crate::machine`]) in one atomic batch together with the
//!    applied position and the session's record ([`crate::sessions`]). The proposer's batch is used
//!    as it is; a member that did not propose the entry works the same batch out of it
//!    ([`crate::machine::effects`]), of many entries at once.
//! 5. Then the latches open, the proposal's future resolves, and the write concern is waited for
//!    ([`crate::set::write_concern`]).
//!
//! The entry's times are settled by the leader in the order of the log ([`crate::entry::seal`]);
//! what its collections were called then stays known ([`crate::machine::names`]).
//!
//! An insert into a capped collection removes the oldest documents there ([`capped`]).
//!
//! Measurements of time-series collections go into buckets ([`measurements`]).
//!
//! Collections and indexes come and go by [`catalog_ops`], views by [`views`].
//!
//! Latches on records and keys travel with the prepared batch: they open when the entry is applied
//! or known to be lost. The lock and the session's latch are the command's own.
//! A shard removes its orphans by record id ([`remove`]), and hands over what sessions have done
//! ([`adopt`]); what it demands of writes is [`shard_rules`].
//! What a collection demands of its documents is [`validation`].
//! A statement that may be about a document of any shard is carried out in steps
//! ([`without_shard_key`]).

pub mod adopt;
mod capped;
pub mod catalog_ops;
pub mod context;
pub mod insert;
pub mod measurements;
pub mod modify;
pub mod remove;
pub mod rewrite;
pub mod routed;
pub mod shard_rules;
pub mod staging;
mod turnover;
pub mod unique;
pub mod unit;
pub mod validation;
pub mod views;
pub mod without_shard_key;
