//! Putting a pipeline into the form in which it runs best: a list of small passes, each of which
//! leaves the results as they are.
//!
//! A pass looks at neighbours by their types, or by what stages say of themselves
//! (`Stage::changes`, `Stage::is_filter_transparent`), and says whether it changed something. They
//! are repeated until none does.

mod coalesce;
mod drop_idle;
mod lookup_unwind;
mod push_match;
mod skip_limit;
mod sort_limit;
#[cfg(test)]
mod tests;

use super::Member;

/// The name, which is that of its golden file, and what says whether it changed something.
type Pass = (&'static str, fn(&mut Vec<Member>) -> bool);

const PASSES: &[Pass] = &[
    ("drop_idle", drop_idle::run),
    ("push_match", |members| push_match::run(members)),
    ("skip_limit", |members| skip_limit::run(members)),
    ("coalesce", coalesce::run),
    ("lookup_unwind", lookup_unwind::run),
    ("sort_limit", |members| sort_limit::run(members)),
];

/// More rounds than passes can need that enable one another.
const ROUNDS_MAX: usize = 16;

pub(super) fn optimize(members: &mut Vec<Member>) {
    for _ in 0..ROUNDS_MAX {
        let mut changed = false;
        for (_, run) in PASSES {
            changed |= run(members);
        }
        if !changed {
            break;
        }
    }
}
