//! Who a client is, and what it may do, on a member that keeps the users itself.
//!
//! What holds for every process of a cluster is `banyan_access`'s.
//!
//! * [`stored`]: users and roles as they lie in this member's state; [`changes`]: how they change.
//! * [`users`]: who is logged in, by that state.

pub mod changes;
pub mod stored;
pub mod users;

pub use banyan_access::{
    administration, audit, certificates, check, control, flags, identity, impersonation, listing,
    log_rotation, login, members, pipelines, reads_and_writes, redaction, sasl,
};
