//! Pipelines of up to six stages.

use bson::{Bson, Document, doc};

use super::Generator;

const STAGES: &[(usize, &str)] = &[
    (14, "$match"),
    (16, "$project"),
    (10, "$addFields"),
    (3, "$set"),
    (4, "$unset"),
    (14, "$group"),
    (10, "$sort"),
    (4, "$limit"),
    (3, "$skip"),
    (9, "$unwind"),
    (3, "$replaceRoot"),
    (2, "$replaceWith"),
    (2, "$redact"),
    (3, "$facet"),
    (5, "$lookup"),
    (2, "$unionWith"),
    (3, "$bucket"),
    (2, "$bucketAuto"),
    (3, "$sortByCount"),
    (3, "$count"),
    (1, "$sample"),
    (1, "$graphLookup"),
    (1, "$setWindowFields"),
    (1, "$densify"),
    (1, "$fill"),
];
const ACCUMULATORS: &[&str] = &[
    "$sum",
    "$avg",
    "$min",
    "$max",
    "$push",
    "$addToSet",
    "$first",
    "$last",
    "$stdDevPop",
    "$stdDevSamp",
    "$mergeObjects",
    "$count",
    "$firstN",
    "$lastN",
    "$minN",
    "$maxN",
    "$top",
    "$bottomN",
];

impl Generator {
    pub fn pipeline(&mut self, most: i64) -> Vec<Document> {
        let count = self.random.between(1, most);
        let mut stages = Vec::new();
        for _ in 0..count {
            let name = *self.random.weighted(STAGES);
            if matches!(name, "$limit" | "$skip") {
                stages.push(doc! { "$sort": { "_id": 1 } });
            }
            stages.push(self.stage(name));
        }
        stages
    }

    fn stage(&mut self, name: &str) -> Document {
        let argument: Bson = match name {
            "$match" => self.filter(1).into(),
            "$project" => self.projection_fields().into(),
            "$addFields" | "$set" => self.computed_fields().into(),
            "$unset" => match self.random.percent(50) {
                true => self.path().into(),
                false => vec![self.path(), self.path()].into(),
            },
            "$group" => self.group().into(),
            "$sort" => self.sort().into(),
            "$limit" => Bson::Int32(self.random.between(1, 5) as i32),
            "$skip" => Bson::Int32(self.random.between(0, 3) as i32),
            "$unwind" => self.unwind(),
            "$replaceRoot" => doc! { "newRoot": self.argument('o', 2) }.into(),
            "$replaceWith" => self.argument('o', 2),
            "$redact" => self.redact(),
            "$facet" => doc! { "f": self.pipeline(2), "g": self.pipeline(2) }.into(),
            "$lookup" => self.lookup().into(),
            "$unionWith" => match self.random.percent(50) {
                true => "d".into(),
                false => doc! { "coll": "d", "pipeline": self.pipeline(2) }.into(),
            },
            "$bucket" => self.bucket().into(),
            "$bucketAuto" => {
                let buckets = self.random.between(1, 4) as i32;
                doc! { "groupBy": self.argument('n', 1), "buckets": buckets }.into()
            }
            "$sortByCount" => match self.random.percent(60) {
                true => format!("${}", self.path()).into(),
                false => self.expression(1),
            },
            "$count" => (*self.random.pick(&["n", "total", "a.b", "", "$n"])).into(),
            "$sample" => doc! { "size": 1000 }.into(),
            "$graphLookup" => doc! {
                "from": "d", "startWith": self.argument('v', 1), "connectFromField": "a",
                "connectToField": "_id", "as": "g",
            }
            .into(),
            "$setWindowFields" => doc! {
                "partitionBy": self.argument('v', 0), "sortBy": { "_id": 1 },
                "output": { "w": { *self.random.pick(&["$sum", "$avg", "$max"]): "$a",
                    "window": { "documents": ["unbounded", "current"] } } },
            }
            .into(),
            "$densify" => doc! {
                "field": "_id", "range": { "step": 1, "bounds": [0, 5] },
            }
            .into(),
            _ => doc! { "output": { "a": { "value": self.value(1) } } }.into(),
        };
        doc! { name: argument }
    }

    pub fn projection_fields(&mut self) -> Document {
        let exclusion = self.random.percent(30);
        let mut fields = Document::new();
        for _ in 0..self.random.between(1, 3) {
            let path = self.path();
            let value = match (exclusion, self.random.below(10)) {
                (true, 0) | (false, 0) => self.value(0),
                (true, _) => Bson::Int32(0),
                (false, 1..4) => Bson::Int32(1),
                (false, _) => self.expression(3),
            };
            fields.insert(path, value);
        }
        if self.random.percent(15) {
            fields.insert("_id", 0);
        }
        fields
    }

    fn computed_fields(&mut self) -> Document {
        let mut fields = Document::new();
        for _ in 0..self.random.between(1, 2) {
            let path = *self.random.pick(&["n", "a", "b.x", "n.m", "c"]);
            let value = self.expression(3);
            fields.insert(path, value);
        }
        fields
    }

    fn group(&mut self) -> Document {
        let id = match self.random.below(5) {
            0 => Bson::Null,
            1 => self.expression(1),
            2 => doc! { "k": self.argument('v', 1) }.into(),
            _ => format!("${}", self.path()).into(),
        };
        let mut group = doc! { "_id": id };
        for name in ["s", "t"] {
            if self.random.percent(65) {
                group.insert(name, self.accumulator());
            }
        }
        group
    }

    fn accumulator(&mut self) -> Document {
        let name = *self.random.pick(ACCUMULATORS);
        let argument = match name {
            "$sum" | "$avg" | "$stdDevPop" | "$stdDevSamp" => self.argument('n', 1),
            "$mergeObjects" => self.argument('o', 1),
            "$count" => doc! {}.into(),
            "$top" => doc! { "sortBy": { "_id": 1 }, "output": self.argument('v', 1) }.into(),
            "$bottomN" => {
                doc! { "sortBy": { "_id": 1 }, "output": self.argument('v', 1), "n": 2 }.into()
            }
            name if name.ends_with('N') => {
                doc! { "input": self.argument('v', 1), "n": self.argument('i', 0) }.into()
            }
            _ => self.argument('v', 1),
        };
        doc! { name: argument }
    }

    fn unwind(&mut self) -> Bson {
        let path = *self
            .random
            .pick(&["$a", "$b", "$c", "$a.x", "$b.y", "$missing", "a"]);
        if self.random.percent(50) {
            return path.into();
        }
        let mut unwind = doc! { "path": path };
        if self.random.percent(50) {
            unwind.insert("preserveNullAndEmptyArrays", self.random.percent(70));
        }
        if self.random.percent(40) {
            unwind.insert(
                "includeArrayIndex",
                *self.random.pick(&["i", "a.i", "$i", "b"]),
            );
        }
        unwind.into()
    }

    fn redact(&mut self) -> Bson {
        let verdict = |generator: &mut Self| {
            *generator
                .random
                .pick(&["$$KEEP", "$$PRUNE", "$$DESCEND", "$$DESCEND", "x"])
        };
        let (then, other) = (verdict(self), verdict(self));
        doc! { "$cond": [self.argument('b', 2), then, other] }.into()
    }

    fn lookup(&mut self) -> Document {
        let from = "d";
        match self.random.below(3) {
            0 => {
                let variables = doc! { "v": format!("${}", self.path()) };
                let on = doc! { "$expr": { "$eq": ["$$v", format!("${}", self.path())] } };
                doc! { "from": from, "let": variables, "pipeline": [{ "$match": on }], "as": "j" }
            }
            1 => {
                let mut lookup = doc! { "from": from, "localField": self.path() };
                lookup.insert("foreignField", self.path());
                lookup.insert("pipeline", self.pipeline(2));
                lookup.insert("as", "j");
                lookup
            }
            _ => {
                let to = *self.random.pick(&["j", "a", "b.j"]);
                let (local, foreign) = (self.path(), self.path());
                doc! { "from": from, "localField": local, "foreignField": foreign, "as": to }
            }
        }
    }

    fn bucket(&mut self) -> Document {
        let boundaries: Vec<Bson> = match self.random.below(4) {
            0 => vec![self.value(0), self.value(0)],
            1 => vec!["a".into(), "b".into(), "z".into()],
            _ => vec![Bson::Int32(0), Bson::Double(2.0), Bson::Int64(5)],
        };
        let mut bucket = doc! { "groupBy": self.argument('n', 1), "boundaries": boundaries };
        if self.random.percent(80) {
            bucket.insert("default", self.random.pick(&["other", "x"]).to_string());
        }
        if self.random.percent(50) {
            bucket.insert("output", doc! { "o": self.accumulator() });
        }
        bucket
    }
}
