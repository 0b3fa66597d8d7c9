//! A closed chain of edges and what it encloses: all that is to its left.

use std::ops::ControlFlow;

use s2::cell::Cell;
use s2::latlng::LatLng;
use s2::point::Point;
use s2::rect::Rect;
use s2::rect_bounder::RectBounder;

use crate::crossing::{self, Crossing, EdgeBox};
use crate::meter::{Ended, Meter};
use crate::orientation::{ordered, orientation};

/// At least three vertices; the last is followed by the first.
#[derive(Debug, Clone)]
pub struct Ring {
    vertices: Vec<Point>,
    /// Whether [`origin`] is inside. From there every point is reached by counting edges.
    has_origin: bool,
    /// What is inside lies in here.
    bound: Rect,
    /// The bounds of rings inside lie in here: a little larger, as they are rounded.
    wide: Rect,
    /// The edges lie in here.
    edges: EdgeBox,
}

/// What is wrong with a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    #[error("Duplicate vertices")]
    Duplicate,
    #[error("Edges cross")]
    Crossing,
}

/// A point of the sphere that is not likely to be on anybody's edge.
pub(crate) fn origin() -> Point {
    Point::from_coords(0.0045676208, 0.9994747660, 0.0320831530)
}

impl Ring {
    pub fn new(vertices: Vec<Point>) -> Ring {
        let mut edges = EdgeBox::empty();
        for (a, b) in pairs(&vertices) {
            edges.add(&EdgeBox::of(a, b));
        }
        let mut ring = Ring {
            vertices,
            has_origin: false,
            bound: Rect::full(),
            wide: Rect::full(),
            edges,
        };
        // A vertex is inside if the edge that leads out of it in a chosen direction starts there.
        if let [a, b, c, ..] = &ring.vertices[..] {
            let inside = ordered(&b.ortho(), a, c, b);
            ring.has_origin = inside != ring.contains(b);
        }
        ring.bound = ring.rect();
        let margin = LatLng::from_radians(1e-14, 1e-14);
        ring.wide = ring.bound.expanded(&margin).polar_closure();
        ring
    }

    pub fn of_cell(cell: &Cell) -> Ring {
        Ring::new(cell.vertices().to_vec())
    }

    pub fn vertices(&self) -> &[Point] {
        &self.vertices
    }

    pub fn edges(&self) -> impl Iterator<Item = (&Point, &Point)> {
        pairs(&self.vertices)
    }

    /// Whether [`origin`] is inside.
    pub(crate) fn has_origin(&self) -> bool {
        self.has_origin
    }

    /// Around the edges.
    pub fn edge_box(&self) -> &EdgeBox {
        &self.edges
    }

    /// Around what is inside.
    pub fn bound(&self) -> &Rect {
        &self.bound
    }

    fn rect(&self) -> Rect {
        let mut bounder = RectBounder::new();
        for vertex in self.vertices.iter().chain(self.vertices.first()) {
            bounder.add_point(vertex);
        }
        let mut rect = bounder.get_bound();
        if self.contains(&Point::from_coords(0.0, 0.0, 1.0)) {
            rect.lat.hi = std::f64::consts::FRAC_PI_2;
            rect.lng = s2::s1::interval::FULL;
        }
        if rect.lng.is_full() && self.contains(&Point::from_coords(0.0, 0.0, -1.0)) {
            rect.lat.lo = -std::f64::consts::FRAC_PI_2;
        }
        rect
    }

    /// Whether the point is inside. Of rings that share an edge exactly one contains each point
    /// of it.
    pub fn contains(&self, point: &Point) -> bool {
        if !self.bound.contains_point(point) {
            return false;
        }
        let from = origin();
        if *point == from {
            return self.has_origin;
        }
        let crossed = self.edges();
        let crossed = crossed.filter(|(a, b)| crossing::crosses(&from, point, a, b));
        self.has_origin != (crossed.count() % 2 == 1)
    }

    /// The position of a vertex that is this point.
    fn vertex_at(&self, point: &Point) -> Option<usize> {
        self.vertices.iter().position(|vertex| vertex == point)
    }

    /// What the ring turns by, in radians: positive if it encloses less than half of the sphere.
    fn turning_angle(&self) -> f64 {
        let count = self.vertices.len();
        let corner = |at: usize| &self.vertices[at % count];
        let turn = |at: usize| {
            let (a, b, c) = (corner(at), corner(at + 1), corner(at + 2));
            let into = (b.0 + a.0).cross(&(b.0 - a.0));
            let out = (c.0 + b.0).cross(&(c.0 - b.0));
            let angle = into.angle(&out).rad();
            match orientation(a, b, c) > 0 {
                true => angle,
                false => -angle,
            }
        };
        (0..count).map(turn).sum()
    }

    /// Whether it encloses no more than half of the sphere.
    pub fn is_normalized(&self) -> bool {
        let longitudes = self.bound.lng.len();
        longitudes < std::f64::consts::PI || self.turning_angle() >= -1e-14
    }

    /// What is outside becomes the inside.
    pub fn inverted(&self) -> Ring {
        Ring::new(self.vertices.iter().rev().copied().collect())
    }

    /// The ring, or its inverse, that encloses no more than half of the sphere.
    pub fn normalized(self) -> Ring {
        match self.is_normalized() {
            true => self,
            false => self.inverted(),
        }
    }

    /// No vertex comes twice and edges meet at their ends only.
    pub fn validate(&self, meter: Meter<'_>) -> Result<Result<(), RingError>, Ended> {
        let mut sorted = self.vertices.clone();
        meter.spend(sorted.len())?;
        let key = |point: &Point| (point.0.x, point.0.y, point.0.z);
        sorted.sort_unstable_by(|a, b| {
            key(a)
                .partial_cmp(&key(b))
                .unwrap_or_else(|| a.0.x.total_cmp(&b.0.x))
        });
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            return Ok(Err(RingError::Duplicate));
        }
        let crosses = sweep(&self.vertices, meter)?;
        Ok(match crosses {
            true => Err(RingError::Crossing),
            false => Ok(()),
        })
    }

    /// Calls `met` with the pairs of edges (as positions) of the two rings that meet.
    fn meetings(
        &self,
        other: &Ring,
        meter: Meter<'_>,
        met: &mut dyn FnMut(usize, usize, Crossing) -> ControlFlow<()>,
    ) -> Result<(), Ended> {
        if !self.edges.meets(&other.edges) {
            return Ok(());
        }
        meter.spend(self.vertices.len() + other.vertices.len())?;
        let theirs: Vec<(usize, EdgeBox)> = boxes(&other.vertices)
            .filter(|(_, around)| around.meets(&self.edges))
            .collect();
        for (at, around) in boxes(&self.vertices) {
            if !around.meets(&other.edges) {
                continue;
            }
            meter.spend(1 + theirs.len() / 4)?;
            let (a, b) = self.edge(at);
            for (their_at, theirs) in &theirs {
                if !theirs.meets(&around) {
                    continue;
                }
                let (c, d) = other.edge(*their_at);
                let crossing = crossing::crossing(a, b, c, d);
                if crossing != Crossing::None && met(at, *their_at, crossing).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn edge(&self, at: usize) -> (&Point, &Point) {
        let count = self.vertices.len();
        (&self.vertices[at % count], &self.vertices[(at + 1) % count])
    }

    /// The wedges at the vertex that both edges end in, if they do: the vertices before and behind
    /// it in the two rings.
    fn wedge<'a>(&'a self, at: usize, other: &'a Ring, other_at: usize) -> Option<Wedge<'a>> {
        let ((a0, middle), (b0, theirs)) = (self.edge(at), other.edge(other_at));
        (middle == theirs).then(|| Wedge {
            a0,
            a2: self.edge(at + 1).1,
            b0,
            b2: other.edge(other_at + 1).1,
            middle,
        })
    }

    /// Whether all that is inside of the other is inside of this. A ring contains itself.
    pub fn contains_ring(&self, other: &Ring, meter: Meter<'_>) -> Result<bool, Ended> {
        if !self.wide.contains(&other.bound) {
            return Ok(false);
        }
        if !self.holds_vertex_of(other) {
            return Ok(false);
        }
        let mut outside = false;
        self.meetings(other, meter, &mut |at, their_at, crossing| {
            outside = crossing == Crossing::Inside
                || self
                    .wedge(at, other, their_at)
                    .is_some_and(|wedge| !wedge.a_contains_b());
            end_if(outside)
        })?;
        if outside {
            return Ok(false);
        }
        // Two rings that together enclose the whole sphere.
        let whole = self.bound.union(&other.bound).is_full();
        Ok(!(whole && other.contains_strictly(self)))
    }

    /// Whether the other's first vertex is inside or one of the vertices of this.
    fn holds_vertex_of(&self, other: &Ring) -> bool {
        let holds = |vertex| self.contains(vertex) || self.vertex_at(vertex).is_some();
        other.vertices.first().is_some_and(holds)
    }

    /// Whether the other's first vertex is inside and none of the vertices of this.
    fn contains_strictly(&self, other: &Ring) -> bool {
        let strictly = |vertex| self.contains(vertex) && self.vertex_at(vertex).is_none();
        other.vertices.first().is_some_and(strictly)
    }

    /// Whether something is inside of both.
    pub fn intersects_ring(&self, other: &Ring, meter: Meter<'_>) -> Result<bool, Ended> {
        if !self.bound.intersects(&other.bound) {
            return Ok(false);
        }
        meter.spend((self.vertices.len() + other.vertices.len()) / 2)?;
        if self.contains_strictly(other) || other.contains_strictly(self) {
            return Ok(true);
        }
        let mut intersects = false;
        self.meetings(other, meter, &mut |at, their_at, crossing| {
            intersects = crossing == Crossing::Inside
                || self
                    .wedge(at, other, their_at)
                    .is_some_and(|wedge| wedge.intersects());
            end_if(intersects)
        })?;
        Ok(intersects)
    }

    /// How this ring stands to another whose edges it may meet.
    pub fn relation(&self, other: &Ring, meter: Meter<'_>) -> Result<Relation, Ended> {
        if !self.bound.intersects(&other.bound) {
            return Ok(Relation::Apart);
        }
        let mut seen = Seen::default();
        self.meetings(other, meter, &mut |at, their_at, crossing| {
            seen.crosses |= crossing == Crossing::Inside;
            if let Some(wedge) = self.wedge(at, other, their_at) {
                seen.add(wedge.relation());
            }
            end_if(seen.crosses)
        })?;
        if seen.crosses {
            return Ok(Relation::Crosses);
        }
        let apart = seen.b_contains
            || seen.disjoint
            || !self.wide.contains(&other.bound)
            || !self.holds_vertex_of(other);
        Ok(match apart {
            true => Relation::Apart,
            false => Relation::Contains,
        })
    }

    /// Whether it contains the cell or meets it.
    pub fn may_intersect(&self, cell: &Cell, meter: Meter<'_>) -> Result<bool, Ended> {
        if !self.bound.intersects(&cell.rect_bound()) {
            return Ok(false);
        }
        self.intersects_ring(&Ring::of_cell(cell), meter)
    }

    /// How many vertices two rings have in common.
    pub fn shared_vertices(&self, other: &Ring, meter: Meter<'_>) -> Result<usize, Ended> {
        let mut shared = 0;
        self.meetings(other, meter, &mut |at, their_at, _| {
            shared += usize::from(self.wedge(at, other, their_at).is_some());
            ControlFlow::Continue(())
        })?;
        Ok(shared)
    }

    /// Whether they have an edge in common, in whichever direction.
    pub fn shares_edge(&self, other: &Ring, meter: Meter<'_>) -> Result<bool, Ended> {
        let mut shares = false;
        self.meetings(other, meter, &mut |at, their_at, _| {
            let ((a, b), (c, d)) = (self.edge(at), other.edge(their_at));
            shares = (a == c && b == d) || (a == d && b == c);
            end_if(shares)
        })?;
        Ok(shares)
    }
}

/// How one ring stands to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    Contains,
    Crosses,
    Apart,
}

/// What the wedges at shared vertices say.
#[derive(Default)]
struct Seen {
    crosses: bool,
    a_contains: bool,
    b_contains: bool,
    disjoint: bool,
}

impl Seen {
    fn add(&mut self, relation: WedgeRelation) {
        match relation {
            WedgeRelation::Equal => {}
            WedgeRelation::Contains => self.a_contains = true,
            WedgeRelation::Contained => self.b_contains = true,
            WedgeRelation::Disjoint => self.disjoint = true,
            WedgeRelation::Overlap => self.crosses = true,
        }
        self.crosses |= self.a_contains && self.b_contains;
    }
}

/// What two rings enclose near a vertex of both: between `a0` and `a2`, and between `b0` and `b2`.
struct Wedge<'a> {
    a0: &'a Point,
    a2: &'a Point,
    b0: &'a Point,
    b2: &'a Point,
    middle: &'a Point,
}

enum WedgeRelation {
    Equal,
    Contains,
    Contained,
    Disjoint,
    Overlap,
}

impl Wedge<'_> {
    fn a_contains_b(&self) -> bool {
        ordered(self.a2, self.b2, self.b0, self.middle)
            && ordered(self.b0, self.a0, self.a2, self.middle)
    }

    fn intersects(&self) -> bool {
        !(ordered(self.a0, self.b2, self.b0, self.middle)
            && ordered(self.b0, self.a2, self.a0, self.middle))
    }

    fn relation(&self) -> WedgeRelation {
        let Wedge {
            a0,
            a2,
            b0,
            b2,
            middle,
        } = *self;
        if a0 == b0 && a2 == b2 {
            return WedgeRelation::Equal;
        }
        if ordered(a0, a2, b2, middle) {
            return match ordered(b2, b0, a0, middle) {
                true => WedgeRelation::Contains,
                false if a2 == b2 => WedgeRelation::Contained,
                false => WedgeRelation::Overlap,
            };
        }
        if ordered(a0, b0, b2, middle) {
            return WedgeRelation::Contained;
        }
        match ordered(a0, b0, a2, middle) {
            true => WedgeRelation::Disjoint,
            false => WedgeRelation::Overlap,
        }
    }
}

fn end_if(done: bool) -> ControlFlow<()> {
    match done {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

fn pairs(vertices: &[Point]) -> impl Iterator<Item = (&Point, &Point)> {
    let next = vertices.iter().cycle().skip(1);
    vertices.iter().zip(next)
}

fn boxes(vertices: &[Point]) -> impl Iterator<Item = (usize, EdgeBox)> {
    let boxes = pairs(vertices).map(|(a, b)| EdgeBox::of(a, b));
    boxes.enumerate()
}

/// Whether two edges of a closed chain cross that are not neighbours. A plane moves along the x
/// axis; edges that it cuts at the same time are compared.
fn sweep(vertices: &[Point], meter: Meter<'_>) -> Result<bool, Ended> {
    let count = vertices.len();
    let mut edges: Vec<(usize, EdgeBox)> = boxes(vertices).collect();
    edges.sort_unstable_by(|a, b| a.1.start().total_cmp(&b.1.start()));
    let mut active: Vec<(usize, EdgeBox)> = Vec::new();
    for (at, around) in edges {
        active.retain(|(_, other)| other.end() >= around.start());
        meter.spend(1 + active.len() / 4)?;
        for (other_at, other) in &active {
            let neighbours = (at + 1) % count == *other_at || (*other_at + 1) % count == at;
            if neighbours || !other.meets(&around) {
                continue;
            }
            let (a, b) = (&vertices[at], &vertices[(at + 1) % count]);
            let (c, d) = (&vertices[*other_at], &vertices[(*other_at + 1) % count]);
            if crossing::crossing(a, b, c, d) == Crossing::Inside {
                return Ok(true);
            }
        }
        active.push((at, around));
    }
    Ok(false)
}
