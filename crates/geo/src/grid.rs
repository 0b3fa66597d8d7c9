//! Cells of the plane as a `2d` index has them: a square of coordinates, whose sides are cut in
//! half again and again. Where a point lies is said by a bit of x and a bit of y for each cut,
//! which together are MongoDB's geohash (`GeoHash` and `GeoHashConverter` there): cells that lie
//! together mostly follow one another.

use std::collections::VecDeque;

use crate::parse::GeoError;
use crate::plane::{PlaneBox, PlanePoint, PlanePolygon};
use crate::shape::{Shape, degrees_of};

/// So many cells as a rule for what is looked for.
const CELLS_ASKED: usize = 20;
/// Of larger polygons the box around them is covered.
const EDGES_MAX: usize = 256;
/// What an index has unless it says otherwise.
pub const DEFAULT_BITS: i64 = 26;
pub const DEFAULT_MIN: f64 = -180.0;
pub const DEFAULT_MAX: f64 = 180.0;
const BITS_MAX: u32 = 32;

/// A square of coordinates, and how often it is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    min: f64,
    max: f64,
    bits: u32,
}

/// What no square can be cut so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GridError {
    #[error("bits for hash must be > 0 and <= 32, but {0} bits were specified")]
    Bits(i64),
    #[error("region for hash must be valid and have positive area, but [{0}, {1}] was specified")]
    Region(f64, f64),
    #[error("Invalid GeoHashConverter parameters")]
    TooLarge,
}

/// Why a value is no point of the plane, with MongoDB's number.
fn refuse<T>(code: i32, message: impl Into<String>) -> Result<T, GeoError> {
    Err(GeoError::Location(code, message.into()))
}

/// A part of the square: the first bits of what lies in it.
#[derive(Debug, Clone, Copy)]
struct GridCell {
    x: u32,
    y: u32,
    /// How many bits of each are known.
    level: u32,
}

impl Grid {
    pub fn new(min: f64, max: f64, bits: i64) -> Result<Grid, GridError> {
        let known = u32::try_from(bits).ok();
        let Some(bits) = known.filter(|bits| (1..=BITS_MAX).contains(bits)) else {
            return Err(GridError::Bits(bits));
        };
        // Not a number is in no order.
        if !(min < max && min.is_finite() && max.is_finite()) {
            return Err(GridError::Region(min, max));
        }
        let side = (max - min) / f64::from(bits).exp2();
        match (side * side * 2.0).is_finite() && side > 0.0 {
            true => Ok(Grid { min, max, bits }),
            false => Err(GridError::TooLarge),
        }
    }

    pub fn contains(&self, point: &PlanePoint) -> bool {
        let inside = |value: f64| value >= self.min && value <= self.max;
        inside(point.x) && inside(point.y)
    }

    /// Refuses a point outside with the number that MongoDB has for it there.
    pub fn check(&self, point: &PlanePoint, code: i32) -> Result<(), GeoError> {
        match self.contains(point) {
            true => Ok(()),
            false => refuse(
                code,
                format!("point not in interval of [ {}, {} ]", self.min, self.max),
            ),
        }
    }

    /// The cell of a point inside.
    pub fn hash(&self, point: &PlanePoint) -> u64 {
        let cell = GridCell {
            x: self.step(point.x),
            y: self.step(point.y),
            level: BITS_MAX,
        };
        cell.first() & (u64::MAX << (64 - 2 * self.bits))
    }

    /// How many of the smallest steps a coordinate is from the low end.
    fn step(&self, value: f64) -> u32 {
        if value >= self.max {
            return u32::MAX;
        }
        // A conversion stops at the ends.
        ((value - self.min) * (f64::from(BITS_MAX).exp2() / (self.max - self.min))) as u32
    }

    /// Where what is near to an area lies: ranges of cells, both ends inside, in order and apart.
    fn ranges(&self, area: &Area<'_>) -> Vec<(u64, u64)> {
        let whole = GridCell {
            x: 0,
            y: 0,
            level: 0,
        };
        let mut open = VecDeque::from_iter(self.meets(area, &whole).then_some(whole));
        let mut done = Vec::new();
        while let Some(cell) = open.pop_front() {
            if cell.level >= self.bits || area.holds(&self.around(&cell)) {
                done.push(cell);
                continue;
            }
            let parts = cell.parts();
            let parts: Vec<GridCell> = parts
                .into_iter()
                .filter(|part| self.meets(area, part))
                .collect();
            let is_too_many = done.len() + open.len() + parts.len() > CELLS_ASKED;
            match is_too_many && parts.len() > 1 {
                true => done.push(cell),
                false => open.extend(parts),
            }
        }
        let mut ranges: Vec<(u64, u64)> = done.iter().map(|c| (c.first(), c.last())).collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match apart.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => apart.push((low, high)),
            }
        }
        apart
    }

    fn meets(&self, area: &Area<'_>, cell: &GridCell) -> bool {
        let mut around = self.around(cell);
        // What rounding does to a coordinate on its way to a step, and to the area's own.
        let step = (self.max - self.min) / f64::from(BITS_MAX).exp2();
        let magnitude = self.min.abs().max(self.max.abs()) + area.magnitude();
        let margin = 2.0 * step + 8.0 * f64::EPSILON * magnitude;
        around.low = PlanePoint::new(around.low.x - margin, around.low.y - margin);
        around.high = PlanePoint::new(around.high.x + margin, around.high.y + margin);
        area.meets(&around)
    }

    /// The box of a cell.
    fn around(&self, cell: &GridCell) -> PlaneBox {
        let step = (self.max - self.min) / f64::from(BITS_MAX).exp2();
        let side = step * f64::from(BITS_MAX - cell.level).exp2();
        let low = |at: u32| self.min + f64::from(at) * step;
        PlaneBox {
            low: PlanePoint::new(low(cell.x), low(cell.y)),
            high: PlanePoint::new(low(cell.x) + side, low(cell.y) + side),
        }
    }

    /// Where the cells lie of what may be in a shape that has an inside on the plane, or is a cap
    /// of the sphere. `None`: this says nothing of other shapes.
    pub fn asked(&self, shape: &Shape) -> Option<Vec<(u64, u64)>> {
        let area = match shape {
            Shape::Box(area) => Area::Box(*area),
            Shape::Circle(circle) => Area::Flat(Belt {
                center: circle.center,
                least: 0.0,
                greatest: circle.radius,
            }),
            Shape::PlanePolygon(polygon) => Area::of_polygon(polygon),
            Shape::Cap(cap) => {
                if cap.is_empty() {
                    return Some(Vec::new());
                }
                // A cap remembers its height, which says little of a small angle; a point of the
                // sphere is a cell of about a centimeter.
                let greatest = (cap.radius().rad() + 1e-7).to_degrees();
                Area::Sphere(Belt {
                    center: degrees_of(cap.center()),
                    least: 0.0,
                    greatest,
                })
            }
            _ => return None,
        };
        Some(self.ranges(&area))
    }

    /// Where the cells lie of what is about as far from a point as said, on the plane.
    pub fn around_point(&self, center: PlanePoint, least: f64, greatest: f64) -> Vec<(u64, u64)> {
        self.ranges(&Area::Flat(Belt {
            center,
            least,
            greatest,
        }))
    }

    /// The same of degrees on the sphere, for distances in radians.
    pub fn around_place(&self, center: PlanePoint, least: f64, greatest: f64) -> Vec<(u64, u64)> {
        self.ranges(&Area::Sphere(Belt {
            center,
            least: (least - 1e-9).max(0.0).to_degrees(),
            greatest: (greatest + 1e-9).to_degrees(),
        }))
    }

    /// As far as two points inside can be from one another, and from one outside by that much more.
    pub fn diagonal(&self) -> f64 {
        (self.max - self.min) * std::f64::consts::SQRT_2 * (1.0 + 1e-9)
    }
}

impl GridCell {
    /// The four cells that it is made of.
    fn parts(&self) -> [GridCell; 4] {
        let half = 1_u32.checked_shl(BITS_MAX - 1 - self.level).unwrap_or(0);
        [(0, 0), (0, half), (half, 0), (half, half)].map(|(x, y)| GridCell {
            x: self.x | x,
            y: self.y | y,
            level: self.level + 1,
        })
    }

    /// The first number of what lies in it.
    fn first(&self) -> u64 {
        (spread(self.x) << 1) | spread(self.y)
    }

    fn last(&self) -> u64 {
        self.first() | u64::MAX.checked_shr(2 * self.level).unwrap_or(0)
    }
}

/// A bit between each two.
fn spread(bits: u32) -> u64 {
    let mut bits = u64::from(bits);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        bits = (bits | (bits << shift)) & mask;
    }
    bits
}

/// What is looked for.
enum Area<'a> {
    Box(PlaneBox),
    Polygon(&'a PlanePolygon, PlaneBox),
    Flat(Belt),
    /// Degrees of longitude and latitude, and distances in degrees.
    Sphere(Belt),
}

/// What is no closer to a point than one distance and no farther than another.
struct Belt {
    center: PlanePoint,
    least: f64,
    greatest: f64,
}

impl Area<'_> {
    fn of_polygon(polygon: &PlanePolygon) -> Area<'_> {
        match polygon.points().len() {
            ..=EDGES_MAX => Area::Polygon(polygon, polygon.around()),
            _ => Area::Box(polygon.around()),
        }
    }

    /// How large its coordinates are: what is lost by rounding goes with it.
    fn magnitude(&self) -> f64 {
        let of_point = |point: &PlanePoint| point.x.abs() + point.y.abs();
        let size = match self {
            Area::Box(area) | Area::Polygon(_, area) => of_point(&area.low) + of_point(&area.high),
            Area::Flat(belt) => of_point(&belt.center) + belt.greatest,
            Area::Sphere(_) => 0.0,
        };
        match size.is_finite() {
            true => size,
            false => 0.0,
        }
    }

    /// Whether something of a cell may be in it.
    fn meets(&self, cell: &PlaneBox) -> bool {
        match self {
            Area::Box(area) => area.meets(cell),
            Area::Polygon(polygon, around) => around.meets(cell) && polygon.meets(cell),
            Area::Flat(belt) => {
                let (near, far) = cell.distances(&belt.center);
                near <= belt.greatest && far >= belt.least
            }
            Area::Sphere(belt) => belt.meets_on_sphere(cell),
        }
    }

    /// Whether all of a cell is in it, if that is easily told.
    fn holds(&self, cell: &PlaneBox) -> bool {
        match self {
            Area::Box(area) => area.contains(&cell.low) && area.contains(&cell.high),
            Area::Flat(belt) => {
                let (near, far) = cell.distances(&belt.center);
                near >= belt.least && far <= belt.greatest
            }
            Area::Polygon(..) | Area::Sphere(_) => false,
        }
    }
}

impl Belt {
    /// A place is at least as far away as its latitude is, and at most as far as one walks along a
    /// meridian and then along a parallel.
    fn meets_on_sphere(&self, cell: &PlaneBox) -> bool {
        let (low, high) = (self.center.y - self.greatest, self.center.y + self.greatest);
        if cell.low.y > high || cell.high.y < low {
            return false;
        }
        let beside = match low > -90.0 && high < 90.0 {
            true => {
                let sine = self.greatest.to_radians().sin() / self.center.y.to_radians().cos();
                // Rounding may hide the last bit of an angle near the right one.
                sine.clamp(-1.0, 1.0).asin().to_degrees() + 1e-6
            }
            // There is a pole in it.
            false => 180.0,
        };
        // Degrees of longitude go on at the other end.
        let centers =
            [-360.0, 0.0, 360.0].map(|turn| PlanePoint::new(self.center.x + turn, self.center.y));
        let reaches = |center: &PlanePoint| {
            cell.low.x <= center.x + beside && cell.high.x >= center.x - beside
        };
        let is_closer = |center: &PlanePoint| {
            let x = (cell.low.x - center.x)
                .abs()
                .max((cell.high.x - center.x).abs());
            let y = (cell.low.y - center.y)
                .abs()
                .max((cell.high.y - center.y).abs());
            x + y < self.least
        };
        centers.iter().any(reaches) && !centers.iter().any(is_closer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::Circle;
    use proptest::prelude::*;

    fn grid() -> Grid {
        Grid::new(DEFAULT_MIN, DEFAULT_MAX, DEFAULT_BITS).unwrap()
    }

    fn is_inside(ranges: &[(u64, u64)], hash: u64) -> bool {
        ranges
            .iter()
            .any(|(low, high)| (*low..=*high).contains(&hash))
    }

    /// As MongoDB shows them in bounds.
    #[test]
    fn a_point_has_the_cell_that_mongodb_gives_it() {
        let hash = |x, y| grid().hash(&PlanePoint::new(x, y));
        assert_eq!(hash(0.0, 0.0), 0xC000_0000_0000_0000);
        assert_eq!(hash(-180.0, -180.0), 0);
        assert_eq!(hash(180.0, 180.0), 0xFFFF_FFFF_FFFF_F000);
        assert_eq!(hash(-0.000_001, -0.000_001), 0x3FFF_FFFF_FFFF_F000);
    }

    #[test]
    fn what_no_index_can_be_is_refused() {
        assert_eq!(Grid::new(-1.0, 1.0, 0), Err(GridError::Bits(0)));
        assert_eq!(Grid::new(-1.0, 1.0, 33), Err(GridError::Bits(33)));
        assert_eq!(Grid::new(1.0, 1.0, 26), Err(GridError::Region(1.0, 1.0)));
        assert_eq!(Grid::new(-1e300, 1e300, 26), Err(GridError::TooLarge));
        assert!(Grid::new(f64::NAN, 1.0, 26).is_err());
    }

    proptest! {
        #[test]
        fn what_is_in_an_area_is_in_its_cells(
            (bits, low, size) in (1_i64..=32, -200.0..200.0, 0.001..500.0),
            center in (-250.0..250.0, -250.0..250.0),
            radius in 0.0..300.0,
            inner in 0.0..1.0,
            point in (0.0..=1.0, 0.0..=1.0),
        ) {
            let grid = Grid::new(low, low + size, bits).unwrap();
            let at = PlanePoint::new(low + point.0 * size, low + point.1 * size);
            prop_assume!(grid.contains(&at));
            let hash = grid.hash(&at);
            let center = PlanePoint::new(center.0, center.1);
            let circle = Circle { center, radius };
            if circle.contains(&at) {
                let ranges = grid.asked(&Shape::Circle(circle)).unwrap();
                prop_assert!(is_inside(&ranges, hash));
            }
            let corner = PlanePoint::new(center.x + radius, center.y - radius);
            let flat = PlaneBox::of(center, corner);
            if flat.contains(&at) {
                prop_assert!(is_inside(&grid.asked(&Shape::Box(flat)).unwrap(), hash));
            }
            let triangle = vec![center, corner, PlanePoint::new(corner.x, center.y)];
            let triangle = PlanePolygon::new(triangle).unwrap();
            if triangle.contains(&at) {
                let ranges = grid.asked(&Shape::PlanePolygon(triangle)).unwrap();
                prop_assert!(is_inside(&ranges, hash));
            }
            let distance = (at.x - center.x).hypot(at.y - center.y);
            if distance <= radius && distance >= radius * inner {
                prop_assert!(is_inside(&grid.around_point(center, radius * inner, radius), hash));
            }
        }

        #[test]
        fn what_is_near_on_the_sphere_is_in_the_cells(
            center in (-180.0..=180.0, -90.0..=90.0),
            place in (-180.0..=180.0, -90.0..=90.0),
            (less, more) in (0.0_f64..0.5, 0.0_f64..0.5),
        ) {
            let grid = grid();
            let sphere = |(x, y)| crate::shape::sphere_point(x, y).unwrap();
            let distance: f64 = crate::distance::between(&sphere(center), &sphere(place));
            let ranges = grid.around_place(
                PlanePoint::new(center.0, center.1),
                (distance - less).max(0.0),
                distance + more,
            );
            prop_assert!(is_inside(&ranges, grid.hash(&PlanePoint::new(place.0, place.1))));
        }
    }
}
