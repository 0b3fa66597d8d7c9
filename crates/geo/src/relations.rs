//! What lies in what, and what has something in common with what.

use s2::cap::Cap;
use s2::cell::Cell;
use s2::point::Point;
use s2::region::Region;

use crate::distance;
use crate::meter::{Ended, Meter};
use crate::plane::PlanePoint;
use crate::polygon::Polygon;
use crate::shape::{Shape, System};

impl Shape {
    /// Whether all of a stored shape lies in this.
    pub fn contains(&self, stored: &Shape, meter: Meter<'_>) -> Result<bool, Ended> {
        if self.system() == System::Plane {
            return Ok(match stored {
                Shape::Point(place) => self.contains_flat(&place.flat),
                _ => false,
            });
        }
        for part in stored.parts() {
            let mut contained = false;
            for own in self.parts() {
                contained = contains_part(own, part, meter)?;
                if contained {
                    break;
                }
            }
            if !contained {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn contains_flat(&self, point: &PlanePoint) -> bool {
        match self {
            Shape::Box(flat) => flat.contains(point),
            Shape::PlanePolygon(polygon) => polygon.contains(point),
            Shape::Circle(circle) => circle.contains(point),
            _ => false,
        }
    }

    /// Whether a stored shape and this have something in common, on the sphere.
    pub fn intersects(&self, stored: &Shape, meter: Meter<'_>) -> Result<bool, Ended> {
        for part in stored.parts() {
            for own in self.parts() {
                if parts_intersect(own, part, meter)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Whether a part of a query's shape contains a part of a stored one, on the sphere.
fn contains_part(own: &Shape, stored: &Shape, meter: Meter<'_>) -> Result<bool, Ended> {
    match (own, stored) {
        (Shape::Polygon(polygon), Shape::Point(place)) => match place.on_sphere() {
            Some(place) => polygon.contains_place(&place.point, &place.cell, meter),
            None => Ok(false),
        },
        (Shape::Polygon(polygon), Shape::Line(line)) => polygon.contains_line(line, meter),
        (Shape::Polygon(polygon), Shape::Polygon(other)) => polygon.contains_polygon(other, meter),
        (Shape::BigPolygon(ring), Shape::Point(place)) => match place.on_sphere() {
            Some(place) => {
                meter.spend(ring.vertices().len())?;
                Ok(ring.contains(&place.point) || ring.may_intersect(&place.cell, meter)?)
            }
            None => Ok(false),
        },
        (Shape::BigPolygon(ring), Shape::Line(line)) => {
            let edge = Polygon::of_ring(ring.clone().normalized());
            match ring.is_normalized() {
                true => edge.contains_line(line, meter),
                false => Ok(!edge.intersects_line(line, meter)?),
            }
        }
        (Shape::BigPolygon(ring), Shape::Polygon(other)) => {
            let edge = Polygon::of_ring(ring.clone().normalized());
            match ring.is_normalized() {
                true => edge.contains_polygon(other, meter),
                false => Ok(!edge.intersects(other, meter)?),
            }
        }
        (Shape::Cap(cap), Shape::Point(place)) => Ok(place
            .on_sphere()
            .is_some_and(|place| cap.intersects_cell(&place.cell))),
        (Shape::Cap(cap), Shape::Line(_) | Shape::Polygon(_)) => cap_contains(cap, stored, meter),
        _ => Ok(false),
    }
}

/// Whether a line or a polygon is no nearer to the point across from a cap's center than the cap's
/// edge is.
fn cap_contains(cap: &Cap, stored: &Shape, meter: Meter<'_>) -> Result<bool, Ended> {
    if cap.is_full() {
        return Ok(true);
    }
    let across = Point(cap.center().0 * -1.0);
    let beyond = std::f64::consts::PI - cap.radius().rad();
    let nearest = distance::spherical(&across, stored, meter)?;
    Ok(nearest.is_some_and(|nearest| nearest >= beyond))
}

fn parts_intersect(own: &Shape, stored: &Shape, meter: Meter<'_>) -> Result<bool, Ended> {
    if let Shape::Point(place) = stored {
        return match place.on_sphere() {
            Some(place) => meets_cell(own, &place.cell, meter),
            None => Ok(false),
        };
    }
    if let Shape::Point(place) = own {
        return match place.on_sphere() {
            Some(place) => meets_cell(stored, &place.cell, meter),
            None => Ok(false),
        };
    }
    match (own, stored) {
        (Shape::Line(own), Shape::Line(line)) => line.intersects(own, meter),
        (Shape::Line(line), Shape::Polygon(polygon))
        | (Shape::Polygon(polygon), Shape::Line(line)) => polygon.intersects_line(line, meter),
        (Shape::Polygon(own), Shape::Polygon(polygon)) => polygon.intersects(own, meter),
        (Shape::BigPolygon(ring), Shape::Line(line)) => {
            Ok(line.meets(ring.edges(), ring.edge_box(), meter)?
                || line
                    .vertices()
                    .first()
                    .is_some_and(|first| ring.contains(first)))
        }
        (Shape::BigPolygon(ring), Shape::Polygon(polygon)) => {
            match ring.is_normalized() {
                true => polygon.intersects(&Polygon::of_ring(ring.clone()), meter),
                // Larger than any polygon: it meets one if it meets its shell.
                false => match polygon.rings().first() {
                    Some(shell) => ring.intersects_ring(shell, meter),
                    None => Ok(false),
                },
            }
        }
        _ => Ok(false),
    }
}

/// Whether a shape meets the cell of a point.
fn meets_cell(shape: &Shape, cell: &Cell, meter: Meter<'_>) -> Result<bool, Ended> {
    match shape {
        Shape::Point(place) => Ok(place
            .on_sphere()
            .is_some_and(|place| place.cell.id == cell.id)),
        Shape::Line(line) => line.may_intersect(cell, meter),
        Shape::Polygon(polygon) => polygon.may_intersect(cell, meter),
        Shape::BigPolygon(ring) => ring.may_intersect(cell, meter),
        _ => Ok(false),
    }
}
