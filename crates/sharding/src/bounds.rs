//! The ranges of shard keys that a filter can reach.
//!
//! The answer may be too wide but never too narrow: a clause that says nothing certain about
//! a field leaves the field open. Each field first gets a set of intervals of its encoded
//! values; the fields are then composed left to right, as in a compound index: points extend
//! the prefix, the first open interval ends it.

use bson::{RawBsonRef, RawDocument};

use banyan_document::key;

use crate::shard_key::{Field, ShardKeyPattern};

/// More point combinations than this are not listed: the filter then covers everything from
/// its first field's intervals on.
const COMBINATIONS_MAX: usize = 4096;

/// Encoded keys from `start` (inclusive) to `end` (exclusive; `None` is the end of all keys).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Vec<u8>,
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    pub fn everything() -> Self {
        KeyRange {
            start: Vec::new(),
            end: None,
        }
    }

    pub fn is_everything(&self) -> bool {
        self.start.is_empty() && self.end.is_none()
    }

    /// Whether a chunk from `min` to `max` has keys in this range.
    pub fn overlaps(&self, min: &[u8], max: &[u8]) -> bool {
        self.start.as_slice() < max && self.end.as_deref().is_none_or(|end| min < end)
    }
}

/// Disjoint ranges in key order. None at all: no document can match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRanges(pub Vec<KeyRange>);

impl KeyRanges {
    pub fn everything() -> Self {
        KeyRanges(vec![KeyRange::everything()])
    }

    pub fn is_everything(&self) -> bool {
        matches!(self.0.as_slice(), [range] if range.is_everything())
    }
}

impl ShardKeyPattern {
    /// The keys that documents matching `filter` can have.
    pub fn ranges_of_filter(&self, filter: &RawDocument) -> KeyRanges {
        let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
        for field in self.fields() {
            let intervals = of_filter(filter, field);
            let all_points = intervals.iter().all(|interval| interval.point);
            let combinations = prefixes.len().saturating_mul(intervals.len());
            if all_points && combinations <= COMBINATIONS_MAX {
                prefixes = prefixes
                    .iter()
                    .flat_map(|prefix| {
                        intervals
                            .iter()
                            .map(move |i| [prefix.as_slice(), &i.start].concat())
                    })
                    .collect();
                continue;
            }
            let intervals = if combinations <= COMBINATIONS_MAX {
                intervals
            } else {
                everything()
            };
            return KeyRanges(prefixes.iter().flat_map(|p| under(p, &intervals)).collect());
        }
        let points = prefixes.into_iter().map(|start| {
            let end = successor(&start);
            KeyRange { start, end }
        });
        KeyRanges(points.collect())
    }
}

fn under<'a>(prefix: &'a [u8], intervals: &'a [Interval]) -> impl Iterator<Item = KeyRange> + 'a {
    intervals.iter().map(move |interval| KeyRange {
        start: [prefix, &interval.start].concat(),
        end: match &interval.end {
            Some(end) => Some([prefix, end.as_slice()].concat()),
            None => successor(prefix),
        },
    })
}

/// Encoded values of one field, `start` inclusive, `end` exclusive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Interval {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    point: bool,
}

type Intervals = Vec<Interval>;

fn everything() -> Intervals {
    vec![Interval {
        start: Vec::new(),
        end: None,
        point: false,
    }]
}

fn of_filter(filter: &RawDocument, field: &Field) -> Intervals {
    let mut found = everything();
    for element in filter.iter() {
        let Ok((name, value)) = element else {
            return everything();
        };
        let clause = match name.as_str() {
            "$and" => of_branches(value, field, everything(), intersect),
            "$or" => of_branches(value, field, Vec::new(), unite),
            name if name == field.name() => of_predicate(value, field),
            name => match below(field, name, value) {
                Some(value) => point(value, field),
                None => continue,
            },
        };
        found = intersect(found, clause);
    }
    found
}

fn of_branches(
    branches: RawBsonRef<'_>,
    field: &Field,
    start: Intervals,
    join: fn(Intervals, Intervals) -> Intervals,
) -> Intervals {
    let RawBsonRef::Array(branches) = branches else {
        return everything();
    };
    let mut found = start;
    for branch in branches {
        let Ok(RawBsonRef::Document(branch)) = branch else {
            return everything();
        };
        found = join(found, of_filter(branch, field));
    }
    found
}

/// `{a: {b: 5}}` pins the shard key field `a.b` as well.
fn below<'a>(field: &Field, name: &str, value: RawBsonRef<'a>) -> Option<RawBsonRef<'a>> {
    let rest = field.name().strip_prefix(name)?.strip_prefix('.')?;
    let mut value = match value {
        RawBsonRef::Document(inner) if is_operator(inner) => match inner.get("$eq") {
            Ok(Some(value)) => value,
            _ => return None,
        },
        literal => literal,
    };
    for part in rest.split('.') {
        value = match value {
            RawBsonRef::Document(inner) => inner.get(part).ok()?.unwrap_or(RawBsonRef::Null),
            _ => return None,
        };
    }
    (!matches!(value, RawBsonRef::Array(_))).then_some(value)
}

fn is_operator(document: &RawDocument) -> bool {
    matches!(document.iter().next(), Some(Ok((name, _))) if name.as_str().starts_with('$'))
}

fn of_predicate(value: RawBsonRef<'_>, field: &Field) -> Intervals {
    let RawBsonRef::Document(operators) = value else {
        return point(value, field);
    };
    if !is_operator(operators) {
        return point(value, field);
    }
    let mut found = everything();
    for operator in operators.iter() {
        let Ok((name, operand)) = operator else {
            return everything();
        };
        found = intersect(found, of_operator(name.as_str(), operand, field));
    }
    found
}

fn of_operator(name: &str, operand: RawBsonRef<'_>, field: &Field) -> Intervals {
    match name {
        "$eq" => point(operand, field),
        "$in" => {
            let RawBsonRef::Array(values) = operand else {
                return everything();
            };
            let mut points = Vec::new();
            for value in values {
                match value {
                    Ok(value) => points.extend(point(value, field)),
                    Err(_) => return everything(),
                }
            }
            normalize(points)
        }
        // A hash keeps no order, and ranges over these types have rules of their own.
        _ if field.is_hashed() || !is_ordered(operand) => everything(),
        "$lt" => range(None, Some(encoded(operand))),
        "$lte" => match successor(&encoded(operand)) {
            Some(end) => range(None, Some(end)),
            None => everything(),
        },
        "$gt" => match successor(&encoded(operand)) {
            Some(start) => range(Some(start), None),
            None => everything(),
        },
        "$gte" => range(Some(encoded(operand)), None),
        _ => everything(),
    }
}

/// Types whose range comparisons are plain order. NaN, null, arrays, regular expressions and
/// the two end keys match more (or less) than what lies on one side of them.
fn is_ordered(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(n) => !n.is_nan(),
        RawBsonRef::Decimal128(_)
        | RawBsonRef::Null
        | RawBsonRef::Undefined
        | RawBsonRef::Array(_)
        | RawBsonRef::RegularExpression(_)
        | RawBsonRef::MinKey
        | RawBsonRef::MaxKey => false,
        _ => true,
    }
}

fn range(start: Option<Vec<u8>>, end: Option<Vec<u8>>) -> Intervals {
    vec![Interval {
        start: start.unwrap_or_default(),
        end,
        point: false,
    }]
}

fn encoded(value: RawBsonRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    key::encode(value, &mut out);
    out
}

fn point(value: RawBsonRef<'_>, field: &Field) -> Intervals {
    if matches!(
        value,
        RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_)
    ) {
        return everything();
    }
    let mut start = Vec::new();
    field.encode(value, &mut start);
    let end = successor(&start);
    vec![Interval {
        start,
        end,
        point: true,
    }]
}

/// The smallest bytes above everything that starts with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

fn before(end: &Option<Vec<u8>>, other: &Option<Vec<u8>>) -> bool {
    match (end, other) {
        (Some(end), Some(other)) => end < other,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

fn intersect(left: Intervals, right: Intervals) -> Intervals {
    let mut found = Vec::new();
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let start = a.start.clone().max(b.start.clone());
        let end = if before(&a.end, &b.end) {
            a.end.clone()
        } else {
            b.end.clone()
        };
        if end.as_ref().is_none_or(|end| start < *end) {
            let point = (a.point && a.start == start) || (b.point && b.start == start);
            found.push(Interval { start, end, point });
        }
        if before(&a.end, &b.end) {
            left.next();
        } else {
            right.next();
        }
    }
    found
}

fn unite(mut left: Intervals, right: Intervals) -> Intervals {
    left.extend(right);
    normalize(left)
}

fn normalize(mut intervals: Intervals) -> Intervals {
    intervals.sort_by(|a, b| a.start.cmp(&b.start).then(b.point.cmp(&a.point)));
    let mut merged: Intervals = Vec::with_capacity(intervals.len());
    for interval in intervals {
        match merged.last_mut() {
            Some(last) if last.end.as_ref().is_none_or(|end| interval.start < *end) => {
                if before(&last.end, &interval.end) {
                    last.end = interval.end;
                    last.point = false;
                } else if !interval.point {
                    last.point = false;
                }
            }
            _ => merged.push(interval),
        }
    }
    merged
}

/// The value that a filter demands of one field, where it demands exactly one.
pub(crate) fn equality<'a>(filter: &'a RawDocument, field: &Field) -> Option<RawBsonRef<'a>> {
    for element in filter.iter() {
        let (name, value) = element.ok()?;
        let found = match name.as_str() {
            "$and" => match value {
                RawBsonRef::Array(branches) => branches
                    .into_iter()
                    .filter_map(|branch| branch.ok()?.as_document())
                    .find_map(|branch| equality(branch, field)),
                _ => None,
            },
            name if name == field.name() => equality_value(value),
            name => below(field, name, value),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn equality_value(value: RawBsonRef<'_>) -> Option<RawBsonRef<'_>> {
    let value = match value {
        RawBsonRef::Document(operators) if is_operator(operators) => {
            match (operators.get("$eq").ok()?, operators.get("$in").ok()?) {
                (Some(value), _) => value,
                (None, Some(RawBsonRef::Array(values))) => {
                    let mut values = values.into_iter();
                    let only = values.next()?.ok()?;
                    values.next().is_none().then_some(only)?
                }
                _ => return None,
            }
        }
        literal => literal,
    };
    (!matches!(
        value,
        RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_)
    ))
    .then_some(value)
}
