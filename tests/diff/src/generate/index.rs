//! Indexes of every kind, with options that are right and some that are not.

use bson::{Bson, Document, doc};

use super::Generator;

const FIELDS: &[&str] = &["a", "b", "c", "d", "a.x", "b.y", "p", "_id"];
const ODD_FIELDS: &[&str] = &[
    "", "$a", "a.$", "a.", ".a", "a..b", "$**", "a.$**", "$**.a", "_id.x", "_fts", "a.$b", "x.$id",
];
const NAMES: &[&str] = &[
    "i", "j", "a_1", "a_1_b_1", "_id_", "nosuch", "", "*", "$i", "i.j",
];

impl Generator {
    pub fn index_name(&mut self) -> Bson {
        let names: Vec<(usize, &&str)> = NAMES
            .iter()
            .enumerate()
            .map(|(at, name)| (if at < 4 { 10 } else { 1 }, name))
            .collect();
        let name = **self.random.weighted(&names);
        self.or_wrong(name)
    }

    pub fn key_pattern(&mut self) -> Bson {
        let mut key = Document::new();
        for _ in 0..*self.random.weighted(&[(1, 0), (60, 1), (25, 2), (8, 3)]) {
            let field = match self.random.percent(12) {
                true => *self.random.pick(ODD_FIELDS),
                false => *self.random.pick(FIELDS),
            };
            let order = self.order();
            key.insert(field, order);
        }
        self.or_wrong(key)
    }

    fn order(&mut self) -> Bson {
        let kind = *self.random.weighted(&[
            (55, "1"),
            (12, "-1"),
            (7, "text"),
            (5, "2dsphere"),
            (4, "2d"),
            (5, "hashed"),
            (2, "odd"),
            (1, "any"),
        ]);
        match kind {
            "1" => Bson::Int32(1),
            "-1" => Bson::Int32(-1),
            "any" => self.value(1),
            "odd" => self
                .random
                .pick(&[
                    Bson::Int32(0),
                    Bson::Double(1.5),
                    Bson::Double(0.1),
                    Bson::Double(f64::NAN),
                    Bson::Int64(-7),
                    Bson::Boolean(true),
                    "nosuch".into(),
                    "".into(),
                    "geoHaystack".into(),
                    "wildcard".into(),
                    "columnstore".into(),
                ])
                .clone(),
            kind => kind.into(),
        }
    }

    pub fn create_indexes(&mut self) -> Document {
        let count = *self.random.weighted(&[(1, 0), (70, 1), (20, 2)]);
        let indexes: Vec<Bson> = (0..count).map(|_| self.index()).collect();
        let mut create = doc! { "createIndexes": self.story_name(), "indexes": indexes };
        match self.random.below(40) {
            0 => drop(create.insert("indexes", self.value(1))),
            1 => drop(create.remove("indexes")),
            2 => {
                let quorum = self
                    .random
                    .pick(&[
                        Bson::from("majority"),
                        "votingMembers".into(),
                        1.into(),
                        0.into(),
                        "nosuch".into(),
                    ])
                    .clone();
                create.insert("commitQuorum", self.or_wrong(quorum));
            }
            3 => drop(create.insert("ignoreUnknownIndexOptions", self.flag())),
            4 => drop(create.insert("nosuch", 1)),
            5 => drop(create.insert("comment", self.value(1))),
            6 => drop(create.insert("v", self.number())),
            _ => {}
        }
        create
    }

    fn index(&mut self) -> Bson {
        let mut index = doc! { "key": self.key_pattern(), "name": self.index_name() };
        for _ in 0..*self.random.weighted(&[(35, 0), (45, 1), (20, 2)]) {
            let (name, value) = self.index_option();
            index.insert(name, value);
        }
        match self.random.below(60) {
            0 => drop(index.remove("name")),
            1 => drop(index.remove("key")),
            2 => return self.value(1),
            _ => {}
        }
        index.into()
    }

    fn index_option(&mut self) -> (&'static str, Bson) {
        match self.random.below(32) {
            0..=4 => ("unique", self.flag()),
            5..=6 => ("sparse", self.flag()),
            7..=9 => ("partialFilterExpression", self.partial_filter()),
            10..=12 => ("expireAfterSeconds", self.seconds()),
            13..=14 => ("hidden", self.flag()),
            15..=17 => ("collation", self.collation()),
            18..=19 => ("wildcardProjection", self.wildcard_projection()),
            20 => {
                let weight = self.number();
                let field = *self.random.pick(&["a", "b", "$**", "", "$a", "a..b"]);
                let weights = doc! { field: weight };
                ("weights", self.or_wrong(weights))
            }
            21 => {
                let language = *self.random.pick(&["english", "de", "none", "nosuch", ""]);
                ("default_language", self.or_wrong(language))
            }
            22 => {
                let field = *self.random.pick(&["b", "", "$b", "b.x"]);
                ("language_override", self.or_wrong(field))
            }
            23 => ("textIndexVersion", self.number()),
            24 => ("2dsphereIndexVersion", self.number()),
            25 => (*self.random.pick(&["bits", "min", "max"]), self.number()),
            26 => ("background", self.flag()),
            27 => ("v", self.number()),
            28 => ("storageEngine", self.or_wrong(doc! {})),
            29 => ("clustered", self.flag()),
            30 => (
                *self.random.pick(&["dropDups", "ns", "bucketSize"]),
                self.value(0),
            ),
            _ => ("nosuch", self.value(0)),
        }
    }

    fn partial_filter(&mut self) -> Bson {
        let filter = match self.random.below(4) {
            0 => self.filter(1),
            1 => doc! { "a": { "$exists": self.flag() } },
            2 => doc! { "$and": [{ "a": { "$gt": self.value(0) } }, self.filter(0)] },
            _ => doc! { "b": { "$gt": self.number() } },
        };
        self.or_wrong(filter)
    }

    fn wildcard_projection(&mut self) -> Bson {
        let mut projection = Document::new();
        for _ in 0..*self.random.weighted(&[(1, 0), (6, 1), (3, 2)]) {
            let field = *self
                .random
                .pick(&["a", "b", "_id", "a.x", "", "$a", "a.$**"]);
            let flag = match self.random.percent(80) {
                true => Bson::Int32(self.random.between(0, 1) as i32),
                false => self.value(1),
            };
            projection.insert(field, flag);
        }
        self.or_wrong(projection)
    }

    pub fn drop_indexes(&mut self) -> Document {
        let index = match self.random.below(10) {
            0..=4 => self.index_name(),
            5..=6 => self.key_pattern(),
            7 => "*".into(),
            8 => vec![self.index_name(), self.index_name()].into(),
            _ => self.value(1),
        };
        let mut drop = doc! { "dropIndexes": self.story_name(), "index": index };
        match self.random.below(20) {
            0 => std::mem::drop(drop.remove("index")),
            1 => std::mem::drop(drop.insert("nosuch", 1)),
            _ => {}
        }
        drop
    }
}
