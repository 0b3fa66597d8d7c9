//! Where in the order of all values those lie that meet a condition.

use std::cmp::Ordering;

use banyan_document::Collator;
use banyan_document::collation::{holds_strings, key_value};
use banyan_document::compare::{canonical_rank, compare};
use banyan_document::items;
use banyan_document::number::Number;
use bson::oid::ObjectId;
use bson::spec::{BinarySubtype, ElementType};
use bson::{RawArray, RawBinaryRef, RawBson, RawBsonRef, RawDocument, Timestamp};

use super::conjunction::Condition;
use super::describe::describe_value;
use crate::filter::{Comparison, Predicate, TypeSet};
use crate::pattern::Pattern;

/// A range of values in MongoDB's comparison order.
#[derive(Debug, Clone)]
pub struct Interval<'a> {
    pub lower: End<'a>,
    pub upper: End<'a>,
}

#[derive(Debug, Clone)]
pub struct End<'a> {
    pub value: Value<'a>,
    pub inclusive: bool,
}

/// How the keys that are looked up compare strings, and whether the filter does it alike. Without a
/// collator strings are compared by their bytes. The strings in intervals are those in the keys:
/// under a collation, key strings.
#[derive(Debug, Clone, Copy)]
pub struct KeyOrder<'c> {
    keys: Option<&'c Collator>,
    alike: bool,
}

impl<'c> KeyOrder<'c> {
    pub fn new(keys: Option<&'c Collator>, filter: Option<&Collator>) -> KeyOrder<'c> {
        KeyOrder {
            keys,
            alike: keys == filter,
        }
    }

    /// Whether the keys come in the order that the filter has, strings included.
    pub fn is_alike(&self) -> bool {
        self.alike
    }

    /// A value of the filter as it is in the keys. `None`: what is equal to it, and what comes
    /// before it, lies elsewhere in the keys.
    pub fn value<'a>(&self, value: RawBsonRef<'a>) -> Option<Value<'a>> {
        match self.keys {
            _ if !holds_strings(&value) => Some(Value::Given(value)),
            _ if !self.alike => None,
            Some(collator) => Some(Value::Made(key_value(value, collator))),
            None => Some(Value::Given(value)),
        }
    }
}

/// A value of the filter, or one that was made from it.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    Given(RawBsonRef<'a>),
    Made(RawBson),
}

impl Value<'_> {
    pub fn get(&self) -> RawBsonRef<'_> {
        match self {
            Value::Given(value) => *value,
            Value::Made(value) => value.as_raw_bson_ref(),
        }
    }
}

/// The ranks of the types that may hold strings: those from strings to arrays.
const STRING_RANK: u8 = 15;
const ARRAY_RANK: u8 = 25;

const EMPTY_DOCUMENT: &[u8] = &[5, 0, 0, 0, 0];
/// `{"": []}`.
const EMPTY_ARRAY: &[u8] = &[12, 0, 0, 0, 4, 0, 5, 0, 0, 0, 0, 0];

impl<'a> Interval<'a> {
    pub fn new(
        lower: RawBsonRef<'a>,
        lower_inclusive: bool,
        upper: RawBsonRef<'a>,
        upper_inclusive: bool,
    ) -> Interval<'a> {
        let (lower, upper) = (Value::Given(lower), Value::Given(upper));
        Interval::between(lower, lower_inclusive, upper, upper_inclusive)
    }

    fn between(
        lower: Value<'a>,
        lower_inclusive: bool,
        upper: Value<'a>,
        upper_inclusive: bool,
    ) -> Interval<'a> {
        Interval {
            lower: End {
                value: lower,
                inclusive: lower_inclusive,
            },
            upper: End {
                value: upper,
                inclusive: upper_inclusive,
            },
        }
    }

    pub fn point(value: RawBsonRef<'a>) -> Interval<'a> {
        Interval::new(value, true, value, true)
    }

    fn at(value: Value<'a>) -> Interval<'a> {
        Interval::between(value.clone(), true, value, true)
    }

    /// Whether values that are or may hold strings can lie inside.
    pub fn may_hold_strings(&self) -> bool {
        let rank = |end: &End<'_>| canonical_rank(&end.value.get());
        rank(&self.upper) >= STRING_RANK && rank(&self.lower) <= ARRAY_RANK
    }

    pub fn full() -> Interval<'a> {
        Interval::new(RawBsonRef::MinKey, true, RawBsonRef::MaxKey, true)
    }

    /// All documents but the empty one, and all arrays.
    pub fn documents_and_arrays() -> Interval<'static> {
        let lower = RawDocument::from_bytes(EMPTY_DOCUMENT).map(RawBsonRef::Document);
        let upper = RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes: &[],
        });
        Interval::new(lower.unwrap_or(RawBsonRef::MinKey), false, upper, false)
    }

    pub fn is_point(&self) -> bool {
        self.lower.inclusive && self.upper.inclusive && self.is_of_one_value()
    }

    fn is_of_one_value(&self) -> bool {
        compare(self.lower.value.get(), self.upper.value.get()).is_eq()
    }

    pub fn is_full(&self) -> bool {
        matches!(self.lower.value.get(), RawBsonRef::MinKey)
            && matches!(self.upper.value.get(), RawBsonRef::MaxKey)
            && self.lower.inclusive
            && self.upper.inclusive
    }

    fn is_empty(&self) -> bool {
        match compare(self.lower.value.get(), self.upper.value.get()) {
            Ordering::Less => false,
            Ordering::Equal => !(self.lower.inclusive && self.upper.inclusive),
            Ordering::Greater => true,
        }
    }

    pub fn intersect(&self, other: &Interval<'a>) -> Option<Interval<'a>> {
        let lower = match self.lower.compare_lower(&other.lower) {
            Ordering::Less => &other.lower,
            _ => &self.lower,
        };
        let upper = match self.upper.compare_upper(&other.upper) {
            Ordering::Greater => &other.upper,
            _ => &self.upper,
        };
        let both = Interval {
            lower: lower.clone(),
            upper: upper.clone(),
        };
        (!both.is_empty()).then_some(both)
    }

    fn is_within(&self, outer: &Interval<'_>) -> bool {
        outer.lower.compare_lower(&self.lower).is_le()
            && outer.upper.compare_upper(&self.upper).is_ge()
    }

    /// Whether it ends no lower than where the other, which begins no lower, begins.
    fn reaches(&self, other: &Interval<'_>) -> bool {
        match compare(self.upper.value.get(), other.lower.value.get()) {
            Ordering::Greater => true,
            Ordering::Equal => self.upper.inclusive || other.lower.inclusive,
            Ordering::Less => false,
        }
    }

    /// The same, without the filter that its values lie in.
    pub fn to_owned(&self) -> Interval<'static> {
        let end = |end: &End<'_>| End {
            value: Value::Made(end.value.get().into()),
            inclusive: end.inclusive,
        };
        Interval {
            lower: end(&self.lower),
            upper: end(&self.upper),
        }
    }

    /// The ends as a scan meets them.
    pub fn ends(&self, backwards: bool) -> [&End<'a>; 2] {
        match backwards {
            true => [&self.upper, &self.lower],
            false => [&self.lower, &self.upper],
        }
    }

    /// As `explain` writes it: `[1, 5)`, and `(5, 1]` if it is read backwards. `collated`: its
    /// strings are key strings.
    pub fn describe(&self, collated: bool, backwards: bool) -> String {
        let [first, last] = self.ends(backwards);
        format!(
            "{}{}, {}{}",
            if first.inclusive { '[' } else { '(' },
            describe_value(first.value.get(), collated),
            describe_value(last.value.get(), collated),
            if last.inclusive { ']' } else { ')' },
        )
    }
}

/// The intervals that a condition bounds a path to.
#[derive(Debug, Clone)]
pub struct Intervals<'a> {
    /// In order, apart from one another.
    pub intervals: Vec<Interval<'a>>,
    /// Whether every value inside meets the condition (a missing one being null).
    pub exact: bool,
}

impl<'a> Intervals<'a> {
    fn exact(intervals: Vec<Interval<'a>>) -> Intervals<'a> {
        Intervals {
            intervals,
            exact: true,
        }
    }

    pub(super) fn inexact(intervals: Vec<Interval<'a>>) -> Intervals<'a> {
        Intervals {
            intervals,
            exact: false,
        }
    }

    /// Values that meet both conditions.
    pub fn and(&self, other: &Intervals<'a>) -> Intervals<'a> {
        Intervals {
            intervals: intersection(&self.intervals, &other.intervals),
            exact: self.exact && other.exact,
        }
    }

    /// Values that meet all conditions; `None` of none. They are put together two and two: one after
    /// the other would take the square of their number.
    pub fn all(mut conditions: Vec<Intervals<'a>>) -> Option<Intervals<'a>> {
        while conditions.len() > 1 {
            let pairs = conditions.chunks(2).map(|pair| match pair {
                [one, other] => one.and(other),
                rest => rest[0].clone(),
            });
            conditions = pairs.collect();
        }
        conditions.pop()
    }

    pub fn is_points(&self) -> bool {
        self.intervals.iter().all(Interval::is_point)
    }

    /// Whether each of the intervals lies within one of the other.
    pub fn is_within(&self, other: &Intervals<'_>) -> bool {
        let mut outer = other.intervals.iter().peekable();
        self.intervals.iter().all(|one| {
            // Both are in order: what ends before this one ends before the next as well.
            let ends_before = |outer: &&Interval<'_>| outer.upper.compare_upper(&one.upper).is_lt();
            while outer.next_if(ends_before).is_some() {}
            outer.peek().is_some_and(|outer| one.is_within(outer))
        })
    }
}

/// Where the values lie that meet a condition. `arrays`: the path may lead through arrays or to
/// one, whose items are then meant. `None`: anywhere.
pub fn condition_intervals<'a>(
    condition: &Condition<'a>,
    arrays: bool,
    order: KeyOrder<'_>,
) -> Option<Intervals<'a>> {
    let bounds = holding(condition.predicate, arrays, order)?;
    if !condition.negated {
        let is_of_null = |interval: &Interval<'_>| interval.intersect(&null()).is_some();
        let is_equal_to_null = matches!(
            condition.predicate,
            Predicate::Compare(..) | Predicate::In { .. }
        ) && bounds.intervals.iter().any(is_of_null);
        // The number may be the name of a field as well, which the item is without: its key is that
        // of the whole item then.
        return (!(arrays && is_equal_to_null && condition.path.has_position())).then_some(bounds);
    }
    // What is left out has to meet the predicate for certain.
    if !bounds.exact {
        return match condition.predicate {
            Predicate::Exists if !arrays => Some(Intervals::inexact(vec![null()])),
            _ => None,
        };
    }
    let outside = complement(bounds.intervals);
    (!outside.iter().any(Interval::is_full)).then_some(Intervals::exact(outside))
}

fn holding<'a>(
    predicate: &'a Predicate,
    arrays: bool,
    order: KeyOrder<'_>,
) -> Option<Intervals<'a>> {
    match predicate {
        Predicate::Compare(Comparison::Eq, value) => equals(value.as_raw_bson_ref(), arrays, order),
        Predicate::Compare(comparison, value) => {
            ordered(*comparison, value.as_raw_bson_ref(), arrays, order)
        }
        Predicate::ExprCompare(comparison, value) if !arrays => {
            implied(*comparison, value.as_raw_bson_ref(), order)
        }
        Predicate::Extreme(comparison, value) if !arrays => {
            let value = value.as_raw_bson_ref();
            let mut intervals = implied(*comparison, value, order)?;
            // What is missing, null in an index, is below all of these.
            intervals.exact = compare(value, RawBsonRef::Null).is_gt();
            Some(intervals)
        }
        Predicate::In { values, patterns } => any_of(values, patterns, arrays, order),
        Predicate::Regex(pattern) => matching(pattern, order),
        // An index has what is missing as null.
        Predicate::Exists => Some(Intervals::inexact(vec![Interval::full()])),
        Predicate::Type(set) => of_types(set),
        Predicate::Mod { .. } => Some(Intervals::inexact(vec![numbers()])),
        Predicate::ExprCompare(..)
        | Predicate::Extreme(..)
        | Predicate::Bits(_)
        | Predicate::Geo(_)
        | Predicate::InBucket(_)
        | Predicate::Near(_)
        | Predicate::Size(_)
        | Predicate::ElemMatchObject(_)
        | Predicate::ElemMatchValue(_) => None,
    }
}

/// Ranges, which stay within the type of their operand.
fn ordered<'a>(
    comparison: Comparison,
    value: RawBsonRef<'a>,
    arrays: bool,
    order: KeyOrder<'_>,
) -> Option<Intervals<'a>> {
    if is_null(value) || is_nan(value) {
        // Nothing compares with them but themselves.
        return match comparison {
            Comparison::Lt | Comparison::Gt => Some(Intervals::exact(Vec::new())),
            _ => equals(value, arrays, order),
        };
    }
    let (lower, lower_inclusive, upper, upper_inclusive) = brackets(value)?;
    let inclusive = matches!(comparison, Comparison::Lte | Comparison::Gte);
    let (lower, upper) = (Value::Given(lower), Value::Given(upper));
    let value = order.value(value)?;
    let interval = match comparison {
        Comparison::Gt | Comparison::Gte => {
            Interval::between(value, inclusive, upper, upper_inclusive)
        }
        _ => Interval::between(lower, lower_inclusive, value, inclusive),
    };
    // Nothing is greater than the greatest of a type.
    let is_empty = interval.is_of_one_value() && !interval.is_point();
    let intervals = if is_empty { Vec::new() } else { vec![interval] };
    Some(Intervals::exact(intervals))
}

/// Comparisons in expressions go over all types, and a missing value, which indexes have as null,
/// is lower than null.
fn implied<'a>(
    comparison: Comparison,
    value: RawBsonRef<'a>,
    order: KeyOrder<'_>,
) -> Option<Intervals<'a>> {
    let least = Value::Given(RawBsonRef::MinKey);
    let most = Value::Given(RawBsonRef::MaxKey);
    let operand = order.value(value)?;
    let interval = match comparison {
        Comparison::Eq if is_null(value) => null(),
        Comparison::Eq => Interval::at(operand),
        Comparison::Gt => Interval::between(operand, false, most, true),
        Comparison::Gte => Interval::between(operand, true, most, true),
        // As far as the null of what is missing.
        Comparison::Lt | Comparison::Lte if compare(value, RawBsonRef::Null).is_le() => {
            Interval::between(least, true, Value::Given(RawBsonRef::Null), true)
        }
        Comparison::Lt => Interval::between(least, true, operand, false),
        Comparison::Lte => Interval::between(least, true, operand, true),
    };
    Some(Intervals::inexact(vec![interval]))
}

fn any_of<'a>(
    values: &'a [RawBson],
    patterns: &'a [Pattern],
    arrays: bool,
    order: KeyOrder<'_>,
) -> Option<Intervals<'a>> {
    let mut all = Intervals::exact(Vec::with_capacity(values.len()));
    let values = values
        .iter()
        .map(|value| equals(value.as_raw_bson_ref(), arrays, order));
    let patterns = patterns.iter().map(|pattern| matching(pattern, order));
    for one in values.chain(patterns) {
        let one = one?;
        all.intervals.extend(one.intervals);
        all.exact &= one.exact;
    }
    all.intervals = union(all.intervals);
    Some(all)
}

/// Strings that can match a pattern, and the pattern itself, which as a value is equal to it.
/// Patterns know no collation, so that of a collated index all strings can.
fn matching<'a>(pattern: &'a Pattern, order: KeyOrder<'_>) -> Option<Intervals<'a>> {
    let itself = || {
        let value = Value::Made(RawBson::RegularExpression(pattern.to_bson()?));
        let end = End {
            value,
            inclusive: true,
        };
        Some(Interval {
            lower: end.clone(),
            upper: end,
        })
    };
    let prefix = match order.keys {
        None => pattern.prefix(),
        Some(_) => None,
    };
    let strings = prefix.and_then(|(prefix, complete)| Some((beginning_with(prefix)?, complete)));
    let (strings, exact) = strings.unwrap_or_else(|| (texts(), false));
    Some(Intervals {
        intervals: vec![strings, itself()?],
        exact,
    })
}

fn beginning_with<'a>(prefix: String) -> Option<Interval<'a>> {
    let mut end = prefix.clone();
    // The next string after all that begin so; a character has no successor at its end.
    let next = end
        .pop()
        .and_then(|last| char::from_u32(u32::from(last) + 1))?;
    end.push(next);
    Some(Interval {
        lower: End {
            value: Value::Made(RawBson::String(prefix)),
            inclusive: true,
        },
        upper: End {
            value: Value::Made(RawBson::String(end)),
            inclusive: false,
        },
    })
}

fn equals<'a>(value: RawBsonRef<'a>, arrays: bool, order: KeyOrder<'_>) -> Option<Intervals<'a>> {
    match value {
        // What is null may have the key of an array that ends above it.
        RawBsonRef::Null | RawBsonRef::Undefined if arrays => {
            Some(Intervals::inexact(vec![null()]))
        }
        RawBsonRef::Null | RawBsonRef::Undefined => Some(Intervals::exact(vec![null()])),
        RawBsonRef::Array(array) => of_array(value, array, order),
        RawBsonRef::MinKey | RawBsonRef::MaxKey => {
            Some(Intervals::inexact(vec![Interval::point(value)]))
        }
        value => Some(Intervals::exact(vec![Interval::at(order.value(value)?)])),
    }
}

/// An array has the keys of its items, so that its first one leads to it; an empty one has the key
/// of undefined. An array that is an item itself has a key of its own.
fn of_array<'a>(
    value: RawBsonRef<'a>,
    array: &'a RawArray,
    order: KeyOrder<'_>,
) -> Option<Intervals<'a>> {
    let first = match items(array).next() {
        Some(item) => order.value(item.value())?,
        None => Value::Given(RawBsonRef::Undefined),
    };
    let intervals = vec![Interval::at(first), Interval::at(order.value(value)?)];
    Some(Intervals::inexact(union(intervals)))
}

/// Null, and undefined just before it.
fn null<'a>() -> Interval<'a> {
    Interval::new(RawBsonRef::Undefined, true, RawBsonRef::Null, true)
}

fn numbers<'a>() -> Interval<'a> {
    let (lowest, highest) = (
        RawBsonRef::Double(f64::NAN),
        RawBsonRef::Double(f64::INFINITY),
    );
    Interval::new(lowest, true, highest, true)
}

fn texts<'a>() -> Interval<'a> {
    let end = RawDocument::from_bytes(EMPTY_DOCUMENT).map(RawBsonRef::Document);
    Interval::new(
        RawBsonRef::String(""),
        true,
        end.unwrap_or(RawBsonRef::MaxKey),
        false,
    )
}

fn of_types<'a>(set: &TypeSet) -> Option<Intervals<'a>> {
    let mut intervals = Vec::new();
    if set.numbers {
        intervals.push(numbers());
    }
    for kind in &set.types {
        intervals.push(of_type(*kind)?);
    }
    Some(Intervals::inexact(union(intervals)))
}

fn of_type<'a>(kind: ElementType) -> Option<Interval<'a>> {
    let sample = match kind {
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            return Some(numbers());
        }
        ElementType::String | ElementType::Symbol => return Some(texts()),
        ElementType::Null => return Some(Interval::point(RawBsonRef::Null)),
        ElementType::MinKey => return Some(Interval::point(RawBsonRef::MinKey)),
        ElementType::MaxKey => return Some(Interval::point(RawBsonRef::MaxKey)),
        ElementType::EmbeddedDocument => {
            RawBsonRef::Document(RawDocument::from_bytes(EMPTY_DOCUMENT).ok()?)
        }
        ElementType::Binary => RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes: &[],
        }),
        ElementType::ObjectId => RawBsonRef::ObjectId(ObjectId::from_bytes([0; 12])),
        ElementType::Boolean => RawBsonRef::Boolean(false),
        ElementType::DateTime => RawBsonRef::DateTime(bson::DateTime::MIN),
        ElementType::Timestamp => RawBsonRef::Timestamp(Timestamp {
            time: 0,
            increment: 0,
        }),
        // Arrays are indexed by their items; the others are hardly ever looked for.
        _ => return None,
    };
    let (lower, lower_inclusive, upper, upper_inclusive) = brackets(sample)?;
    Some(Interval::new(
        lower,
        lower_inclusive,
        upper,
        upper_inclusive,
    ))
}

/// In order, those that overlap or touch as one.
pub fn union(mut intervals: Vec<Interval<'_>>) -> Vec<Interval<'_>> {
    intervals.sort_by(|a, b| a.lower.compare_lower(&b.lower));
    let mut merged: Vec<Interval<'_>> = Vec::with_capacity(intervals.len());
    for interval in intervals {
        match merged.last_mut() {
            Some(last) if last.reaches(&interval) => {
                if last.upper.compare_upper(&interval.upper).is_lt() {
                    last.upper = interval.upper;
                }
            }
            _ => merged.push(interval),
        }
    }
    merged
}

/// What lies in both; each in order and apart from one another.
fn intersection<'a>(a: &[Interval<'a>], b: &[Interval<'a>]) -> Vec<Interval<'a>> {
    let mut found = Vec::new();
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        found.extend(one.intersect(other));
        if one.upper.compare_upper(&other.upper).is_lt() {
            left.next();
        } else {
            right.next();
        }
    }
    found
}

/// What lies in none.
fn complement(intervals: Vec<Interval<'_>>) -> Vec<Interval<'_>> {
    let mut outside = Vec::with_capacity(intervals.len() + 1);
    let mut lower = Interval::full().lower;
    for interval in intervals {
        let gap = Interval {
            lower,
            upper: interval.lower.turned(),
        };
        if !gap.is_empty() {
            outside.push(gap);
        }
        lower = interval.upper.turned();
    }
    let last = Interval {
        lower,
        upper: Interval::full().upper,
    };
    if !last.is_empty() {
        outside.push(last);
    }
    outside
}

impl<'a> End<'a> {
    /// The end of what lies on the other side.
    fn turned(&self) -> End<'a> {
        End {
            value: self.value.clone(),
            inclusive: !self.inclusive,
        }
    }

    /// The order of lower ends: one that includes its value comes first.
    fn compare_lower(&self, other: &End<'_>) -> Ordering {
        compare(self.value.get(), other.value.get()).then(other.inclusive.cmp(&self.inclusive))
    }

    /// The order of upper ends: one that includes its value comes last.
    fn compare_upper(&self, other: &End<'_>) -> Ordering {
        compare(self.value.get(), other.value.get()).then(self.inclusive.cmp(&other.inclusive))
    }
}

fn is_null(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Null | RawBsonRef::Undefined)
}

fn is_nan(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(number) => number.is_nan(),
        RawBsonRef::Decimal128(_) => Number::from_raw(value).is_some_and(Number::is_nan),
        _ => false,
    }
}

/// The ends of the values that compare with this one: `(lower, inclusive, upper, inclusive)`.
fn brackets(
    value: RawBsonRef<'_>,
) -> Option<(RawBsonRef<'static>, bool, RawBsonRef<'static>, bool)> {
    let empty_document = RawDocument::from_bytes(EMPTY_DOCUMENT).ok()?;
    let empty_binary = RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes: &[],
    };
    let first_id = ObjectId::from_bytes([0; 12]);
    Some(match value {
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => (
            RawBsonRef::Double(f64::NEG_INFINITY),
            true,
            RawBsonRef::Double(f64::INFINITY),
            true,
        ),
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => (
            RawBsonRef::String(""),
            true,
            RawBsonRef::Document(empty_document),
            false,
        ),
        RawBsonRef::Document(_) => {
            let holder = RawDocument::from_bytes(EMPTY_ARRAY).ok()?;
            let (_, empty_array) = holder.iter().next()?.ok()?;
            (
                RawBsonRef::Document(empty_document),
                true,
                empty_array,
                false,
            )
        }
        RawBsonRef::Binary(_) => (
            RawBsonRef::Binary(empty_binary),
            true,
            RawBsonRef::ObjectId(first_id),
            false,
        ),
        RawBsonRef::ObjectId(_) => (
            RawBsonRef::ObjectId(first_id),
            true,
            RawBsonRef::ObjectId(ObjectId::from_bytes([0xff; 12])),
            true,
        ),
        RawBsonRef::Boolean(_) => (
            RawBsonRef::Boolean(false),
            true,
            RawBsonRef::Boolean(true),
            true,
        ),
        RawBsonRef::DateTime(_) => (
            RawBsonRef::DateTime(bson::DateTime::MIN),
            true,
            RawBsonRef::DateTime(bson::DateTime::MAX),
            true,
        ),
        RawBsonRef::Timestamp(_) => (
            RawBsonRef::Timestamp(Timestamp {
                time: 0,
                increment: 0,
            }),
            true,
            RawBsonRef::Timestamp(Timestamp {
                time: u32::MAX,
                increment: u32::MAX,
            }),
            true,
        ),
        _ => return None,
    })
}
