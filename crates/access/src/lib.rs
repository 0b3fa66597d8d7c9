//! Who a client is, and what it may do, in every process of a cluster.
//!
//! The decisions are `banyan_security`'s; here they meet connections and requests. Where users and
//! roles are kept is the process's own affair: a data node reads its state, a router asks the
//! config servers ([`users`]).
//!
//! * [`control`]: what the process was told at its start, and what it knows of users.
//! * [`identity`]: who has logged in on a connection, and whom something belongs to.
//! * [`sasl`]: the conversation in which a client proves it; between two messages it is a
//!   [`conversation`]. What clients send for it: [`login`].
//! * [`members`]: the same for the processes of a cluster, who share a key file.
//! * [`certificates`]: the same by the certificate of a TLS connection, for users and for members.
//! * [`cluster_time`]: the time as clients bring it back, and what signs it; [`gossip`]: whether a client
//!   is believed.
//! * [`flags`]: what a program is told of all this.
//! * [`impersonation`]: whom a router sends a request for.
//! * [`check`]: what a command needs, and whether a client has it.
//! * [`sessions`]: whose a logical session is, and which ones a command is about.
//! * [`reads_and_writes`], [`pipelines`], [`administration`], [`sharding`]: where that depends on the
//!   request. What lists show of what there is: [`listing`].
//! * [`api_version`]: what a client may use that asks for the stable API.
//! * [`redaction`], [`shape`]: how a request is shown to others; [`copies`]: documents without what
//!   is not shown.
//! * [`audit`]: who has done what, for whoever asks later; [`log_rotation`]: in which file.

pub mod administration;
pub mod api_version;
pub mod apply_ops;
pub mod audit;
pub mod audit_config;
pub mod certificates;
pub mod check;
pub mod cluster_time;
pub mod control;
pub mod conversation;
pub mod copies;
#[cfg(test)]
mod fixture;
pub mod flags;
pub mod gossip;
pub mod identity;
pub mod impersonation;
pub mod listing;
pub mod log_rotation;
pub mod login;
pub mod members;
pub mod pipelines;
pub mod reads_and_writes;
pub mod redaction;
pub mod sasl;
pub mod search;
pub mod sessions;
pub mod shape;
pub mod sharding;
mod throttle;
pub mod users;
