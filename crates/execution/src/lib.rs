//! How documents are found: one planner, one tree of operators, one executor for every reader.
//!
//! - [`plan`] reads a query and names the ways that may serve it; [`trial`] chooses among several;
//! - [`operators`] are what plans are made of: scans, fetch, sort, limit and so on;
//! - [`executor`] runs a plan: batch after batch, over one snapshot or, after a rest, a later one;
//! - [`tailing`] follows the end of a capped collection;
//! - [`by_id`] finds a record by its `_id`, for which no plan is needed;
//! - [`work`] counts what an operation has done, [`interrupt`] ends it from outside, and [`tickets`]
//!   decides who computes when.
//!
//! It knows documents, indexes and snapshots; it knows no command, no connection and no log.

pub mod by_id;
pub mod error;
pub mod executor;
pub mod interrupt;
pub mod operators;
pub mod plan;
pub mod row;
pub mod stats;
pub mod tailing;
pub mod tickets;
pub mod trial;
pub mod work;

pub use executor::{Executor, Goal, Planned, Request, View};
pub use interrupt::{Cause, Interrupt, InterruptSlot, Rest, Ticker};
pub use operators::{Documents, Shape, ShardFilter, SortMemory};
pub use row::{Listed, Row, RowStream, Rows};
pub use stats::PlanSummaryStats;
