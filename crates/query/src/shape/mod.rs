//! The shapes of queries: what is left of them without their values.
//!
//! There are two, as a query is known to two kinds of readers. Planners know its normalised filter,
//! and what was learnt of a plan is worth knowing for whatever they plan alike: the
//! [`PlanCacheShape`]. Operators know the command that applications send, and name it by its
//! [`QueryShape`]: in statistics, and in settings for all queries of a shape. The first would not do
//! for them, as normalising changes a query with its values: an `$in` of one value is no `$in`.
//!
//! Of a command's shape `filter.rs`, `expression.rs`, `sort.rs`, `projection.rs` and `stage.rs` write the
//! parts; they read commands as they were written and need not know whether
//! these are right. `mark.rs` keeps apart what is a client's name, so that it can be hidden later.

mod command;
mod expression;
mod filter;
mod literal;
mod mark;
mod plan_cache;
mod projection;
mod sort;
mod stage;
#[cfg(test)]
mod tests;

pub use command::{QueryShape, hint, other_collections};
pub use literal::literal;
pub use mark::{Names, show};
pub use plan_cache::PlanCacheShape;
