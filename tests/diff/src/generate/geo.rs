//! Questions about places in collections with indexes over them.
//!
//! Coordinates have digits that keep points off the edges of shapes, and distances apart.

use bson::{Bson, Document, doc};

use super::Generator;
use super::command::BATCH;
use crate::random::Random;

/// The collections: places on the sphere, and on a plane.
const SPHERE: &str = "geosphere";
const PLANE: &str = "geoplane";
pub const COLLECTIONS: &[&str] = &[SPHERE, PLANE];
const DOCUMENTS: i32 = 90;

/// The documents of each of them.
pub fn documents() -> Vec<Document> {
    let mut random = Random::new(20, 27);
    let document = |id| {
        let (x, y) = position(&mut random);
        let area = doc! { "type": "Polygon", "coordinates": [ring(&mut random)] };
        let place = place(&mut random);
        doc! { "_id": id, "x": random.between(1, 3), "g": place, "area": area, "p": [x, y] }
    };
    (1..=DOCUMENTS).map(document).collect()
}

/// The indexes of a collection.
pub fn indexes(collection: &str) -> Vec<Document> {
    let index = |name: &str, key: Document| doc! { "name": name, "key": key };
    match collection {
        PLANE => vec![index("p", doc! { "p": "2d", "x": 1 })],
        _ => vec![
            index("g", doc! { "g": "2dsphere" }),
            index("gx", doc! { "x": 1, "g": "2dsphere" }),
            index("area", doc! { "area": "2dsphere" }),
        ],
    }
}

/// Mostly close to the others.
fn position(random: &mut Random) -> (f64, f64) {
    let (width, height) = match random.percent(75) {
        true => (10_000, 10_000),
        false => (179_000, 89_000),
    };
    let mut coordinate = |most: i64| (random.between(-most, most) as f64 + 0.37) / 1000.0;
    (coordinate(width), coordinate(height))
}

fn pair((x, y): (f64, f64)) -> Bson {
    vec![x, y].into()
}

/// What nothing else lies within: two areas may be equally far from what is in both.
fn place(random: &mut Random) -> Bson {
    match random.below(9) {
        0 => pair(position(random)),
        1 => doc! { "lng": position(random).0, "lat": position(random).1 }.into(),
        2..=5 => point(random).into(),
        6 => line(random).into(),
        7 => {
            let points: Vec<Bson> = (0..3).map(|_| pair(position(random))).collect();
            doc! { "type": "MultiPoint", "coordinates": points }.into()
        }
        _ => {
            let shapes: Vec<Bson> = vec![point(random).into(), line(random).into()];
            doc! { "type": "GeometryCollection", "geometries": shapes }.into()
        }
    }
}

fn point(random: &mut Random) -> Document {
    doc! { "type": "Point", "coordinates": pair(position(random)) }
}

/// A short one: between far places there are lines of another kind.
fn line(random: &mut Random) -> Document {
    let from = position(random);
    let to = beside(random, from);
    doc! { "type": "LineString", "coordinates": [pair(from), pair(to)] }
}

fn beside(random: &mut Random, (x, y): (f64, f64)) -> (f64, f64) {
    let mut step = || (random.between(-3_000, 3_000) as f64 + 0.41) / 1000.0;
    (
        (x + step()).clamp(-179.9, 179.9),
        (y + step()).clamp(-89.9, 89.9),
    )
}

/// A ring with three or four corners around a place.
fn ring(random: &mut Random) -> Bson {
    let (x, y) = position(random);
    let mut reach = || (random.between(300, 6_000) as f64 + 0.29) / 1000.0;
    let (west, south, east, north) = (reach(), reach(), reach(), reach());
    let mut corners = vec![
        (x - west, y - south),
        (x + east, y - south),
        (x + east, y + north),
    ];
    if random.percent(60) {
        corners.push((x - west, y + north));
    }
    corners.push(corners[0]);
    let inside = |(x, y): (f64, f64)| (x.clamp(-179.9, 179.9), y.clamp(-89.9, 89.9));
    let corners: Vec<Bson> = corners.into_iter().map(inside).map(pair).collect();
    corners.into()
}

impl Generator {
    pub fn geo_command(&mut self) -> Document {
        match self.random.percent(65) {
            true => self.on_sphere(),
            false => self.on_plane(),
        }
    }

    fn on_sphere(&mut self) -> Document {
        let place = point(&mut self.random);
        match self.random.below(10) {
            0..=2 => {
                let mut near = doc! { "$geometry": place };
                self.add_distances(&mut near, "$", 3_000_000);
                let name = *self.random.pick(&["$near", "$nearSphere"]);
                self.nearest(SPHERE, doc! { "g": { name: near } })
            }
            3..=4 => {
                let mut near = doc! {
                    "near": place, "distanceField": "far", "key": "g", "spherical": true,
                };
                self.add_distances(&mut near, "", 3_000_000);
                if self.random.percent(40) {
                    near.insert("query", doc! { "x": self.random.between(1, 3) });
                }
                doc! {
                    "aggregate": SPHERE,
                    "pipeline": [
                        { "$geoNear": near },
                        { "$project": { "far": { "$round": ["$far", 4] } } },
                        { "$sort": { "_id": 1 } },
                    ],
                    "cursor": { "batchSize": BATCH },
                }
            }
            5..=6 => {
                let shape = self.shape();
                let field = self.field();
                self.inside(
                    SPHERE,
                    doc! { field: { "$geoIntersects": { "$geometry": shape } } },
                )
            }
            7 => {
                let circle: Bson = vec![pair(position(&mut self.random)), self.radius(0.3)].into();
                let field = self.field();
                self.inside(
                    SPHERE,
                    doc! { field: { "$geoWithin": { "$centerSphere": circle } } },
                )
            }
            _ => {
                let shape = doc! { "type": "Polygon", "coordinates": [ring(&mut self.random)] };
                let field = self.field();
                self.inside(
                    SPHERE,
                    doc! { field: { "$geoWithin": { "$geometry": shape } } },
                )
            }
        }
    }

    fn on_plane(&mut self) -> Document {
        let center = pair(position(&mut self.random));
        match self.random.below(8) {
            0..=2 => {
                // Beyond the antimeridian the reference loses what is near.
                let close = (self.degrees(), self.degrees());
                let near = match self.random.percent(50) {
                    true => {
                        doc! { "$nearSphere": pair(close), "$maxDistance": self.radius(0.3) }
                    }
                    false if self.random.percent(60) => {
                        doc! { "$near": center, "$maxDistance": self.radius(20.0) }
                    }
                    false => doc! { "$near": center },
                };
                self.nearest(PLANE, doc! { "p": near })
            }
            3 => {
                let circle: Bson = vec![center, self.radius(8.0)].into();
                self.inside(PLANE, doc! { "p": { "$geoWithin": { "$center": circle } } })
            }
            4 => {
                let circle: Bson = vec![center, self.radius(0.2)].into();
                self.inside(
                    PLANE,
                    doc! { "p": { "$geoWithin": { "$centerSphere": circle } } },
                )
            }
            5 => {
                let corner = pair(position(&mut self.random));
                let corners: Bson = vec![center, corner].into();
                self.inside(PLANE, doc! { "p": { "$geoWithin": { "$box": corners } } })
            }
            _ => {
                let corners = ring(&mut self.random);
                self.inside(
                    PLANE,
                    doc! { "p": { "$geoWithin": { "$polygon": corners } } },
                )
            }
        }
    }

    fn field(&mut self) -> &'static str {
        match self.random.percent(60) {
            true => "g",
            false => "area",
        }
    }

    fn shape(&mut self) -> Document {
        match self.random.below(4) {
            0 => point(&mut self.random),
            1 => line(&mut self.random),
            _ => doc! { "type": "Polygon", "coordinates": [ring(&mut self.random)] },
        }
    }

    fn degrees(&mut self) -> f64 {
        (self.random.between(-9_000, 9_000) as f64 + 0.23) / 1000.0
    }

    fn radius(&mut self, most: f64) -> Bson {
        Bson::Double(most * (self.random.between(10, 1000) as f64 + 0.17) / 1000.0)
    }

    fn add_distances(&mut self, near: &mut Document, prefix: &str, most: i64) {
        if self.random.percent(70) {
            near.insert(
                format!("{prefix}maxDistance"),
                self.random.between(1_000, most) as f64,
            );
        }
        if self.random.percent(30) {
            near.insert(
                format!("{prefix}minDistance"),
                self.random.between(0, most / 3) as f64,
            );
        }
    }

    fn nearest(&mut self, collection: &str, mut filter: Document) -> Document {
        if self.random.percent(30) {
            filter.insert("x", self.random.between(1, 3));
        }
        let mut find = doc! { "find": collection, "filter": filter, "projection": { "_id": 1 } };
        if self.random.percent(50) {
            find.insert("limit", self.random.between(1, 12) as i32);
        }
        if self.random.percent(20) {
            find.insert("skip", self.random.between(1, 4) as i32);
        }
        find.insert("batchSize", BATCH);
        find
    }

    fn inside(&mut self, collection: &str, mut filter: Document) -> Document {
        match self.random.below(10) {
            0..=2 => drop(filter.insert("x", self.random.between(1, 3))),
            3 => filter = doc! { "$or": [filter, { "x": 2, "_id": { "$lt": 9 } }] },
            4 => filter = doc! { "$nor": [filter] },
            _ => {}
        }
        match self.random.percent(25) {
            true => doc! { "count": collection, "query": filter },
            false => doc! {
                "find": collection,
                "filter": filter,
                "projection": { "_id": 1 },
                "sort": { "_id": 1 },
                "batchSize": BATCH,
            },
        }
    }
}
