//! What the conditions on one field of an index allow together.

use banyan_document::key::FieldOrder;
use banyan_document::path::Path;
use banyan_geo::grid::Grid;
use banyan_query::bounds::geo;
use banyan_query::bounds::interval::{Interval, Intervals, KeyOrder, condition_intervals, union};
use banyan_query::bounds::{CONDITIONS_MAX, Condition, Conjunction};
use banyan_query::filter::{Comparison, Predicate};
use bson::RawBsonRef;
use bson::spec::ElementType;

/// What all conditions on one field allow together, and which of them that accounts for.
pub(super) fn confine_field<'c, 'a>(
    conditions: &[&'c Condition<'a>],
    (order, grid): (FieldOrder, Option<&Grid>),
    multikey: bool,
    keys: KeyOrder<'_>,
) -> Option<(Intervals<'a>, Vec<&'c Condition<'a>>)> {
    if let (FieldOrder::Plane, Some(grid)) = (order, grid) {
        let mut cells = conditions.iter().filter_map(|c| geo::plane_cells(c, grid));
        return Some((cells.next()?, Vec::new()));
    }
    if order == FieldOrder::Sphere {
        let mut cells = conditions
            .iter()
            .filter_map(|c| Some((geo::cells(c)?, vec![*c])));
        return cells.next();
    }
    if order == FieldOrder::Hashed {
        let mut points = conditions
            .iter()
            .filter(|c| is_equality(c))
            .filter_map(|c| {
                let confined = condition_intervals(c, multikey, keys)?;
                confined.is_points().then_some(confined)
            });
        let mut confined = points.next()?;
        confined.exact = false;
        return Some((confined, Vec::new()));
    }
    // What is put together in the end, and the item that it speaks of.
    let mut together: Vec<Intervals<'a>> = Vec::new();
    let mut used: Vec<&Condition<'a>> = Vec::new();
    let mut item = None;
    for condition in conditions {
        if together.len() >= CONDITIONS_MAX {
            break;
        }
        let Some(next) = condition_intervals(condition, multikey, keys) else {
            continue;
        };
        if together.is_empty() {
            item = condition.item;
            together.push(next);
            used.push(condition);
            continue;
        }
        // In an array, one item may meet one condition and another the other.
        let same_value = !multikey || (item.is_some() && item == condition.item);
        if same_value {
            together.push(next);
            used.push(condition);
        } else if next.is_points() && !together.iter().any(Intervals::is_points) {
            item = condition.item;
            together = vec![next];
            used = vec![condition];
        }
    }
    let confined = Intervals::all(together)?;
    let anywhere = confined.intervals.iter().any(Interval::is_full);
    (!anywhere).then_some((confined, used))
}

/// What an `$or` says that speaks of one path alone.
pub(super) struct AnyOf<'a> {
    pub(super) confined: Intervals<'a>,
    /// Its number among the filter's conjuncts.
    pub(super) conjunct: usize,
    pub(super) excludes_missing: bool,
}

/// What the first `$or` says whose branches each say one thing of this path, which must not lead
/// through arrays.
pub(super) fn any_of<'a>(
    conjunction: &Conjunction<'a>,
    path: &Path,
    keys: KeyOrder<'_>,
) -> Option<AnyOf<'a>> {
    conjunction.disjunctions.iter().find_map(|disjunction| {
        let (mut intervals, mut exact, mut excludes_missing) = (Vec::new(), true, true);
        for branch in &disjunction.branches {
            let [condition] = branch.conditions.as_slice() else {
                return None;
            };
            if !branch.complete || *condition.path != *path {
                return None;
            }
            let confined = condition_intervals(condition, false, keys)?;
            exact &= confined.exact;
            excludes_missing &= condition.excludes_missing(false);
            intervals.extend(confined.intervals);
        }
        let intervals = union(intervals);
        let anywhere = intervals.iter().any(Interval::is_full);
        Some(AnyOf {
            confined: Intervals { intervals, exact },
            conjunct: disjunction.conjunct.filter(|_| !anywhere)?,
            excludes_missing,
        })
    })
}

fn is_equality(condition: &Condition<'_>) -> bool {
    let equality = matches!(
        condition.predicate,
        Predicate::Compare(Comparison::Eq, _)
            | Predicate::ExprCompare(Comparison::Eq, _)
            | Predicate::In { .. }
    );
    equality && !condition.negated
}

/// Whether a document with a key inside the intervals has met the conditions that they are made of,
/// where the key may be that of an item of an array. A key of null or undefined may be of no item.
pub(super) fn is_exact_for_items(
    path: &Path,
    confined: &Intervals<'_>,
    used: &[&Condition<'_>],
) -> bool {
    let [condition] = used else { return false };
    let nothing = Interval::new(RawBsonRef::MinKey, true, RawBsonRef::Null, true);
    let composites = Interval::documents_and_arrays();
    !condition.negated
        && !path.has_position()
        && confined.intervals.iter().all(|interval| {
            interval.intersect(&nothing).is_none() && interval.intersect(&composites).is_none()
        })
}

/// Whether all values that meet a condition have keys in an index that has none of missing fields
/// and none of documents and arrays but of what is in them and of empty ones.
pub(super) fn has_keys(condition: &Condition<'_>, in_arrays: bool, keys: KeyOrder<'_>) -> bool {
    let nothing = Interval::new(RawBsonRef::Undefined, true, RawBsonRef::Null, true);
    let composites = Interval::documents_and_arrays();
    let excludes_missing = condition.excludes_missing(in_arrays);
    let is_empty = |interval: &Interval<'_>| {
        interval.is_point()
            && match interval.lower.value.get() {
                RawBsonRef::Document(document) => document.is_empty(),
                RawBsonRef::Array(array) => array.is_empty(),
                _ => false,
            }
    };
    let has_keys = |interval: &Interval<'_>| {
        (excludes_missing || interval.intersect(&nothing).is_none())
            && (interval.intersect(&composites).is_none() || is_empty(interval))
    };
    !condition.negated
        && condition_intervals(condition, in_arrays, keys)
            .is_some_and(|confined| confined.intervals.iter().all(has_keys))
}

/// Whether a value that meets a condition may be any, a document and an array too.
pub(super) fn asks_for_existence(condition: &Condition<'_>) -> bool {
    !condition.negated
        && match condition.predicate {
            Predicate::Exists => true,
            Predicate::Type(types) => {
                types.contains(ElementType::Array) || types.contains(ElementType::EmbeddedDocument)
            }
            _ => false,
        }
}
