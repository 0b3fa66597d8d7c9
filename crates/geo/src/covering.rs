//! Cells of the sphere that cover a shape: what an index has of a document, and where a query
//! looks.

use s2::cap::Cap;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::point::Point;
use s2::rect::Rect;
use s2::rect_bounder::RectBounder;
use s2::region::{Region, RegionCoverer};

use crate::meter::Meter;
use crate::polygon::Polygon;
use crate::ring::Ring;
use crate::shape::{Place, Shape, sphere_point};

/// MongoDB's bounds of version 3 of its index: cells of level 23 are about a meter wide.
const FINEST_LEVEL: u8 = 23;
/// So many cells as a rule for a shape in an index, and for one that is looked for.
const CELLS_STORED: usize = 50;
const CELLS_ASKED: usize = 20;
/// So many vertices are looked at for one covering, each time anew for each cell. What is left then is
/// covered by cells that are larger than they need be: a shape of a thousand vertices has its cells.
const VERTICES_LOOKED_AT: usize = 4_000_000;
/// A hundredth of a millimeter on the earth, in radians: far more than what is lost by rounding.
const PADDING: f64 = 1.6e-12;

/// The cells that stand for a stored shape: of a point the smallest one. `None` if it has no place
/// on the sphere. Numbers are those of S2.
pub fn stored(shape: &Shape) -> Option<Vec<i64>> {
    if let Shape::Point(place) = shape {
        let point = sphere_point(place.flat.x, place.flat.y)?;
        return Some(vec![number(CellID::from(&point))]);
    }
    let covered = Covered::of(shape)?;
    if let [Part::Leaf(cell)] = &covered.parts[..] {
        return Some(vec![number(cell.id)]);
    }
    Some(
        cover(&covered, CELLS_STORED)
            .into_iter()
            .map(number)
            .collect(),
    )
}

/// Where the cells lie of what may meet a shape: ranges, both ends inside, in order and apart.
/// `None` if the shape has no place on the sphere.
pub fn asked(shape: &Shape) -> Option<Vec<(i64, i64)>> {
    let covered = Covered::of(shape)?;
    Some(ranges(cover(&covered, CELLS_ASKED)))
}

/// Where the cells lie of what is about as far from a point as said, in radians.
pub fn ring_around(center: &Point, least: f64, greatest: f64) -> Vec<(i64, i64)> {
    let cap = |radius: f64| {
        let angle: s2::s1::Angle = s2::s1::Rad(radius.clamp(0.0, std::f64::consts::PI)).into();
        Cap::from_center_angle(center, &angle)
    };
    let annulus = Annulus {
        // What rounding does to angles is far less.
        inner: (least > 1e-9).then(|| cap(least - 1e-9)),
        outer: cap(greatest + 1e-9),
    };
    let coverer = coverer(CELLS_ASKED);
    ranges(coverer.covering(&annulus).0)
}

fn coverer(max_cells: usize) -> RegionCoverer {
    RegionCoverer {
        min_level: 0,
        max_level: FINEST_LEVEL,
        level_mod: 1,
        max_cells,
    }
}

fn cover(covered: &Covered, max_cells: usize) -> Vec<CellID> {
    coverer(max_cells).covering(covered).0
}

/// The cells themselves with what is in them, and each cell that one of them is in.
fn ranges(cells: Vec<CellID>) -> Vec<(i64, i64)> {
    let mut ranges = Vec::new();
    for cell in cells {
        ranges.push((number(cell.range_min()), number(cell.range_max())));
        for level in 0..cell.level() {
            let above = number(cell.parent(level));
            ranges.push((above, above));
        }
    }
    ranges.sort_unstable();
    let mut apart: Vec<(i64, i64)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match apart.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => apart.push((low, high)),
        }
    }
    apart
}

/// A cell's number as an index has it.
fn number(cell: CellID) -> i64 {
    cell.0 as i64
}

/// A shape as the coverer asks it.
struct Covered {
    parts: Vec<Part>,
    cap: Cap,
    /// How many vertices may still be looked at. Depends on nothing but the shape, so that all who
    /// cover it come to the same cells.
    left: std::cell::Cell<usize>,
}

enum Part {
    Leaf(Cell),
    Line(crate::line::Line, Rect),
    Polygon(Polygon),
    Ring(Ring),
    Cap(Cap),
}

impl Covered {
    fn of(shape: &Shape) -> Option<Covered> {
        let mut parts = Vec::new();
        for part in shape.parts() {
            parts.push(match part {
                Shape::Point(place) => Part::Leaf(leaf(place)?),
                Shape::Line(line) => {
                    let mut bounder = RectBounder::new();
                    line.vertices().iter().for_each(|at| bounder.add_point(at));
                    Part::Line(line.clone(), bounder.get_bound())
                }
                Shape::Polygon(polygon) => Part::Polygon(polygon.clone()),
                Shape::BigPolygon(ring) => Part::Ring(ring.clone()),
                Shape::Cap(cap) => Part::Cap(cap.clone()),
                Shape::Several(_) | Shape::Box(_) | Shape::PlanePolygon(_) | Shape::Circle(_) => {
                    return None;
                }
            });
        }
        let mut caps = parts.iter().map(Part::cap);
        let first = caps.next()?;
        let cap = caps.fold(first, |all, cap| all.union(&cap));
        Some(Covered {
            parts,
            cap,
            left: std::cell::Cell::new(VERTICES_LOOKED_AT),
        })
    }

    /// Whether some part does what is asked of it; yes, if there is too much to look at.
    fn any(&self, asks: impl Fn(&Part) -> bool) -> bool {
        self.parts.iter().any(|part| {
            let left = self.left.get().saturating_sub(part.size());
            self.left.set(left);
            left == 0 || asks(part)
        })
    }
}

fn leaf(place: &Place) -> Option<Cell> {
    Some(place.on_sphere()?.cell)
}

impl Part {
    fn size(&self) -> usize {
        1 + match self {
            Part::Leaf(_) | Part::Cap(_) => 0,
            Part::Line(line, _) => line.vertices().len(),
            Part::Polygon(polygon) => polygon.vertex_count(),
            Part::Ring(ring) => ring.vertices().len(),
        }
    }

    fn cap(&self) -> Cap {
        match self {
            Part::Leaf(cell) => cell.cap_bound(),
            Part::Line(_, bound) => bound.cap_bound(),
            Part::Polygon(polygon) => polygon.bound().cap_bound(),
            Part::Ring(ring) => ring.bound().cap_bound(),
            Part::Cap(cap) => cap.clone(),
        }
    }

    fn contains(&self, cell: &Cell) -> bool {
        // Whoever asks counts the vertices.
        let meter = Meter::unlimited();
        let within = |outer: &Ring| {
            outer
                .contains_ring(&Ring::of_cell(cell), meter)
                .unwrap_or(false)
        };
        match self {
            Part::Leaf(leaf) => leaf.id == cell.id,
            Part::Line(..) => false,
            Part::Polygon(polygon) => {
                let cell = Polygon::of_ring(Ring::of_cell(cell));
                polygon.contains_polygon(&cell, meter).unwrap_or(false)
            }
            Part::Ring(ring) => within(ring),
            Part::Cap(cap) => cap.contains_cell(cell),
        }
    }

    fn meets(&self, cell: &Cell) -> bool {
        let meter = Meter::unlimited();
        let met = match self {
            Part::Leaf(leaf) => return cell.id.contains(&leaf.id),
            Part::Line(line, _) => line.may_intersect(cell, meter).and_then(|meets| {
                let around = padded(cell);
                Ok(meets || line.meets(around.edges(), around.edge_box(), meter)?)
            }),
            Part::Polygon(polygon) => polygon.intersects(&Polygon::of_ring(padded(cell)), meter),
            Part::Ring(ring) => ring.intersects_ring(&padded(cell), meter),
            Part::Cap(cap) => return cap.intersects_cell(cell),
        };
        met.unwrap_or(true)
    }
}

/// A cell with what is next to it: a shape whose edge is on the edge of the cell meets it.
fn padded(cell: &Cell) -> Ring {
    let center = cell.center();
    let moved = cell.vertices().map(|vertex| {
        let outward = (vertex.0 - center.0).normalize();
        Point((vertex.0 + outward * PADDING).normalize())
    });
    Ring::new(moved.to_vec())
}

impl Region for Covered {
    fn cap_bound(&self) -> Cap {
        self.cap.clone()
    }

    fn contains_cell(&self, cell: &Cell) -> bool {
        self.any(|part| part.contains(cell))
    }

    fn intersects_cell(&self, cell: &Cell) -> bool {
        self.any(|part| part.meets(cell))
    }
}

/// What is in one cap and not in another around the same point.
struct Annulus {
    inner: Option<Cap>,
    outer: Cap,
}

impl Region for Annulus {
    fn cap_bound(&self) -> Cap {
        self.outer.clone()
    }

    fn contains_cell(&self, cell: &Cell) -> bool {
        let apart = |inner: &Cap| !inner.intersects_cell(cell);
        self.outer.contains_cell(cell) && self.inner.as_ref().is_none_or(apart)
    }

    fn intersects_cell(&self, cell: &Cell) -> bool {
        let inside = |inner: &Cap| inner.contains_cell(cell);
        self.outer.intersects_cell(cell) && !self.inner.as_ref().is_some_and(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use bson::{RawBsonRef, RawDocumentBuf, rawdoc};

    fn shape(geometry: &RawDocumentBuf) -> Shape {
        parse::stored(RawBsonRef::Document(geometry), Meter::unlimited()).unwrap()
    }

    fn inside(ranges: &[(i64, i64)], cells: &[i64]) -> bool {
        let within = |cell: &i64| {
            ranges
                .iter()
                .any(|(low, high)| (low..=high).contains(&cell))
        };
        cells.iter().any(within)
    }

    /// A shape's own cells are where one looks for what meets it.
    #[test]
    fn what_meets_a_shape_is_looked_for_where_it_is() {
        let square = rawdoc! { "type": "Polygon", "coordinates":
        [[[10.0, 10.0], [30.0, 10.0], [30.0, 30.0], [10.0, 30.0], [10.0, 10.0]]] };
        let point = rawdoc! { "type": "Point", "coordinates": [20.0, 20.0] };
        let far = rawdoc! { "type": "Point", "coordinates": [-120.0, -20.0] };
        let line = rawdoc! { "type": "LineString", "coordinates": [[20.0, 20.0], [40.0, 40.0]] };
        let shapes = [shape(&square), shape(&point), shape(&line)];
        for one in &shapes {
            for other in &shapes {
                let (asked, stored) = (asked(one).unwrap(), stored(other).unwrap());
                assert!(inside(&asked, &stored), "{one:?} {other:?}");
            }
            let (asked, stored) = (asked(one).unwrap(), stored(&shape(&far)).unwrap());
            assert!(!inside(&asked, &stored));
        }
        assert_eq!(stored(&shapes[1]).unwrap().len(), 1);
    }

    #[test]
    fn a_ring_around_a_point_leaves_out_its_middle() {
        let center = crate::shape::sphere_point(5.0, 5.0).unwrap();
        let cells = |at: [f64; 2]| {
            let point = rawdoc! { "type": "Point", "coordinates": [at[0], at[1]] };
            stored(&shape(&point)).unwrap()
        };
        let ranges = ring_around(&center, 0.2, 0.4);
        assert!(inside(&ranges, &cells([22.0, 5.0])));
        assert!(!inside(&ranges, &cells([5.0, 5.0])));
        assert!(!inside(&ranges, &cells([80.0, 5.0])));
    }
}
