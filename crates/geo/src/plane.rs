//! Points, boxes, circles and polygons on a plane: MongoDB's older forms (`$box`, `$center`,
//! `$polygon`).

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanePoint {
    pub x: f64,
    pub y: f64,
}

impl PlanePoint {
    pub fn new(x: f64, y: f64) -> PlanePoint {
        PlanePoint { x, y }
    }

    pub fn distance(&self, other: &PlanePoint) -> f64 {
        let (x, y) = (self.x - other.x, self.y - other.y);
        (x * x + y * y).sqrt()
    }

    /// Whether the distance is at most `radius`. On an axis the sum is compared and not the
    /// difference: 51.9999 + 0.0001 is 52.
    pub fn is_within(&self, other: &PlanePoint, radius: f64) -> bool {
        let (x, y) = (self.x - other.x, self.y - other.y);
        if x == 0.0 {
            return self.y.max(other.y) <= self.y.min(other.y) + radius;
        }
        if y == 0.0 {
            return self.x.max(other.x) <= self.x.min(other.x) + radius;
        }
        (x * x + y * y).sqrt() - radius <= 0.0
    }
}

/// All sides belong to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlaneBox {
    pub low: PlanePoint,
    pub high: PlanePoint,
}

impl PlaneBox {
    /// With these as opposite corners.
    pub fn of(a: PlanePoint, b: PlanePoint) -> PlaneBox {
        PlaneBox {
            low: PlanePoint::new(a.x.min(b.x), a.y.min(b.y)),
            high: PlanePoint::new(a.x.max(b.x), a.y.max(b.y)),
        }
    }

    pub fn contains(&self, point: &PlanePoint) -> bool {
        (self.low.x..=self.high.x).contains(&point.x)
            && (self.low.y..=self.high.y).contains(&point.y)
    }

    /// Whether they have a point in common.
    pub(crate) fn meets(&self, other: &PlaneBox) -> bool {
        self.low.x <= other.high.x
            && self.high.x >= other.low.x
            && self.low.y <= other.high.y
            && self.high.y >= other.low.y
    }

    /// How far its nearest point is, and its farthest.
    pub(crate) fn distances(&self, point: &PlanePoint) -> (f64, f64) {
        let nearest = PlanePoint::new(
            point.x.clamp(self.low.x, self.high.x),
            point.y.clamp(self.low.y, self.high.y),
        );
        let farther = |value: f64, low: f64, high: f64| match value - low > high - value {
            true => low,
            false => high,
        };
        let farthest = PlanePoint::new(
            farther(point.x, self.low.x, self.high.x),
            farther(point.y, self.low.y, self.high.y),
        );
        (point.distance(&nearest), point.distance(&farthest))
    }

    /// Whether it has a point of the edge.
    fn meets_edge(&self, p: &PlanePoint, q: &PlanePoint) -> bool {
        if !PlaneBox::of(*p, *q).meets(self) {
            return false;
        }
        // All corners on one side of the line leave nothing for the edge.
        let side = |x: f64, y: f64| (q.x - p.x) * (y - p.y) - (q.y - p.y) * (x - p.x);
        let sides = [
            side(self.low.x, self.low.y),
            side(self.low.x, self.high.y),
            side(self.high.x, self.low.y),
            side(self.high.x, self.high.y),
        ];
        !(sides.iter().all(|side| *side > 0.0) || sides.iter().all(|side| *side < 0.0))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Circle {
    pub center: PlanePoint,
    pub radius: f64,
}

impl Circle {
    pub fn contains(&self, point: &PlanePoint) -> bool {
        self.center.is_within(point, self.radius)
    }
}

/// At least three points; the last is followed by the first. Points inside of an odd number of
/// windings are inside.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanePolygon {
    points: Vec<PlanePoint>,
}

impl PlanePolygon {
    /// `None` of fewer than three points.
    pub fn new(points: Vec<PlanePoint>) -> Option<PlanePolygon> {
        (points.len() >= 3).then_some(PlanePolygon { points })
    }

    pub(crate) fn points(&self) -> &[PlanePoint] {
        &self.points
    }

    /// The box around it.
    pub(crate) fn around(&self) -> PlaneBox {
        let least = f64::INFINITY;
        let nothing = PlaneBox {
            low: PlanePoint::new(least, least),
            high: PlanePoint::new(-least, -least),
        };
        self.points.iter().fold(nothing, |around, point| PlaneBox {
            low: PlanePoint::new(around.low.x.min(point.x), around.low.y.min(point.y)),
            high: PlanePoint::new(around.high.x.max(point.x), around.high.y.max(point.y)),
        })
    }

    /// Whether something of a box may be inside.
    pub(crate) fn meets(&self, area: &PlaneBox) -> bool {
        self.contains(&area.low) || self.edges().any(|(p, q)| area.meets_edge(p, q))
    }

    fn edges(&self) -> impl Iterator<Item = (&PlanePoint, &PlanePoint)> {
        let next = self.points.iter().cycle().skip(1);
        self.points.iter().zip(next)
    }

    /// Whether a ray from the point to the right leaves the polygon. Corners and points on
    /// horizontal and vertical edges are inside, as is what lies on an edge to the left of which
    /// the inside is not.
    pub fn contains(&self, point: &PlanePoint) -> bool {
        let mut inside = false;
        for (p, q) in self.edges() {
            if point == p || point == q {
                return true;
            }
            let (left, right) = (p.x.min(q.x), p.x.max(q.x));
            if p.y == q.y {
                if point.y == p.y && (left..=right).contains(&point.x) {
                    return true;
                }
                continue;
            }
            let beside = point.y > p.y.min(q.y) && point.y <= p.y.max(q.y);
            if !beside || point.x > right {
                continue;
            }
            if p.x == q.x {
                if point.x == p.x {
                    return true;
                }
                inside = !inside;
                continue;
            }
            let at = (point.y - p.y) * (q.x - p.x) / (q.y - p.y) + p.x;
            inside ^= point.x <= at;
        }
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polygon_has_its_corners_and_straight_edges() {
        let at = PlanePoint::new;
        let square = [at(0.0, 0.0), at(0.0, 4.0), at(4.0, 4.0), at(4.0, 0.0)];
        let square = PlanePolygon::new(square.to_vec()).unwrap();
        for point in [
            at(0.0, 0.0),
            at(4.0, 2.0),
            at(2.0, 4.0),
            at(2.0, 0.0),
            at(1.0, 1.0),
        ] {
            assert!(square.contains(&point), "{point:?}");
        }
        for point in [at(5.0, 2.0), at(-1.0, 2.0), at(2.0, 4.1), at(2.0, -0.1)] {
            assert!(!square.contains(&point), "{point:?}");
        }
        assert!(PlanePolygon::new(vec![at(0.0, 0.0), at(1.0, 1.0)]).is_none());
    }

    #[test]
    fn a_circle_has_its_edge_on_the_axes() {
        let circle = Circle {
            center: PlanePoint::new(51.9999, 0.0),
            radius: 0.0001,
        };
        assert!(circle.contains(&PlanePoint::new(52.0, 0.0)));
        assert!(!circle.contains(&PlanePoint::new(52.0, 0.0001)));
    }
}
