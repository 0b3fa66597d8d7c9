//! How documents are found: one planner, one tree of operators, one executor for every reader.
//!
//! - [`plan`] reads a query and names the ways that may serve it, or those of them that an index
//!   filter allows ([`index_filters`]);
//! - [`planned`] takes one of several: the one that the plan cache names ([`cache`]), or the best of
//!   a [`trial`];
//! - [`operators`] are what plans are made of: scans, fetch, sort, limit and so on;
//! - [`executor`] runs a plan: batch after batch, over one snapshot or, after a rest, a later one of
//!   those that it may go on in ([`later`]);
//! - [`parallel`] runs a large scan on all cores, [`shares`] divides it among them;
//! - [`tailing`] follows the end of a capped collection;
//! - [`by_id`] finds a record by its `_id`, for which no plan is needed; [`partial`] parses the
//!   filters of partial indexes;
//! - [`work`] counts what an operation has done, [`interrupt`] ends it from outside, and [`tickets`]
//!   decides who computes when.
//!
//! It knows documents, indexes and snapshots; it knows no command, no connection and no log.

pub mod by_id;
pub mod cache;
pub mod error;
pub mod executor;
#[cfg(test)]
mod fixture;
pub mod index_filters;
pub mod interrupt;
pub mod later;
pub mod operators;
pub mod packed;
pub mod parallel;
pub mod partial;
pub mod plan;
pub mod planned;
pub mod request;
pub mod row;
pub mod shares;
pub mod stats;
pub mod tailing;
pub mod tickets;
pub mod trial;
pub mod windows;
pub mod work;

pub use cache::CollectionQueryInfo;
pub use executor::Executor;
pub use interrupt::{Cause, Interrupt, InterruptSlot, Rest, Ticker};
pub use later::{LaterStates, RangePreservers};
pub use operators::{Documents, Output, ShardFilter};
pub use planned::Planned;
pub use request::{CreatedFrom, Distinct, DistinctOf, Goal, ReadView, Request};
pub use row::{HANDED_ON_BYTES, Listed, Row, RowStream, Rows};
pub use stats::PlanSummaryStats;
