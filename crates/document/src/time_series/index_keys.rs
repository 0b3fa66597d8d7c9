//! What an index over measurements is over buckets, and the way back.
//!
//! An ascending order of times begins with the times at which buckets begin, a descending one with
//! those at which they end.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::options::TimeSeries;
use crate::element::{Element, elements};
use crate::number::Number;
use crate::writer::DocumentWriter;

/// Why there is no such index over buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoIndex {
    /// Times have an order and nothing else.
    Time(String),
    /// It is neither of the time nor of the metadata.
    Field(String),
}

/// The key pattern over buckets.
pub fn to_buckets(key: &RawDocument, series: &TimeSeries) -> Result<RawDocumentBuf, NoIndex> {
    let time = &series.time_field;
    let mut out = DocumentWriter::new();
    for element in elements(key) {
        let name = element.name();
        if name == time {
            let Some(order) = Number::from_raw(element.value()) else {
                return Err(NoIndex::Time(name.to_owned()));
            };
            let first = match order.compare(Number::Int32(0)).is_lt() {
                false => ["min", "max"],
                true => ["max", "min"],
            };
            for side in first {
                out.append_element_as(&format!("control.{side}.{name}"), &element);
            }
        } else if let Some(path) = series.meta_path(name) {
            out.append_element_as(&path, &element);
        } else {
            return Err(NoIndex::Field(name.to_owned()));
        }
    }
    Ok(out.finish())
}

/// The key pattern over measurements. `None`: it is an index over buckets alone.
pub fn to_measurements(key: &RawDocument, series: &TimeSeries) -> Option<RawDocumentBuf> {
    let time = &series.time_field;
    let sides = [format!("control.min.{time}"), format!("control.max.{time}")];
    let is_side = |element: &Element<'_>| sides.iter().any(|side| side == element.name());
    let mut out = DocumentWriter::new();
    let mut fields = elements(key);
    while let Some(element) = fields.next() {
        if is_side(&element) {
            let other = fields.next().filter(is_side)?;
            if other.name() == element.name() || !same(other.value(), element.value()) {
                return None;
            }
            out.append_element_as(time, &element);
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
