//! On which side of a great circle a point lies. The answer is the same whoever of the three points
//! is named first, and three points are never on one great circle.

use robust::{Coord, orient2d};
use s2::point::Point;
use s2::r3::vector::Vector;

/// Below this the sign of a determinant of three unit vectors may be that of rounding errors: twice
/// the error of its 14 operations.
const UNSURE: f64 = 1.6e-15;

/// 1 if `a`, `b` and `c` are counterclockwise, -1 if they are clockwise, 0 only if two of them are
/// the same. Points whose determinant is zero are moved by the same infinitely small vector, whose
/// x is infinitely greater than its y and that than its z, as the S2 of MongoDB does.
pub fn orientation(a: &Point, b: &Point, c: &Point) -> i32 {
    let determinant = a.0.cross(&b.0).dot(&c.0);
    if determinant.abs() > UNSURE {
        return sign(determinant);
    }
    if a == b || b == c || c == a {
        return 0;
    }
    let close = sign(by_differences(a, b, c));
    if close != 0 {
        return close;
    }
    let axes = [
        |p: &Point| (p.0.y, p.0.z),
        |p: &Point| (p.0.z, p.0.x),
        |p: &Point| (p.0.x, p.0.y),
    ];
    let planes = axes.map(|project| planar(project(a), project(b), project(c)));
    planes.into_iter().find(|sign| *sign != 0).unwrap_or(0)
}

/// The determinant of points that are nearly on one great circle. Two of them are taken relative to
/// the third, or to its opposite if that is nearer, so that little is lost where they lie close
/// together. The third is the one across from the longest side. With which rounding errors it is
/// computed depends on the points and not on their order.
fn by_differences(a: &Point, b: &Point, c: &Point) -> f64 {
    let side = |p: &Point, q: &Point| {
        let opposite = if p.0.dot(&q.0) > 0.0 { -1.0 } else { 1.0 };
        let vector = p.0 + q.0 * opposite;
        (opposite, vector, vector.norm2())
    };
    let (ab, bc, ca) = (side(a, b), side(b, c), side(c, a));
    // Of equal sides the points' own order decides.
    let is_less = |one: f64, other: f64, p: &Point, q: &Point| {
        one < other || (one == other && is_before(&p.0, &q.0))
    };
    let across_a = is_less(ca.2, bc.2, a, b) && is_less(ab.2, bc.2, a, c);
    let across_b = !is_less(ca.2, bc.2, a, b) && is_less(ab.2, ca.2, b, c);
    if across_a {
        ab.1.cross(&ca.1).dot(&a.0) * ab.0
    } else if across_b {
        bc.1.cross(&ab.1).dot(&b.0) * bc.0
    } else {
        ca.1.cross(&bc.1).dot(&c.0) * ca.0
    }
}

fn is_before(p: &Vector, q: &Vector) -> bool {
    (p.x, p.y, p.z) < (q.x, q.y, q.z)
}

/// Which way three points go around the origin of a plane.
fn planar(a: (f64, f64), b: (f64, f64), c: (f64, f64)) -> i32 {
    let turn = |(px, py), (qx, qy)| {
        let origin = Coord { x: 0.0, y: 0.0 };
        sign(orient2d(
            Coord { x: px, y: py },
            Coord { x: qx, y: qy },
            origin,
        ))
    };
    (turn(a, b) + turn(b, c) + turn(c, a)).signum()
}

fn sign(value: f64) -> i32 {
    match value {
        v if v > 0.0 => 1,
        v if v < 0.0 => -1,
        _ => 0,
    }
}

/// Whether the edges from `o` to `a`, `b` and `c` come in this order counterclockwise. True if `b`
/// is one of the others, false if `a` is `c` and `b` another.
pub fn ordered(a: &Point, b: &Point, c: &Point, o: &Point) -> bool {
    let votes = [
        orientation(b, o, a) >= 0,
        orientation(c, o, b) >= 0,
        orientation(a, o, c) > 0,
    ];
    votes.into_iter().filter(|vote| *vote).count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_points_have_an_orientation() {
        let x = Point::from_coords(1.0, 0.0, 0.0);
        let y = Point::from_coords(0.0, 1.0, 0.0);
        let z = Point::from_coords(0.0, 0.0, 1.0);
        assert_eq!(orientation(&x, &y, &z), 1);
        assert_eq!(orientation(&z, &y, &x), -1);
        assert_eq!(orientation(&x, &x, &z), 0);
    }

    /// Nothing is on one line, and the answer does not depend on who is named first.
    #[test]
    fn points_on_one_great_circle_have_one_too() {
        let on_equator = |degrees: f64| {
            let angle = degrees.to_radians();
            Point::from_coords(angle.cos(), angle.sin(), 0.0)
        };
        let (a, b, c) = (on_equator(0.0), on_equator(10.0), on_equator(-25.0));
        let once = orientation(&a, &b, &c);
        assert_ne!(once, 0);
        assert_eq!(orientation(&b, &c, &a), once);
        assert_eq!(orientation(&c, &b, &a), -once);
    }
}
