//! What lies in what on the sphere. What the reference says to the same shapes is recorded in
//! `tests/diff/cases/geo.txt`.

use bson::{RawBsonRef, RawDocumentBuf, rawdoc};
use proptest::prelude::*;

use crate::meter::{Ended, Meter};
use crate::parse::{self, GeoError};
use crate::polygon::{Polygon, PolygonError};
use crate::ring::Ring;
use crate::shape::{Shape, sphere_point};

fn shape(kind: &str, coordinates: impl Into<bson::RawBson>) -> Shape {
    let geometry = rawdoc! { "type": kind, "coordinates": coordinates.into() };
    parse::stored(RawBsonRef::Document(&geometry), Meter::unlimited()).unwrap()
}

fn square(x: f64, y: f64, size: f64) -> bson::RawArrayBuf {
    let corners = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)];
    let corner = |(a, b)| bson::RawArrayBuf::from_iter([x + a * size, y + b * size]);
    bson::RawArrayBuf::from_iter(corners.map(corner))
}

fn polygon<const N: usize>(rings: [bson::RawArrayBuf; N]) -> Shape {
    shape("Polygon", bson::RawArrayBuf::from_iter(rings))
}

fn point(x: f64, y: f64) -> Shape {
    shape("Point", bson::RawArrayBuf::from_iter([x, y]))
}

fn line<const N: usize>(points: [[f64; 2]; N]) -> Shape {
    let points = points.map(bson::RawArrayBuf::from_iter);
    shape("LineString", bson::RawArrayBuf::from_iter(points))
}

fn contains(outer: &Shape, inner: &Shape) -> bool {
    outer.contains(inner, Meter::unlimited()).unwrap()
}

fn intersects(one: &Shape, other: &Shape) -> bool {
    let forth = one.intersects(other, Meter::unlimited()).unwrap();
    assert_eq!(forth, other.intersects(one, Meter::unlimited()).unwrap());
    forth
}

#[test]
fn a_hole_is_outside() {
    let frame = polygon([square(0.0, 0.0, 30.0), square(10.0, 10.0, 10.0)]);
    let cases = [
        (point(5.0, 5.0), true, true),
        (point(15.0, 15.0), false, false),
        (point(40.0, 5.0), false, false),
        (polygon([square(2.0, 2.0, 5.0)]), true, true),
        (polygon([square(12.0, 12.0, 5.0)]), false, false),
        (polygon([square(8.0, 8.0, 5.0)]), false, true),
        (polygon([square(-5.0, -5.0, 40.0)]), false, true),
        (line([[1.0, 1.0], [5.0, 8.0]]), true, true),
        (line([[5.0, 5.0], [25.0, 25.0]]), false, true),
        (line([[12.0, 12.0], [15.0, 18.0]]), false, false),
    ];
    for (inner, within, meets) in cases {
        assert_eq!(contains(&frame, &inner), within, "{inner:?}");
        assert_eq!(intersects(&frame, &inner), meets, "{inner:?}");
    }
}

#[test]
fn corners_and_edges_belong_to_it() {
    let around = polygon([square(0.0, 0.0, 10.0)]);
    assert!(contains(&around, &point(0.0, 0.0)));
    assert!(contains(&around, &point(10.0, 5.0)));
    assert!(contains(&around, &around));
    assert!(!contains(&around, &point(10.001, 5.0)));
}

/// Which way a ring is wound says nothing, unless the reference system says that it does.
#[test]
fn the_smaller_side_is_inside() {
    let strict = |ring: bson::RawArrayBuf| {
        let geometry = rawdoc! { "type": "Polygon", "coordinates": [ring], "crs": {
            "type": "name",
            "properties": { "name": "urn:x-mongodb:crs:strictwinding:EPSG:4326" },
        } };
        parse::geojson(&geometry, Meter::unlimited()).unwrap()
    };
    let wound = square(0.0, 0.0, 10.0);
    let mut turned: Vec<_> = wound
        .into_iter()
        .map(|at| bson::RawBson::from(at.unwrap()))
        .collect();
    turned.reverse();
    let turned = bson::RawArrayBuf::from_iter(turned);
    let (inside, outside) = (point(5.0, 5.0), point(50.0, 50.0));
    let small = strict(wound);
    assert!(contains(&small, &inside) && !contains(&small, &outside));
    let large = strict(turned.clone());
    assert!(!contains(&large, &inside) && contains(&large, &outside));
    assert!(contains(&large, &polygon([square(40.0, 40.0, 5.0)])));
    let outward = line([[5.0, 5.0], [50.0, 50.0]]);
    assert!(large.intersects(&outward, Meter::unlimited()).unwrap());
    let usual = polygon([turned]);
    assert!(contains(&usual, &inside) && !contains(&usual, &outside));
}

#[test]
fn work_is_counted_and_ends() {
    let around = polygon([square(0.0, 0.0, 10.0)]);
    let stop = |_| Err(Ended);
    let inner = polygon([square(1.0, 1.0, 1.0)]);
    assert_eq!(around.contains(&inner, Meter::new(&stop)), Err(Ended));
    let document = rawdoc! { "type": "LineString", "coordinates": [[0, 0], [1, 1]] };
    let parsed = parse::stored(RawBsonRef::Document(&document), Meter::new(&stop));
    assert_eq!(parsed.unwrap_err(), GeoError::Ended);
}

#[test]
fn rings_that_are_none_are_refused() {
    let refused = |rings: bson::RawArrayBuf| {
        let geometry: RawDocumentBuf = rawdoc! { "type": "Polygon", "coordinates": rings };
        parse::stored(RawBsonRef::Document(&geometry), Meter::unlimited()).unwrap_err()
    };
    let cases = [
        bson::RawArrayBuf::new(),
        bson::RawArrayBuf::from_iter([square(0.0, 0.0, 4.0), square(5.0, 5.0, 2.0)]),
        bson::RawArrayBuf::from_iter([
            square(0.0, 0.0, 9.0),
            square(1.0, 1.0, 4.0),
            square(3.0, 3.0, 4.0),
        ]),
        bson::RawArrayBuf::from_iter([
            square(0.0, 0.0, 9.0),
            square(1.0, 1.0, 6.0),
            square(2.0, 2.0, 2.0),
        ]),
    ];
    for rings in cases {
        assert!(matches!(refused(rings), GeoError::BadValue(_)));
    }
}

proptest! {
    /// What lies in a shape meets it, and its cells are where the shape's are.
    #[test]
    fn what_is_within_meets(
        (x, y, size) in (-170.0..150.0, -80.0..60.0, 0.01..20.0f64),
        (dx, dy) in (-0.5..1.5f64, -0.5..1.5f64),
    ) {
        let around = polygon([square(x, y, size)]);
        let place = point(x + dx * size, (y + dy * size).clamp(-90.0, 90.0));
        if contains(&around, &place) {
            prop_assert!(intersects(&around, &place));
            let asked = crate::covering::asked(&around).unwrap();
            let cells = crate::covering::stored(&place).unwrap();
            let within = |cell: &i64| asked.iter().any(|(low, high)| (low..=high).contains(&cell));
            prop_assert!(cells.iter().all(within));
        }
    }
}

/// A square with its lower left corner there.
fn square_ring(x: f64, y: f64, side: f64) -> Ring {
    let corners = [(0.0, 0.0), (side, 0.0), (side, side), (0.0, side)];
    let corners = corners.map(|(dx, dy)| sphere_point(x + dx, y + dy).unwrap());
    Ring::new(corners.to_vec())
}

#[test]
fn many_holes_are_looked_at_where_they_may_meet() {
    use std::cell::Cell;
    let rows = 60;
    let place = |at: usize| f64::from(u16::try_from(at).unwrap()) * 0.5;
    let mut rings = vec![square_ring(-1.0, -1.0, 40.0)];
    for row in 0..rows {
        rings.extend((0..rows).map(|column| square_ring(place(column), place(row), 0.2)));
    }
    let steps = Cell::new(0);
    let spend = |more: usize| {
        steps.set(steps.get() + more);
        Ok(())
    };
    let made = Polygon::new(rings.clone(), Meter::new(&spend)).unwrap();
    assert!(made.is_ok());
    // Fewer than there are pairs of them.
    assert!(
        steps.get() < rings.len() * rings.len() / 4,
        "{}",
        steps.get()
    );
    let fault = |ring: Ring| {
        let mut rings = rings.clone();
        rings.push(ring);
        Polygon::new(rings, Meter::unlimited())
            .unwrap()
            .unwrap_err()
    };
    assert_eq!(fault(square_ring(5.05, 5.05, 0.01)), PolygonError::Nested);
    assert_eq!(fault(square_ring(5.1, 5.1, 0.2)), PolygonError::Crossing);
    assert_eq!(
        fault(square_ring(60.0, 5.0, 0.2)),
        PolygonError::HoleOutside
    );
}
