//! Indexes whose first field holds points of a plane (`2d`). A document has a key for each of its
//! points, and none if it has no point. Points are pairs of numbers, as arrays or as documents, or
//! several of them in an array or a document.

use std::ops::ControlFlow;
use std::sync::Arc;

use banyan_document::key::{Computed, FieldOrder, KeyError, KeyPattern, Keys};
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use banyan_geo::grid::{self, Grid, GridError};
use banyan_geo::parse::{self, GeoError, indexed_point, members, number};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout};

#[derive(Debug)]
pub(super) struct Plane {
    pattern: Arc<KeyPattern>,
    layout: KeyLayout,
    grid: Grid,
}

impl Plane {
    pub(super) fn of(pattern: &Arc<KeyPattern>, grid: Grid) -> Plane {
        Plane {
            pattern: pattern.clone(),
            layout: KeyLayout::of_pattern(pattern),
            grid,
        }
    }
}

/// The square that a specification cuts up, as it is kept.
pub fn grid_of(spec: &RawDocument) -> Result<Grid, GridError> {
    let number = |name: &str, default: f64| match spec.get(name) {
        Ok(Some(RawBsonRef::Double(value))) => value,
        Ok(Some(RawBsonRef::Int32(value))) => f64::from(value),
        _ => default,
    };
    let bits = number("bits", grid::DEFAULT_BITS as f64) as i64;
    let min = number("min", grid::DEFAULT_MIN);
    Grid::new(min, number("max", grid::DEFAULT_MAX), bits)
}

impl IndexKind for Plane {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let mut has_point = false;
        let keys = self.pattern.combined_keys(document, &mut |path, order| {
            if order != FieldOrder::Plane {
                return Ok(None);
            }
            let computed = cells(document, path, &self.grid)?;
            has_point |= !computed.numbers.is_empty();
            Ok(Some(computed))
        })?;
        Ok(match has_point {
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

    fn grid(&self) -> Option<&Grid> {
        Some(&self.grid)
    }
}

/// The cells of the points at a path.
fn cells(document: &RawDocument, path: &Path, grid: &Grid) -> Result<Computed, KeyError> {
    let mut computed = Computed::default();
    let mut error = None;
    let _ = visit_with(document, path.parts(), Leaf::Whole, &mut |visit: Visit<
        '_,
    >| {
        computed.is_array |= visit.position.is_some();
        let Some(value @ (RawBsonRef::Array(_) | RawBsonRef::Document(_))) = visit.value else {
            return ControlFlow::Continue(());
        };
        match add(value, grid, &mut computed.numbers) {
            Ok(()) => ControlFlow::Continue(()),
            Err(found) => {
                error = Some(found);
                ControlFlow::Break(())
            }
        }
    });
    match error {
        Some(error) => Err(refused(error)),
        None => Ok(computed),
    }
}

/// Adds the cell of a point, or of each of several. Empty ones are none.
fn add(value: RawBsonRef<'_>, grid: &Grid, numbers: &mut Vec<i64>) -> Result<(), GeoError> {
    let mut cell = |value| {
        let point = indexed_point(value)?;
        grid.check(&point, 13027)?;
        numbers.push(grid.hash(&point).cast_signed());
        Ok(())
    };
    let mut members = members(value);
    let first = members.next();
    if first.is_some_and(|first| number(first).is_some()) {
        return cell(value);
    }
    for member in first.into_iter().chain(members) {
        if !matches!(member, RawBsonRef::Array(_) | RawBsonRef::Document(_)) {
            let message = "location object expected, location array not in correct format";
            return Err(GeoError::Location(16804, message.to_owned()));
        }
        if parse::members(member).next().is_some() {
            cell(member)?;
        }
    }
    Ok(())
}

fn refused(error: GeoError) -> KeyError {
    match error {
        GeoError::Location(code, message) => KeyError::Refused { code, message },
        error => KeyError::Geo(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn keys(document: RawDocumentBuf) -> Result<Keys, KeyError> {
        let pattern = rawdoc! { "l": "2d", "k": 1 };
        let pattern = Arc::new(KeyPattern::parse(&pattern).unwrap());
        let grid = grid_of(&rawdoc! {}).unwrap();
        Plane::of(&pattern, grid).keys(&document)
    }

    #[test]
    fn a_document_has_a_key_for_each_of_its_points() {
        let count = |document| keys(document).unwrap().keys.len();
        assert_eq!(count(rawdoc! { "l": [1, 2] }), 1);
        assert_eq!(count(rawdoc! { "l": { "x": 1, "y": 2, "z": 3 } }), 1);
        assert_eq!(count(rawdoc! { "l": [[1, 2], [3, 4], []] }), 2);
        assert_eq!(count(rawdoc! { "l": { "a": [1, 2], "b": [3, 4] } }), 2);
        assert_eq!(
            count(rawdoc! { "l": [{ "x": 1, "y": 2 }], "k": ["a", "b"] }),
            2
        );
        for none in [
            rawdoc! { "k": 1 },
            rawdoc! { "l": null },
            rawdoc! { "l": "x" },
            rawdoc! { "l": [] },
            rawdoc! { "l": [{}] },
        ] {
            assert_eq!(keys(none).unwrap(), Keys::default());
        }
    }

    #[test]
    fn what_is_no_point_is_refused_with_mongodbs_numbers() {
        let code = |document| keys(document).unwrap_err().code();
        assert_eq!(code(rawdoc! { "l": [180.1, 0] }), 13027);
        assert_eq!(code(rawdoc! { "l": [f64::NAN, 0] }), 13027);
        assert_eq!(code(rawdoc! { "l": [1] }), 13068);
        assert_eq!(code(rawdoc! { "l": [1, "a"] }), 13026);
        assert_eq!(code(rawdoc! { "l": ["a", 1] }), 16804);
        assert_eq!(code(rawdoc! { "l": [[[1, 2]]] }), 13068);
        assert_eq!(
            code(rawdoc! { "l": { "type": "Point", "coordinates": [1, 2] } }),
            16804
        );
    }
}
