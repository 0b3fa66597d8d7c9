//! Conditions on the buckets of a time-series collection that stand for conditions on measurements: on
//! the least and greatest values, and on the places in a column.

use std::ops::ControlFlow;

use banyan_document::compare::compare_collated;
use banyan_document::element::{elements, field, items};
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use banyan_document::{Collator, DocumentWriter};
use banyan_geo::parse::Relation;
use bson::{RawBsonRef, RawDocument, rawdoc};

use super::geo::Geo;
use super::tree::{MatchNode, Predicate};
use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::type_name;

/// The columns of a bucket.
const COLUMNS: &str = "data";

/// A condition on places, as it is written for buckets.
pub(super) const GEO_WITHIN: &str = "$_internalBucketGeoWithin";
const WITHIN: &str = "withinRegion";
/// What meets the region is asked for as well.
const MEETING: &str = "intersectsRegion";
const FIELD: &str = "field";

/// Whether the least or the greatest value at a path compares so, or may as there is an array.
pub(super) fn extreme_holds(
    bucket: &RawDocument,
    path: &Path,
    comparison: Comparison,
    operand: RawBsonRef<'_>,
    collator: Option<&Collator>,
) -> bool {
    let mut value = Some(RawBsonRef::Document(bucket));
    for part in path.parts() {
        value = match value {
            Some(RawBsonRef::Document(inner)) => field(inner, part),
            Some(RawBsonRef::Array(_)) => return true,
            _ => None,
        };
    }
    match value {
        Some(RawBsonRef::Array(_)) => true,
        Some(value) => comparison.accepts(compare_collated(value, operand, collator)),
        // It is below all values.
        None => matches!(comparison, Comparison::Lt | Comparison::Lte),
    }
}

/// Whether the condition holds for some value of a column, or for what is at a path in one.
pub(super) fn holds_some(
    bucket: &RawDocument,
    path: &Path,
    geo: &Geo,
    budget: &Budget,
) -> Result<bool, QueryError> {
    budget.spend_bytes(bucket.as_bytes().len())?;
    let [columns, column, rest @ ..] = path.parts() else {
        return Ok(false);
    };
    let columns = field(bucket, columns).and_then(|columns| columns.as_document());
    let Some(column) = columns.and_then(|columns| field(columns, column)) else {
        return Ok(false);
    };
    let RawBsonRef::Document(rows) = column else {
        // A compressed one: whoever reads it has to say what it holds.
        return Ok(true);
    };
    for row in elements(rows) {
        if value_holds(row.value(), rest, geo, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn value_holds(
    value: RawBsonRef<'_>,
    parts: &[Box<str>],
    geo: &Geo,
    budget: &Budget,
) -> Result<bool, QueryError> {
    match (value, parts) {
        (RawBsonRef::Document(document), [_, ..]) => {
            let mut held = Ok(false);
            let _ = visit_with(document, parts, Leaf::Items, &mut |visit: Visit<'_>| {
                held = match visit.value {
                    Some(value) => geo.holds(value, budget),
                    None => Ok(false),
                };
                match held {
                    Ok(false) => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            });
            held
        }
        // What lies in it is looked at in the measurement.
        (RawBsonRef::Array(_), [_, ..]) => Ok(true),
        (_, [_, ..]) => Ok(false),
        (value, []) => {
            if geo.holds(value, budget)? {
                return Ok(true);
            }
            let RawBsonRef::Array(array) = value else {
                return Ok(false);
            };
            for item in items(array) {
                if geo.holds(item.value(), budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// The column of a field of measurements, or the path of what its values hold.
pub(crate) fn column(path: &Path) -> Option<Path> {
    column_named(&path.to_string())
}

fn column_named(path: &str) -> Option<Path> {
    Path::parse(&format!("{COLUMNS}.{path}")).ok()
}

/// From `{withinRegion: {$box: [...]}, field: "loc"}`.
pub(super) fn parse_within(
    value: RawBsonRef<'_>,
    budget: &Budget,
) -> Result<MatchNode, QueryError> {
    let RawBsonRef::Document(options) = value else {
        return Err(mismatch(format!(
            "{GEO_WITHIN} expects an object but saw {}",
            type_name(Some(value))
        )));
    };
    let (mut region, mut path) = (None, None);
    for option in elements(options) {
        match (option.name(), option.value()) {
            (WITHIN, RawBsonRef::Document(shape)) => region = Some((Relation::Within, shape)),
            (MEETING, RawBsonRef::Document(shape)) => {
                region = Some((Relation::Intersects, shape));
            }
            (FIELD, RawBsonRef::String(name)) => path = column_named(name),
            (name, _) => {
                return Err(QueryError::bad_value(format!(
                    "{GEO_WITHIN}: {name} is not what it takes"
                )));
            }
        }
    }
    let (Some((relation, region)), Some(path)) = (region, path) else {
        return Err(QueryError::bad_value(format!(
            "{GEO_WITHIN} requires both {WITHIN} and {FIELD}"
        )));
    };
    let operators = match relation {
        Relation::Within => rawdoc! { "$geoWithin": region.to_owned() },
        Relation::Intersects => rawdoc! { "$geoIntersects": region.to_owned() },
    };
    let geo = Geo::parse(relation, &operators, budget)?;
    Ok(MatchNode::Path {
        path,
        predicate: Predicate::InBucket(geo),
    })
}

pub(super) fn write_within(path: &Path, geo: &Geo, out: &mut DocumentWriter) {
    let path = path.to_string();
    let name = path.strip_prefix(COLUMNS).unwrap_or(&path);
    out.begin_document(GEO_WITHIN);
    if let Some(operand) = elements(&geo.source).next() {
        let region = match geo.relation {
            Relation::Within => WITHIN,
            Relation::Intersects => MEETING,
        };
        out.append(region, operand.value());
    }
    out.append_str(FIELD, name.trim_start_matches('.'));
    out.end();
}

fn mismatch(message: String) -> QueryError {
    QueryError::new(ErrorKind::TypeMismatch, message)
}
