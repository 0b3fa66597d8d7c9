//! What commands on documents take besides: hints, bounds, variables, limits, and what is wrong.

use bson::{Bson, Document, doc};

use super::Generator;
use crate::case::COLLECTION;

impl Generator {
    /// Most commands have none of these.
    pub fn add_options(&mut self, command: &mut Document) {
        if !self.random.percent(15) {
            return;
        }
        match command.keys().next().map_or("", String::as_str) {
            "find" => self.add_find_option(command),
            "update" => self.add_write_option(command, "updates"),
            "delete" => self.add_write_option(command, "deletes"),
            "findAndModify" => self.add_find_and_modify_option(command),
            "count" => self.add_count_option(command),
            "distinct" => self.add_distinct_option(command),
            _ => {}
        }
    }

    fn hint(&mut self) -> Bson {
        let hints = [
            (8, Bson::Document(doc! { "_id": 1 })),
            (5, "_id_".into()),
            (4, doc! { "$natural": 1 }.into()),
            (4, doc! { "$natural": -1 }.into()),
            (1, doc! { "$natural": 2 }.into()),
            (1, doc! { "$natural": 1, "a": 1 }.into()),
            (2, doc! { "a": 1 }.into()),
            (2, "nosuch".into()),
            (1, doc! {}.into()),
            (1, "".into()),
        ];
        let hint = self.random.weighted(&hints).clone();
        self.or_wrong(hint)
    }

    fn variables(&mut self) -> Bson {
        let variables = match self.random.below(6) {
            0 => doc! { "A": 1 },
            1 => doc! { "v": "$a" },
            2 => doc! { "": 1 },
            3 => doc! { "v": self.expression(1) },
            4 => doc! { "v": { "$const": self.value(0) }, "w": "$$v" },
            _ => doc! { "v": self.value(1) },
        };
        self.or_wrong(variables)
    }

    fn using_variable(&mut self) -> Document {
        let operator = *self.random.pick(&["$eq", "$gt", "$lte"]);
        doc! { "$expr": { operator: [format!("${}", self.path()), "$$v"] } }
    }

    fn limit(&mut self) -> Bson {
        match self.random.below(4) {
            0 => Bson::Int32(self.random.between(-3, 3) as i32),
            1 => self.number(),
            _ => self.value(0),
        }
    }

    pub fn time_limit(&mut self) -> Bson {
        let limits = [
            Bson::Int32(10_000),
            Bson::Int32(0),
            Bson::Int32(-1),
            Bson::Int64(1 << 31),
            Bson::Int32(i32::MAX),
            Bson::Double(10_000.5),
            Bson::Double(20_000.0),
            Bson::Null,
        ];
        let limit = self.random.pick(&limits).clone();
        self.or_wrong(limit)
    }

    fn add_find_option(&mut self, find: &mut Document) {
        match self.random.below(16) {
            0..=1 => drop(find.insert("hint", self.hint())),
            2 => {
                find.insert("let", self.variables());
                find.insert("filter", self.using_variable());
            }
            3 => {
                let name = *self.random.pick(&["min", "max"]);
                let bound = match self.random.percent(70) {
                    true => doc! { "_id": self.value(0) }.into(),
                    false => self.value(1),
                };
                find.insert(name, bound);
                if self.random.percent(80) {
                    find.insert("hint", doc! { "_id": 1 });
                }
            }
            4 => drop(find.insert("returnKey", self.flag())),
            5 => drop(find.insert("singleBatch", self.flag())),
            6 => drop(find.insert("limit", self.limit())),
            7 => drop(find.insert("skip", self.limit())),
            8 => drop(find.insert("batchSize", self.wrong_batch())),
            9 => drop(find.insert("sort", self.odd_sort())),
            10 => drop(find.insert("projection", self.value(1))),
            11 => drop(find.insert("filter", self.value(1))),
            12 => drop(find.insert("maxTimeMS", self.time_limit())),
            13 => drop(find.insert("collation", self.collation())),
            14 => {
                let name = *self.random.pick(&[
                    "tailable",
                    "awaitData",
                    "noCursorTimeout",
                    "allowPartialResults",
                    "allowDiskUse",
                    "oplogReplay",
                    "mirrored",
                ]);
                find.insert(name, self.flag());
            }
            _ => {
                let name = *self
                    .random
                    .pick(&["nosuch", "ntoreturn", "comment", "snapshot"]);
                find.insert(name, self.value(0));
            }
        }
    }

    /// No cursor stays open.
    fn wrong_batch(&mut self) -> Bson {
        match self.random.percent(30) {
            true => Bson::Int32(-1),
            false => match self.value(0) {
                Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => {
                    Bson::Int32(10_000)
                }
                other => other,
            },
        }
    }

    fn odd_sort(&mut self) -> Bson {
        let path = self.path();
        let by: Bson = match self.random.below(6) {
            0 => self.number(),
            1 => doc! { "$meta": *self.random.pick(&["textScore", "randVal", "nosuch"]) }.into(),
            2 => self.value(1),
            3 => return self.value(1),
            4 => return doc! { "$natural": 1, "_id": 1 }.into(),
            _ => {
                let name = *self
                    .random
                    .pick(&["", "a.", ".a", "$a", "a..b", "a.$b", "a.$"]);
                return doc! { name: 1, "_id": 1 }.into();
            }
        };
        doc! { path: by, "_id": 1 }.into()
    }

    fn add_write_option(&mut self, command: &mut Document, statements: &str) {
        if self.random.percent(60) {
            let Ok(list) = command.get_array_mut(statements) else {
                return;
            };
            if let Some(Bson::Document(statement)) = list.first_mut() {
                self.add_statement_option(statement, statements == "updates");
            }
            return;
        }
        match self.random.below(9) {
            0 => drop(command.insert("ordered", self.flag())),
            1 => drop(command.insert("bypassDocumentValidation", self.flag())),
            2 => drop(command.insert("maxTimeMS", self.time_limit())),
            3 => drop(command.insert("let", self.variables())),
            4 => drop(command.insert(statements, self.value(1))),
            5 => drop(command.remove(statements)),
            6 => drop(command.insert("comment", self.value(0))),
            7 => drop(command.insert("nosuch", 1)),
            _ => {
                command.insert("let", self.variables());
                let filter = self.using_variable();
                if let Ok(list) = command.get_array_mut(statements)
                    && let Some(Bson::Document(statement)) = list.first_mut()
                {
                    statement.insert("q", filter);
                    statement.insert("multi", true);
                    if statements == "deletes" {
                        statement.remove("multi");
                    }
                }
            }
        }
    }

    fn add_statement_option(&mut self, statement: &mut Document, is_update: bool) {
        if !is_update {
            match self.random.below(7) {
                0 => drop(statement.insert("limit", self.value(0))),
                1 => drop(statement.remove("limit")),
                2..=3 => drop(statement.insert("hint", self.hint())),
                4 => drop(statement.insert("q", self.value(1))),
                5 => drop(statement.insert("collation", self.collation())),
                _ => drop(statement.insert("nosuch", 1)),
            }
            return;
        }
        match self.random.below(13) {
            0 => drop(statement.insert("upsert", self.flag())),
            1 => drop(statement.insert("multi", self.flag())),
            2 => drop(statement.insert("u", self.value(2))),
            3 => drop(statement.remove("u")),
            4 => drop(statement.insert("q", self.value(1))),
            5..=6 => drop(statement.insert("hint", self.hint())),
            7 => drop(statement.insert("collation", self.collation())),
            8 => drop(statement.insert("arrayFilters", self.odd_array_filters())),
            9 => {
                statement.insert("c", self.variables());
                let expression = self.expression(1);
                statement.insert("u", vec![doc! { "$set": { "n": "$$v", "m": expression } }]);
            }
            10 => drop(statement.insert("upsertSupplied", self.flag())),
            11 => {
                statement.insert("u", self.odd_update());
            }
            _ => drop(statement.insert("nosuch", 1)),
        }
    }

    pub fn odd_array_filters(&mut self) -> Bson {
        let filters = match self.random.below(12) {
            0 => vec![],
            1 => vec![doc! {}],
            2 => vec![doc! { "f": 1 }, doc! { "f": 2 }],
            3 => vec![doc! { "F": 1 }],
            4 => vec![doc! { "1f": 1 }],
            5 => vec![doc! { "f": 1, "g": 1 }],
            6 => vec![doc! { "$or": [{ "f": 1 }, { "f.x": 2 }] }],
            7 => vec![doc! { "$or": [{ "f": 1 }, { "g": 2 }] }],
            8 => vec![doc! { "f": { "$nosuch": 1 } }],
            9 => vec![doc! { "$expr": { "$eq": ["$f", 1] } }],
            10 => vec![doc! { "": 1 }],
            _ => vec![doc! { "f.": 1 }, doc! { "g": self.condition(1) }],
        };
        self.or_wrong(filters)
    }

    /// Updates that are no update, or hardly one.
    fn odd_update(&mut self) -> Bson {
        let path = self.path();
        match self.random.below(14) {
            0 => doc! { "$set": {} }.into(),
            1 => doc! { "$set": { path: 1 }, "a": 1 }.into(),
            2 => doc! { "a": 1, "$set": { path: 1 } }.into(),
            3 => doc! { "$nosuch": { path: 1 } }.into(),
            4 => doc! { "$set": self.value(1) }.into(),
            5 => doc! { "$set": { "_id": self.value(1) } }.into(),
            6 => doc! { "_id": self.value(1), "a": 1 }.into(),
            7 => {
                let name = *self.random.pick(&[
                    "",
                    "a.",
                    ".a",
                    "a..b",
                    "$a",
                    "a.$b",
                    "$",
                    "$.a",
                    "a.$[",
                    "a.$[f",
                    "a.$[f]x",
                    "a.$[].$[]",
                    "a.$[f].$[g]",
                    "$[]",
                    "$[f].a",
                    "a.$.$",
                    "_id.x",
                    "a.$[F]",
                    "a.$[1]",
                    "a.$[f].x",
                    "a.0.$[]",
                    "a.-1",
                    "a.01",
                ]);
                let operator = *self
                    .random
                    .pick(&["$set", "$unset", "$inc", "$push", "$rename"]);
                doc! { operator: { name: self.value(1) } }.into()
            }
            8 => doc! { "$rename": { path: self.value(0) } }.into(),
            9 => doc! { "$push": { path: self.odd_push() } }.into(),
            10 => doc! { "$addToSet": { path: { "$each": self.value(1), "x": 1 } } }.into(),
            11 => doc! { "$currentDate": { path: self.value(1) } }.into(),
            12 => doc! { "$bit": { path: { "and": self.number(), "nosuch": 1 } } }.into(),
            _ => Bson::Array(vec![self.value(1), doc! { "$set": { "a": 1 } }.into()]),
        }
    }

    fn odd_push(&mut self) -> Document {
        let mut push = doc! { "$each": [self.value(1), self.value(1)] };
        match self.random.below(8) {
            0 => drop(push.insert("$each", self.value(1))),
            1 => drop(push.insert("$position", self.number())),
            2 => drop(push.insert("$slice", self.number())),
            3 => drop(push.insert("$sort", self.number())),
            4 => drop(push.insert("$sort", self.value(1))),
            5 => drop(push.insert("$nosuch", 1)),
            6 => drop(push.insert("x", 1)),
            _ => {
                let name = *self.random.pick(&["x.y", "", "$a", "x.", "x..y", "0"]);
                let by = self.random.pick(&[1, -1, 2]);
                push.insert("$sort", doc! { name: *by });
            }
        }
        push
    }

    fn add_find_and_modify_option(&mut self, command: &mut Document) {
        match self.random.below(16) {
            0 => drop(command.insert("remove", self.flag())),
            1 => drop(command.insert("new", self.flag())),
            2 => drop(command.insert("upsert", self.flag())),
            3 => drop(command.insert("update", self.value(2))),
            4 => drop(command.remove("update")),
            5 => drop(command.insert("sort", self.odd_sort())),
            6 => drop(command.insert("hint", self.hint())),
            7 => drop(command.insert("fields", self.find_projection())),
            8 => drop(command.insert("query", self.value(1))),
            9 => drop(command.insert("arrayFilters", self.odd_array_filters())),
            10 => drop(command.insert("collation", self.collation())),
            11 => drop(command.insert("update", self.odd_update())),
            12 => {
                command.insert("let", self.variables());
                command.remove("remove");
                command.insert("update", vec![doc! { "$set": { "n": "$$v" } }]);
            }
            13 => drop(command.insert("maxTimeMS", self.time_limit())),
            14 => drop(command.insert("fields", self.value(1))),
            _ => drop(command.insert("nosuch", 1)),
        }
    }

    fn add_count_option(&mut self, count: &mut Document) {
        match self.random.below(7) {
            0 => drop(count.insert("limit", self.limit())),
            1 => drop(count.insert("skip", self.limit())),
            2 => drop(count.insert("hint", self.hint())),
            3 => drop(count.insert("query", self.value(1))),
            4 => drop(count.insert("collation", self.collation())),
            5 => drop(count.insert("maxTimeMS", self.time_limit())),
            _ => {
                let name = *self.random.pick(&["nosuch", "fields", "comment"]);
                count.insert(name, self.value(0));
            }
        }
    }

    fn add_distinct_option(&mut self, distinct: &mut Document) {
        match self.random.below(5) {
            0 => {
                let key = *self
                    .random
                    .pick(&["", "$a", "a.", ".a", "a..b", "a.$x", "a\u{0}b"]);
                distinct.insert("key", key);
            }
            1 => drop(distinct.insert("key", self.value(0))),
            2 => drop(distinct.insert("query", self.value(1))),
            3 => drop(distinct.insert("collation", self.collation())),
            _ => {
                let name = *self.random.pick(&["nosuch", "hint", "comment", "fields"]);
                distinct.insert(name, self.value(0));
            }
        }
    }

    /// What a projection of a find may hold besides fields and expressions.
    pub fn add_find_projection(&mut self, fields: &mut Document) {
        let path = *self.random.pick(&["a", "b", "a.x", "c"]);
        match self.random.below(12) {
            0..=2 => {
                let slice: Bson = match self.random.below(8) {
                    0..=3 => Bson::Int32(self.random.between(-3, 3) as i32),
                    4..=5 => {
                        let skip = self.random.between(-3, 3) as i32;
                        vec![skip, self.random.between(0, 3) as i32].into()
                    }
                    6 => vec![self.number(), self.number()].into(),
                    _ => self.value(1),
                };
                fields.insert(path, doc! { "$slice": slice });
            }
            3..=5 => {
                let matching = self.condition(1);
                let matching = self.or_wrong(matching);
                fields.insert(path, doc! { "$elemMatch": matching });
            }
            6..=8 => {
                let positional = *self.random.pick(&[
                    "a.$", "a.$", "b.$", "a.x.$", "a.$.x", "$", "a.$.$", "$.a", "_id.$",
                ]);
                fields.insert(positional, 1);
            }
            9 => {
                let name = *self
                    .random
                    .pick(&["", "a.", ".a", "a..b", "$a", "a.$b", "a", "a.x", "a.x.y"]);
                fields.insert(name, self.value(0));
            }
            _ => {}
        }
    }

    pub fn delete(&mut self) -> Document {
        let statement = doc! { "q": self.filter(1), "limit": 0 };
        doc! { "delete": COLLECTION, "deletes": [statement] }
    }
}
