//! Query settings: what an operator has said of all queries of a shape.
//!
//! They are a parameter of a set or cluster, an array with one [`Configuration`] for each shape.
//! `settings.rs` reads what a command sets and what is kept, `known.rs` finds the settings of a
//! query by the hash of its shape, and `stage.rs` shows all.

mod known;
mod settings;
mod stage;
#[cfg(test)]
mod tests;

pub use known::{ARRAY, Configuration, KnownSettings, PARAMETER, parse_hash};
pub use settings::{IndexHints, QuerySettings};
pub use stage::documents;
