//! From the predicates of a filter to ranges of one index.
//!
//! The leading fields of an index that are confined to points make prefixes; the first field that
//! is confined to anything wider ends the ranges. The fields behind it are looked at key by key
//! ([`super::bounds_checker`]): inside a range, a scan seeks from one run of keys that meet them to
//! the next.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::key::{self, FieldOrder};
use banyan_document::path::{Path, position};
use banyan_geo::Shape;
use banyan_geo::grid::Grid;
use banyan_geo::parse::Relation;
use banyan_query::bounds::geo;
use banyan_query::bounds::interval::{
    Interval, Intervals, KeyOrder, Value, condition_intervals, union,
};
use banyan_query::bounds::{CONDITIONS_MAX, Condition, Conjunction};
use banyan_query::filter::{Comparison, Predicate};
use banyan_query::{ErrorKind, QueryError};
use banyan_storage::keys::successor;
use banyan_storage::kind::KeyPrefix;
use banyan_storage::{ArrayPaths, Collection, Index, KeyLayout, KeyRange};
use bson::{RawBson, RawBsonRef, RawDocument};

use crate::error::plan_killed;

/// A scan is cut into at most this many ranges; more intervals widen to their ends.
const RANGES_MAX: usize = 100_000;

/// One contiguous part of an index scan.
#[derive(Debug, Clone)]
pub struct ScanRange {
    pub range: KeyRange,
    /// The whole key, if there is only one: a unique index then looks it up.
    pub point: Option<Vec<u8>>,
}

/// The part of an index that has to be looked at, in index order, without overlaps.
#[derive(Debug, Clone)]
pub struct IndexBounds {
    pub index: Arc<Index>,
    /// Of the keys that are looked at.
    pub layout: KeyLayout,
    /// Where documents had arrays when the bounds were made.
    pub arrays: Arc<ArrayPaths>,
    pub ranges: Vec<ScanRange>,
    /// What the fields behind those of the ranges are confined to.
    pub later: LaterFields,
    /// Whether every document inside matches the whole filter.
    pub exact: bool,
    /// The filter's conjuncts that every document inside meets, by their numbers.
    pub met: Vec<usize>,
    /// How many leading fields are confined to single points, and how many are confined at all.
    pub points: usize,
    pub confined: usize,
    /// Per field, whether it is confined.
    pub confines: Vec<bool>,
    /// Whether one record may have several of the index's keys.
    pub multikey: bool,
    /// Per field, whether its values can be read from the keys inside the bounds.
    pub readable: Vec<bool>,
    /// Per field, whether the keys inside the bounds come in the order that the query has: with
    /// another collation, those do that hold no strings.
    pub in_order: Vec<bool>,
    /// The condition on shapes that the cells of a field are those of.
    pub asked_shape: Option<AskedShape>,
    /// Per field, for `explain`: most plans are never shown.
    pub intervals: Vec<Vec<Interval<'static>>>,
    /// What `explain` shows instead of a clustered index.
    pub ends: RecordEnds,
}

/// What keys may tell of a condition on shapes on the sphere, without the documents.
#[derive(Debug, Clone)]
pub struct AskedShape {
    /// The field with the cells, by its place in the keys.
    pub field: usize,
    /// Which of the filter's conjuncts it is.
    pub conjunct: usize,
    pub relation: Relation,
    pub shape: Arc<Shape>,
}

impl AskedShape {
    fn of(field: usize, condition: &Condition<'_>) -> Option<AskedShape> {
        let (relation, shape) = geo::asked(condition)?;
        Some(AskedShape {
            field,
            conjunct: condition.conjunct?,
            relation,
            shape: shape.clone(),
        })
    }
}

/// The intervals of the fields that ranges say nothing of.
#[derive(Debug, Clone, Default)]
pub struct LaterFields {
    /// How many fields the ranges speak of.
    pub first: usize,
    /// Of each field behind those, up to the last one that is confined: the encoded intervals, in
    /// key order. None: any value is inside.
    pub fields: Vec<Vec<EncodedInterval>>,
}

/// The encoding that is inside and not above any other, and the first above those inside, unless
/// there is none.
pub type EncodedInterval = (Vec<u8>, Option<Vec<u8>>);

/// The lowest and the highest `_id` of the part of a clustered collection that is looked at.
#[derive(Debug, Clone, Default)]
pub struct RecordEnds {
    pub min: Option<RawBson>,
    pub max: Option<RawBson>,
}

impl IndexBounds {
    /// The index as it is by now.
    pub fn index_in<'c>(&self, collection: &'c Collection) -> Result<&'c Arc<Index>, QueryError> {
        let index = collection.index_by_id(self.index.id);
        index.ok_or_else(|| plan_killed(&format!("index '{}' dropped", self.index.name)))
    }

    /// Whether the bounds leave anything out.
    pub fn is_selective(&self) -> bool {
        self.confined > 0
    }

    /// Whether this is all of a clustered collection.
    pub fn is_whole_collection(&self) -> bool {
        let ends = &self.ends;
        self.index.is_clustered() && ends.min.is_none() && ends.max.is_none()
    }

    /// Whether all keys between the first and the last that are inside are.
    pub fn is_one_range(&self) -> bool {
        self.ranges.len() <= 1 && self.later.fields.is_empty()
    }

    /// Whether at most one record can be inside.
    pub fn is_unique_point(&self) -> bool {
        self.index.unique && self.ranges.len() <= 1 && self.ranges.iter().all(|r| r.point.is_some())
    }

    /// Whether what is at the paths can be read from the keys.
    pub fn covers(&self, paths: &BTreeSet<String>) -> bool {
        paths.iter().all(|path| self.field_at(path).is_some())
    }

    /// Per field, as `explain` shows them.
    pub fn described(&self) -> impl Iterator<Item = impl Iterator<Item = String>> {
        let collated = self.index.pattern.collator.is_some();
        let fields = self.intervals.iter();
        fields.map(move |intervals| intervals.iter().map(move |i| i.describe(collated)))
    }

    /// The field of the keys that a path leads to, or through, and that can be read.
    pub fn field_at(&self, path: &str) -> Option<usize> {
        let leads = |known: &Path| {
            let rest = path.strip_prefix(known.to_string().as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut fields = self.layout.fields.iter().zip(&self.readable);
        fields.position(|((known, _), readable)| *readable && leads(known))
    }

    /// Whether one record may have several of the keys inside the bounds. Those of one range differ
    /// in the fields that it does not confine to points.
    pub fn may_repeat(&self) -> bool {
        let is_one = self.ranges.len() <= 1;
        let open = self
            .layout
            .fields
            .get(if is_one { self.points } else { 0 }..);
        let mut open = open.unwrap_or_default().iter();
        self.multikey && open.any(|(path, _)| self.arrays.are_on(path))
    }
}

/// The bounds that a conjunction gives an index: of an index over many paths, those for each of
/// them. Bounds that would leave out documents that match are not among them.
pub fn candidates<'i>(
    index: &'i Arc<Index>,
    conjunction: &'i Conjunction<'i>,
) -> impl Iterator<Item = IndexBounds> + use<'i> {
    let asked: Vec<&Path> = conjunction.conditions.iter().map(|c| &*c.path).collect();
    let layouts = index.kind.layouts(&asked).into_iter();
    layouts.filter_map(|layout| of_layout(index, layout, conjunction, None))
}

/// The bounds of an index over shapes whose cells at a path are to be these.
pub fn of_cells(
    index: &Arc<Index>,
    conjunction: &Conjunction<'_>,
    path: &Path,
    cells: &Intervals<'static>,
) -> Option<IndexBounds> {
    let layout = index.kind.layouts(&[]).into_iter().next()?;
    of_layout(index, layout, conjunction, Some((path, cells)))
}

/// The bounds that a conjunction gives the keys of a layout.
pub(super) fn of_layout(
    index: &Arc<Index>,
    layout: KeyLayout,
    conjunction: &Conjunction<'_>,
    cells: Option<(&Path, &Intervals<'static>)>,
) -> Option<IndexBounds> {
    let arrays = index.arrays();
    let fields = layout.fields.clone();
    let keys = key_order(index, conjunction.collator);
    let mut builder = Builder::after(layout.prefix.as_ref());
    // The conditions that every document inside meets, and how many those are of.
    let mut met: Vec<&Condition<'_>> = Vec::new();
    let mut met_disjunctions = Vec::new();
    let mut excludes_missing = false;
    let mut asked_shape = None;
    let mut per_field = Vec::with_capacity(fields.len());
    for (position, (path, order)) in fields.iter().enumerate() {
        let in_arrays = arrays.are_on(path);
        let conditions = conjunction.conditions.iter();
        let mine: Vec<&Condition<'_>> = conditions
            .filter(|c| *c.path == *path)
            .filter(|c| layout.is_complete || is_about_scalars(c, in_arrays, keys))
            .collect();
        excludes_missing |= mine.iter().any(|c| c.excludes_missing(in_arrays));
        // Two fields under one array pair up per element, which separate bounds cannot express.
        let mut earlier = fields[..position].iter();
        let shares_array = earlier.any(|(earlier, _)| arrays.are_shared(earlier, path));
        // Without the first field nothing but single keys would be left out.
        let is_open = position > 0 && builder.confined == 0 && !order.is_geo();
        let given = cells.filter(|(given, _)| *given == path && order.is_geo());
        let mut confined = match given {
            Some((_, cells)) => Some((cells.clone(), Vec::new())),
            None if shares_array || is_open => None,
            None => {
                let grid = index.kind.grid();
                confine_field(&mine, (*order, grid), in_arrays, keys)
            }
        };
        let may_be_any = mine.is_empty() && !is_open && !in_arrays && layout.is_complete;
        if may_be_any
            && order.is_of_values()
            && let Some(any) = any_of(conjunction, path, keys)
        {
            excludes_missing |= any.excludes_missing;
            met_disjunctions.extend(any.confined.exact.then_some(any.conjunct));
            confined = Some((any.confined, Vec::new()));
        }
        if let (FieldOrder::Sphere, Some((_, used))) = (*order, &confined)
            && let [condition] = used.as_slice()
        {
            asked_shape = AskedShape::of(position, condition);
        }
        if let Some((confined, used)) = &confined
            && confined.exact
            && (!in_arrays || is_exact_for_items(path, confined, used))
        {
            met.extend(used);
        }
        per_field.push(confined.map(|(confined, _)| confined));
        builder.extend(per_field[position].as_ref(), *order);
    }
    // Documents without a shape have no keys.
    let mut shapes = fields.iter().zip(&per_field);
    let is_of_shapes = fields.iter().any(|(_, order)| order.is_geo());
    let has_all = match layout.is_complete {
        _ if is_of_shapes => {
            shapes.any(|((_, order), confined)| order.is_geo() && confined.is_some())
        }
        true => !index.sparse || excludes_missing,
        false => builder.confined > 0,
    };
    if !has_all {
        return None;
    }
    if index.sparse && builder.confined == 0 {
        // That the field exists is all that the index needs to leave something out.
        builder.confined = 1;
        if fields.len() == 1 {
            let exists = |c: &&Condition<'_>| matches!(c.predicate, Predicate::Exists);
            met = conjunction.conditions.iter().filter(exists).collect();
        }
    }
    let intervals = per_field.iter().map(shown).collect();
    let ends = match index.is_clustered() {
        true => ends_of(&per_field),
        false => RecordEnds::default(),
    };
    let in_order = per_field.iter().map(|confined| {
        keys.is_alike()
            || confined.as_ref().is_some_and(|confined| {
                let mut intervals = confined.intervals.iter();
                !intervals.any(Interval::may_hold_strings)
            })
    });
    let in_order = in_order.collect();
    if builder.widened {
        met.clear();
        met_disjunctions.clear();
    }
    let exact = conjunction.complete && met.len() == conjunction.conditions.len();
    let met = met.iter().filter_map(|condition| condition.conjunct);
    let met = met.chain(met_disjunctions).collect();
    let readable = fields.iter().zip(&per_field);
    let readable = readable.map(|((path, order), confined)| {
        is_readable(index, &arrays, (path, *order), confined.as_ref())
    });
    let readable = readable.collect();
    let (points, confined) = (builder.points, builder.confined);
    let (ranges, later) = builder.finish(fields.len());
    Some(IndexBounds {
        index: index.clone(),
        points,
        confined,
        confines: per_field.iter().map(Option::is_some).collect(),
        ranges,
        later,
        exact,
        met,
        multikey: fields.iter().any(|(path, _)| arrays.are_on(path)),
        readable,
        in_order,
        asked_shape,
        intervals,
        ends,
        layout,
        arrays,
    })
}

/// As MongoDB shows them: the lowest number is not infinite but NaN.
fn ends_of(per_field: &[Option<Intervals<'_>>]) -> RecordEnds {
    let Some(Some(confined)) = per_field.first() else {
        return RecordEnds::default();
    };
    let (Some(first), Some(last)) = (confined.intervals.first(), confined.intervals.last()) else {
        return RecordEnds::default();
    };
    let (min, max) = match (first.lower.value.get(), last.upper.value.get()) {
        // What is left out between them is little.
        (RawBsonRef::MinKey, RawBsonRef::MaxKey) => return RecordEnds::default(),
        (RawBsonRef::Double(f64::NEG_INFINITY), max) => (RawBson::Double(f64::NAN), max),
        (min, max) => (min.into(), max),
    };
    RecordEnds {
        min: Some(min),
        max: Some(max.into()),
    }
}

/// Whether a document with a key inside the intervals has met the conditions that they are made of,
/// where the key may be that of an item of an array. A key of null or undefined may be of no item.
fn is_exact_for_items(path: &Path, confined: &Intervals<'_>, used: &[&Condition<'_>]) -> bool {
    let [condition] = used else { return false };
    let nothing = Interval::new(RawBsonRef::MinKey, true, RawBsonRef::Null, true);
    let composites = Interval::documents_and_arrays();
    !condition.negated
        && !path.parts().iter().any(|part| position(part).is_some())
        && confined.intervals.iter().all(|interval| {
            interval.intersect(&nothing).is_none() && interval.intersect(&composites).is_none()
        })
}

/// Whether a document's value in a field can be told by its key: not that of an array, a hash or a
/// collated string.
fn is_readable(
    index: &Index,
    arrays: &ArrayPaths,
    (path, order): (&Path, FieldOrder),
    confined: Option<&Intervals<'_>>,
) -> bool {
    let may_hold_strings = || {
        confined.is_none_or(|confined| confined.intervals.iter().any(Interval::may_hold_strings))
    };
    order.is_of_values()
        && !arrays.are_on(path)
        && (index.pattern.collator.is_none() || !may_hold_strings())
}

/// Whether all values that meet a condition have keys in an index that has none of missing fields
/// and none of documents and arrays but of what is in them.
fn is_about_scalars(condition: &Condition<'_>, in_arrays: bool, keys: KeyOrder<'_>) -> bool {
    let nothing = Interval::new(RawBsonRef::Undefined, true, RawBsonRef::Null, true);
    let composites = Interval::documents_and_arrays();
    condition_intervals(condition, in_arrays, keys).is_some_and(|confined| {
        !condition.negated
            && confined.intervals.iter().all(|interval| {
                let others = [&nothing, &composites];
                others
                    .iter()
                    .all(|other| interval.intersect(other).is_none())
            })
    })
}

fn key_order<'c>(index: &'c Index, collator: Option<&Collator>) -> KeyOrder<'c> {
    KeyOrder::new(index.pattern.collator.as_ref(), collator)
}

/// The whole index, for a hint or for its order, which may not be that of the query's collation.
/// `None`: it does not hold all documents.
pub fn whole(index: &Arc<Index>, collator: Option<&Collator>) -> Option<IndexBounds> {
    let layout = index.kind.layouts(&[]).into_iter().next()?;
    let alike = key_order(index, collator).is_alike();
    let arrays = index.arrays();
    let readable = layout.fields.iter();
    let readable = readable.map(|(path, order)| is_readable(index, &arrays, (path, *order), None));
    let full = layout.fields.iter().map(|_| shown(&None));
    Some(IndexBounds {
        index: index.clone(),
        ranges: vec![ScanRange {
            range: KeyRange::all(),
            point: None,
        }],
        exact: false,
        met: Vec::new(),
        later: LaterFields::default(),
        points: 0,
        confined: 0,
        confines: vec![false; layout.fields.len()],
        multikey: index.is_multikey(),
        readable: readable.collect(),
        in_order: vec![alike; layout.fields.len()],
        asked_shape: None,
        intervals: full.collect(),
        ends: RecordEnds::default(),
        layout,
        arrays,
    })
}

/// What all conditions on one field allow together, and which of them that accounts for.
fn confine_field<'c, 'a>(
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
struct AnyOf<'a> {
    confined: Intervals<'a>,
    /// Its number among the filter's conjuncts.
    conjunct: usize,
    excludes_missing: bool,
}

/// What the first `$or` says whose branches each say one thing of this path, which must not lead
/// through arrays.
fn any_of<'a>(conjunction: &Conjunction<'a>, path: &Path, keys: KeyOrder<'_>) -> Option<AnyOf<'a>> {
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

/// Builds ranges field by field.
struct Builder {
    /// The points so far: every combination of the leading fields' values.
    prefixes: Vec<Vec<u8>>,
    /// The first key of each range, and the one just after its last, unless nothing comes after it.
    ranges: Option<Vec<EncodedInterval>>,
    /// Whether no further field can narrow the ranges.
    closed: bool,
    later: LaterFields,
    points: usize,
    confined: usize,
    /// Set when there were too many ranges to keep apart.
    widened: bool,
}

impl Builder {
    /// `prefix`: what all keys begin with.
    fn after(prefix: Option<&KeyPrefix>) -> Builder {
        let prefix =
            prefix.map(|prefix| encode(RawBsonRef::String(&prefix.value), FieldOrder::Ascending));
        Builder {
            prefixes: vec![prefix.unwrap_or_default()],
            ranges: None,
            closed: false,
            later: LaterFields::default(),
            points: 0,
            confined: 0,
            widened: false,
        }
    }

    /// Takes in the next field.
    fn extend(&mut self, confined: Option<&Intervals<'_>>, order: FieldOrder) {
        self.confined += usize::from(confined.is_some());
        if self.closed {
            return self.extend_later(confined, order);
        }
        let Some(confined) = confined else {
            self.closed = true;
            return self.extend_later(None, order);
        };
        self.later.first += 1;
        let widened;
        let confined = match confined.intervals.as_slice() {
            [first, .., last]
                if self.prefixes.len().saturating_mul(confined.intervals.len()) > RANGES_MAX =>
            {
                self.widened = true;
                widened = Intervals {
                    intervals: vec![Interval {
                        lower: first.lower.clone(),
                        upper: last.upper.clone(),
                    }],
                    exact: false,
                };
                &widened
            }
            _ => confined,
        };
        let all_points = confined.intervals.iter().all(Interval::is_point);
        if all_points {
            if confined.intervals.len() == 1 {
                self.points += 1;
            }
            let mut encoded: Vec<Vec<u8>> = confined
                .intervals
                .iter()
                .map(|i| encode(i.lower.value.get(), order))
                .collect();
            encoded.sort();
            encoded.dedup();
            self.prefixes = self
                .prefixes
                .iter()
                .flat_map(|prefix| encoded.iter().map(|point| [&prefix[..], point].concat()))
                .collect();
            return;
        }
        let mut ranges = Vec::new();
        for prefix in &self.prefixes {
            ranges.extend(encoded_intervals(prefix, confined, order));
        }
        self.ranges = Some(ranges);
        self.closed = true;
    }

    /// Takes in a field behind those of the ranges.
    fn extend_later(&mut self, confined: Option<&Intervals<'_>>, order: FieldOrder) {
        let intervals = confined.map(|confined| encoded_intervals(&[], confined, order));
        if intervals.as_ref().is_some_and(Vec::is_empty) {
            // No value at all is inside.
            self.ranges = Some(Vec::new());
        }
        self.later.fields.push(intervals.unwrap_or_default());
    }

    /// The ranges, and what they say nothing of.
    fn finish(mut self, fields: usize) -> (Vec<ScanRange>, LaterFields) {
        let last = self
            .later
            .fields
            .iter()
            .rposition(|field| !field.is_empty());
        self.later.fields.truncate(last.map_or(0, |last| last + 1));
        if let Some(ranges) = self.ranges {
            let ranges = ranges.into_iter().map(|(lower, upper)| ScanRange {
                range: KeyRange {
                    lower: Bound::Included(lower),
                    upper: upper.map_or(Bound::Unbounded, Bound::Excluded),
                },
                point: None,
            });
            return (ranges.collect(), self.later);
        }
        let used = self.later.first;
        if used == 0 {
            let all = ScanRange {
                range: KeyRange::all(),
                point: None,
            };
            return (vec![all], self.later);
        }
        let ranges = self.prefixes.into_iter().map(|prefix| ScanRange {
            point: (used == fields).then(|| prefix.clone()),
            range: KeyRange::prefix(prefix),
        });
        (ranges.collect(), self.later)
    }
}

fn encode(value: RawBsonRef<'_>, order: FieldOrder) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    match order {
        FieldOrder::Ascending | FieldOrder::Sphere | FieldOrder::Plane => {
            key::encode(value, &mut out)
        }
        FieldOrder::Descending => key::encode_descending(value, &mut out),
        FieldOrder::Hashed => key::encode(RawBsonRef::Int64(key::hash(value)), &mut out),
    }
    out
}

/// The keys with a prefix and a value inside, in key order.
fn encoded_intervals(
    prefix: &[u8],
    confined: &Intervals<'_>,
    order: FieldOrder,
) -> Vec<EncodedInterval> {
    let intervals = confined.intervals.iter();
    let mut encoded: Vec<_> = intervals.map(|i| range_of(prefix, i, order)).collect();
    encoded.sort();
    encoded
}

/// The keys from the interval's first (included) to just after its last.
fn range_of(prefix: &[u8], interval: &Interval<'_>, order: FieldOrder) -> EncodedInterval {
    let (first, last) = match order {
        FieldOrder::Descending => (&interval.upper, &interval.lower),
        _ => (&interval.lower, &interval.upper),
    };
    let first_key = [prefix, &encode(first.value.get(), order)].concat();
    let last_key = [prefix, &encode(last.value.get(), order)].concat();
    let lower = if first.inclusive {
        first_key
    } else {
        // Every key of that value is passed over, whatever its later fields hold. Encodings never
        // consist of ff bytes alone, so there is a successor.
        successor(first_key).unwrap_or_default()
    };
    let upper = if last.inclusive {
        successor(last_key)
    } else {
        Some(last_key)
    };
    (lower, upper)
}

fn shown(confined: &Option<Intervals<'_>>) -> Vec<Interval<'static>> {
    match confined {
        Some(confined) => confined.intervals.iter().map(Interval::to_owned).collect(),
        None => vec![Interval::full()],
    }
}

/// The keys between `min` (included) and `max` (left out), each a document of the index's fields.
pub fn between(
    index: &Arc<Index>,
    min: Option<&RawDocument>,
    max: Option<&RawDocument>,
    collator: Option<&Collator>,
) -> Result<IndexBounds, QueryError> {
    let Some(mut bounds) = whole(index, collator) else {
        return Err(QueryError::new(
            ErrorKind::Location(51174),
            "The index chosen is not compatible with min/max",
        ));
    };
    let keys = key_order(index, collator);
    let lower = min.map(|min| key_of(index, min, keys)).transpose()?;
    let upper = max.map(|max| key_of(index, max, keys)).transpose()?;
    // Without an end the bounds end where the keys do, which is an end like others.
    let first = || outermost(index, RawBsonRef::MinKey, RawBsonRef::MaxKey);
    let last = || outermost(index, RawBsonRef::MaxKey, RawBsonRef::MinKey);
    let comes_before = match (&lower, &upper) {
        (Some(lower), Some(upper)) => lower < upper,
        (Some(lower), None) => *lower < last(),
        (None, Some(upper)) => first() < *upper,
        (None, None) => true,
    };
    if !comes_before && index.is_clustered() {
        // MongoDB compares what was given, and knows of no other end here.
        if lower.is_some() && upper.is_some() {
            return Err(QueryError::new(
                ErrorKind::Location(6_137_401),
                "max() must be greater than min()",
            ));
        }
    } else if !comes_before {
        return Err(QueryError::new(
            ErrorKind::Location(51175),
            "The value provided for min() does not come before the value provided for max() in \
             the hinted index",
        ));
    }
    let range = KeyRange {
        lower: lower.map_or(Bound::Unbounded, Bound::Included),
        upper: upper.map_or(Bound::Unbounded, Bound::Excluded),
    };
    bounds.ranges = vec![ScanRange { range, point: None }];
    if index.is_clustered() {
        let end = |values: &RawDocument| values.iter().flatten().next().map(|(_, v)| v.into());
        bounds.ends = RecordEnds {
            min: min.and_then(end),
            max: max.and_then(end),
        };
    }
    Ok(bounds)
}

/// The key of which each field has one value, another one where it descends.
fn outermost(index: &Index, ascending: RawBsonRef<'_>, descending: RawBsonRef<'_>) -> Vec<u8> {
    let fields = index.pattern.fields.iter();
    let values = fields.flat_map(|(_, order)| match order {
        FieldOrder::Descending => encode(descending, *order),
        _ => encode(ascending, FieldOrder::Ascending),
    });
    values.collect()
}

fn key_of(index: &Index, values: &RawDocument, keys: KeyOrder<'_>) -> Result<Vec<u8>, QueryError> {
    let mut out = Vec::new();
    let mut given = values.iter().flatten();
    for (path, order) in &index.pattern.fields {
        match given.next() {
            Some((name, value)) if name.as_str() == path.to_string() => {
                let value: Value<'_> = keys.value(value).ok_or_else(wrong_ends)?;
                out.extend(encode(value.get(), *order));
            }
            _ => return Err(wrong_ends()),
        }
    }
    if given.next().is_some() {
        Err(wrong_ends())
    } else {
        Ok(out)
    }
}

/// The keys of `min` and `max` are those of an index that a hint names.
pub fn hint_required() -> QueryError {
    QueryError::new(
        ErrorKind::Location(51173),
        "When using min()/max() a hint of which index to use must be provided",
    )
}

fn wrong_ends() -> QueryError {
    QueryError::new(
        ErrorKind::Location(51174),
        "The index specified by hint does not match the fields of min() or max()",
    )
}
