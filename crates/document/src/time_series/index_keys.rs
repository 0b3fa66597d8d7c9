//! What an index over measurements is over buckets, and the way back.
//!
//! An ascending order of times begins with the times at which buckets begin, a descending one with
//! those at which they end; those of measured values are by their least and greatest ones alike.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::options::{TimeSeries, meta_path};
use crate::element::elements;
use crate::key::SPHERE_OF_COLUMN;
use crate::number::Number;
use crate::writer::DocumentWriter;

/// Why there is no such index over buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoIndex {
    /// Times have an order and nothing else.
    Time(String),
    /// Of measurements, too, there is an order and nothing else.
    Field(String),
}

/// Before the name of a field: its least value and its greatest one in a bucket.
const MIN: &str = "control.min.";
const MAX: &str = "control.max.";
/// Before the name of a field whose values are looked at one by one.
const COLUMNS: &str = "data.";

/// The field of the measurements whose least or greatest value in a bucket a path is.
pub fn bounded_field(path: &str) -> Option<&str> {
    path.strip_prefix(MIN).or_else(|| path.strip_prefix(MAX))
}

/// The field of the measurements whose places in a bucket an index is over.
pub fn column_field<'k>(path: &'k str, order: RawBsonRef<'_>) -> Option<&'k str> {
    let is_of_column = order == RawBsonRef::String(SPHERE_OF_COLUMN);
    path.strip_prefix(COLUMNS).filter(|_| is_of_column)
}

/// The key pattern over buckets.
pub fn to_buckets(key: &RawDocument, series: &TimeSeries) -> Result<RawDocumentBuf, NoIndex> {
    over_buckets(key, &series.time_field, series.meta_field.as_deref())
}

/// The hint that a read or write of buckets has where this one is given for their measurements. `None`:
/// it is the same.
pub fn hint_to_buckets(
    hint: RawBsonRef<'_>,
    time_field: &str,
    meta_field: Option<&str>,
) -> Option<RawDocumentBuf> {
    let RawBsonRef::Document(key) = hint else {
        return None;
    };
    if elements(key).any(|element| element.name() == "$natural") {
        return None;
    }
    over_buckets(key, time_field, meta_field).ok()
}

fn over_buckets(
    key: &RawDocument,
    time: &str,
    meta_field: Option<&str>,
) -> Result<RawDocumentBuf, NoIndex> {
    let mut out = DocumentWriter::new();
    for element in elements(key) {
        let name = element.name();
        if let Some(path) = meta_field.and_then(|meta| meta_path(meta, name)) {
            out.append_element_as(&path, &element);
            continue;
        }
        if name != time && element.value() == RawBsonRef::String("2dsphere") {
            out.append_str(&format!("{COLUMNS}{name}"), SPHERE_OF_COLUMN);
            continue;
        }
        let Some(order) = Number::from_raw(element.value()) else {
            return Err(match name == time {
                true => NoIndex::Time(name.to_owned()),
                false => NoIndex::Field(name.to_owned()),
            });
        };
        let sides = match order.compare(Number::Int32(0)).is_lt() {
            false => [MIN, MAX],
            true => [MAX, MIN],
        };
        for side in sides {
            out.append_element_as(&format!("{side}{name}"), &element);
        }
    }
    Ok(out.finish())
}

/// The key pattern over measurements. `None`: it is an index over buckets alone.
pub fn to_measurements(key: &RawDocument, series: &TimeSeries) -> Option<RawDocumentBuf> {
    let mut out = DocumentWriter::new();
    let mut fields = elements(key);
    while let Some(element) = fields.next() {
        if let Some(field) = bounded_field(element.name()) {
            let other = fields.next()?;
            let goes_with = bounded_field(other.name()) == Some(field)
                && other.name() != element.name()
                && same(other.value(), element.value());
            if !goes_with {
                return None;
            }
            out.append_element_as(field, &element);
            continue;
        }
        if let Some(field) = column_field(element.name(), element.value()) {
            out.append_str(field, "2dsphere");
            continue;
        }
        let rest = element.name().strip_prefix("meta")?;
        if !rest.is_empty() && !rest.starts_with('.') {
            return None;
        }
        let meta = series.meta_field.as_deref()?;
        out.append_element_as(&format!("{meta}{rest}"), &element);
    }
    Some(out.finish())
}

fn same(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    crate::compare(a, b).is_eq()
}
