//! Pipelines of up to six stages.

use bson::{Bson, Document, doc};

use super::Generator;
use crate::order;

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
    (6, "$lookup"),
    (2, "$unionWith"),
    (3, "$bucket"),
    (4, "$bucketAuto"),
    (3, "$sortByCount"),
    (3, "$count"),
    (1, "$sample"),
    (2, "$graphLookup"),
    (7, "$setWindowFields"),
    (3, "$densify"),
    (3, "$fill"),
];
/// Stages that fields `n` and `t` are made for.
const ALONG: &[&str] = &["$setWindowFields", "$densify", "$fill"];
/// Numbers to count in.
pub const SMALL_STEPS: &[&str] = &[
    "1",
    "2",
    "0.5",
    "1.5",
    "NumberLong(\"1\")",
    "NumberDecimal(\"0.5\")",
    "NumberDecimal(\"1.50\")",
    "0.1",
    "-1",
];
const GRANULARITIES: &[&str] = &[
    "R5",
    "R10",
    "R20",
    "R40",
    "R80",
    "1-2-5",
    "E6",
    "E12",
    "E24",
    "E48",
    "E96",
    "E192",
    "POWERSOF2",
    "R6",
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
    "$bottom",
    "$topN",
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
            if ALONG.contains(&name) && self.random.percent(80) {
                stages.push(self.along_the_ids());
            }
            let mut stage = self.stage(name);
            if self.random.percent(4) {
                self.spoil(name, &mut stage);
            }
            stages.push(stage);
        }
        stages
    }

    /// Has one option of the stage be something else, missing, or one too many.
    fn spoil(&mut self, name: &str, stage: &mut Document) {
        let other = self.value(1);
        let Ok(argument) = stage.get_document_mut(name) else {
            stage.insert(name, other);
            return;
        };
        let options: Vec<String> = argument.keys().cloned().collect();
        match self.random.below(5) {
            0 => drop(argument.insert("nosuch", 1)),
            1 if !options.is_empty() => drop(argument.remove(self.random.pick(&options))),
            2 | 3 if !options.is_empty() => {
                drop(argument.insert(self.random.pick(&options), other));
            }
            _ => drop(stage.insert(name, other)),
        }
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
            "$unionWith" => self.union(),
            "$bucket" => self.bucket().into(),
            "$bucketAuto" => self.bucket_auto().into(),
            "$sortByCount" => match self.random.percent(60) {
                true => format!("${}", self.path()).into(),
                false => self.expression(1),
            },
            "$count" => (*self.random.pick(&["n", "total", "a.b", "", "$n"])).into(),
            "$sample" => doc! { "size": order::SAMPLE_SIZE }.into(),
            "$graphLookup" => self.graph_lookup().into(),
            "$setWindowFields" => self.set_window_fields().into(),
            "$densify" => self.densify().into(),
            _ => self.fill().into(),
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
            "$top" | "$bottom" | "$topN" | "$bottomN" => self.ranked(name),
            name if name.ends_with('N') => {
                doc! { "input": self.argument('v', 1), "n": self.argument('i', 1) }.into()
            }
            _ => self.argument('v', 1),
        };
        doc! { name: argument }
    }

    /// The argument of the accumulators that sort.
    pub fn ranked(&mut self, name: &str) -> Bson {
        let mut sort = match self.random.percent(60) {
            true => doc! {},
            false => doc! { self.path(): *self.random.pick(&[1, -1]) },
        };
        if self.random.percent(95) {
            sort.insert("_id", 1);
        }
        let mut ranked = doc! { "sortBy": sort, "output": self.argument('v', 1) };
        if name.ends_with('N') {
            ranked.insert("n", self.argument('i', 1));
        }
        ranked.into()
    }

    fn bucket_auto(&mut self) -> Document {
        let buckets = match self.random.percent(90) {
            true => Bson::Int32(self.random.between(1, 4) as i32),
            false => self.value(0),
        };
        let group_by = match self.random.percent(60) {
            true => self.argument('n', 1),
            false => self.argument('v', 1),
        };
        let mut bucket = doc! { "groupBy": group_by, "buckets": buckets };
        if self.random.percent(35) {
            if self.random.percent(70) {
                let absolute = doc! { "$abs": bucket.remove("groupBy") };
                bucket.insert("groupBy", absolute);
            }
            bucket.insert("granularity", *self.random.pick(GRANULARITIES));
        }
        if self.random.percent(50) {
            bucket.insert("output", doc! { "o": self.accumulator() });
        }
        bucket
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
