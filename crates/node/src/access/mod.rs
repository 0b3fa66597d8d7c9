//! Who a client is, and what it may do, on a member that keeps the users itself.
//!
//! What holds for every process of a cluster is `banyan_access`'s.
//!
//! * [`stored`]: users and roles as they lie in this member's state; [`changes`]: how they change;
//!   [`direct`]: how they change without the commands for it.
//! * [`users`]: who is logged in, by that state.
//! * [`signing_keys`]: what cluster times are signed with.

pub mod changes;
pub mod direct;
pub mod signing_keys;
pub mod stored;
pub mod users;
