//! Stories: collections, indexes and options change, and what depends on them is asked.

use bson::{Bson, Document, doc};

use super::Generator;
use crate::story::{COLLECTION, OTHER};

/// Documents that a story's inserts hold are numbered on.
const IDS: i64 = 12;
const KINDS: &[(usize, &str)] = &[
    (30, "createIndexes"),
    (10, "insert"),
    (8, "dropIndexes"),
    (14, "collMod"),
    (7, "create"),
    (5, "rename"),
    (3, "drop"),
    (10, "update"),
    (3, "delete"),
    (5, "findAndModify"),
    (12, "find"),
    (12, "aggregate"),
    (3, "explain"),
    (3, "validate"),
    (2, "cloneCollectionAsCapped"),
    (2, "listIndexes"),
    (3, "listCollections"),
    (2, "convertToCapped"),
    (3, "count"),
    (2, "distinct"),
];

impl Generator {
    pub fn story(&mut self) -> Vec<Document> {
        let mut commands = Vec::new();
        if self.random.percent(70) {
            commands.push(self.create());
        }
        if self.random.percent(60) {
            commands.push(self.insert());
        }
        for _ in 0..self.random.between(2, 6) {
            let kind = *self.random.weighted(KINDS);
            commands.push(self.chapter(kind));
        }
        commands
    }

    fn chapter(&mut self, kind: &str) -> Document {
        match kind {
            "createIndexes" => self.create_indexes(),
            "insert" => self.insert(),
            "dropIndexes" => self.drop_indexes(),
            "collMod" => self.coll_mod(),
            "create" => self.create(),
            "rename" => self.rename(),
            "drop" => doc! { "drop": self.story_name() },
            "listIndexes" => doc! { "listIndexes": self.story_name() },
            "listCollections" => self.list_collections(),
            "convertToCapped" => {
                let size = *self.random.pick(&[4096, 100_000, 0, -1]);
                doc! { "convertToCapped": self.story_name(), "size": self.or_wrong(size) }
            }
            "validate" => {
                let mut validate = doc! { "validate": self.story_name() };
                if self.random.percent(30) {
                    let option = *self
                        .random
                        .pick(&["full", "metadata", "background", "nosuch"]);
                    let flag = self.flag();
                    validate.insert(option, flag);
                }
                validate
            }
            "cloneCollectionAsCapped" => {
                let size = *self.random.pick(&[4096, 100_000, 0, -1]);
                let size = self.or_wrong(size);
                let (from, to) = (self.story_name(), self.story_name());
                doc! { "cloneCollectionAsCapped": from, "toCollection": to, "size": size }
            }
            "aggregate" => self.aggregate_of_story(),
            "explain" => {
                let kinds = [
                    "find",
                    "update",
                    "delete",
                    "findAndModify",
                    "count",
                    "distinct",
                ];
                let kind = *self.random.pick(&kinds);
                let command = self.use_of_story(kind);
                self.explained(command)
            }
            _ => self.use_of_story(kind),
        }
    }

    /// An aggregation that may write into one of the story's collections.
    fn aggregate_of_story(&mut self) -> Document {
        let mut stages = self.pipeline(3);
        if self.random.percent(50) {
            let output = self.output();
            stages.push(output);
        }
        doc! { "aggregate": self.story_name(), "pipeline": stages, "cursor": {} }
    }

    fn output(&mut self) -> Document {
        let into = self.story_name();
        if self.random.percent(40) {
            return doc! { "$out": into };
        }
        let mut merge = doc! { "into": into };
        let matched = ["replace", "merge", "keepExisting", "fail", "nosuch"];
        let unmatched = ["insert", "discard", "fail", "nosuch"];
        if self.random.percent(60) {
            let action = *self
                .random
                .weighted(&[(5, 0), (5, 1), (4, 2), (3, 3), (1, 4)]);
            merge.insert("whenMatched", matched[action]);
        }
        if self.random.percent(40) {
            let action = *self.random.weighted(&[(4, 0), (4, 1), (2, 2), (1, 3)]);
            merge.insert("whenNotMatched", unmatched[action]);
        }
        if self.random.percent(15) {
            let on: Bson = match self.random.below(4) {
                0 => "_id".into(),
                1 => vec!["_id", "a"].into(),
                2 => "a".into(),
                _ => self.value(1),
            };
            merge.insert("on", on);
        }
        doc! { "$merge": merge }
    }

    /// What users do beside those who change collections.
    fn use_of_story(&mut self, kind: &str) -> Document {
        let documents = IDS as usize;
        let mut command = match kind {
            "update" => self.update_command(documents),
            "delete" => self.delete(),
            "findAndModify" => self.find_and_modify(documents),
            "find" => self.find(),
            "count" => doc! { "count": "", "query": self.filter(1) },
            _ => doc! { "distinct": "", "key": self.path(), "query": self.filter(1) },
        };
        command.insert(kind, self.story_name());
        command
    }

    fn list_collections(&mut self) -> Document {
        let mut list = doc! { "listCollections": 1 };
        match self.random.below(6) {
            0 => drop(list.insert("filter", doc! { "name": *self.random.pick(&["s", "t"]) })),
            1 => drop(list.insert("nameOnly", self.flag())),
            2 => drop(list.insert("filter", doc! { "type": "view" })),
            3 => drop(list.insert("filter", self.value(1))),
            4 => drop(list.insert("authorizedCollections", self.flag())),
            _ => {}
        }
        list
    }

    fn insert(&mut self) -> Document {
        let count = *self.random.weighted(&[(1, 0), (4, 1), (4, 2), (6, 4)]);
        let documents: Vec<Bson> = (0..count).map(|_| self.inserted()).collect();
        let into = *self.random.weighted(&[(9, COLLECTION), (1, OTHER)]);
        let mut insert = doc! { "insert": into, "documents": documents };
        if self.random.percent(40) {
            insert.insert("ordered", false);
        }
        match self.random.below(30) {
            0 => drop(insert.insert("insert", self.story_name())),
            1 => drop(insert.insert("documents", self.value(1))),
            2 => drop(insert.insert("ordered", self.flag())),
            3 => drop(insert.insert("bypassDocumentValidation", self.flag())),
            4 => drop(insert.insert("nosuch", 1)),
            5 => drop(insert.insert("maxTimeMS", self.time_limit())),
            _ => {}
        }
        insert
    }

    fn inserted(&mut self) -> Bson {
        let id = self.random.between(1, IDS) as i32;
        let mut document = self.document(id);
        match self.random.below(40) {
            0 => drop(document.insert("_id", self.value(2))),
            1 => {
                let name = *self.random.pick(&["$a", "a.b", "", "$set", "a$", "_id.x"]);
                document.insert(name, 1);
            }
            2 => return self.value(1),
            3 => drop(document.insert("b", doc! { "$ref": "c", "$id": 1 })),
            4 => drop(document.insert("b", doc! { "$nosuch": 1, "x.y": 1 })),
            5..=9 => {
                let place = self.place();
                document.insert("p", place);
            }
            _ => {}
        }
        document.into()
    }

    /// Somewhere on a plane or on the Earth, or nowhere.
    fn place(&mut self) -> Bson {
        let places: [Bson; 10] = [
            vec![1, 2].into(),
            doc! { "type": "Point", "coordinates": [1, 2] }.into(),
            doc! { "x": 3.5, "y": 4 }.into(),
            doc! { "type": "LineString", "coordinates": [[0, 0], [1, 1]] }.into(),
            doc! { "type": "Polygon", "coordinates": [[[0, 0], [0, 1], [1, 1], [0, 0]]] }.into(),
            doc! { "type": "Point", "coordinates": [200, 2] }.into(),
            doc! { "type": "Point" }.into(),
            vec![-190, 0].into(),
            vec![1].into(),
            vec![vec![1, 2], vec![3, 4]].into(),
        ];
        self.random.pick(&places).clone()
    }
}
