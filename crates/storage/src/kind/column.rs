//! The cells of the places in a column of a bucket of measurements: of all that its values hold, points
//! alone, so that a bucket has few keys.

use std::cell::Cell;
use std::ops::ControlFlow;

use banyan_document::key::{Computed, KeyError};
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use banyan_document::{elements, field};
use banyan_geo::{Ended, GeoError, Meter, Shape, covering, parse};
use bson::{RawBsonRef, RawDocument, rawdoc};

/// MongoDB's numbers: what is no shape, a shape of another kind, a point that is nowhere.
const NO_SHAPE: i32 = 183934;
const NO_POINT: i32 = 183493;
const OUT_OF_BOUNDS: i32 = 167551;

/// The cells of what is at a path of a bucket: `data`, the column, and where it is in each value. Reading it
/// takes no more than so many steps.
pub(super) fn cells(
    bucket: &RawDocument,
    path: &Path,
    steps_max: usize,
) -> Result<Computed, KeyError> {
    let [columns, column, rest @ ..] = path.parts() else {
        return Ok(Computed::default());
    };
    let columns = field(bucket, columns).and_then(|columns| columns.as_document());
    let rows = columns.and_then(|columns| field(columns, column)?.as_document());
    let mut found = Vec::new();
    let left = Cell::new(steps_max);
    for row in rows.into_iter().flat_map(elements) {
        points(row.value(), rest, &left, &mut found)?;
    }
    let shape = match found.len() {
        0 => return Ok(Computed::default()),
        1 => found.remove(0),
        _ => Shape::Several(found),
    };
    let numbers = covering::stored(&shape).ok_or_else(out_of_bounds)?;
    Ok(Computed {
        is_array: numbers.len() > 1,
        numbers,
    })
}

/// Whether a value of a field of measurements can be in such an index, at a path in it.
pub fn check(value: RawBsonRef<'_>, parts: &[Box<str>]) -> Result<(), KeyError> {
    let mut found = Vec::new();
    points(value, parts, &Cell::new(STEPS_OF_ONE_MAX), &mut found)?;
    let mut points = found.iter();
    match points.all(|point| covering::stored(point).is_some()) {
        true => Ok(()),
        false => Err(out_of_bounds()),
    }
}

/// Far more than a point takes.
const STEPS_OF_ONE_MAX: usize = 1_000_000;

/// Adds the points at a path in a value.
fn points(
    value: RawBsonRef<'_>,
    parts: &[Box<str>],
    left: &Cell<usize>,
    found: &mut Vec<Shape>,
) -> Result<(), KeyError> {
    let (wrapped, below);
    let (document, parts) = match value {
        value if parts.is_empty() => {
            found.extend(point(value, left)?);
            return Ok(());
        }
        RawBsonRef::Document(document) => (document, parts),
        // Its items, and those that are named by their positions.
        RawBsonRef::Array(array) => {
            wrapped = rawdoc! { "": array.to_owned() };
            below = std::iter::once("".into())
                .chain(parts.iter().cloned())
                .collect::<Vec<_>>();
            (&*wrapped, &below[..])
        }
        _ => return Ok(()),
    };
    let mut result = Ok(());
    let _ = visit_with(document, parts, Leaf::Whole, &mut |visit: Visit<'_>| {
        let Some(value) = visit.value else {
            return ControlFlow::Continue(());
        };
        match point(value, left) {
            Ok(point) => found.extend(point),
            Err(error) => {
                result = Err(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    result
}

/// A value that is nothing has no place.
fn point(value: RawBsonRef<'_>, left: &Cell<usize>) -> Result<Option<Shape>, KeyError> {
    let is_nothing = match value {
        RawBsonRef::Null | RawBsonRef::Undefined => true,
        RawBsonRef::Array(array) => array.is_empty(),
        RawBsonRef::Document(document) => document.is_empty(),
        _ => false,
    };
    if is_nothing {
        return Ok(None);
    }
    let spend = |steps: usize| {
        left.set(left.get().checked_sub(steps).ok_or(Ended)?);
        Ok(())
    };
    match parse::stored(value, Meter::new(&spend)) {
        Ok(point @ Shape::Point(_)) => Ok(Some(point)),
        Ok(_) | Err(GeoError::Ended) => Err(KeyError::Refused {
            code: NO_POINT,
            message: "Time-series collections '2dsphere' indexes only support point data"
                .to_owned(),
        }),
        Err(error) => Err(refused(NO_SHAPE, &error.to_string())),
    }
}

fn out_of_bounds() -> KeyError {
    refused(OUT_OF_BOUNDS, "longitude/latitude is out of bounds")
}

fn refused(code: i32, what: &str) -> KeyError {
    KeyError::Refused {
        code,
        message: format!("Can't extract geo keys: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_the_cells_of_all_its_points() {
        let bucket = rawdoc! { "data": { "loc": {
            "0": { "type": "Point", "coordinates": [1, 2] },
            "2": { "type": "Point", "coordinates": [40, 2] },
            "3": null,
        } } };
        let path = Path::parse("data.loc").unwrap();
        let found = cells(&bucket, &path, 10_000).unwrap();
        assert!(found.is_array && found.numbers.len() > 1);
        let other = Path::parse("data.other").unwrap();
        assert!(cells(&bucket, &other, 10_000).unwrap().numbers.is_empty());
    }

    #[test]
    fn a_place_inside_of_values_is_found() {
        let bucket = rawdoc! { "data": { "a": { "0": { "b": [1, 2] }, "1": 5 } } };
        let path = Path::parse("data.a.b").unwrap();
        assert_eq!(cells(&bucket, &path, 10_000).unwrap().numbers.len(), 1);
    }

    #[test]
    fn what_is_no_point_is_refused() {
        let code = |value: &RawDocument| {
            let value = value.get("v").unwrap().unwrap();
            check(value, &[]).map_err(|error| error.code())
        };
        assert_eq!(code(&rawdoc! { "v": [] }), Ok(()));
        assert_eq!(code(&rawdoc! { "v": [1, 2] }), Ok(()));
        assert_eq!(code(&rawdoc! { "v": 5 }), Err(NO_SHAPE));
        assert_eq!(code(&rawdoc! { "v": [200, 2] }), Err(OUT_OF_BOUNDS));
        let line = rawdoc! { "type": "LineString", "coordinates": [[0, 0], [1, 1]] };
        assert_eq!(code(&rawdoc! { "v": line }), Err(NO_POINT));
    }
}
