//! One Raft group over opaque bytes: log, membership, leadership, snapshots.
//!
//! This crate knows no documents and no sockets. What an entry means is the business of a
//! [`StateMachine`]; how a message reaches another member is the business of a [`Transport`].
//! Consensus itself is the `raft` crate's; what is added here is everything around it.
//!
//! Read in this order:
//!
//! - `machine`: the traits a user of the crate implements, and the values they exchange
//! - `group`: the handle a user holds: propose, step, change members, ask for status
//! - `core`: the pure part, driven by step, tick and ready over a log store
//! - `log`: where entries are kept: `raft-engine` on disk, or memory for the simulation
//! - `message`: what is let in from the network
//! - `driver` and `apply`: the threads that give the core its clock, its disk and its network, and
//!   bring committed entries into the state machine

mod apply;
mod core;
mod driver;
mod error;
mod group;
mod log;
mod machine;
mod message;
mod options;
#[cfg(feature = "simulation")]
pub mod simulated;
#[cfg(test)]
mod simulation;
mod status;
mod surroundings;

pub use driver::LogHold;
pub use error::{Error, ProposeError};
pub use group::{ENTRY_BYTES_MAX, Group, Proposed};
pub use machine::{
    ApplyError, Change, Committed, LogBarrier, Member, Membership, PeerId, Position, SnapshotMeta,
    StateMachine, Transport,
};
pub use options::{Options, ProposeOptions, SyncMode};
pub use status::{LeaderWatch, PeerProgress, Role, Status};
