//! What an index tells of a point by its cell alone: where it is, to about a centimeter. Almost always
//! that says whether the point lies in a shape, and it says about how far away the point is.

use s2::cap::Cap;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::point::Point;
use s2::r3::vector::Vector;
use s2::region::Region;

use crate::distance;
use crate::orientation::orientation;
use crate::parse::Relation;
use crate::polygon::Polygon;
use crate::ring::{Ring, origin};
use crate::shape::Shape;

/// Several times the size of a smallest cell, in radians: what is farther from a shape's edge than that
/// lies on one side of it with all of its cell.
const NEAR_EDGE: f64 = 1e-8;
/// The same for caps, which remember their height: that says little of a small angle.
const NEAR_CAP_EDGE: f64 = 1e-7;
/// Of a determinant of three unit vectors, or of what was made of two, with what rounding does to it.
const ROUNDING: f64 = 1.6e-15;

/// What is known of a document by one of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The key is that of a point, of which what is asked holds.
    Holds,
    /// It is that of a point, of which it does not.
    Fails,
    Unsure,
}

/// A shape that is asked for, made ready to be compared with many points.
#[derive(Debug)]
pub struct LeafTest {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Rings(Vec<Edges>),
    Cap(Cap),
    /// Has no point in it.
    Empty,
    Unknown,
}

impl LeafTest {
    pub fn new(relation: Relation, shape: &Shape) -> LeafTest {
        let part = |part: &Shape| match (part, relation) {
            (Shape::Polygon(polygon), _) => Part::of_polygon(polygon),
            (Shape::BigPolygon(ring), _) => Part::Rings(vec![Edges::of(ring)]),
            (Shape::Cap(cap), Relation::Within) => Part::Cap(cap.clone()),
            (Shape::Point(_) | Shape::Line(_), Relation::Within) => Part::Empty,
            _ => Part::Unknown,
        };
        LeafTest {
            parts: shape.parts().into_iter().map(part).collect(),
        }
    }

    /// What a cell's number in an index says.
    pub fn check(&self, number: i64) -> Verdict {
        let Some(point) = point_of(number) else {
            return Verdict::Unsure;
        };
        let mut verdict = Verdict::Fails;
        for part in &self.parts {
            match part.check(&point) {
                Verdict::Holds => return Verdict::Holds,
                Verdict::Unsure => verdict = Verdict::Unsure,
                Verdict::Fails => {}
            }
        }
        verdict
    }
}

/// The middle of a smallest cell. `None`: the cell is larger, and that of another shape than a point.
fn point_of(number: i64) -> Option<Point> {
    let cell = CellID(number.cast_unsigned());
    (cell.is_leaf() && cell.is_valid()).then(|| Point::from(cell))
}

/// How far what has this cell in an index is at least from a point, in radians.
pub fn least_distance(from: &Point, number: i64) -> f64 {
    let distance = match point_of(number) {
        Some(point) => distance::between(from, &point) - NEAR_EDGE,
        None => {
            let cell = CellID(number.cast_unsigned());
            if !cell.is_valid() {
                return 0.0;
            }
            let cap = Cell::from(cell).cap_bound();
            distance::between(from, cap.center()) - cap.radius().rad() - NEAR_CAP_EDGE
        }
    };
    distance.max(0.0)
}

/// How much of the sphere cells take up whose numbers lie between two, about: in steradians.
pub fn area(low: i64, high: i64) -> f64 {
    // Each of six faces has as many numbers as begin with the same three bits.
    const FACE: f64 = (1_u64 << 61) as f64;
    high.abs_diff(low) as f64 / FACE * (4.0 * std::f64::consts::PI / 6.0)
}

/// The number of the smallest cell that a point is in.
pub fn number_of(point: &Point) -> i64 {
    CellID::from(point).0.cast_signed()
}

impl Part {
    fn of_polygon(polygon: &Polygon) -> Part {
        Part::Rings(polygon.rings().iter().map(Edges::of).collect())
    }

    fn check(&self, point: &Point) -> Verdict {
        match self {
            Part::Rings(rings) => {
                // In the shell and in no hole.
                let mut inside = false;
                for ring in rings {
                    match ring.contains(point) {
                        Some(contains) => inside ^= contains,
                        None => return Verdict::Unsure,
                    }
                }
                Verdict::of(inside)
            }
            Part::Cap(cap) if cap.is_full() => Verdict::Holds,
            Part::Cap(cap) if cap.is_empty() => Verdict::Fails,
            Part::Cap(cap) => {
                let distance = distance::between(cap.center(), point);
                let beyond = distance - cap.radius().rad();
                match beyond.abs() > NEAR_CAP_EDGE {
                    true => Verdict::of(beyond < 0.0),
                    false => Verdict::Unsure,
                }
            }
            Part::Empty => Verdict::Fails,
            Part::Unknown => Verdict::Unsure,
        }
    }
}

impl Verdict {
    fn of(holds: bool) -> Verdict {
        match holds {
            true => Verdict::Holds,
            false => Verdict::Fails,
        }
    }
}

/// The edges of a ring, each with the plane that it lies in.
#[derive(Debug)]
struct Edges {
    has_origin: bool,
    edges: Vec<Edge>,
}

#[derive(Debug)]
struct Edge {
    end: Vector,
    normal: Vector,
    /// Points that are no farther from the plane may be on either side of it.
    near: f64,
    /// On which side of the plane the origin is.
    origin: i32,
}

impl Edges {
    fn of(ring: &Ring) -> Edges {
        let from = origin();
        let edges = ring.edges().map(|(a, b)| {
            let cross = a.0.cross(&b.0);
            let norm = cross.norm();
            Edge {
                end: b.0,
                normal: cross * (1.0 / norm),
                near: NEAR_EDGE + ROUNDING / norm,
                origin: orientation(a, b, &from),
            }
        });
        Edges {
            has_origin: ring.has_origin(),
            edges: edges.collect(),
        }
    }

    /// Whether a point is inside; `None`: it is too near to an edge, or to where that would lead on, to
    /// say so. It counts the edges on the way from the origin.
    fn contains(&self, point: &Point) -> Option<bool> {
        let way = origin().0.cross(&point.0);
        let side_of_way = |end: &Vector| {
            let side = way.dot(end);
            (side.abs() > ROUNDING).then_some(side > 0.0)
        };
        let mut inside = self.has_origin;
        let mut start = side_of_way(&self.edges.last()?.end)?;
        for edge in &self.edges {
            let end = side_of_way(&edge.end)?;
            let side = edge.normal.dot(&point.0);
            // Not a number is near as well.
            let is_apart = side.abs() > edge.near;
            if !is_apart {
                return None;
            }
            let (is_left, origin_is_left) = (side > 0.0, edge.origin > 0);
            inside ^= start != end && is_left == start && origin_is_left != start;
            start = end;
        }
        Some(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Meter;
    use crate::parse;
    use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf, rawdoc};
    use proptest::prelude::*;

    fn ring(center: [f64; 2], radius: f64, corners: &[f64]) -> RawArrayBuf {
        let count = corners.len() as f64;
        let corner = |(at, out): (usize, &f64)| {
            let angle = std::f64::consts::TAU * at as f64 / count;
            let x = center[0] + radius * out * angle.cos();
            let y = center[1] + radius * out * angle.sin();
            RawBson::Array([x, y].into_iter().collect())
        };
        let corners: Vec<RawBson> = corners.iter().enumerate().map(corner).collect();
        let mut array: RawArrayBuf = corners.iter().cloned().collect();
        array.push(corners[0].clone());
        array
    }

    fn shape(geometry: &RawDocumentBuf) -> Option<Shape> {
        parse::stored(RawBsonRef::Document(geometry), Meter::unlimited()).ok()
    }

    proptest! {
        /// What a key says is what the point says.
        #[test]
        fn keys_say_what_points_do(
            center in (-170.0..170.0_f64, -70.0..70.0_f64),
            radius in 0.001..15.0_f64,
            corners in proptest::collection::vec(0.4..1.0_f64, 3..12),
            hole in proptest::option::of(0.1..0.3_f64),
            strict in any::<bool>(),
            points in proptest::collection::vec((-1.2..1.2_f64, -1.2..1.2_f64), 1..20),
        ) {
            let center = [center.0, center.1];
            let mut rings = RawArrayBuf::new();
            rings.push(ring(center, radius, &corners));
            if let (Some(hole), false) = (hole, strict) {
                rings.push(ring(center, radius * hole, &[1.0; 4]));
            }
            let mut geometry = rawdoc! { "type": "Polygon", "coordinates": rings };
            if strict {
                let name = "urn:x-mongodb:crs:strictwinding:EPSG:4326";
                let system = rawdoc! { "type": "name", "properties": { "name": name } };
                geometry.append(bson::cstr!("crs"), system);
            }
            let Some(asked) = shape(&geometry) else { return Ok(()) };
            for relation in [Relation::Within, Relation::Intersects] {
                let test = LeafTest::new(relation, &asked);
                for (x, y) in &points {
                    let at = [center[0] + x * radius, center[1] + y * radius];
                    let point = rawdoc! { "type": "Point", "coordinates": [at[0], at[1]] };
                    let Some(stored) = shape(&point) else { continue };
                    let holds = match relation {
                        Relation::Within => asked.contains(&stored, Meter::unlimited()),
                        Relation::Intersects => asked.intersects(&stored, Meter::unlimited()),
                    };
                    let cells = crate::covering::stored(&stored).unwrap();
                    let verdict = test.check(cells[0]);
                    if verdict != Verdict::Unsure {
                        prop_assert_eq!(verdict, Verdict::of(holds.unwrap()));
                    }
                }
            }
        }

        /// Nothing is nearer than its cell says.
        #[test]
        fn nothing_is_nearer_than_its_cell(
            from in (-180.0..180.0_f64, -90.0..90.0_f64),
            to in (-180.0..180.0_f64, -90.0..90.0_f64),
            line in any::<bool>(),
        ) {
            let from = crate::shape::sphere_point(from.0, from.1).unwrap();
            let stored = match line {
                false => rawdoc! { "type": "Point", "coordinates": [to.0, to.1] },
                true => rawdoc! { "type": "LineString",
                    "coordinates": [[to.0, to.1], [to.0 / 2.0, to.1 / 2.0 + 0.5]] },
            };
            let stored = shape(&stored).unwrap();
            let distance = distance::spherical(&from, &stored, Meter::unlimited());
            let distance = distance.unwrap().unwrap();
            let cells = crate::covering::stored(&stored).unwrap();
            let least = cells.iter().map(|cell| least_distance(&from, *cell));
            let least = least.fold(f64::INFINITY, f64::min);
            prop_assert!(least <= distance);
            if !line {
                prop_assert!(distance - least <= 2.0 * NEAR_EDGE);
            }
        }
    }

    #[test]
    fn only_edges_leave_in_doubt() {
        let square = rawdoc! { "type": "Polygon", "coordinates":
        [[[10.0, 10.0], [30.0, 10.0], [30.0, 30.0], [10.0, 30.0], [10.0, 10.0]]] };
        let test = LeafTest::new(Relation::Within, &shape(&square).unwrap());
        let check = |longitude, latitude| {
            let point = crate::shape::sphere_point(longitude, latitude).unwrap();
            test.check(number_of(&point))
        };
        assert_eq!(check(20.0, 20.0), Verdict::Holds);
        assert_eq!(check(20.0, 50.0), Verdict::Fails);
        assert_eq!(check(10.0, 20.0), Verdict::Unsure);
        // A cell that is not that of a point.
        assert_eq!(
            test.check(CellID::from_face(0).0.cast_signed()),
            Verdict::Unsure
        );
    }
}
