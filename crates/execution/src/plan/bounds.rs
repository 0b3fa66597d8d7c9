//! From the predicates of a filter to ranges of one index.
//!
//! The leading fields of an index that are confined to points make prefixes; the first field that
//! is confined to anything wider ends the ranges. The fields behind it are looked at key by key
//! ([`super::bounds_checker`]): inside a range, a scan seeks from one run of keys that meet them to
//! the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::key::FieldOrder;
use banyan_document::path::Path;
use banyan_geo::Shape;
use banyan_geo::parse::Relation;
use banyan_query::QueryError;
use banyan_query::bounds::geo;
use banyan_query::bounds::interval::{Interval, Intervals, KeyOrder};
use banyan_query::bounds::{Condition, Conjunction};
use banyan_query::filter::Predicate;
use banyan_storage::{ArrayPaths, Collection, Index, KeyLayout, KeyRange};
use bson::{RawBson, RawBsonRef};

use super::confined::{any_of, asks_for_existence, confine_field, has_keys, is_exact_for_items};
use super::ranges::{Builder, LaterFields, ScanRange, below, encoded_interval};
use crate::error::plan_killed;

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
    /// How many leading fields each of the ranges confines to single points.
    pub points_each: usize,
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

    /// These bounds with each range by itself.
    pub fn divided(&self) -> impl Iterator<Item = IndexBounds> {
        let per_range = self.intervals_per_range();
        self.ranges.iter().enumerate().map(move |(at, range)| {
            let mut own = IndexBounds {
                ranges: vec![range.clone()],
                points: self.points_each,
                ..self.clone()
            };
            // The last field changes from range to range, the first one least often.
            let mut at = at;
            for (field, intervals) in per_range.iter().enumerate().rev() {
                own.intervals[field] = vec![intervals[at % intervals.len()].clone()];
                at /= intervals.len();
            }
            own
        })
    }

    /// The intervals of the fields that ranges speak of, in the order of keys: each range has one of
    /// each. None where they can't be told apart.
    fn intervals_per_range(&self) -> Vec<Vec<Interval<'static>>> {
        let fields = self.layout.fields.iter().zip(&self.intervals);
        let in_key_order = |((_, order), intervals): (&(Path, FieldOrder), &Vec<_>)| {
            let mut intervals = intervals.clone();
            intervals.sort_by_cached_key(|interval: &Interval<'static>| {
                encoded_interval(&[], interval, *order)
            });
            intervals
        };
        let per_range: Vec<_> = fields.take(self.later.first).map(in_key_order).collect();
        let count = per_range.iter().map(Vec::len).product::<usize>();
        match count == self.ranges.len() {
            true => per_range,
            false => Vec::new(),
        }
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

    /// Whether each key inside the ranges lies inside the bounds, and no two are of one record.
    pub fn keys_are_records(&self) -> bool {
        let are_points = || self.ranges.iter().all(|range| range.point.is_some());
        let are_apart = !self.multikey || self.ranges.len() <= 1 && are_points();
        are_apart && self.later.fields.is_empty() && !self.index.is_clustered()
    }

    /// Whether the paths that keys of the layout begin with are still those of what is asked for, now
    /// that documents have arrays at these.
    pub fn reads_same_paths(&self, arrays: &ArrayPaths) -> bool {
        let Some(prefix) = &self.layout.prefix else {
            return true;
        };
        let asked: Vec<&Path> = self.layout.fields.iter().map(|(path, _)| path).collect();
        let layouts = self.index.kind.layouts(&asked, arrays);
        layouts
            .iter()
            .any(|layout| layout.prefix.as_ref() == Some(prefix))
    }

    /// Per field, as `explain` shows them: in the order in which a scan meets them.
    pub fn described(&self, reverse: bool) -> impl Iterator<Item = Vec<String>> {
        let collated = self.index.pattern.collator.is_some();
        let orders = self.layout.fields.iter().map(|(_, order)| *order);
        orders.zip(&self.intervals).map(move |(order, intervals)| {
            let backwards = reverse != (order == FieldOrder::Descending);
            let shown = |interval: &Interval<'static>| match is_missing(interval) {
                // Null is shown apart from the undefined before it.
                true => vec!["[undefined, undefined]".into(), "[null, null]".into()],
                false => vec![interval.describe(collated, backwards)],
            };
            let mut shown: Vec<String> = intervals.iter().flat_map(shown).collect();
            if backwards {
                shown.reverse();
            }
            shown
        })
    }

    /// Whether they are one range of keys: points, then at most one interval, then anything.
    pub fn are_one_range(&self) -> bool {
        let mut behind = self
            .intervals
            .iter()
            .skip_while(|intervals| matches!(&intervals[..], [interval] if interval.is_point()));
        let is_one = |intervals: &Vec<Interval<'static>>| matches!(&intervals[..], [interval] if !is_missing(interval));
        self.layout.prefix.is_none()
            && behind.next().is_none_or(is_one)
            && behind.all(|intervals| matches!(&intervals[..], [interval] if interval.is_full()))
    }

    /// Whether the path is one of a field of the keys.
    pub fn has_field(&self, path: &str) -> bool {
        let mut fields = self.layout.fields.iter();
        fields.any(|(known, _)| known.to_string() == path)
    }

    /// The field of the keys that a path leads to, or through, and that can be read. Of several it is
    /// the outermost, so that no two paths are read from fields of which one holds the other.
    pub fn field_at(&self, path: &str) -> Option<usize> {
        let leads = |known: &Path| {
            let rest = path.strip_prefix(known.to_string().as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let fields = self.layout.fields.iter().zip(&self.readable);
        let leading = fields
            .enumerate()
            .filter(|(_, ((known, _), readable))| **readable && leads(known));
        let outermost = leading.min_by_key(|(_, ((known, _), _))| known.parts().len());
        outermost.map(|(number, _)| number)
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
        let prefix = self.layout.prefix.as_ref();
        prefix.is_some_and(|prefix| prefix.only().is_none())
            || self.multikey && open.any(|(path, _)| self.arrays.are_on(path))
    }
}

/// The bounds that a conjunction gives an index: of an index over many paths, those for each of
/// them. Bounds that would leave out documents that match are not among them.
pub fn candidates<'i>(
    index: &'i Arc<Index>,
    conjunction: &'i Conjunction<'i>,
) -> impl Iterator<Item = IndexBounds> + use<'i> {
    let asked: Vec<&Path> = conjunction.conditions.iter().map(|c| &*c.path).collect();
    let layouts = index.kind.layouts(&asked, &index.arrays()).into_iter();
    // The path with bounds of values that was found last: those of all that lies below say less.
    let mut confined: Option<Path> = None;
    layouts.filter_map(move |layout| {
        let Some(prefix) = &layout.prefix else {
            return of_layout(index, layout, conjunction, None);
        };
        let (path, _) = layout.fields.first()?;
        if prefix.with_below {
            let is_confined = confined.as_ref() == Some(path);
            return (!is_confined).then(|| of_paths_below(index, layout, conjunction))?;
        }
        let path = path.clone();
        let bounds = of_layout(index, layout, conjunction, None)?;
        confined = Some(path);
        Some(bounds)
    })
}

/// The bounds of all keys of a path and below it, for a condition that the path exists.
fn of_paths_below(
    index: &Arc<Index>,
    layout: KeyLayout,
    conjunction: &Conjunction<'_>,
) -> Option<IndexBounds> {
    let (path, _) = layout.fields.first()?;
    let conditions = conjunction.conditions.iter();
    let mut mine = conditions
        .filter(|condition| *condition.path == *path && asks_for_existence(condition))
        .peekable();
    mine.peek()?;
    let ranges = below(layout.prefix.as_ref()?);
    let is_met = |condition: &&Condition<'_>| {
        matches!(condition.predicate, Predicate::Exists)
            && condition.item.is_none()
            && !path.has_position()
    };
    let met: Vec<&Condition<'_>> = mine.filter(is_met).collect();
    Some(IndexBounds {
        exact: conjunction.complete && met.len() == conjunction.conditions.len(),
        met: met
            .iter()
            .filter_map(|condition| condition.conjunct)
            .collect(),
        ranges,
        confined: 1,
        confines: vec![true],
        readable: vec![false],
        in_order: vec![false],
        ..all_keys(index, layout, false)
    })
}

/// The bounds of an index over shapes whose cells at a path are to be these.
pub fn of_cells(
    index: &Arc<Index>,
    conjunction: &Conjunction<'_>,
    path: &Path,
    cells: &Intervals<'static>,
) -> Option<IndexBounds> {
    let layout = of_all_documents(index)?;
    of_layout(index, layout, conjunction, Some((path, cells)))
}

/// Whether a conjunction confines the first field of an index to anything. That it is not something does
/// not.
pub(super) fn confines_first(index: &Arc<Index>, conjunction: &Conjunction<'_>) -> bool {
    let Some((path, order)) = index.pattern.fields.first() else {
        return false;
    };
    let conditions = conjunction.conditions.iter();
    let mine: Vec<&Condition<'_>> = conditions
        .filter(|c| *c.path == *path && !c.negated)
        .collect();
    let keys = key_order(index, conjunction.collator);
    let in_arrays = index.arrays().are_on(path);
    let is_there = |c: &&Condition<'_>| matches!(c.predicate, Predicate::Exists);
    mine.iter().any(is_there)
        || confine_field(&mine, (*order, index.kind.grid()), in_arrays, keys).is_some()
        || any_of(conjunction, path, keys).is_some()
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
            .filter(|c| layout.is_complete || has_keys(c, in_arrays, keys))
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
        if let [(path, _)] = &fields[..] {
            let is_met = |c: &&Condition<'_>| {
                let exists = matches!(c.predicate, Predicate::Exists) && !c.negated;
                exists && c.item.is_none() && *c.path == *path
            };
            met = conjunction.conditions.iter().filter(is_met).collect();
        }
    }
    let intervals = per_field.iter().map(shown).collect();
    let ends = match index.is_clustered() {
        true => ends_of(&per_field),
        false => RecordEnds::default(),
    };
    let prefix = layout.prefix.as_ref();
    let is_of_one = prefix.is_none_or(|prefix| prefix.only().is_some());
    let in_order = per_field.iter().map(|confined| {
        let holds_no_strings = |confined: &Intervals<'_>| {
            let mut intervals = confined.intervals.iter();
            !intervals.any(Interval::may_hold_strings)
        };
        is_of_one && (keys.is_alike() || confined.as_ref().is_some_and(holds_no_strings))
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
        is_of_one && is_readable(index, &arrays, (path, *order), confined.as_ref())
    });
    let readable = readable.collect();
    let (points, points_each) = (builder.points, builder.points_each);
    let confined = builder.confined;
    let (ranges, later) = builder.finish(fields.len());
    Some(IndexBounds {
        index: index.clone(),
        points,
        points_each,
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

pub(super) fn key_order<'c>(index: &'c Index, collator: Option<&Collator>) -> KeyOrder<'c> {
    KeyOrder::new(index.pattern.collator.as_ref(), collator)
}

/// The whole index, for a hint or for its order, which may not be that of the query's collation.
/// `None`: it does not hold all documents.
pub fn whole(index: &Arc<Index>, collator: Option<&Collator>) -> Option<IndexBounds> {
    let layout = of_all_documents(index)?;
    let alike = key_order(index, collator).is_alike();
    Some(IndexBounds {
        multikey: index.is_multikey(),
        ..all_keys(index, layout, alike)
    })
}

/// The layout that all of an index's keys have.
fn of_all_documents(index: &Index) -> Option<KeyLayout> {
    let mut layouts = index.kind.layouts(&[], &index.arrays()).into_iter();
    layouts.next()
}

/// All keys of a layout, which come in the query's order of values where that and the index's are
/// alike.
fn all_keys(index: &Arc<Index>, layout: KeyLayout, alike: bool) -> IndexBounds {
    let arrays = index.arrays();
    let readable = layout.fields.iter();
    let readable = readable.map(|(path, order)| is_readable(index, &arrays, (path, *order), None));
    let full = layout.fields.iter().map(|_| shown(&None));
    IndexBounds {
        index: index.clone(),
        ranges: vec![ScanRange {
            range: KeyRange::all(),
            point: None,
        }],
        exact: false,
        met: Vec::new(),
        later: LaterFields::default(),
        points: 0,
        points_each: 0,
        confined: 0,
        confines: vec![false; layout.fields.len()],
        multikey: layout.fields.iter().any(|(path, _)| arrays.are_on(path)),
        readable: readable.collect(),
        in_order: vec![alike; layout.fields.len()],
        asked_shape: None,
        intervals: full.collect(),
        ends: RecordEnds::default(),
        layout,
        arrays,
    }
}

fn shown(confined: &Option<Intervals<'_>>) -> Vec<Interval<'static>> {
    match confined {
        Some(confined) => confined.intervals.iter().map(Interval::to_owned).collect(),
        None => vec![Interval::full()],
    }
}

/// Whether it is what a query for null or a missing field looks for.
fn is_missing(interval: &Interval<'_>) -> bool {
    let ends = (interval.lower.value.get(), interval.upper.value.get());
    matches!(ends, (RawBsonRef::Undefined, RawBsonRef::Null))
}
