//! What a filter says about the values of single paths, for those who look them up: the planner in
//! indexes, the router in shard keys.
//!
//! [`conjunction`] reads the filter's tree for conditions on paths that have to hold together;
//! [`interval`] says where in the order of all values those lie that meet one condition; [`geo`] where
//! among the cells of the sphere;
//! `describe` shows them, and [`implication`] decides whether one filter implies another.

pub mod conjunction;
mod describe;
pub mod geo;
pub mod implication;
pub mod interval;
#[cfg(test)]
mod tests;

use banyan_document::collation::holds_strings;
use banyan_document::path::Path;
use bson::RawBsonRef;

use crate::filter::{Comparison, Predicate};
pub use conjunction::{Condition, Conjunction, Disjunction};
pub use describe::describe_value;
pub use implication::implies;
pub use interval::{Interval, Intervals, KeyOrder};

/// More conditions on one path are not put together: what they leave out is matched anyway.
pub const CONDITIONS_MAX: usize = 1_000;

/// The intervals of a path's values in documents that match, in order and apart from one another.
/// The path must not lead through arrays, and the values are compared in the simple order, as those
/// of shard keys are. `None`: any value.
pub fn intervals_of<'f>(conjunction: &Conjunction<'f>, path: &Path) -> Option<Vec<Interval<'f>>> {
    let mut found = Vec::new();
    let order = KeyOrder::new(None, conjunction.collator);
    for condition in &conjunction.conditions {
        if found.len() >= CONDITIONS_MAX {
            break;
        }
        if *condition.path == *path
            && let Some(intervals) = interval::condition_intervals(condition, false, order)
        {
            found.push(intervals);
        } else if let Some(value) = pinned(condition, path)
            && order.value(value).is_some()
        {
            found.push(Intervals::inexact(vec![Interval::point(value)]));
        }
    }
    for Disjunction { branches, .. } in &conjunction.disjunctions {
        if found.len() >= CONDITIONS_MAX {
            break;
        }
        let branches = branches.iter().map(|branch| intervals_of(branch, path));
        if let Some(branches) = branches.collect::<Option<Vec<_>>>() {
            let union = interval::union(branches.into_iter().flatten().collect());
            found.push(Intervals::inexact(union));
        }
    }
    if conjunction.never {
        return Some(Vec::new());
    }
    Intervals::all(found).map(|all| all.intervals)
}

/// The one value that a path has in all documents that match, if the filter says so.
pub fn equality_of<'f>(conjunction: &Conjunction<'f>, path: &Path) -> Option<RawBsonRef<'f>> {
    // Under a collation several strings are equal to one.
    let one = |value: &RawBsonRef<'_>| conjunction.collator.is_none() || !holds_strings(value);
    let mut conditions = conjunction.conditions.iter();
    let known = conditions.find_map(|condition| {
        if *condition.path == *path
            && let Predicate::Compare(Comparison::Eq, value) = condition.predicate
            && !condition.negated
        {
            let value = value.as_raw_bson_ref();
            return (!matches!(value, RawBsonRef::Array(_))).then_some(value);
        }
        pinned(condition, path)
    });
    known.filter(one)
}

/// `{a: {b: 5}}` says what `a.b` is as well.
fn pinned<'f>(condition: &Condition<'f>, path: &Path) -> Option<RawBsonRef<'f>> {
    let Predicate::Compare(Comparison::Eq, value) = condition.predicate else {
        return None;
    };
    if condition.negated || !condition.path.is_prefix_of(path) {
        return None;
    }
    let below = path.parts().get(condition.path.parts().len()..)?;
    if below.is_empty() {
        return None;
    }
    let mut value = value.as_raw_bson_ref();
    for part in below {
        value = match value {
            RawBsonRef::Document(inner) => {
                banyan_document::field(inner, part).unwrap_or(RawBsonRef::Null)
            }
            _ => return None,
        };
    }
    (!matches!(value, RawBsonRef::Array(_))).then_some(value)
}
