//! Finding what is near a point with an index over shapes, or over points of a plane.

use std::ops::ControlFlow;
use std::sync::Arc;

use banyan_document::key::FieldOrder;
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use banyan_geo::near::{Near, Unit};
use banyan_geo::parse::{self, GeoError};
use banyan_geo::searched::SearchedCells;
use banyan_geo::shape::Point;
use banyan_geo::{EARTH_RADIUS_METERS, Ended, Meter, covering, distance, leaf};
use banyan_query::bounds::{Conjunction, Intervals, geo};
use banyan_query::filter::metered;
use banyan_query::{Budget, ErrorKind, Filter, QueryError};
use banyan_storage::{Collection, Index};
use bson::{RawBsonRef, RawDocument};

use super::IndexBounds;
use super::bounds;

/// Which index finds what is near which point.
#[derive(Debug, Clone)]
pub struct NearSearch {
    pub index: Arc<Index>,
    pub path: Path,
    pub near: Near,
    /// From where distances are measured, if they are on the sphere.
    pub center: Option<Point>,
    pub filter: Arc<Filter>,
}

/// Which of the cells are meant, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// That of the center and those behind it.
    Behind,
    Before,
}

/// What of a document is nearest.
#[derive(Debug, Clone, Copy)]
pub struct Nearest<'d> {
    /// In the distances' unit.
    pub distance: f64,
    /// As it is written.
    pub place: RawBsonRef<'d>,
}

impl NearSearch {
    /// `None`: the index cannot tell what is near. Degrees on the sphere are found by both kinds of
    /// indexes, meters and the plane by one of them each.
    pub fn of(index: &Arc<Index>, filter: &Arc<Filter>) -> Option<NearSearch> {
        let (path, asked) = filter.near()?;
        let serves = |order| match order {
            FieldOrder::Sphere => asked.near.unit != Unit::Flat,
            FieldOrder::Plane => asked.near.unit != Unit::Meters,
            _ => false,
        };
        let mut fields = index.pattern.fields.iter();
        let serves = fields.any(|(known, order)| known == path && serves(*order));
        let center = asked.near.center.on_sphere();
        serves.then(|| NearSearch {
            index: index.clone(),
            path: path.clone(),
            center: center.map(|center| center.point),
            near: asked.near.clone(),
            filter: filter.clone(),
        })
    }

    /// Refuses a point that the index has no cell for.
    pub fn check(&self) -> Result<(), QueryError> {
        let Some(grid) = self.index.kind.grid() else {
            return Ok(());
        };
        let checked = grid.check(&self.near.center.flat, 16433);
        checked.map_err(|error| QueryError::new(ErrorKind::Location(16433), error.to_string()))
    }

    /// How many of the distances' units are a radian.
    fn units_per_radian(&self) -> f64 {
        match self.near.unit {
            Unit::Meters => EARTH_RADIUS_METERS,
            Unit::Radians | Unit::Flat => 1.0,
        }
    }

    /// As far as anything can be, in the distances' unit, and a little more for rounding: half of
    /// the way around the earth, or from corner to corner.
    pub fn farthest(&self) -> f64 {
        let whole = match (self.near.unit, self.index.kind.grid()) {
            (Unit::Flat, Some(grid)) => grid.diagonal(),
            _ => std::f64::consts::PI * self.units_per_radian() * (1.0 + 1e-9),
        };
        whole.min(self.near.max_distance)
    }

    /// About a kilometer, in the distances' unit; on a plane as much of it as that is of the earth.
    pub fn first_step(&self) -> f64 {
        const KILOMETER: f64 = 1000.0 / EARTH_RADIUS_METERS;
        match (self.near.unit, self.index.kind.grid()) {
            (Unit::Flat, Some(grid)) => grid.diagonal() * KILOMETER / std::f64::consts::PI,
            _ => KILOMETER * self.units_per_radian(),
        }
    }

    /// The field of the keys whose cells say how far away a shape is, by its place there. `None`: it is
    /// a cell of the plane.
    pub fn field(&self, bounds: &IndexBounds) -> Option<usize> {
        if self.index.kind.grid().is_some() || self.center.is_none() {
            return None;
        }
        let mut fields = bounds.layout.fields.iter();
        fields.position(|(path, _)| *path == self.path)
    }

    /// How far away what has this cell is at least.
    pub fn least_distance(&self, cell: i64) -> f64 {
        let least = |center| leaf::least_distance(center, cell) * self.units_per_radian();
        self.center.as_ref().map_or(0.0, least)
    }

    /// How far away as many are as are wanted, where so many keys have cells of a range.
    pub fn estimate(&self, wanted: f64, keys: usize, (low, high): (i64, i64)) -> f64 {
        let area = leaf::area(low, high) * wanted / keys.max(1) as f64;
        (area / std::f64::consts::PI).sqrt() * self.units_per_radian()
    }

    /// The cell of the point on the sphere, and where in the index all cells from it on are, or all
    /// before it.
    pub fn beside_center(&self, side: Side) -> Option<(i64, IndexBounds)> {
        let center = leaf::number_of(self.center.as_ref()?);
        let range = match side {
            Side::Behind => (center, i64::MAX),
            Side::Before => (i64::MIN, center.checked_sub(1)?),
        };
        Some((center, self.within(&geo::intervals(&[range]))?))
    }

    fn within(&self, cells: &Intervals<'static>) -> Option<IndexBounds> {
        let conjunction = Conjunction::of(&self.filter);
        bounds::of_cells(&self.index, &conjunction, &self.path, cells)
    }

    /// Where in the index those are that are so far away, at least and at most. What was searched is
    /// left out. `None`: there is nothing left.
    pub fn bounds(
        &self,
        least: f64,
        greatest: f64,
        searched: &mut SearchedCells,
    ) -> Option<IndexBounds> {
        let unit = self.units_per_radian();
        let (least, greatest) = (least / unit, greatest / unit);
        let center = self.near.center;
        let cells = match (self.index.kind.grid(), self.near.unit) {
            (Some(grid), Unit::Flat) => {
                geo::plane_intervals(&grid.around_point(center.flat, least, greatest))
            }
            (Some(grid), _) => {
                geo::plane_intervals(&grid.around_place(center.flat, least, greatest))
            }
            (None, _) => {
                let least = self.near.min_distance / unit;
                let cells = covering::ring_around(self.center.as_ref()?, least, greatest);
                let cells = searched.add(&cells);
                if cells.is_empty() {
                    return None;
                }
                geo::intervals(&cells)
            }
        };
        self.within(&cells)
    }

    /// A document's closest shape. `None`: it has none.
    pub fn nearest<'d>(
        &self,
        document: &'d RawDocument,
        budget: &Budget,
    ) -> Result<Option<Nearest<'d>>, QueryError> {
        metered(budget, |meter| self.measure(document, meter))
    }

    fn measure<'d>(
        &self,
        document: &'d RawDocument,
        meter: Meter<'_>,
    ) -> Result<Option<Nearest<'d>>, GeoError> {
        let mut nearest: Option<Nearest<'d>> = None;
        let mut ended = None;
        let mut take = |value: RawBsonRef<'d>| match self.distance(value, meter) {
            Ok(Some(distance)) => {
                if nearest.is_none_or(|nearest| distance < nearest.distance) {
                    let place = value;
                    nearest = Some(Nearest { distance, place });
                }
                true
            }
            Ok(None) => false,
            Err(found) => {
                ended = Some(found);
                true
            }
        };
        let _ = visit_with(
            document,
            self.path.parts(),
            Leaf::Whole,
            &mut |visit: Visit<'d>| {
                // An array that is no shape may hold some.
                if let Some(value) = visit.value
                    && !take(value)
                    && let RawBsonRef::Array(array) = value
                {
                    for item in array.into_iter().flatten() {
                        take(item);
                    }
                }
                ControlFlow::Continue(())
            },
        );
        match ended {
            Some(Ended) => Err(GeoError::Ended),
            None => Ok(nearest),
        }
    }

    /// How far a shape is. `None`: it is none, or has no place there.
    fn distance(&self, value: RawBsonRef<'_>, meter: Meter<'_>) -> Result<Option<f64>, Ended> {
        let shape = match parse::stored(value, meter) {
            Ok(shape) => shape,
            Err(GeoError::Ended) => return Err(Ended),
            Err(_) => return Ok(None),
        };
        if self.near.unit == Unit::Flat {
            return Ok(distance::flat(&self.near.center.flat, &shape));
        }
        let Some(center) = &self.center else {
            return Ok(None);
        };
        let radians = distance::spherical(center, &shape, meter)?;
        // Radians are meters put back into radians, as in MongoDB: its last digits come from there.
        Ok(radians.map(|radians| {
            radians * EARTH_RADIUS_METERS / (EARTH_RADIUS_METERS / self.units_per_radian())
        }))
    }
}

/// The path that a `$geoNear` searches: the one that it names, or that of the only index over points
/// of a plane, or else of the only one over shapes on the sphere.
pub fn searched_path(
    collection: Option<&Collection>,
    namespace: &str,
    named: Option<&str>,
) -> Result<String, QueryError> {
    let refuse = |code, message: String| Err(QueryError::new(ErrorKind::Location(code), message));
    let Some(collection) = collection else {
        return refuse(
            26,
            format!("$geoNear requires a geo index to run, but {namespace} does not exist"),
        );
    };
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    for (kind, name) in [(FieldOrder::Plane, "2d"), (FieldOrder::Sphere, "2dsphere")] {
        let field = |index: &Arc<Index>| {
            let mut fields = index.pattern.fields.iter();
            let field = fields.find(|(_, order)| *order == kind);
            field.map(|(path, _)| path.to_string())
        };
        let mut paths = collection.all_indexes().filter_map(field);
        match (paths.next(), paths.next()) {
            (Some(only), None) => return Ok(only),
            (Some(_), Some(_)) => {
                return refuse(
                    27,
                    format!(
                        "There is more than one {name} index on {namespace}; unsure which to use \
                         for $geoNear"
                    ),
                );
            }
            (None, _) => {}
        }
    }
    refuse(
        27,
        "$geoNear requires a 2d or 2dsphere index, but none were found".to_owned(),
    )
}
