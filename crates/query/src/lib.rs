//! Documents in, documents out: what MongoDB's query language means, without any I/O.
//!
//! Read in this order: [`filter`] (which documents), [`bounds`] (what a filter says about single
//! paths), [`projection`] (which parts of documents), [`sort`] (in which order), [`update`] (how
//! they change), [`diff`] (what that changed), [`expression`] (values computed from a document),
//! [`pipeline`] (stages over streams of documents), [`view`] (pipelines under a name), [`text`]
//! (searches), [`time_series`] (what filters of measurements say of buckets), [`validator`] (which documents a
//! collection takes), [`bulk_write`] (writes of several collections), [`cluster_catalog`] (what collections of a
//! cluster are) and [`shape`] (queries without their
//! values), by which they are known to [`query_stats`] and [`query_settings`]. What all of it may use is in [`budget`] and
//! [`memory`], and what does not fit goes to disk as [`spill`] says. Everything is parsed once, in a
//! [`context`], into a typed form that then runs over raw BSON; what can be wrong is an
//! [`error::QueryError`] with MongoDB's code and message.

mod binary;
pub mod bounds;
pub mod budget;
pub mod bulk_write;
pub mod canonical;
pub mod cluster_catalog;
mod comparison;
pub mod context;
pub mod diff;
pub mod error;
pub mod expression;
pub mod filter;
mod heap;
mod item_order;
pub mod javascript;
pub mod let_variables;
pub mod memory;
mod merge_sort;
pub mod metadata;
mod n_values;
mod names;
pub mod pattern;
pub mod pipeline;
pub mod projection;
pub mod query_settings;
pub mod query_stats;
pub mod shape;
pub mod sort;
pub mod spill;
pub mod text;
pub mod time_series;
pub mod update;
pub mod validator;
mod variables;
pub mod view;
#[cfg(test)]
mod wide;

#[cfg(test)]
#[path = "../../document/src/golden.rs"]
mod golden;

pub use budget::{Budget, Interrupt};
pub use canonical::CanonicalQuery;
pub use context::Context;
pub use error::{ErrorKind, QueryError};
pub use expression::Expression;
pub use filter::{ArrayPosition, Filter};
pub use javascript::JavaScript;
pub use memory::Memory;
pub use pipeline::Pipeline;
pub use projection::Projection;
pub use shape::{PlanCacheShape, QueryShape};
pub use sort::{SortPattern, Sorter};
pub use update::{Update, UpdateContext};
pub use validator::Validator;
pub use variables::{Scope, Variables};
