//! How two edges of the sphere meet.

use s2::point::Point;

use crate::orientation::{ordered, orientation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// At a point inside of both.
    Inside,
    /// They have an end in common.
    Shared,
    None,
}

/// How the edges `ab` and `cd` meet. As no three points are on one great circle, edges that only
/// touch either cross or do not.
pub fn crossing(a: &Point, b: &Point, c: &Point, d: &Point) -> Crossing {
    if a == c || a == d || b == c || b == d {
        return Crossing::Shared;
    }
    if a == b || c == d {
        return Crossing::None;
    }
    let side = -orientation(a, b, c);
    let crosses = orientation(a, b, d) == side
        && -orientation(c, d, b) == side
        && orientation(c, d, a) == side;
    match crosses {
        true => Crossing::Inside,
        false => Crossing::None,
    }
}

/// Whether edges with a common end count as crossing there. Of the edges around a point that
/// bound a region, a path that enters the region crosses an odd number.
pub fn crosses_at_vertex(a: &Point, b: &Point, c: &Point, d: &Point) -> bool {
    if a == b || c == d {
        return false;
    }
    if a == d {
        return ordered(&a.ortho(), c, b, a);
    }
    if b == c {
        return ordered(&b.ortho(), d, a, b);
    }
    if a == c {
        return ordered(&a.ortho(), d, b, a);
    }
    if b == d {
        return ordered(&b.ortho(), c, a, b);
    }
    false
}

/// Whether `ab` crosses `cd`, inside or at a common end.
pub fn crosses(a: &Point, b: &Point, c: &Point, d: &Point) -> bool {
    match crossing(a, b, c, d) {
        Crossing::Inside => true,
        Crossing::Shared => crosses_at_vertex(a, b, c, d),
        Crossing::None => false,
    }
}

/// How far along `ab` a point of it lies: 0 at `a`, 1 at `b`.
pub fn fraction(point: &Point, a: &Point, b: &Point) -> f64 {
    let (before, after) = (point.distance(a).rad(), point.distance(b).rad());
    match before + after {
        0.0 => 0.0,
        whole => before / whole,
    }
}

/// Where two edges that cross do so.
pub fn intersection(a: &Point, b: &Point, c: &Point, d: &Point) -> Point {
    let ab = a.0.cross(&b.0);
    let cd = c.0.cross(&d.0);
    let at = ab.cross(&cd);
    // Of the two opposite points the one on the side where the edges are.
    let middle = (a.0 + b.0) + (c.0 + d.0);
    match at.dot(&middle) < 0.0 {
        true => Point((at * -1.0).normalize()),
        false => Point(at.normalize()),
    }
}

/// A box in space around edges, to pass by quickly what is far away.
#[derive(Debug, Clone, Copy)]
pub struct EdgeBox {
    low: [f64; 3],
    high: [f64; 3],
}

impl EdgeBox {
    pub fn empty() -> EdgeBox {
        EdgeBox {
            low: [f64::INFINITY; 3],
            high: [f64::NEG_INFINITY; 3],
        }
    }

    pub fn of(a: &Point, b: &Point) -> EdgeBox {
        // The arc leaves the box around its ends by no more than its height over the chord.
        let half = ((a.0 - b.0).norm() / 2.0).min(1.0);
        let height = 1.0 - (1.0 - half * half).sqrt() + 1e-14;
        let (a, b) = ([a.0.x, a.0.y, a.0.z], [b.0.x, b.0.y, b.0.z]);
        EdgeBox {
            low: std::array::from_fn(|at| a[at].min(b[at]) - height),
            high: std::array::from_fn(|at| a[at].max(b[at]) + height),
        }
    }

    pub fn add(&mut self, other: &EdgeBox) {
        for at in 0..3 {
            self.low[at] = self.low[at].min(other.low[at]);
            self.high[at] = self.high[at].max(other.high[at]);
        }
    }

    pub fn meets(&self, other: &EdgeBox) -> bool {
        (0..3).all(|at| self.low[at] <= other.high[at] && other.low[at] <= self.high[at])
    }

    pub(crate) fn start(&self) -> f64 {
        self.low[0]
    }

    pub(crate) fn end(&self) -> f64 {
        self.high[0]
    }
}
