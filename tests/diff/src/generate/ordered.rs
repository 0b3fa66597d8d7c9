//! Scenes of many documents with few values, whose commands want an order of all documents: the
//! ones where an index decides which documents come first.

use bson::{Bson, Document, doc};

use super::Generator;
use super::command::{BATCH, aggregate};
use crate::case::COLLECTION;

/// What the fields of a scene hold besides numbers.
#[derive(Clone, Copy)]
pub struct Shapes {
    /// Arrays in none, one, or any of the fields.
    arrays: Arrays,
    /// `a` holds objects.
    nested: bool,
}

impl Shapes {
    pub fn is_nested(self) -> bool {
        self.nested
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Arrays {
    Nowhere,
    In(&'static str),
    Anywhere,
}

impl Generator {
    pub fn shapes(&mut self) -> Shapes {
        let field = *self.random.pick(&["a", "b", "c"]);
        let arrays = [
            (5, Arrays::Nowhere),
            (3, Arrays::In(field)),
            (1, Arrays::Anywhere),
        ];
        Shapes {
            arrays: *self.random.weighted(&arrays),
            nested: self.random.percent(25),
        }
    }

    /// Documents in no order of their ids.
    pub fn ordered_documents(&mut self, shapes: Shapes) -> Vec<Document> {
        let count = self.random.between(8, 24) as i32;
        let mut documents: Vec<Document> = Vec::new();
        for id in 1..=count {
            let mut document = doc! { "_id": id };
            for field in ["a", "b", "c"] {
                if self.random.percent(90) {
                    let value = self.field_value(field, shapes);
                    document.insert(field, value);
                }
            }
            let at = self.random.below(documents.len() + 1);
            documents.insert(at, document);
        }
        documents
    }

    fn field_value(&mut self, field: &'static str, shapes: Shapes) -> Bson {
        let may_be_array = match shapes.arrays {
            Arrays::Nowhere => false,
            Arrays::In(one) => one == field,
            Arrays::Anywhere => true,
        };
        if may_be_array && self.random.percent(35) {
            let count = self.random.below(4);
            let item = |generator: &mut Self| generator.one_value(field, shapes);
            return (0..count).map(|_| item(self)).collect::<Vec<_>>().into();
        }
        self.one_value(field, shapes)
    }

    fn one_value(&mut self, field: &'static str, shapes: Shapes) -> Bson {
        if field == "a" && shapes.nested && self.random.percent(85) {
            let mut object = Document::new();
            for name in ["x", "y"] {
                if self.random.percent(85) {
                    object.insert(name, self.key_value());
                }
            }
            return object.into();
        }
        self.key_value()
    }

    pub fn key_value(&mut self) -> Bson {
        match *self
            .random
            .weighted(&[(84, 'i'), (6, 's'), (5, '0'), (3, 'd'), (2, '?')])
        {
            'i' => Bson::Int32(self.random.between(0, 3) as i32),
            's' => (*self.random.pick(&["a", "ab", "b", "A", "aB"])).into(),
            '0' => Bson::Null,
            'd' => Bson::Double(*self.random.pick(&[1.0, 1.5, 2.0, f64::NAN])),
            _ => self.value(1),
        }
    }

    pub fn ordered_command(&mut self, shapes: Shapes) -> Document {
        let kinds = [
            (50, "find"),
            (14, "sort"),
            (12, "group"),
            (8, "findAndModify"),
            (5, "count"),
            (5, "distinct"),
            (4, "update"),
            (2, "delete"),
        ];
        let filter = self.planned_filter(shapes, 2);
        match *self.random.weighted(&kinds) {
            "find" => {
                let mut find = doc! { "find": COLLECTION, "filter": filter };
                find.insert("sort", self.key_order(shapes));
                if self.random.percent(65) {
                    find.insert("limit", self.random.between(1, 6) as i32);
                }
                if self.random.percent(15) {
                    find.insert("skip", self.random.between(1, 3) as i32);
                }
                if self.random.percent(30) {
                    find.insert("projection", self.key_projection(shapes));
                }
                find.insert("batchSize", BATCH);
                find
            }
            "sort" => {
                let mut stages = vec![doc! { "$match": filter }];
                stages.push(doc! { "$sort": self.key_order(shapes) });
                if self.random.percent(20) {
                    stages.push(doc! { "$skip": self.random.between(1, 3) as i32 });
                }
                if self.random.percent(70) {
                    stages.push(doc! { "$limit": self.random.between(1, 6) as i32 });
                }
                if self.random.percent(40) {
                    stages.push(doc! { "$project": self.key_projection(shapes) });
                }
                aggregate(stages)
            }
            "group" => {
                let mut stages = vec![doc! { "$match": filter }];
                stages.push(doc! { "$sort": self.key_order(shapes) });
                stages.push(self.key_group(shapes));
                aggregate(stages)
            }
            "findAndModify" => {
                let mut command = doc! { "findAndModify": COLLECTION, "query": filter };
                command.insert("sort", self.key_order(shapes));
                match self.random.percent(30) {
                    true => command.insert("remove", true),
                    false => command.insert("update", self.key_update()),
                };
                command
            }
            "count" => {
                let mut count = doc! { "count": COLLECTION, "query": filter };
                if self.random.percent(30) {
                    count.insert("limit", self.random.between(1, 5) as i32);
                }
                count
            }
            "distinct" => {
                let key = self.key_path(shapes);
                doc! { "distinct": COLLECTION, "key": key, "query": filter }
            }
            "update" => {
                let statement = doc! { "q": filter, "u": self.key_update(), "multi": true };
                doc! { "update": COLLECTION, "updates": [statement] }
            }
            _ => doc! { "delete": COLLECTION, "deletes": [{ "q": filter, "limit": 0 }] },
        }
    }

    /// An update that moves a document within the indexes.
    fn key_update(&mut self) -> Document {
        let field = *self.random.pick(&["b", "c"]);
        match self.random.percent(50) {
            true => doc! { "$set": { field: self.key_value() } },
            false => doc! { "$inc": { "n": 1 }, "$unset": { field: 1 } },
        }
    }

    pub fn key_path(&mut self, shapes: Shapes) -> &'static str {
        let paths: &[&'static str] = match shapes.nested {
            true => &["a.x", "b", "a.y", "c", "a.x", "a"],
            false => &["a", "b", "c"],
        };
        self.random.pick::<&'static str>(paths)
    }

    /// An order of all documents: it ends with the id.
    fn key_order(&mut self, shapes: Shapes) -> Document {
        let mut sort = Document::new();
        // Mostly all forwards or all backwards, as an index can be read.
        let (forwards, mixed) = (self.random.percent(65), self.random.percent(25));
        for _ in 0..*self.random.weighted(&[(15, 0), (45, 1), (30, 2), (10, 3)]) {
            let path = self.key_path(shapes);
            // One path in another cannot be sorted by together.
            let beside = |other: &String| {
                other.split('.').next() != path.split('.').next()
                    || other.contains('.') && path.contains('.')
            };
            if sort.keys().all(beside) {
                let forwards = forwards != (mixed && self.random.percent(50));
                sort.insert(path, if forwards { 1 } else { -1 });
            }
        }
        let forwards = forwards != (mixed && self.random.percent(50));
        sort.insert("_id", if forwards { 1 } else { -1 });
        sort
    }

    fn key_projection(&mut self, shapes: Shapes) -> Document {
        let mut fields = Document::new();
        if self.random.percent(30) {
            fields.insert("_id", 0);
        }
        fields.insert(self.key_path(shapes), 1);
        if self.random.percent(50) {
            let path = self.key_path(shapes);
            let beside = |other: &String| other.split('.').next() != path.split('.').next();
            if fields.keys().all(beside) {
                fields.insert(path, 1);
            }
        }
        fields
    }

    fn key_group(&mut self, shapes: Shapes) -> Document {
        let by = match self.random.percent(85) {
            true => format!("${}", self.key_path(shapes)).into(),
            false => Bson::Null,
        };
        let mut group = doc! { "_id": by };
        let names = [
            ("f", "$first"),
            ("l", "$last"),
            ("n", "$sum"),
            ("m", "$max"),
        ];
        let chosen = self.random.between(1, 15);
        for (at, (field, accumulator)) in names.into_iter().enumerate() {
            // Mostly first or last alone, which one key of each group answers.
            let wanted = match self.random.percent(60) {
                true => at == chosen as usize % 2,
                false => chosen & (1 << at) != 0,
            };
            if wanted {
                let of = match self.random.percent(40) {
                    true => "$_id".to_owned(),
                    false => format!("${}", self.key_path(shapes)),
                };
                group.insert(field, doc! { accumulator: of });
            }
        }
        doc! { "$group": group }
    }

    pub fn key_filter(&mut self, shapes: Shapes) -> Document {
        let mut filter = Document::new();
        for _ in 0..*self
            .random
            .weighted(&[(10, 0), (40, 1), (38, 2), (10, 3), (2, 4)])
        {
            let path = match self.random.percent(6) {
                true => "_id",
                false => self.key_path(shapes),
            };
            let condition = self.key_condition();
            filter.insert(path, condition);
        }
        if self.random.percent(14) {
            let count = self.random.between(2, 3);
            let branch = |generator: &mut Self| {
                let mut branch = Document::new();
                for _ in 0..generator.random.between(1, 2) {
                    let condition = generator.key_condition();
                    branch.insert(generator.key_path(shapes), condition);
                }
                branch
            };
            let branches: Vec<Document> = (0..count).map(|_| branch(self)).collect();
            filter.insert("$or", branches);
        }
        filter
    }

    pub fn key_condition(&mut self) -> Bson {
        let kinds = [
            (36, "="),
            (24, "$in"),
            (20, "range"),
            (4, "$ne"),
            (4, "$exists"),
            (4, "$nin"),
            (4, "$elemMatch"),
            (2, "$regex"),
            (2, "$not"),
        ];
        match *self.random.weighted(&kinds) {
            "=" => self.key_value(),
            name @ ("$in" | "$nin") => {
                let count = self.random.between(1, 3);
                let values: Vec<Bson> = (0..count).map(|_| self.key_value()).collect();
                doc! { name: values }.into()
            }
            "range" => self.key_range().into(),
            "$ne" => doc! { "$ne": self.key_value() }.into(),
            "$exists" => doc! { "$exists": self.random.percent(70) }.into(),
            "$elemMatch" => doc! { "$elemMatch": self.key_range() }.into(),
            "$not" => doc! { "$not": self.key_range() }.into(),
            _ => doc! { "$regex": "^a" }.into(),
        }
    }

    fn key_range(&mut self) -> Document {
        let low = *self.random.pick(&["$gt", "$gte"]);
        let high = *self.random.pick(&["$lt", "$lte"]);
        match self.random.below(3) {
            0 => doc! { low: self.key_value() },
            1 => doc! { high: self.key_value() },
            _ => {
                let from = self.random.between(0, 2) as i32;
                doc! { low: from, high: self.random.between(1, 3) as i32 }
            }
        }
    }
}
