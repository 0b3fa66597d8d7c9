//! The kinds of shapes.

use s2::cap::Cap;
use s2::cell::Cell;
pub use s2::point::Point;

use crate::line::Line;
use crate::plane::{Circle, PlaneBox, PlanePoint, PlanePolygon};
use crate::polygon::Polygon;
use crate::ring::Ring;

/// What a document holds or a query names.
#[derive(Debug, Clone)]
pub enum Shape {
    Point(Place),
    Line(Line),
    Polygon(Polygon),
    /// What is to the left of its edges, however large (strict winding order).
    BigPolygon(Ring),
    /// Several of the kinds above except the last (`MultiPoint` and so on, `GeometryCollection`).
    Several(Vec<Shape>),
    /// `$centerSphere`
    Cap(Cap),
    /// `$box`
    Box(PlaneBox),
    /// `$polygon`
    PlanePolygon(PlanePolygon),
    /// `$center`
    Circle(Circle),
}

/// What coordinates mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Plane,
    Sphere,
}

/// A point as it was written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Degrees of longitude and latitude on the sphere.
    pub flat: PlanePoint,
    pub system: System,
}

/// A point of the sphere with the smallest cell that it is in: two points of one cell count as
/// the same.
#[derive(Debug, Clone)]
pub struct SpherePoint {
    pub point: Point,
    pub cell: Cell,
}

impl SpherePoint {
    /// `None` if the degrees are out of bounds.
    pub fn of(longitude: f64, latitude: f64) -> Option<SpherePoint> {
        let point = sphere_point(longitude, latitude)?;
        let cell = Cell::from(point);
        Some(SpherePoint { point, cell })
    }
}

/// Whether there is a point at these degrees.
pub(crate) fn is_on_sphere(longitude: f64, latitude: f64) -> bool {
    longitude.abs() <= 180.0 && latitude.abs() <= 90.0
}

/// The point at these degrees; `None` if they are out of bounds.
pub fn sphere_point(longitude: f64, latitude: f64) -> Option<Point> {
    if !is_on_sphere(longitude, latitude) {
        return None;
    }
    let (theta, phi) = (longitude.to_radians(), latitude.to_radians());
    let vector = s2::r3::vector::Vector {
        x: theta.cos() * phi.cos(),
        y: theta.sin() * phi.cos(),
        z: phi.sin(),
    };
    Some(Point(vector))
}

/// Degrees of longitude and latitude.
pub fn degrees_of(point: &Point) -> PlanePoint {
    let at = &point.0;
    PlanePoint::new(
        at.y.atan2(at.x).to_degrees(),
        at.z.atan2(at.x.hypot(at.y)).to_degrees(),
    )
}

impl Place {
    /// The point on the sphere, if its coordinates can be one.
    pub fn on_sphere(&self) -> Option<SpherePoint> {
        SpherePoint::of(self.flat.x, self.flat.y)
    }
}

impl Shape {
    /// The single shapes that it is made of.
    pub fn parts(&self) -> Vec<&Shape> {
        match self {
            Shape::Several(shapes) => shapes.iter().flat_map(Shape::parts).collect(),
            one => vec![one],
        }
    }

    pub fn system(&self) -> System {
        match self {
            Shape::Point(place) => place.system,
            Shape::Box(_) | Shape::PlanePolygon(_) | Shape::Circle(_) => System::Plane,
            _ => System::Sphere,
        }
    }

    /// Whether other shapes can lie in it.
    pub fn has_an_inside(&self) -> bool {
        match self {
            Shape::Point(_) | Shape::Line(_) => false,
            Shape::Several(_) => {
                let mut parts = self.parts().into_iter();
                parts.any(|part| matches!(part, Shape::Polygon(_)))
            }
            _ => true,
        }
    }
}
