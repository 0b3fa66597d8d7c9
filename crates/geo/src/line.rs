//! A chain of edges.

use s2::cell::Cell;
use s2::cellid::CellID;
use s2::point::Point;

use crate::crossing::{self, Crossing, EdgeBox};
use crate::meter::{Ended, Meter};
use crate::ring::Ring;

/// At least two vertices, neighbours neither equal nor opposite to one another.
#[derive(Debug, Clone)]
pub struct Line {
    vertices: Vec<Point>,
    edges: EdgeBox,
}

impl Line {
    /// `None` if neighbours are equal or at opposite ends of the sphere.
    pub fn new(vertices: Vec<Point>) -> Option<Line> {
        let opposite = |point: &Point| Point(point.0 * -1.0);
        let apart = |two: &[Point]| two[0] != two[1] && two[0] != opposite(&two[1]);
        if !vertices.windows(2).all(apart) {
            return None;
        }
        let mut edges = EdgeBox::empty();
        for two in vertices.windows(2) {
            edges.add(&EdgeBox::of(&two[0], &two[1]));
        }
        Some(Line { vertices, edges })
    }

    pub fn vertices(&self) -> &[Point] {
        &self.vertices
    }

    pub fn edges(&self) -> impl Iterator<Item = (&Point, &Point)> {
        self.vertices.windows(2).map(|two| (&two[0], &two[1]))
    }

    pub fn edge_box(&self) -> &EdgeBox {
        &self.edges
    }

    /// Whether the lines cross or have a vertex in common.
    pub fn intersects(&self, other: &Line, meter: Meter<'_>) -> Result<bool, Ended> {
        self.meets(other.edges(), &other.edges, meter)
    }

    /// Whether it crosses one of the edges, which lie in the box, or has a vertex in common with
    /// them.
    pub fn meets<'a>(
        &self,
        edges: impl Iterator<Item = (&'a Point, &'a Point)>,
        around: &EdgeBox,
        meter: Meter<'_>,
    ) -> Result<bool, Ended> {
        if !self.edges.meets(around) {
            return Ok(false);
        }
        let theirs: Vec<(&Point, &Point, EdgeBox)> = edges
            .map(|(c, d)| (c, d, EdgeBox::of(c, d)))
            .filter(|(_, _, edge)| edge.meets(&self.edges))
            .collect();
        for (a, b) in self.edges() {
            meter.spend(1 + theirs.len() / 4)?;
            let edge = EdgeBox::of(a, b);
            for (c, d, their) in &theirs {
                if their.meets(&edge) && crossing::crossing(a, b, c, d) != Crossing::None {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether a vertex is in the cell or an edge meets one of the cell's.
    pub fn may_intersect(&self, cell: &Cell, meter: Meter<'_>) -> Result<bool, Ended> {
        meter.spend(self.vertices.len() / 2)?;
        let within = |vertex| cell.id.contains(&CellID::from(vertex));
        if self.vertices.iter().any(within) {
            return Ok(true);
        }
        let around = Ring::of_cell(cell);
        self.meets(around.edges(), around.edge_box(), meter)
    }
}
