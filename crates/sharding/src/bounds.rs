//! The ranges of shard keys that values of single fields allow.
//!
//! Each field comes with the ranges of its values, or with none if anything may be in it. They are
//! composed from left to right, as in a compound index: points extend the prefix, the first field
//! with anything wider ends it.

use bson::RawBsonRef;

use banyan_document::compare::compare;
use banyan_document::{Path, key};

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

/// The values of a field from one to another, in the order of all values.
#[derive(Debug, Clone, Copy)]
pub struct ValueRange<'a> {
    pub lower: RawBsonRef<'a>,
    pub lower_inclusive: bool,
    pub upper: RawBsonRef<'a>,
    pub upper_inclusive: bool,
}

impl ValueRange<'_> {
    fn is_point(&self) -> bool {
        self.lower_inclusive && self.upper_inclusive && compare(self.lower, self.upper).is_eq()
    }
}

impl ShardKeyPattern {
    /// The keys whose fields have values in the ranges that `of_field` gives, which are in order
    /// and apart from one another; `None`: any value. A missing field is null.
    pub fn ranges<'v>(
        &self,
        mut of_field: impl FnMut(&Path) -> Option<Vec<ValueRange<'v>>>,
    ) -> KeyRanges {
        let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
        for field in self.fields() {
            let values = of_field(field.path());
            let intervals = values.map_or_else(everything, |values| encoded(&values, field));
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

fn encoded(values: &[ValueRange<'_>], field: &Field) -> Intervals {
    let mut intervals = Vec::with_capacity(values.len());
    for range in values {
        match (range.lower, range.upper) {
            // Null and undefined are next to one another, with nothing in between.
            (RawBsonRef::Undefined, RawBsonRef::Null)
                if range.lower_inclusive && range.upper_inclusive =>
            {
                intervals.push(point(range.lower, field));
                intervals.push(point(range.upper, field));
            }
            _ if range.is_point() => intervals.push(point(range.lower, field)),
            // A hash keeps no order.
            _ if field.is_hashed() => return everything(),
            _ => intervals.push(interval(range)),
        }
    }
    if field.is_hashed() {
        intervals.sort_by(|a, b| a.start.cmp(&b.start));
        intervals.dedup();
    }
    intervals
}

fn interval(range: &ValueRange<'_>) -> Interval {
    let encode = |value| {
        let mut out = Vec::new();
        key::encode(value, &mut out);
        out
    };
    let (lower, upper) = (encode(range.lower), encode(range.upper));
    Interval {
        start: match range.lower_inclusive {
            true => lower,
            false => successor(&lower).unwrap_or(lower),
        },
        end: match range.upper_inclusive {
            true => successor(&upper),
            false => Some(upper),
        },
        point: false,
    }
}

fn point(value: RawBsonRef<'_>, field: &Field) -> Interval {
    let mut start = Vec::new();
    field.encode(value, &mut start);
    let end = successor(&start);
    Interval {
        start,
        end,
        point: true,
    }
}

/// The smallest bytes above everything that starts with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}
