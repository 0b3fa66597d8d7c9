//! How documents are found: plans over indexes and collections, and what runs them.
//!
//! - [`plan`] chooses how a query's documents are reached;
//! - [`source`] reads them from a snapshot in the plan's order, [`matching`] filters, sorts and
//!   projects them, [`tailing`] follows the end of a capped collection;
//! - [`by_id`] finds a record by its `_id`, for which no plan is needed;
//! - [`work`] counts what an operation has done, [`interrupt`] ends it from outside, and [`tickets`] decides who computes when.
//!
//! It knows documents, indexes and snapshots; it knows no command, no connection and no log.

pub mod by_id;
pub mod error;
pub mod interrupt;
pub mod matching;
pub mod plan;
pub mod row;
pub mod source;
pub mod tailing;
pub mod tickets;
pub mod work;

pub use interrupt::{Cause, Interrupt, InterruptSlot, Rest, Ticker};
pub use matching::ShardFilter;
pub use row::{Row, Rows};
