//! Who a client is, and what it may do.
//!
//! The decisions are `banyan_security`'s; here they meet connections, requests and what is stored.
//!
//! * [`control`]: what the process was told at its start, and what it knows of users.
//! * [`stored`]: users and roles as they lie in this member's state; [`changes`]: how they change.
//! * [`identity`]: who has logged in on a connection.
//! * [`sasl`]: the conversation in which a client proves it; between two messages it is a
//!   [`conversation`].
//! * [`members`]: the same for the members of a set, who share a key file.
//! * [`check`]: what a command needs, and whether a client has it.
//! * [`reads_and_writes`], [`pipelines`], [`administration`]: where that depends on the request.

pub mod administration;
pub mod changes;
pub mod check;
pub mod control;
pub mod conversation;
pub mod identity;
pub mod members;
pub mod pipelines;
pub mod reads_and_writes;
pub mod redaction;
pub mod sasl;
pub mod stored;
mod throttle;
