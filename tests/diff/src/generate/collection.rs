//! Collections of every kind, with options that are right and some that are not.

use bson::{Bson, Document, doc};

use super::Generator;
use crate::story::{COLLECTION, OTHER, VIEW};

const ODD_NAMES: &[&str] = &[
    "",
    ".s",
    "s.",
    "s..t",
    "$s",
    "s$t",
    "system.s",
    "system.views",
    "system.js",
    "s.t",
    "s t",
    "S",
    "é",
];
pub const PATTERNS: &[&str] = &["a", "b", "c", "_id", "a.x"];

impl Generator {
    /// Mostly the collection that the story is about.
    pub fn story_name(&mut self) -> Bson {
        match *self
            .random
            .weighted(&[(84, 's'), (8, 't'), (4, 'v'), (3, '?'), (1, '!')])
        {
            's' => COLLECTION.into(),
            't' => OTHER.into(),
            'v' => VIEW.into(),
            '?' => (*self.random.pick(ODD_NAMES)).into(),
            _ => self.value(1),
        }
    }

    /// Sometimes anything instead.
    pub fn or_wrong(&mut self, right: impl Into<Bson>) -> Bson {
        match self.random.percent(6) {
            true => self.value(1),
            false => right.into(),
        }
    }

    pub fn flag(&mut self) -> Bson {
        let flags = [
            (50, Bson::Boolean(true)),
            (30, Bson::Boolean(false)),
            (5, Bson::Int32(1)),
            (3, Bson::Double(0.0)),
            (2, Bson::Null),
        ];
        let flag = self.random.weighted(&flags).clone();
        self.or_wrong(flag)
    }

    pub fn collation(&mut self) -> Bson {
        let texts = [
            doc! { "locale": "simple" },
            doc! { "locale": "en" },
            doc! { "locale": "en", "strength": 2 },
            doc! { "locale": "de", "numericOrdering": true },
            doc! { "locale": "en", "caseLevel": true, "strength": 1.0 },
            doc! { "locale": "nosuch" },
            doc! { "locale": "en", "strength": 9 },
            doc! { "locale": "en", "nosuch": 1 },
            doc! { "strength": 2 },
            doc! { "locale": "fr", "backwards": "yes" },
            doc! { "locale": "en", "alternate": "shifted", "maxVariable": "space" },
            doc! { "locale": "en", "version": "57.1" },
            doc! {},
        ];
        let weighted: Vec<(usize, &Document)> = texts
            .iter()
            .enumerate()
            .map(|(at, text)| (if at < 3 { 8 } else { 1 }, text))
            .collect();
        let collation = (*self.random.weighted(&weighted)).clone();
        self.or_wrong(collation)
    }

    pub fn create(&mut self) -> Document {
        let mut create = doc! { "create": self.story_name() };
        match self.random.below(10) {
            0..=2 => self.capped_options(&mut create),
            3 => {
                create.insert(
                    "viewOn",
                    *self.random.pick(&[COLLECTION, OTHER, VIEW, "", "$a"]),
                );
                create.insert("pipeline", self.view_stages());
                create.insert("create", VIEW);
            }
            4 => {
                let clustered = self.clustered();
                create.insert("clusteredIndex", clustered);
            }
            5 => {
                let series = self.time_series();
                create.insert("timeseries", series);
            }
            6 => drop(create.insert("collation", self.collation())),
            7 => self.validation(&mut create),
            _ => {}
        }
        while self.random.percent(25) {
            let (name, value) = self.create_option();
            create.insert(name, value);
        }
        create
    }

    fn capped_options(&mut self, create: &mut Document) {
        let flag = self.flag();
        create.insert("capped", flag);
        if self.random.percent(85) {
            let size = self.size();
            create.insert("size", size);
        }
        if self.random.percent(40) {
            let max = self.random.between(-1, 4) as i32;
            let max = self.or_wrong(max);
            create.insert("max", max);
        }
    }

    fn size(&mut self) -> Bson {
        let sizes = [
            Bson::Int32(4096),
            Bson::Int32(1),
            Bson::Int32(0),
            Bson::Int32(-1),
            Bson::Int64(1 << 51),
            Bson::Double(1e6),
            Bson::Double(300.5),
        ];
        let size = self.random.pick(&sizes).clone();
        self.or_wrong(size)
    }

    pub fn view_stages(&mut self) -> Bson {
        let stages = match self.random.below(6) {
            0 => vec![],
            1 => vec![doc! { "$match": self.filter(1) }],
            2 => vec![doc! { "$project": { "a": 1, "b": 1 } }],
            3 => vec![doc! { "$out": "t" }],
            4 => vec![doc! { "$nosuch": 1 }],
            _ => vec![doc! { "$addFields": { "w": 1 } }],
        };
        self.or_wrong(stages)
    }

    fn clustered(&mut self) -> Bson {
        let mut clustered = doc! { "key": { "_id": 1 }, "unique": true };
        match self.random.below(8) {
            0 => drop(clustered.insert("name", *self.random.pick(&["n", "_id_", "", "*"]))),
            1 => drop(clustered.insert("unique", self.flag())),
            2 => drop(clustered.insert("v", self.number())),
            3 => drop(clustered.insert("key", self.value(1))),
            4 => drop(clustered.remove("unique")),
            5 => drop(clustered.insert("nosuch", 1)),
            6 => return self.flag(),
            _ => {}
        }
        clustered.into()
    }

    fn time_series(&mut self) -> Bson {
        let mut series = doc! { "timeField": "d" };
        for _ in 0..self.random.below(3) {
            let (name, value): (_, Bson) = match self.random.below(6) {
                0 | 1 => (
                    "metaField",
                    (*self.random.pick(&["c", "d", "_id", "a.b", "$c"])).into(),
                ),
                2 => (
                    "granularity",
                    (*self.random.pick(&["seconds", "minutes", "hours", "days"])).into(),
                ),
                3 => (
                    "timeField",
                    (*self.random.pick(&["_id", "", "a.b", "$d"])).into(),
                ),
                4 => ("bucketMaxSpanSeconds", self.number()),
                _ => ("nosuch", 1.into()),
            };
            let value = self.or_wrong(value);
            series.insert(name, value);
        }
        self.or_wrong(series)
    }

    pub fn validation(&mut self, command: &mut Document) {
        if self.random.percent(85) {
            let validator = self.validator();
            command.insert("validator", validator);
        }
        if self.random.percent(30) {
            let level = *self
                .random
                .pick(&["off", "moderate", "strict", "nosuch", ""]);
            let level = self.or_wrong(level);
            command.insert("validationLevel", level);
        }
        if self.random.percent(30) {
            let action = *self.random.pick(&["warn", "error", "nosuch"]);
            let action = self.or_wrong(action);
            command.insert("validationAction", action);
        }
    }

    fn validator(&mut self) -> Bson {
        let validator = match self.random.below(6) {
            0 | 1 => self.filter(1),
            2 => doc! { "$text": { "$search": "a" } },
            3 => doc! { "a": { "$near": [0, 0] } },
            _ => doc! { "$jsonSchema": self.schema() },
        };
        self.or_wrong(validator)
    }

    fn schema(&mut self) -> Document {
        let mut properties = Document::new();
        for name in ["a", "b"] {
            let mut property = Document::new();
            let (keyword, value): (_, Bson) = match self.random.below(10) {
                0 => (
                    "bsonType",
                    (*self.random.pick(&["int", "string", "nosuch"])).into(),
                ),
                1 => ("bsonType", vec!["int", "long", "double", "null"].into()),
                2 => (
                    "type",
                    (*self.random.pick(&["number", "integer", "object"])).into(),
                ),
                3 => ("minimum", self.number()),
                4 => ("maxLength", self.number()),
                5 => ("enum", vec![self.value(1), self.value(1)].into()),
                6 => ("pattern", (*self.random.pick(&["a", "^a", "("])).into()),
                7 => ("minItems", self.number()),
                8 => ("not", doc! { "bsonType": "string" }.into()),
                _ => ("uniqueItems", true.into()),
            };
            let value = self.or_wrong(value);
            property.insert(keyword, value);
            properties.insert(name, property);
        }
        let mut schema = doc! { "properties": properties };
        match self.random.below(5) {
            0 => drop(schema.insert("required", vec![*self.random.pick(PATTERNS)])),
            1 => drop(schema.insert("additionalProperties", self.flag())),
            2 => drop(schema.insert("nosuch", 1)),
            3 => drop(schema.insert("required", self.value(1))),
            _ => {}
        }
        schema
    }

    fn create_option(&mut self) -> (&'static str, Bson) {
        match self.random.below(16) {
            0 => ("size", self.size()),
            1 => ("max", self.number()),
            2 => ("expireAfterSeconds", self.seconds()),
            3 => ("autoIndexId", self.flag()),
            4 => ("idIndex", self.id_index()),
            5 => (
                "indexOptionDefaults",
                self.or_wrong(doc! { "storageEngine": {} }),
            ),
            6 => ("storageEngine", self.or_wrong(doc! { "wiredTiger": {} })),
            7 => {
                let enabled = doc! { "enabled": self.flag() };
                ("changeStreamPreAndPostImages", self.or_wrong(enabled))
            }
            8..=9 => ("collation", self.collation()),
            10 => ("temp", self.flag()),
            11 => ("flags", self.number()),
            12 => ("comment", self.value(1)),
            13 => ("pipeline", self.view_stages()),
            14 => (
                "viewOn",
                (*self.random.pick(&[COLLECTION, OTHER, ""])).into(),
            ),
            _ => ("nosuch", self.value(0)),
        }
    }

    pub fn seconds(&mut self) -> Bson {
        let seconds = [
            Bson::Int32(3600),
            Bson::Int32(0),
            Bson::Int32(-1),
            Bson::Int64(i64::MAX),
            Bson::Int32(i32::MAX),
            Bson::Double(10.5),
            Bson::Double(f64::NAN),
            Bson::String("off".to_owned()),
        ];
        let seconds = self.random.pick(&seconds).clone();
        self.or_wrong(seconds)
    }

    fn id_index(&mut self) -> Bson {
        let mut index = doc! { "key": { "_id": 1 }, "name": "_id_" };
        match self.random.below(6) {
            0 => drop(index.insert("key", doc! { "a": 1 })),
            1 => drop(index.insert("collation", self.collation())),
            2 => drop(index.insert("unique", true)),
            3 => drop(index.insert("v", self.number())),
            4 => drop(index.remove("name")),
            _ => {}
        }
        self.or_wrong(index)
    }

    pub fn coll_mod(&mut self) -> Document {
        let mut change = doc! { "collMod": self.story_name() };
        match self.random.below(12) {
            0..=4 => {
                let index = self.index_change();
                change.insert("index", index);
            }
            5..=6 => self.validation(&mut change),
            7 => {
                change.insert("viewOn", *self.random.pick(&[COLLECTION, OTHER, VIEW, ""]));
                change.insert("pipeline", self.view_stages());
            }
            8 => drop(change.insert("expireAfterSeconds", self.seconds())),
            9 => {
                let enabled = doc! { "enabled": self.flag() };
                change.insert("changeStreamPreAndPostImages", self.or_wrong(enabled));
            }
            10 => {
                let name = *self.random.pick(&["cappedSize", "cappedMax"]);
                let size = self.size();
                change.insert(name, size);
            }
            _ => {
                let name = *self.random.pick(&[
                    "nosuch",
                    "recordPreImages",
                    "dryRun",
                    "timeseries",
                    "noPadding",
                    "comment",
                ]);
                let value = self.value(1);
                change.insert(name, value);
            }
        }
        if self.random.percent(8) {
            change.insert("dryRun", self.flag());
        }
        change
    }

    fn index_change(&mut self) -> Bson {
        let mut index = Document::new();
        match self.random.below(8) {
            0..=3 => drop(index.insert("name", self.index_name())),
            4..=6 => drop(index.insert("keyPattern", self.key_pattern())),
            _ => {}
        }
        for _ in 0..*self.random.weighted(&[(1, 0), (8, 1), (2, 2)]) {
            let (name, value) = match self.random.below(6) {
                0 | 1 => ("expireAfterSeconds", self.seconds()),
                2 => ("hidden", self.flag()),
                3 | 4 => ("unique", self.flag()),
                _ => ("nosuch", self.value(0)),
            };
            index.insert(name, value);
        }
        self.or_wrong(index)
    }

    pub fn rename(&mut self) -> Document {
        let from = *self
            .random
            .pick(&["s", "s", "s", "t", "v", "nowhere", "s.", "system.views"]);
        let to = *self
            .random
            .pick(&["t", "t", "s", "v", "", "$t", "system.t", ".t", "t..u"]);
        let mut rename = doc! {
            "renameCollection": format!("db.{from}"), "to": format!("db.{to}"),
        };
        if self.random.percent(40) {
            rename.insert("dropTarget", self.flag());
        }
        match self.random.below(20) {
            0 => drop(rename.insert("to", self.value(0))),
            1 => drop(rename.insert("nosuch", 1)),
            2 => drop(rename.insert("to", "t")),
            3 => drop(rename.insert("stayTemp", self.flag())),
            _ => {}
        }
        rename
    }
}
