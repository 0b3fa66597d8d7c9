//! Putting a pipeline into the form in which it runs best: a list of small passes, each of which
//! leaves the results as they are.
//!
//! A pass looks at neighbours by their types, or by what stages say of themselves
//! (`Stage::changes`, `Stage::is_filter_transparent`), and says whether it changed something. They
//! are repeated until none does.

mod bucket_bounds;
mod coalesce;
mod drop_idle;
mod group_computed;
mod lookup_unwind;
mod match_redact;
mod match_union;
mod push_match;
mod push_skip;
mod push_sort;
mod skip_limit;
mod sort_limit;
mod split_match;
#[cfg(test)]
mod tests;

use super::member::Member;
use crate::budget::Budget;
use crate::error::QueryError;

/// The name, which is that of its golden file, and what says whether it changed something.
type Pass = (
    &'static str,
    fn(&mut Vec<Member>, &Budget) -> Result<bool, QueryError>,
);

const PASSES: &[Pass] = &[
    ("drop_idle", |members, _| Ok(drop_idle::run(members))),
    ("push_match", |members, budget| {
        push_match::run(members, budget)
    }),
    ("match_union", |members, budget| {
        match_union::run(members, budget)
    }),
    ("match_redact", match_redact::run),
    ("split_match", split_match::run),
    ("push_skip", |members, _| Ok(push_skip::run(members))),
    ("skip_limit", |members, _| Ok(skip_limit::run(members))),
    ("coalesce", coalesce::run),
    ("lookup_unwind", |members, _| {
        Ok(lookup_unwind::run(members))
    }),
    ("push_sort", |members, _| Ok(push_sort::run(members))),
    ("sort_limit", |members, _| Ok(sort_limit::run(members))),
    ("bucket_bounds", bucket_bounds::run),
    ("group_computed", |members, _| {
        Ok(group_computed::run(members))
    }),
];

/// More rounds than passes can need that enable one another.
const ROUNDS_MAX: usize = 16;

pub(super) fn optimize(members: &mut Vec<Member>, budget: &Budget) -> Result<(), QueryError> {
    for _ in 0..ROUNDS_MAX {
        let mut changed = false;
        for (_, run) in PASSES {
            budget.spend_part()?;
            changed |= run(members, budget)?;
        }
        if !changed {
            break;
        }
    }
    Ok(())
}
