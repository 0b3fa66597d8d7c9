//! From the predicates of a filter to ranges of one index.
//!
//! The leading fields of an index that are confined to points make prefixes; the first field that
//! is confined to anything wider ends them. What comes after is left to the filter.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::key::{self, FieldOrder};
use banyan_document::path::{Path, position};
use banyan_query::bounds::interval::{Interval, Intervals, KeyOrder, Value, condition_intervals};
use banyan_query::bounds::{CONDITIONS_MAX, Condition, Conjunction};
use banyan_query::filter::{Comparison, Predicate};
use banyan_query::{ErrorKind, QueryError};
use banyan_storage::keys::successor;
use banyan_storage::kind::KeyPrefix;
use banyan_storage::{ArrayPaths, Index, KeyLayout, KeyRange};
use bson::{RawBson, RawBsonRef, RawDocument};

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
    /// Whether every document inside matches the whole filter.
    pub exact: bool,
    /// The filter's conjuncts that every document inside meets, by their numbers.
    pub met: Vec<usize>,
    /// How many leading fields are confined to single points, and whether the next is confined.
    pub points: usize,
    pub confined: usize,
    /// Whether one record may have several of the index's keys.
    pub multikey: bool,
    /// Per field, whether its values can be read from the keys inside the bounds.
    pub readable: Vec<bool>,
    /// Per field, whether the keys inside the bounds come in the order that the query has: with
    /// another collation, those do that hold no strings.
    pub in_order: Vec<bool>,
    /// Per field, as `explain` shows them.
    pub described: Vec<Vec<String>>,
    /// What `explain` shows instead of a clustered index.
    pub ends: RecordEnds,
}

/// The lowest and the highest `_id` of the part of a clustered collection that is looked at.
#[derive(Debug, Clone, Default)]
pub struct RecordEnds {
    pub min: Option<RawBson>,
    pub max: Option<RawBson>,
}

impl IndexBounds {
    /// Whether the bounds leave anything out.
    pub fn is_selective(&self) -> bool {
        self.confined > 0
    }

    /// Whether this is all of a clustered collection.
    pub fn is_whole_collection(&self) -> bool {
        let ends = &self.ends;
        self.index.is_clustered() && ends.min.is_none() && ends.max.is_none()
    }

    /// Whether at most one record can be inside.
    pub fn is_unique_point(&self) -> bool {
        self.index.unique && self.ranges.len() <= 1 && self.ranges.iter().all(|r| r.point.is_some())
    }

    /// Whether what is at the paths can be read from the keys.
    pub fn covers(&self, paths: &BTreeSet<String>) -> bool {
        paths.iter().all(|path| self.field_at(path).is_some())
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
    layouts.filter_map(|layout| of_layout(index, layout, conjunction))
}

fn of_layout(
    index: &Arc<Index>,
    layout: KeyLayout,
    conjunction: &Conjunction<'_>,
) -> Option<IndexBounds> {
    let arrays = index.arrays();
    let fields = layout.fields.clone();
    let keys = key_order(index, conjunction.collator);
    let mut builder = Builder::after(layout.prefix.as_ref());
    // The conditions that every document inside meets, and how many those are of.
    let mut met: Vec<&Condition<'_>> = Vec::new();
    let mut excludes_missing = false;
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
        let confined = if shares_array || builder.closed {
            None
        } else {
            confine_field(&mine, *order, in_arrays, keys)
        };
        if let Some((confined, used)) = &confined
            && confined.exact
            && (!in_arrays || is_exact_for_items(path, confined, used))
        {
            met.extend(used);
        }
        per_field.push(confined.map(|(confined, _)| confined));
        builder.closed |= !builder.extend(per_field[position].as_ref(), *order);
    }
    let has_all = match layout.is_complete {
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
    let collated = index.pattern.collator.is_some();
    let described = describe(&per_field, builder.used, collated);
    let ends = match index.is_clustered() {
        true => ends_of(&per_field),
        false => RecordEnds::default(),
    };
    let in_order = per_field.iter().enumerate().map(|(position, confined)| {
        let confined = confined.as_ref().filter(|_| position < builder.used);
        keys.is_alike()
            || confined.is_some_and(|confined| {
                let mut intervals = confined.intervals.iter();
                !intervals.any(Interval::may_hold_strings)
            })
    });
    let in_order = in_order.collect();
    if builder.widened {
        met.clear();
    }
    let exact = conjunction.complete && met.len() == conjunction.conditions.len();
    let met = met
        .iter()
        .filter_map(|condition| condition.conjunct)
        .collect();
    let readable = fields.iter().zip(&per_field).enumerate();
    let readable = readable.map(|(position, ((path, order), confined))| {
        let confined = confined.as_ref().filter(|_| position < builder.used);
        is_readable(index, &arrays, (path, *order), confined)
    });
    let readable = readable.collect();
    Some(IndexBounds {
        index: index.clone(),
        points: builder.points,
        confined: builder.confined,
        ranges: builder.finish(fields.len()),
        exact,
        met,
        multikey: fields.iter().any(|(path, _)| arrays.are_on(path)),
        readable,
        in_order,
        described,
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
    order != FieldOrder::Hashed
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
    let full = layout
        .fields
        .iter()
        .map(|_| vec![Interval::full().describe(false)]);
    Some(IndexBounds {
        index: index.clone(),
        ranges: vec![ScanRange {
            range: KeyRange::all(),
            point: None,
        }],
        exact: false,
        met: Vec::new(),
        points: 0,
        confined: 0,
        multikey: index.is_multikey(),
        readable: readable.collect(),
        in_order: vec![alike; layout.fields.len()],
        described: full.collect(),
        ends: RecordEnds::default(),
        layout,
        arrays,
    })
}

/// What all conditions on one field allow together, and which of them that accounts for.
fn confine_field<'c, 'a>(
    conditions: &[&'c Condition<'a>],
    order: FieldOrder,
    multikey: bool,
    keys: KeyOrder<'_>,
) -> Option<(Intervals<'a>, Vec<&'c Condition<'a>>)> {
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

fn is_equality(condition: &Condition<'_>) -> bool {
    let equality = matches!(
        condition.predicate,
        Predicate::Compare(Comparison::Eq, _)
            | Predicate::ExprCompare(Comparison::Eq, _)
            | Predicate::In { .. }
    );
    equality && !condition.negated
}

/// The first key of a range, and the one just after its last, unless nothing comes after it.
type KeyPair = (Vec<u8>, Option<Vec<u8>>);

/// Builds ranges field by field.
struct Builder {
    /// The points so far: every combination of the leading fields' values.
    prefixes: Vec<Vec<u8>>,
    ranges: Option<Vec<KeyPair>>,
    closed: bool,
    points: usize,
    confined: usize,
    used: usize,
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
            points: 0,
            confined: 0,
            used: 0,
            widened: false,
        }
    }

    /// Takes in the next field; `false` when no further field can narrow the ranges.
    fn extend(&mut self, confined: Option<&Intervals<'_>>, order: FieldOrder) -> bool {
        if self.closed {
            return false;
        }
        let Some(confined) = confined else {
            return false;
        };
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
        let count = confined.intervals.len();
        self.confined += 1;
        self.used += 1;
        let all_points = confined.intervals.iter().all(Interval::is_point);
        if all_points {
            if count == 1 {
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
            return true;
        }
        let mut ranges = Vec::new();
        for prefix in &self.prefixes {
            let mut here: Vec<_> = confined
                .intervals
                .iter()
                .map(|i| range_of(prefix, i, order))
                .collect();
            here.sort();
            ranges.extend(here);
        }
        self.ranges = Some(ranges);
        false
    }

    fn finish(self, fields: usize) -> Vec<ScanRange> {
        if let Some(ranges) = self.ranges {
            return ranges
                .into_iter()
                .map(|(lower, upper)| ScanRange {
                    range: KeyRange {
                        lower: Bound::Included(lower),
                        upper: upper.map_or(Bound::Unbounded, Bound::Excluded),
                    },
                    point: None,
                })
                .collect();
        }
        if self.used == 0 {
            return vec![ScanRange {
                range: KeyRange::all(),
                point: None,
            }];
        }
        let whole_key = self.used == fields;
        self.prefixes
            .into_iter()
            .map(|prefix| ScanRange {
                point: whole_key.then(|| prefix.clone()),
                range: KeyRange::prefix(prefix),
            })
            .collect()
    }
}

fn encode(value: RawBsonRef<'_>, order: FieldOrder) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    match order {
        FieldOrder::Ascending => key::encode(value, &mut out),
        FieldOrder::Descending => key::encode_descending(value, &mut out),
        FieldOrder::Hashed => key::encode(RawBsonRef::Int64(key::hash(value)), &mut out),
    }
    out
}

/// The keys from the interval's first (included) to just after its last.
fn range_of(prefix: &[u8], interval: &Interval<'_>, order: FieldOrder) -> KeyPair {
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

fn describe(per_field: &[Option<Intervals<'_>>], used: usize, collated: bool) -> Vec<Vec<String>> {
    per_field
        .iter()
        .enumerate()
        .map(|(position, confined)| match confined {
            Some(confined) if position < used => {
                let intervals = confined.intervals.iter();
                intervals.map(|i| i.describe(collated)).collect()
            }
            _ => vec![Interval::full().describe(collated)],
        })
        .collect()
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

fn wrong_ends() -> QueryError {
    QueryError::new(
        ErrorKind::Location(51174),
        "The index specified by hint does not match the fields of min() or max()",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_query::Filter;
    use banyan_storage::IndexDefinition;
    use bson::{RawDocumentBuf, rawdoc};

    fn index(key: RawDocumentBuf, arrays: &[&str]) -> Arc<Index> {
        let spec = rawdoc! { "v": 2, "key": key, "name": "index" };
        let arrays = ArrayPaths::of(&arrays.iter().map(|path| Box::from(*path)).collect());
        Arc::new(Index::parse(&IndexDefinition { id: 7, spec }, arrays).unwrap())
    }

    fn bounds(index: &Arc<Index>, conjunction: &Conjunction<'_>) -> Option<IndexBounds> {
        candidates(index, conjunction).next()
    }

    /// The bounds as explain shows them, and whether they are exact.
    fn shown(
        key: RawDocumentBuf,
        arrays: &[&str],
        filter: RawDocumentBuf,
    ) -> (Vec<Vec<String>>, bool) {
        let filter = parse(&filter);
        let bounds = bounds(&index(key, arrays), &Conjunction::of(&filter)).unwrap();
        (bounds.described, bounds.exact)
    }

    fn parse(filter: &RawDocument) -> Filter {
        Filter::parse(filter, &banyan_query::Context::default()).unwrap()
    }

    /// Whether a document's key lies inside the bounds.
    fn inside(key: RawDocumentBuf, filter: &RawDocumentBuf, document: &RawDocumentBuf) -> bool {
        let index = index(key, &[]);
        let bounds = bounds(&index, &Conjunction::of(&parse(filter))).unwrap();
        let keys = index.kind.keys(document).unwrap().keys;
        keys.iter().map(|key| &key.bytes).any(|key| {
            bounds.ranges.iter().any(|range| {
                let above = match &range.range.lower {
                    Bound::Included(lower) => key >= lower,
                    Bound::Excluded(lower) => key > lower,
                    Bound::Unbounded => true,
                };
                let below = match &range.range.upper {
                    Bound::Included(upper) => key <= upper,
                    Bound::Excluded(upper) => key < upper,
                    Bound::Unbounded => true,
                };
                above && below
            })
        })
    }

    #[test]
    fn equality_prefixes_and_a_range_combine() {
        let (shown, exact) = shown(
            rawdoc! { "a": 1, "b": -1, "c": 1 },
            &[],
            rawdoc! { "a": 5, "b": { "$gt": 1, "$lte": 9 }, "c": 3 },
        );
        assert_eq!(shown, [["[5, 5]"], ["(1, 9]"], ["[MinKey, MaxKey]"]]);
        // What is said about c is left to the filter.
        assert!(!exact);
    }

    #[test]
    fn ranges_stay_within_their_type() {
        let (shown, exact) = shown(rawdoc! { "a": 1 }, &[], rawdoc! { "a": { "$gt": 5 } });
        assert_eq!(shown, [["(5, inf.0]"]]);
        assert!(exact);
        let range = rawdoc! { "a": { "$gt": 5 } };
        assert!(inside(rawdoc! { "a": 1 }, &range, &rawdoc! { "a": 6.5 }));
        assert!(!inside(rawdoc! { "a": 1 }, &range, &rawdoc! { "a": 5_i64 }));
        assert!(!inside(rawdoc! { "a": 1 }, &range, &rawdoc! { "a": "x" }));
        assert!(!inside(rawdoc! { "a": 1 }, &range, &rawdoc! {}));
    }

    #[test]
    fn descending_fields_turn_the_ends_round() {
        let range = rawdoc! { "a": { "$gte": 2, "$lt": 4 } };
        for (value, expected) in [(1, false), (2, true), (3, true), (4, false)] {
            let document = rawdoc! { "a": value };
            assert_eq!(
                inside(rawdoc! { "a": -1 }, &range, &document),
                expected,
                "{value}"
            );
            assert_eq!(
                inside(rawdoc! { "a": -1, "b": 1 }, &range, &document),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn an_array_may_meet_two_conditions_with_two_elements() {
        let filter = rawdoc! { "a": { "$gt": 3, "$lt": 5 } };
        let (shown_multikey, exact) = shown(rawdoc! { "a": 1 }, &["a"], filter.clone());
        assert_eq!(shown_multikey, [["[-inf.0, 5)"]]);
        assert!(!exact);
        let element = rawdoc! { "a": { "$elemMatch": { "$gt": 3, "$lt": 5 } } };
        assert_eq!(shown(rawdoc! { "a": 1 }, &["a"], element).0, [["(3, 5)"]]);
        assert_eq!(shown(rawdoc! { "a": 1 }, &[], filter).0, [["(3, 5)"]]);
    }

    #[test]
    fn fields_of_one_array_are_not_combined() {
        let filter = rawdoc! { "a.b": 1, "a.c": 2 };
        let key = rawdoc! { "a.b": 1, "a.c": 1 };
        let (multikey, _) = shown(key.clone(), &["a"], filter.clone());
        assert_eq!(multikey, [["[1, 1]"], ["[MinKey, MaxKey]"]]);
        assert_eq!(shown(key, &[], filter).0, [["[1, 1]"], ["[2, 2]"]]);
    }

    #[test]
    fn fields_beside_an_array_are_confined_as_without_it() {
        let key = rawdoc! { "a": 1, "b": 1 };
        let filter = rawdoc! { "a": 5, "b": { "$gt": 1, "$lt": 9 } };
        let (bounds, exact) = shown(key.clone(), &["a"], filter.clone());
        assert_eq!(bounds, [["[5, 5]"], ["(1, 9)"]]);
        assert!(exact, "one item is enough");
        let (bounds, exact) = shown(key, &["b"], rawdoc! { "a": { "$gt": 1, "$lt": 9 } });
        assert_eq!(bounds, [["(1, 9)"], ["[MinKey, MaxKey]"]]);
        assert!(exact, "no array is on the path that is confined");
        // An array below the part that the paths share does not pair them up.
        let key = rawdoc! { "c.d": 1, "c.e": 1 };
        let filter = rawdoc! { "c.d": 1, "c.e": { "$gt": 1, "$lt": 7 } };
        let (bounds, _) = shown(key, &["c.d"], filter);
        assert_eq!(bounds, [["[1, 1]"], ["(1, 7)"]]);
    }

    #[test]
    fn a_wildcard_index_answers_for_each_path_by_itself() {
        let index = index(rawdoc! { "$**": 1 }, &["a"]);
        let shown = |filter: RawDocumentBuf| -> Vec<String> {
            let filter = parse(&filter);
            let conjunction = Conjunction::of(&filter);
            candidates(&index, &conjunction)
                .map(|bounds| {
                    let path = &bounds.layout.prefix.as_ref().unwrap().value;
                    let exact = if bounds.exact { "" } else { " ?" };
                    let multikey = if bounds.multikey { " *" } else { "" };
                    format!("{path} {}{exact}{multikey}", bounds.described[0].join(" "))
                })
                .collect()
        };
        assert_eq!(shown(rawdoc! { "b.c": { "$gt": 1 } }), ["b.c (1, inf.0]"]);
        assert_eq!(
            shown(rawdoc! { "a.x": 1, "b": "s" }),
            ["a.x [1, 1] ? *", "b [\"s\", \"s\"] ?"]
        );
        let nothing: [&str; 0] = [];
        assert_eq!(shown(rawdoc! {}), nothing);
        assert_eq!(shown(rawdoc! { "b": bson::RawBson::Null }), nothing);
        assert_eq!(shown(rawdoc! { "b": { "$ne": 1 } }), nothing);
        assert_eq!(shown(rawdoc! { "b": { "c": 1 } }), nothing);
        assert_eq!(shown(rawdoc! { "b": { "$gte": {} } }), nothing);
        assert_eq!(shown(rawdoc! { "b": [1] }), nothing);
        assert_eq!(shown(rawdoc! { "b": { "$exists": true } }), nothing);
        assert_eq!(shown(rawdoc! { "b": { "$in": [1, null] } }), nothing);
        assert_eq!(shown(rawdoc! { "a.0": 1 }), nothing);
        assert!(whole(&index, None).is_none());
    }

    #[test]
    fn points_of_an_in_are_sorted_and_kept_apart() {
        let filter = rawdoc! { "a": { "$in": [3, 1, 3.0, 2] }, "b": 1 };
        let filter = parse(&filter);
        let index = index(rawdoc! { "a": 1, "b": 1 }, &[]);
        let bounds = bounds(&index, &Conjunction::of(&filter)).unwrap();
        assert_eq!(bounds.ranges.len(), 3);
        assert!(bounds.ranges.iter().all(|range| range.point.is_some()));
        assert!(bounds.exact);
        let mut sorted = bounds.ranges.clone();
        sorted.sort_by(|a, b| a.point.cmp(&b.point));
        let points = |ranges: &[ScanRange]| -> Vec<_> {
            ranges.iter().map(|range| range.point.clone()).collect()
        };
        assert_eq!(points(&sorted), points(&bounds.ranges));
    }

    #[test]
    fn null_takes_in_missing_fields() {
        let filter = rawdoc! { "a": bson::RawBson::Null };
        assert!(inside(rawdoc! { "a": 1 }, &filter, &rawdoc! { "b": 1 }));
        assert!(!inside(rawdoc! { "a": 1 }, &filter, &rawdoc! { "a": 0 }));
        assert!(shown(rawdoc! { "a": 1 }, &[], filter).1);
    }

    #[test]
    fn a_sparse_index_is_no_help_where_missing_fields_match() {
        let spec = rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1", "sparse": true };
        let index = Arc::new(
            Index::parse(&IndexDefinition { id: 7, spec }, ArrayPaths::default()).unwrap(),
        );
        let bounds =
            |filter: RawDocumentBuf| bounds(&index, &Conjunction::of(&parse(&filter))).is_some();
        assert!(bounds(rawdoc! { "a": 1 }));
        assert!(bounds(rawdoc! { "a": { "$exists": true } }));
        assert!(!bounds(rawdoc! { "a": bson::RawBson::Null }));
        assert!(!bounds(rawdoc! { "b": 1 }));
        assert!(!bounds(rawdoc! {}));
    }

    #[test]
    fn contradictions_leave_nothing_to_look_at() {
        let filter = rawdoc! { "a": { "$gt": 5, "$lt": 3 } };
        let filter = parse(&filter);
        let bounds = bounds(&index(rawdoc! { "a": 1 }, &[]), &Conjunction::of(&filter)).unwrap();
        assert!(bounds.ranges.is_empty());
    }
}
