//! A ring with holes in it.

use s2::cell::Cell;
use s2::point::Point;
use s2::rect::Rect;

use crate::crossing::{self, Crossing, EdgeBox};
use crate::line::Line;
use crate::meter::{Ended, Meter};
use crate::ring::{Relation, Ring};

/// The first ring is the shell, the others are holes in it. Each encloses no more than half of the
/// sphere.
#[derive(Debug, Clone)]
pub struct Polygon {
    rings: Vec<Ring>,
}

/// What is wrong with the rings of a polygon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PolygonError {
    #[error("Secondary loops not contained by first exterior loop - secondary loops must be holes")]
    HoleOutside,
    #[error("Polygon isn't valid: loops have an edge in common")]
    SharedEdge,
    #[error("Polygon isn't valid: loops cross")]
    Crossing,
    #[error("A loop shares more than one vertex with its parent loop")]
    SharedVertices,
    #[error("Polygon interior loops cannot be nested")]
    Nested,
}

impl Polygon {
    /// Of a shell and of holes, each normalized and valid by itself.
    pub fn new(rings: Vec<Ring>, meter: Meter<'_>) -> Result<Result<Polygon, PolygonError>, Ended> {
        let [shell, holes @ ..] = &rings[..] else {
            return Ok(Ok(Polygon { rings }));
        };
        for hole in holes {
            meter.spend(shell.vertices().len() + hole.vertices().len())?;
            if !shell.contains_ring(hole, meter)? {
                return Ok(Err(PolygonError::HoleOutside));
            }
        }
        for hole in holes {
            if let Some(error) = fault(shell, hole, meter)? {
                return Ok(Err(error));
            }
        }
        if let Some(error) = fault_among(holes, meter)? {
            return Ok(Err(error));
        }
        for hole in holes {
            if shell.shared_vertices(hole, meter)? > 1 {
                return Ok(Err(PolygonError::SharedVertices));
            }
        }
        Ok(Ok(Polygon { rings }))
    }

    pub fn of_ring(ring: Ring) -> Polygon {
        Polygon { rings: vec![ring] }
    }

    pub fn rings(&self) -> &[Ring] {
        &self.rings
    }

    pub fn edges(&self) -> impl Iterator<Item = (&Point, &Point)> {
        self.rings.iter().flat_map(Ring::edges)
    }

    pub fn vertex_count(&self) -> usize {
        let rings = self.rings.iter();
        rings.map(|ring| ring.vertices().len()).sum()
    }

    fn shell(&self) -> Option<&Ring> {
        self.rings.first()
    }

    fn holes(&self) -> &[Ring] {
        self.rings.get(1..).unwrap_or_default()
    }

    pub fn bound(&self) -> Rect {
        self.shell()
            .map_or_else(Rect::empty, |shell| shell.bound().clone())
    }

    fn edge_box(&self) -> EdgeBox {
        let mut around = EdgeBox::empty();
        for ring in &self.rings {
            around.add(ring.edge_box());
        }
        around
    }

    /// In the shell and in no hole.
    pub fn contains(&self, point: &Point) -> bool {
        let around = self.rings.iter().filter(|ring| ring.contains(point));
        around.count() % 2 == 1
    }

    /// Whether the point is inside, or as near to an edge as the size of its cell.
    pub fn contains_place(
        &self,
        point: &Point,
        cell: &Cell,
        meter: Meter<'_>,
    ) -> Result<bool, Ended> {
        meter.spend(self.vertex_count())?;
        Ok(self.contains(point) || self.may_intersect(cell, meter)?)
    }

    pub fn may_intersect(&self, cell: &Cell, meter: Meter<'_>) -> Result<bool, Ended> {
        match &self.rings[..] {
            [ring] => ring.may_intersect(cell, meter),
            _ => {
                if !self.bound().intersects(&cell.rect_bound()) {
                    return Ok(false);
                }
                self.intersects(&Polygon::of_ring(Ring::of_cell(cell)), meter)
            }
        }
    }

    /// Whether a ring crosses this polygon's rings, is in what it encloses, or is not.
    fn relation(&self, other: &Ring, meter: Meter<'_>) -> Result<Relation, Ended> {
        let mut inside = false;
        for ring in &self.rings {
            match ring.relation(other, meter)? {
                Relation::Crosses => return Ok(Relation::Crosses),
                Relation::Contains => inside = !inside,
                Relation::Apart => {}
            }
        }
        Ok(match inside {
            true => Relation::Contains,
            false => Relation::Apart,
        })
    }

    pub fn contains_polygon(&self, other: &Polygon, meter: Meter<'_>) -> Result<bool, Ended> {
        let (Some(shell), Some(theirs)) = (self.shell(), other.shell()) else {
            return Ok(false);
        };
        if self.holes().is_empty() {
            return shell.contains_ring(theirs, meter);
        }
        if self.relation(theirs, meter)? != Relation::Contains {
            return Ok(false);
        }
        // The other has nothing of what is in the holes of this.
        for hole in self.holes() {
            if other.relation(hole, meter)? != Relation::Apart {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn intersects(&self, other: &Polygon, meter: Meter<'_>) -> Result<bool, Ended> {
        let (Some(shell), Some(theirs)) = (self.shell(), other.shell()) else {
            return Ok(false);
        };
        if self.holes().is_empty() && other.holes().is_empty() {
            return shell.intersects_ring(theirs, meter);
        }
        Ok(self.intersects_shell(theirs, meter)? || other.intersects_shell(shell, meter)?)
    }

    /// Whether there is something of the polygon in the ring, which stands for what may have
    /// holes itself: a ring that has all of the polygon in it is not looked at.
    fn intersects_shell(&self, shell: &Ring, meter: Meter<'_>) -> Result<bool, Ended> {
        let mut inside = false;
        for ring in &self.rings {
            if ring.contains_ring(shell, meter)? {
                inside = !inside;
            } else if !shell.contains_ring(ring, meter)? && ring.intersects_ring(shell, meter)? {
                return Ok(true);
            }
        }
        Ok(inside)
    }

    /// The parts of a line that are inside, as positions along it: `1.5` is the middle of the
    /// second edge. Parts without length are left out.
    pub fn clip(&self, line: &Line, meter: Meter<'_>) -> Result<Vec<(f64, f64)>, Ended> {
        let Some(first) = line.vertices().first() else {
            return Ok(Vec::new());
        };
        let around = self.edge_box();
        let whole = line.edge_box();
        let edges: Vec<(&Point, &Point, EdgeBox)> = self
            .edges()
            .map(|(c, d)| (c, d, EdgeBox::of(c, d)))
            .filter(|(_, _, edge)| edge.meets(whole))
            .collect();
        meter.spend(edges.len())?;
        let mut inside = self.contains(first);
        let mut parts = Vec::new();
        let mut start = 0.0;
        for (a, b) in line.edges() {
            meter.spend(1 + edges.len() / 4)?;
            let edge = EdgeBox::of(a, b);
            let mut turns = Vec::new();
            if edge.meets(&around) {
                let near = edges.iter().filter(|(_, _, their)| their.meets(&edge));
                turns.extend(near.filter_map(|(c, d, _)| turn(a, b, c, d)));
            }
            if inside {
                turns.push(0.0);
            }
            inside = turns.len() % 2 == 1;
            if inside {
                turns.push(1.0);
            }
            turns.sort_unstable_by(f64::total_cmp);
            let pairs = turns.chunks_exact(2).filter(|two| two[0] < two[1]);
            parts.extend(pairs.map(|two| (start + two[0], start + two[1])));
            start += 1.0;
        }
        Ok(parts)
    }

    /// Whether all of the line is inside.
    pub fn contains_line(&self, line: &Line, meter: Meter<'_>) -> Result<bool, Ended> {
        let parts = self.clip(line, meter)?;
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return Ok(false);
        };
        // A part that begins where another ended continues it.
        let edges = line.edges().count() as f64;
        let gapless = parts.windows(2).all(|two| close(two[0].1, two[1].0));
        Ok(close(first.0, 0.0) && close(last.1, edges) && gapless)
    }

    pub fn intersects_line(&self, line: &Line, meter: Meter<'_>) -> Result<bool, Ended> {
        Ok(!self.clip(line, meter)?.is_empty())
    }
}

/// What is wrong with two rings of one polygon, whichever they are.
fn fault(one: &Ring, other: &Ring, meter: Meter<'_>) -> Result<Option<PolygonError>, Ended> {
    meter.spend(1)?;
    if one.shares_edge(other, meter)? {
        return Ok(Some(PolygonError::SharedEdge));
    }
    let crosses = one.relation(other, meter)? == Relation::Crosses
        || other.relation(one, meter)? == Relation::Crosses;
    Ok(crosses.then_some(PolygonError::Crossing))
}

/// What is wrong with some two of the holes. A parallel moves from the south to the north: holes that
/// it never cuts at the same time are apart.
fn fault_among(holes: &[Ring], meter: Meter<'_>) -> Result<Option<PolygonError>, Ended> {
    let mut order: Vec<&Ring> = holes.iter().collect();
    order.sort_by(|a, b| a.bound().lat.lo.total_cmp(&b.bound().lat.lo));
    let mut active: Vec<&Ring> = Vec::new();
    for hole in order {
        active.retain(|other| other.bound().lat.hi >= hole.bound().lat.lo);
        meter.spend(1 + active.len())?;
        let meets = |other: &&&Ring| other.bound().intersects(hole.bound());
        for other in active.iter().filter(meets) {
            if let Some(error) = fault(hole, other, meter)? {
                return Ok(Some(error));
            }
            for (one, other) in [(hole, *other), (*other, hole)] {
                meter.spend(one.vertices().len())?;
                if one.relation(other, meter)? == Relation::Contains {
                    return Ok(Some(PolygonError::Nested));
                }
            }
        }
        active.push(hole);
    }
    Ok(None)
}

/// Where along `ab` it passes from inside to outside, or back, at the edge `cd`.
fn turn(a: &Point, b: &Point, c: &Point, d: &Point) -> Option<f64> {
    match crossing::crossing(a, b, c, d) {
        Crossing::None => None,
        Crossing::Inside => {
            let at = crossing::intersection(a, b, c, d);
            Some(crossing::fraction(&at, a, b))
        }
        Crossing::Shared if crossing::crosses_at_vertex(a, b, c, d) => {
            Some(if a == c || a == d { 0.0 } else { 1.0 })
        }
        Crossing::Shared => None,
    }
}

/// A ten thousand millionth of an edge is less than a hundredth of a millimeter on most.
fn close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-10
}
