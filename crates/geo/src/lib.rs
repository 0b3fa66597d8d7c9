//! Places on the earth and on a plane: what GeoJSON and MongoDB's older forms say, what lies in
//! what, what touches what, and how far apart it is.
//!
//! Read in this order: [`parse`] (from BSON to a [`Shape`]), [`shape`] (the kinds of shapes and the
//! two questions, [`Shape::contains`] and [`Shape::intersects`]), then what answers them: [`plane`]
//! for the older forms, and on the sphere [`orientation`] (three points), [`crossing`] (two
//! edges), [`ring`], [`polygon`] and [`line`]. [`near`] is the operand of `$near`, [`distance`] the
//! way to the closest point of a shape, [`covering`] has cells of the sphere that cover shapes and
//! [`grid`] those of the plane. [`leaf`] answers most questions about a point by its cell alone,
//! [`searched`] remembers the cells that were searched.
//!
//! The sphere's rules are those of the S2 library that MongoDB uses: edges are great circles, a
//! point is a cell of about a centimeter, and a ring encloses the smaller side. The `s2` crate has
//! points, cells and caps; rings, polygons and lines are here. The crate knows BSON values and
//! nothing else.

pub mod covering;
pub mod crossing;
pub mod distance;
pub mod grid;
pub mod leaf;
pub mod line;
pub mod meter;
pub mod near;
pub mod orientation;
pub mod parse;
pub mod plane;
pub mod polygon;
#[cfg(test)]
mod polygon_tests;
mod relations;
pub mod ring;
pub mod searched;
pub mod shape;

pub use meter::{Ended, Meter};
pub use parse::GeoError;
pub use shape::Shape;

/// The radius of the earth in meters that MongoDB turns angles into distances with.
pub const EARTH_RADIUS_METERS: f64 = 6_378_100.0;
