//! From the intervals of an index's fields to ranges of its keys, field by field.

use std::ops::Bound;

use banyan_document::key::{self, FieldOrder};
use banyan_query::bounds::interval::{Interval, Intervals};
use banyan_storage::KeyRange;
use banyan_storage::keys::successor;
use banyan_storage::kind::KeyPrefix;
use bson::RawBsonRef;

/// A scan is cut into at most this many ranges; more intervals widen to their ends.
const RANGES_MAX: usize = 100_000;

/// One contiguous part of an index scan.
#[derive(Debug, Clone)]
pub struct ScanRange {
    pub range: KeyRange,
    /// The whole key, if there is only one: a unique index then looks it up.
    pub point: Option<Vec<u8>>,
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

/// Builds ranges field by field.
pub(super) struct Builder {
    /// The points so far: every combination of the leading fields' values.
    prefixes: Vec<Vec<u8>>,
    /// The first key of each range, and the one just after its last, unless nothing comes after it.
    ranges: Option<Vec<EncodedInterval>>,
    /// Whether no further field can narrow the ranges.
    closed: bool,
    later: LaterFields,
    /// How many leading fields have one value in all ranges, and how many have one in each.
    pub(super) points: usize,
    pub(super) points_each: usize,
    pub(super) confined: usize,
    /// Set when there were too many ranges to keep apart.
    pub(super) widened: bool,
}

impl Builder {
    /// `prefix`: what the keys begin with.
    pub(super) fn after(prefix: Option<&KeyPrefix>) -> Builder {
        let prefixes = match prefix {
            Some(prefix) => prefix.paths.iter().map(|path| encode_path(path)).collect(),
            None => vec![Vec::new()],
        };
        Builder {
            prefixes,
            ranges: None,
            closed: false,
            later: LaterFields::default(),
            points: 0,
            points_each: 0,
            confined: 0,
            widened: false,
        }
    }

    /// Takes in the next field.
    pub(super) fn extend(&mut self, confined: Option<&Intervals<'_>>, order: FieldOrder) {
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
            // Behind a field of several values one value is that of no single run of keys.
            if confined.intervals.len() == 1 && self.points == self.points_each {
                self.points += 1;
            }
            self.points_each += 1;
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
    pub(super) fn finish(mut self, fields: usize) -> (Vec<ScanRange>, LaterFields) {
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

fn encode_path(path: &str) -> Vec<u8> {
    encode(RawBsonRef::String(path), FieldOrder::Ascending)
}

/// The keys of the paths and of all paths below them.
pub(super) fn below(prefix: &KeyPrefix) -> Vec<ScanRange> {
    let at = prefix
        .paths
        .iter()
        .map(|path| KeyRange::prefix(encode_path(path)));
    let below = prefix.paths.iter().map(|path| KeyRange {
        lower: Bound::Included(encode_path(&format!("{path}."))),
        // No character comes between the two.
        upper: Bound::Excluded(encode_path(&format!("{path}/"))),
    });
    let ranges = at.chain(below);
    ranges
        .map(|range| ScanRange { range, point: None })
        .collect()
}

pub(super) fn encode(value: RawBsonRef<'_>, order: FieldOrder) -> Vec<u8> {
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
    let mut encoded: Vec<_> = intervals
        .map(|interval| encoded_interval(prefix, interval, order))
        .collect();
    encoded.sort();
    encoded
}

/// The keys from the interval's first (included) to just after its last.
pub(super) fn encoded_interval(
    prefix: &[u8],
    interval: &Interval<'_>,
    order: FieldOrder,
) -> EncodedInterval {
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
