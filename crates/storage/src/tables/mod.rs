//! Reading the engine's tables, block by block.
//!
//! The engine's own iterators cost more than what they find: boxes within boxes, a key of its own for
//! each entry, a merge of everything for each range. A [`Cursor`] knows the same sources, decodes
//! stretches of entries that lie together, and merges only where two sources have something to say. It
//! goes on to a later range from where it stands.
//!
//! - [`state`]: the tables and the newest writes that a snapshot reads;
//! - [`chunk`]: entries that were decoded together;
//! - [`entries`]: where they come from: [`memory`], writes in memory; [`run`], a run of tables;
//!   [`backward`], the latter from its end; [`handles`]: where a table has its blocks;
//! - [`cursor`]: the newest version of each key of all sources;
//! - [`points`]: values by their keys, one after another.
//!
//! Where the state of a snapshot cannot be had so, its reader takes the engine's iterators.

mod backward;
mod chunk;
mod cursor;
mod direction;
mod entries;
mod handles;
mod memory;
mod points;
mod run;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use cursor::Cursor;
pub(crate) use direction::Direction;
pub(crate) use points::Points;
pub(crate) use state::{State, States};
