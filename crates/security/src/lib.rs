//! Who a client is and what it may do, as pure decisions over documents.
//!
//! Nothing in here reads a socket, a file, a clock or a random source: bytes that must be random
//! are arguments. Users and roles are kept elsewhere; this crate says what their documents mean.
//!
//! In the order worth reading:
//!
//! * [`action`]: what can be done, one name each, and sets of them.
//! * [`resource`]: what it can be done to, and which patterns cover it.
//! * [`privilege`]: actions on resources, gathered.
//! * [`allowed`]: the same, arranged for being asked.
//! * [`role`]: names of roles, their definitions, and what they inherit.
//! * [`builtin`]: the roles that every database has.
//! * [`user`]: users as `admin.system.users` holds them.
//! * [`restriction`]: from where and to which address a user may connect.
//! * [`scram`]: passwords as they are stored, and the conversation that proves one.
//! * [`audit`]: what is noted of who did what, and which of it is wanted.
//! * [`key_file`]: the secrets by which members of a cluster know each other.
//! * [`cluster_time`]: the keys that sign cluster times, and what a signature proves.

pub mod action;
pub mod allowed;
pub mod audit;
pub mod builtin;
pub mod cluster_time;
mod field;
pub mod key_file;
pub mod privilege;
pub mod resource;
pub mod restriction;
pub mod role;
mod role_name;
pub mod scram;
pub mod user;

pub use action::{Action, ActionSet};
pub use field::DefinitionError;
pub use privilege::{Privilege, Privileges};
pub use resource::{Resource, ResourcePattern};
pub use restriction::Restrictions;
pub use role::{RoleDefinition, RoleName};
pub use user::{UserDefinition, UserName};
