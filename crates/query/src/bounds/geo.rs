//! Where in an index the cells of shapes lie that a condition asks for.

use std::sync::Arc;

use banyan_document::key::cell_of_plane;
use banyan_geo::grid::Grid;
use banyan_geo::parse::Relation;
use banyan_geo::{Shape, covering};
use bson::RawBsonRef;

use super::conjunction::Condition;
use super::interval::{Interval, Intervals};
use crate::filter::Predicate;

/// The cells of the sphere that documents have which meet the condition, and others. `None`: it
/// says nothing of places on the sphere.
pub fn cells(condition: &Condition<'_>) -> Option<Intervals<'static>> {
    // What lies in a shape meets it as well.
    let (Relation::Within | Relation::Intersects, shape) = asked(condition)?;
    let ranges = covering::asked(shape)?;
    Some(intervals(&ranges))
}

/// The cells of the plane that documents have which meet the condition, and others. `None`: it says
/// nothing of points there.
pub fn plane_cells(condition: &Condition<'_>, grid: &Grid) -> Option<Intervals<'static>> {
    let (Relation::Within, shape) = asked(condition)? else {
        return None;
    };
    Some(plane_intervals(&grid.asked(shape)?))
}

/// What a condition asks of shapes.
pub fn asked<'c>(condition: &Condition<'c>) -> Option<(Relation, &'c Arc<Shape>)> {
    match condition.predicate {
        Predicate::Geo(geo) | Predicate::InBucket(geo) if !condition.negated => {
            Some((geo.relation, &geo.shape))
        }
        _ => None,
    }
}

/// Ranges of cells of the sphere as an index has them.
pub fn intervals(ranges: &[(i64, i64)]) -> Intervals<'static> {
    let interval = |(low, high): &(i64, i64)| {
        Interval::new(
            RawBsonRef::Int64(*low),
            true,
            RawBsonRef::Int64(*high),
            true,
        )
    };
    Intervals::inexact(ranges.iter().map(interval).collect())
}

/// Ranges of cells of the plane as an index has them.
pub fn plane_intervals(ranges: &[(u64, u64)]) -> Intervals<'static> {
    let interval = |(low, high): &(u64, u64)| {
        let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
        Interval::new(cell_of_plane(&low), true, cell_of_plane(&high), true).to_owned()
    };
    Intervals::inexact(ranges.iter().map(interval).collect())
}
