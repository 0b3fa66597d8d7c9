//! The part of an index between the keys that `min` and `max` name.

use std::ops::Bound;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::key::FieldOrder;
use banyan_query::bounds::interval::{KeyOrder, Value};
use banyan_query::{ErrorKind, QueryError};
use banyan_storage::{Index, KeyRange};
use bson::{RawBsonRef, RawDocument};

use super::bounds::{IndexBounds, RecordEnds, key_order, whole};
use super::ranges::{ScanRange, encode};

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
