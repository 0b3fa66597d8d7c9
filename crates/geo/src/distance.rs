//! How far it is from a point to a shape: in radians on the sphere, and on the plane.

use s2::point::Point;

use crate::line::Line;
use crate::meter::{Ended, Meter};
use crate::plane::PlanePoint;
use crate::polygon::Polygon;
use crate::shape::Shape;

/// From one point to another.
pub fn between(a: &Point, b: &Point) -> f64 {
    a.0.angle(&b.0).rad()
}

/// The point of the edge `ab` that is closest to `point`.
fn closest(point: &Point, a: &Point, b: &Point) -> Point {
    let normal = (b.0 + a.0).cross(&(b.0 - a.0)).normalize();
    let foot = point.0 - normal * point.0.dot(&normal);
    // The foot is on the edge if it lies between the planes through its ends.
    let behind_a = normal.cross(&a.0).dot(&foot) > 0.0;
    let before_b = b.0.cross(&normal).dot(&foot) > 0.0;
    if behind_a && before_b {
        return Point(foot.normalize());
    }
    let (to_a, to_b) = ((point.0 - a.0).norm2(), (point.0 - b.0).norm2());
    if to_a <= to_b { *a } else { *b }
}

fn to_edges<'a>(
    point: &Point,
    edges: impl Iterator<Item = (&'a Point, &'a Point)>,
    meter: Meter<'_>,
) -> Result<f64, Ended> {
    let mut least = f64::INFINITY;
    for (a, b) in edges {
        meter.spend(1)?;
        least = least.min(between(point, &closest(point, a, b)));
    }
    Ok(least)
}

fn to_line(point: &Point, line: &Line, meter: Meter<'_>) -> Result<f64, Ended> {
    to_edges(point, line.edges(), meter)
}

/// Zero inside.
fn to_polygon(point: &Point, polygon: &Polygon, meter: Meter<'_>) -> Result<f64, Ended> {
    if polygon.contains(point) {
        return Ok(0.0);
    }
    to_edges(point, polygon.edges(), meter)
}

/// From a point to one that is stored, on the plane. `None`: the shape is no point.
pub fn flat(point: &PlanePoint, shape: &Shape) -> Option<f64> {
    match shape {
        Shape::Point(place) => Some(point.distance(&place.flat)),
        _ => None,
    }
}

/// From a point to the closest one of a stored shape, in radians. `None` if the shape has no place
/// on the sphere.
pub fn spherical(point: &Point, shape: &Shape, meter: Meter<'_>) -> Result<Option<f64>, Ended> {
    let mut least: Option<f64> = None;
    for part in shape.parts() {
        let distance = match part {
            Shape::Point(place) => match place.on_sphere() {
                Some(place) => between(point, &place.point),
                None => continue,
            },
            Shape::Line(line) => to_line(point, line, meter)?,
            Shape::Polygon(polygon) => to_polygon(point, polygon, meter)?,
            _ => continue,
        };
        least = Some(least.map_or(distance, |least| least.min(distance)));
    }
    Ok(least)
}
