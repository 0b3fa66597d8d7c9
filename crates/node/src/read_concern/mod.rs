//! Read concern: what a read has to see, and what it may not see.
//!
//! What is applied here is committed: no election takes it back. So `local`, `available` and
//! `majority` are the same, and each read is of one storage snapshot (but a routed read of what is
//! `available` does not ask a secondary what its shard owns). What is left to do:
//!
//! - `linearizable` asks a majority whether this is still the primary, and waits until everything
//!   acknowledged by then is applied.
//! - `afterClusterTime` waits until that time is applied. If nobody wrote at that time, nothing
//!   would ever come: the primary writes a no-op entry, and a secondary
//!   asks it to.
//! - `snapshot` reads from a snapshot whose time the client is told and can name again
//!   ([`banyan_replication::snapshots`]).

mod cluster_time;
pub(crate) mod concern;
mod prepare;
mod support;

pub use cluster_time::{attach_time, gossip, observe};
pub use concern::{Level, ReadConcern, unknown_level};
pub use prepare::{prepare, wait_until_applied};
pub use support::check_output;
