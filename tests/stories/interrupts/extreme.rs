//! Requests whose parts are as many, as deep and as long as a message can carry.

use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use bson::{Bson, Document, doc};

use super::values::{each, expression, fields, nested, pattern, regex};

pub struct Request {
    /// What tells it from others where it failed.
    pub name: String,
    pub command: Document,
    /// What puts the document back that it changes.
    pub changes: Option<Document>,
}

const SMALL: i32 = 5_000;
const NUMBERS: i32 = 60_000;

/// Two documents that are large in every way, and many that are small.
pub fn preparation() -> Vec<Document> {
    let small = |number: i32| doc! { "_id": number, "a": number % 97, "b": "text", "n": number };
    vec![
        doc! { "insert": "small", "documents": each(SMALL as usize, small) },
        doc! { "createIndexes": "small", "indexes": [
            { "key": { "a": 1, "n": 1 }, "name": "an" }, { "key": { "n": 1 }, "name": "n" },
        ] },
        doc! { "insert": "large", "documents": [large(1)] },
        put_back(),
    ]
}

fn large(id: i32) -> Document {
    let deep = nested(40, doc! { "x": [1, 2, [3]] }, |inner| doc! { "x": [inner] });
    doc! {
        "_id": id,
        "n": 1,
        "x": each(NUMBERS as usize, |number| number ^ 0x155),
        "y": each(NUMBERS as usize / 2, |number| number * 2),
        "words": each(5_000, |number| format!("word {}", number % 1_000)),
        "objects": each(5_000, |number| doc! { "k": number % 50, "v": -number }),
        "wide": fields(5_000, |number| format!("f{number}"), |number| number),
        "text": "a".repeat(500_000),
        "deep": deep,
    }
}

fn put_back() -> Document {
    doc! { "update": "changed", "updates": [{ "q": { "_id": 1 }, "u": large(1), "upsert": true }] }
}

/// Makes one request.
pub struct Extreme {
    random: Random,
    size: usize,
}

impl Extreme {
    pub fn new(mut random: Random) -> Extreme {
        let size = *random.pick(&[1_000, 10_000, 40_000, 120_000]);
        Extreme { random, size }
    }

    pub fn request(&mut self) -> Request {
        let (name, command) = match self.random.below(10) {
            0..3 => self.find(),
            3 => self.projection(),
            4 | 5 => {
                let (name, command) = self.update();
                return Request {
                    name,
                    command,
                    changes: Some(put_back()),
                };
            }
            6 => self.other(),
            _ => self.pipeline(),
        };
        Request {
            name,
            command,
            changes: None,
        }
    }

    fn named(&self, kind: &str, number: usize) -> String {
        format!("{kind} {number} of size {}", self.size)
    }

    fn collection(&mut self) -> &'static str {
        self.random.pick::<&str>(&["small", "large"])
    }

    fn generator(&mut self) -> Generator {
        Generator::new(Random::new(self.random.draw(), 0))
    }

    fn find(&mut self) -> (String, Document) {
        let (number, filter) = self.filter();
        let mut find = doc! { "find": self.collection(), "filter": filter };
        if self.random.percent(30) {
            find.insert("sort", doc! { "b": 1, "x": -1, "n": 1 });
        }
        (self.named("filter", number), find)
    }

    fn filter(&mut self) -> (usize, Document) {
        let (size, number) = (self.size, self.random.below(26));
        let field = *self.random.pick(&["a", "n", "x", "b"]);
        let filter = match number {
            0 => doc! { "$or": each(size, |n| doc! { format!("f{n}"): { "$gt": n } }) },
            1 => doc! { "$or": each(size, |n| doc! { field: { "$gt": n + 9_000_000 } }) },
            2 => doc! { "$and": each(size, |n| doc! { field: { "$ne": -n - 1 } }) },
            3 => doc! { "$nor": each(size, |n| doc! { "a": n + 1_000, "n": { "$lt": -n } }) },
            4 => doc! { field: { "$in": each(size, |n| n.wrapping_mul(0x9e37_79b9_u32 as i32)) } },
            5 => doc! { field: { "$nin": each(size, |n| format!("text {n}")) } },
            6 => {
                let random = &mut self.random;
                let regexes = each((size / 100).min(300), |_| regex(random, 400));
                doc! { "text": { "$in": regexes } }
            }
            7 => nested(
                90,
                doc! { "n": -1 },
                |inner| doc! { "$or": [inner, { "a": -1 }] },
            ),
            8 => {
                let inner = doc! { "$elemMatch": { "$gt": 1, "$lt": 0 } };
                doc! { "deep.x": nested(40, inner, |inner| doc! { "$elemMatch": { "x": inner } }) }
            }
            9 => doc! { "x": { "$all": each(size, |n| n) } },
            10 => doc! { "objects": { "$all": each(size / 10, |n| {
                doc! { "$elemMatch": { "k": n, "v": n } }
            }) } },
            11 => doc! { "x": { "$bitsAllSet": each(size, |n| n) } },
            12 => doc! { "$jsonSchema": { "properties": fields(
                size, |n| format!("f{n}"), |n| doc! { "bsonType": "int", "minimum": n },
            ) } },
            13 => {
                doc! { "$jsonSchema": { "properties": { "n": { "enum": each(size, |n| -n - 1) } } } }
            }
            14 => doc! { "$jsonSchema": { "required": each(size, |n| format!("f{n}")) } },
            15 => doc! { "$jsonSchema": { "properties": { "x": { "uniqueItems": true,
            "items": { "anyOf": each(size / 100, |n| doc! { "maximum": -n }) } } } } },
            16 => doc! { "$expr": expression(&mut self.random, size) },
            17 => doc! { "$and": each(size.min(40), |of| doc! { "$or": each(40, |n| {
                doc! { "a": n + of, "n": { "$gt": n } }
            }) }) },
            18 => doc! { "text": { "$regex": pattern(&mut self.random, size) } },
            19 => doc! { "words": regex(&mut self.random, size) },
            20 => fields(size, |n| format!("f{n}"), |n| n)
                .into_iter()
                .collect(),
            21 => doc! { "x": { "$elemMatch": { "$in": each(size, |n| -n - 1) } } },
            22 => {
                let path = vec!["deep.x"; 70].join(".").replace("deep.x.", "x.");
                doc! { format!("deep.{path}"): { "$gt": 1_000_000 } }
            }
            23 => doc! { "x": { "$not": { "$in": each(size, |n| n + NUMBERS) } },
            "y": { "$type": each(size.min(2_000), |n| n % 19 + 1) } },
            24 => doc! { "a": { "$gte": 0 }, "$where": "while (true) {}" },
            _ => {
                let mut generator = self.generator();
                doc! { "$or": each(size / 20, |_| generator.filter(2)) }
            }
        };
        (number, filter)
    }

    fn projection(&mut self) -> (String, Document) {
        let (size, number) = (self.size, self.random.below(7));
        let name = |n: i32| format!("f{n}");
        let projection = match number {
            0 => fields(size, name, |_| 1),
            1 => fields(size, name, |_| 0),
            2 => fields(size, |n| format!("a{}.b{}.c{n}", n % 10, n % 100), |_| true),
            3 => fields(size, name, |n| doc! { "$add": ["$n", n] }),
            4 => doc! { "x": { "$elemMatch": { "$in": each(size, |n| -n - 1) } } },
            5 => doc! { "x": { "$slice": [-50_000, 50_000] }, "wide": 1, "deep.x.x.x": 1 },
            _ => doc! { "v": expression(&mut self.random, size) },
        };
        let find = doc! { "find": self.collection(), "projection": projection };
        (self.named("projection", number), find)
    }

    fn update(&mut self) -> (String, Document) {
        let (size, number) = (self.size, self.random.below(17));
        let name = |n: i32| format!("f{n}");
        let random = &mut self.random;
        let update: Bson = match number {
            0 => doc! { "$set": fields(size, name, |n| n) }.into(),
            1 => doc! { "$set": fields(size, |n| format!("wide.f{n}.x"), |n| n) }.into(),
            2 => doc! { "$unset": fields(size, |n| format!("wide.f{n}"), |_| "") }.into(),
            3 => doc! { "$push": { "x": { "$each": each(size, |n| -n), "$sort": -1,
            "$slice": -1_000 } } }
            .into(),
            4 => doc! { "$push": { "objects": { "$each": each(size / 4, |n| doc! { "k": -n }),
            "$sort": { "k": 1, "v": -1 }, "$position": 5 } } }
            .into(),
            5 => doc! { "$addToSet": { "x": { "$each": each(size, |n| -n) } } }.into(),
            6 => doc! { "$addToSet": { "objects": { "$each": each(size / 4, |n| {
                doc! { "k": n, "v": 1 }
            }) } } }
            .into(),
            7 => doc! { "$pullAll": { "x": each(size, |n| n * 2) } }.into(),
            8 => doc! { "$pull": { "x": { "$in": each(size, |n| n * 2) } } }.into(),
            9 => doc! { "$pull": { "objects": { "$or": each(size / 10, |n| doc! { "k": n }) } } }
                .into(),
            10 => doc! { "$rename": fields(size, name, |n| format!("g{n}")) }.into(),
            11 => doc! { "$inc": { "x.$[]": 1, "objects.$[].v": 1 } }.into(),
            12 => doc! { "$set": { "x.$[e]": 1 } }.into(),
            13 => each(size.min(900), |n| doc! { "$set": { format!("f{n}"): n } }),
            14 => vec![doc! { "$set": { "v": expression(random, size) } }].into(),
            15 => fields(size, name, |n| doc! { "n": n }).into(),
            _ => doc! { "$mul": fields(size, |n| format!("x.{n}"), |_| 2) }.into(),
        };
        let mut statement = doc! { "q": { "_id": 1 }, "u": update };
        if number == 12 {
            let any = each(size / 10, |n| doc! { "e": -n - 1 });
            statement.insert("arrayFilters", vec![doc! { "$or": any }]);
        }
        let mut statements = vec![statement];
        if self.random.percent(15) {
            // A batch of small ones instead.
            let mut generator = self.generator();
            statements = (0..size / 20)
                .map(|_| doc! { "q": { "_id": 1 }, "u": generator.update().update })
                .collect();
            let command = doc! { "update": "changed", "updates": statements, "ordered": false };
            return (self.named("updates", number), command);
        }
        let command = doc! { "update": "changed", "updates": statements };
        (self.named("update", number), command)
    }

    fn other(&mut self) -> (String, Document) {
        let (size, number) = (self.size, self.random.below(7));
        let command = match number {
            0 => doc! { "insert": "made", "documents": each(size / 4, |n| {
                doc! { "a": n, "b": "text" }
            }) },
            1 => doc! { "insert": "made", "documents": [fields(size, |n| format!("f{n}"), |n| n)] },
            2 => doc! { "distinct": "large", "key": "x", "query": self.filter().1 },
            3 => doc! { "count": "small", "query": self.filter().1 },
            4 => doc! { "delete": "made", "deletes": [{ "q": self.filter().1, "limit": 0 }] },
            5 => doc! { "findAndModify": "made", "query": self.filter().1, "remove": true,
            "sort": { "a": 1 } },
            _ => {
                let find = doc! { "find": "small", "filter": self.filter().1 };
                doc! { "explain": find, "verbosity": "executionStats" }
            }
        };
        (self.named("command", number), command)
    }

    fn pipeline(&mut self) -> (String, Document) {
        let (size, number) = (self.size, self.random.below(24));
        let few = (size / 100).clamp(10, 1_000);
        let name = |n: i32| format!("f{n}");
        let unwind = ["$x", "$y", "$words"].map(|path| doc! { "$unwind": path });
        let cross = |last: Document| [&unwind[..], &[last]].concat();
        let stages = |make: &dyn Fn(i32) -> Document| -> Vec<Document> {
            (0..few as i32).map(make).collect()
        };
        let stages = match number {
            0 => stages(&|n| doc! { "$match": fields(size / few, |f| format!("f{f}"), |f| f + n) }),
            1 => stages(&|n| match n % 3 {
                0 => doc! { "$addFields": { format!("f{n}"): n } },
                1 => doc! { "$match": { "$or": [{ format!("f{}", n / 2): n }, { "b": "text" }] } },
                _ => doc! { "$project": { format!("f{n}"): 0 } },
            }),
            2 => stages(&|n| {
                doc! { "$project": fields(
                    size / few, |f| format!("f{f}"), |f| doc! { "$add": [n, f, "$n"] },
                ) }
            }),
            3 => {
                vec![doc! { "$facet": fields(few, name, |n| vec![doc! { "$match": { "a": n } }]) }]
            }
            4 => vec![nested(15, doc! { "$match": { "n": 1 } }, |inner| {
                doc! { "$lookup": { "from": "small", "pipeline": [inner], "as": "found" } }
            })],
            5 => vec![nested(15, doc! { "$match": {} }, |inner| {
                doc! { "$unionWith": { "coll": "small", "pipeline": [inner] } }
            })],
            6 => {
                let mut group = fields(size, name, |n| doc! { "$sum": n });
                group.insert("_id", "$n");
                vec![doc! { "$group": group }]
            }
            7 => vec![doc! { "$group": { "_id": fields(size, name, |n| n) } }],
            8 => cross(doc! { "$group": { "_id": ["$x", "$y"], "n": { "$sum": 1 } } }),
            9 => cross(doc! { "$sort": { "y": -1, "words": 1, "x": 1 } }),
            10 => cross(doc! { "$count": "n" }),
            11 => vec![doc! { "$bucket": {
                "groupBy": "$n", "boundaries": each(size, |n| n), "default": "other",
            } }],
            12 => cross(doc! { "$bucketAuto": { "groupBy": "$x", "buckets": 100 } }),
            13 => vec![doc! { "$densify": { "field": "n", "range": {
                "step": 0.001, "bounds": "full",
            } } }],
            14 => vec![doc! { "$redact": { "$cond": [
                { "$in": [expression(&mut self.random, size.min(1_000)), [1]] },
                "$$PRUNE", "$$DESCEND",
            ] } }],
            15 => vec![doc! { "$lookup": {
                "from": "small", "let": { "n": "$n" }, "as": "found",
                "pipeline": [{ "$match": { "$expr": { "$gt": ["$$n", "$n"] } } }],
            } }],
            16 => vec![doc! { "$lookup": {
                "from": "large", "localField": "n", "foreignField": "x", "as": "found",
            } }],
            17 => vec![doc! { "$fill": {
                "sortBy": { "n": 1 }, "output": fields(size, name, |_| doc! { "method": "locf" }),
            } }],
            18 => cross(doc! { "$group": { "_id": null, "all": { "$addToSet": "$$ROOT" } } }),
            19 => {
                let mut generator = self.generator();
                let all = (0..few).flat_map(|_| generator.pipeline(2));
                all.take(900).collect()
            }
            20 => cross(doc! { "$sample": { "size": 1_000 } }),
            21 => vec![
                doc! { "$sort": { "b": 1, "n": -1 } },
                doc! { "$group": { "_id": "$b", "all": { "$push": "$$ROOT" } } },
                doc! { "$unwind": "$all" },
                doc! { "$project": { "v": expression(&mut self.random, size) } },
            ],
            22 => cross(doc! { "$out": "made" }),
            _ => vec![doc! { "$project": { "v": expression(&mut self.random, size) } }],
        };
        let collection = match number {
            8..=10 | 12 | 18 | 20 | 22 => "large",
            4 | 5 | 13 | 15 | 16 | 17 | 21 => "small",
            _ => self.collection(),
        };
        let command = doc! { "aggregate": collection, "pipeline": stages, "cursor": {} };
        (self.named("pipeline", number), command)
    }
}
