//! Views, as commands meet them.
//!
//! A command that reads a view becomes an `aggregate` of the collection below it
//! ([`banyan_query::view`]), before it is planned: the view's stages and the command's own are one
//! pipeline. Which collection that is, is looked up in the state that the command reads
//! ([`resolve`]), and so is what a pipeline reads besides ([`foreign`]). [`changes`] makes, changes
//! and drops views; [`sharded`] hands over to a router what one shard alone cannot answer.

pub mod changes;
pub mod foreign;
mod lookup;
pub mod sharded;

pub use banyan_replication::views::{is_view, refuse};
pub use lookup::{definitions, refuse_named, resolve, resolve_in};
