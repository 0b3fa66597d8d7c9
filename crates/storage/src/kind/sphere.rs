//! Indexes with fields that hold shapes on the sphere: `2dsphere`. A document has a key for each cell
//! that covers its shape. One that has no shape at all has no keys, except in version 1.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use banyan_document::elements;
use banyan_document::key::{Computed, FieldOrder, KeyError, KeyPattern, Keys, SPHERE_OF_COLUMN};
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use banyan_geo::{Ended, GeoError, Meter, covering, parse};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::column;
use super::index_kind::{IndexKind, KeyLayout};

#[derive(Debug)]
pub(super) struct Sphere {
    pattern: Arc<KeyPattern>,
    layout: KeyLayout,
    /// Version 1 has keys of documents without a shape.
    has_all: bool,
    /// The fields are columns of buckets of measurements (`2dsphere_bucket`).
    is_of_columns: bool,
}

impl Sphere {
    pub(super) fn of(pattern: &Arc<KeyPattern>, spec: &RawDocument) -> Sphere {
        Sphere {
            pattern: pattern.clone(),
            layout: KeyLayout::of_pattern(pattern),
            has_all: spec
                .get_i32("2dsphereIndexVersion")
                .is_ok_and(|version| version == 1),
            is_of_columns: is_of_columns(spec),
        }
    }
}

impl IndexKind for Sphere {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let mut has_shape = false;
        let keys = self.pattern.combined_keys(document, &mut |path, order| {
            if order != FieldOrder::Sphere {
                return Ok(None);
            }
            let computed = match self.is_of_columns {
                true => column::cells(document, path, STEPS_MAX)?,
                false => cells(document, path, self.has_all)?,
            };
            has_shape |= !computed.numbers.is_empty();
            Ok(Some(computed))
        })?;
        Ok(match has_shape || self.has_all {
            true => keys,
            false => Keys::default(),
        })
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        self.pattern.value_of_key(document, key)
    }

    fn layouts(&self, _: &[&Path], _: &ArrayPaths) -> Vec<KeyLayout> {
        vec![self.layout.clone()]
    }
}

/// Whether an index is one of what columns of buckets hold.
fn is_of_columns(spec: &RawDocument) -> bool {
    let key = spec.get_document("key").into_iter();
    let mut orders = key.flat_map(elements);
    orders.any(|order| order.value() == RawBsonRef::String(SPHERE_OF_COLUMN))
}

/// What it may take to read a document's shapes, in steps of a [`Meter`]: some tenths of a second. A
/// writer has its document to itself meanwhile. Depends on nothing but the document: one that the
/// primary has taken, all members can take.
const STEPS_MAX: usize = 50_000_000;

/// The cells of what is at a path, in the first format or a later one.
fn cells(document: &RawDocument, path: &Path, is_first: bool) -> Result<Computed, KeyError> {
    let left = Cell::new(STEPS_MAX);
    let spend = |steps: usize| {
        left.set(left.get().checked_sub(steps).ok_or(Ended)?);
        Ok(())
    };
    let meter = Meter::new(&spend);
    let mut computed = Computed::default();
    let mut error = None;
    let _ = visit_with(document, path.parts(), Leaf::Whole, &mut |visit: Visit<
        '_,
    >| {
        computed.is_array |= visit.position.is_some();
        let value = match visit.value {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => {
                return ControlFlow::Continue(());
            }
            Some(RawBsonRef::Array(array)) if array.is_empty() => {
                return ControlFlow::Continue(());
            }
            Some(RawBsonRef::Document(document)) if document.is_empty() => {
                return ControlFlow::Continue(());
            }
            Some(value) => value,
        };
        match of_value(value, is_first, meter) {
            Ok(cells) => computed.numbers.extend(cells),
            Err(found) => {
                error = Some(found);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    match error {
        Some(error) => Err(error),
        None => Ok(computed),
    }
}

fn of_value(value: RawBsonRef<'_>, is_first: bool, meter: Meter<'_>) -> Result<Vec<i64>, KeyError> {
    let shape = parse::stored(value, meter).map_err(|error| match error {
        GeoError::Ended => KeyError::Geo("geometry is too complex for an index".to_owned()),
        error => KeyError::Geo(error.to_string()),
    })?;
    if matches!(shape, banyan_geo::Shape::BigPolygon(_)) {
        let message = "can't index geometry with strict winding order";
        return Err(KeyError::Geo(message.to_owned()));
    }
    // The first format knew no shapes of several parts.
    if is_first && matches!(shape, banyan_geo::Shape::Several(_)) {
        let message = "given geometry can't be indexed in the old index format";
        return Err(KeyError::Geo(message.to_owned()));
    }
    let cells = covering::stored(&shape);
    cells.ok_or_else(|| KeyError::Geo("longitude/latitude is out of bounds".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn keys(pattern: RawDocumentBuf, document: RawDocumentBuf) -> Result<Keys, KeyError> {
        let pattern = Arc::new(KeyPattern::parse(&pattern).unwrap());
        Sphere::of(&pattern, &rawdoc! {}).keys(&document)
    }

    #[test]
    fn a_shape_has_a_key_for_each_of_its_cells() {
        let pattern = || rawdoc! { "loc": "2dsphere", "tags": 1 };
        let point = rawdoc! { "loc": [1.0, 2.0], "tags": ["a", "b"] };
        let found = keys(pattern(), point).unwrap();
        assert_eq!(found.keys.len(), 2);
        assert!(found.arrays.contains("tags") && !found.arrays.contains("loc"));
        let line = rawdoc! { "loc": { "type": "LineString", "coordinates": [[0, 0], [9, 9]] } };
        let found = keys(pattern(), line).unwrap();
        assert!(found.keys.len() > 1 && found.arrays.contains("loc"));
    }

    #[test]
    fn what_has_no_shape_has_no_keys() {
        let pattern = || rawdoc! { "a": 1, "loc": "2dsphere" };
        for document in [
            rawdoc! { "a": 1 },
            rawdoc! { "a": 1, "loc": null },
            rawdoc! { "a": 1, "loc": [] },
            rawdoc! { "a": 1, "loc": {} },
        ] {
            assert_eq!(keys(pattern(), document).unwrap(), Keys::default());
        }
        for document in [
            rawdoc! { "loc": "x" },
            rawdoc! { "loc": [1] },
            rawdoc! { "loc": [200, 0] },
            rawdoc! { "loc": [[1, 2], [3, 4]] },
        ] {
            let error = keys(pattern(), document).unwrap_err();
            assert_eq!(error.code(), 16755);
        }
    }
}
