//! Whole commands.

use bson::{Bson, Document, doc};

use super::{Generator, geo, text};
use crate::case::{COLLECTION, VIEW};

/// More than any case returns, so that no cursor stays open.
pub const BATCH: i32 = 10_000;

/// Has a command that only reads do so in the view over the collection.
fn read_view(command: &mut Document) {
    if let Some((name, collection)) = command.iter_mut().next()
        && matches!(name.as_str(), "find" | "aggregate" | "count" | "distinct")
    {
        *collection = Bson::String(VIEW.to_owned());
    }
}

/// Gives a command, or each of its statements, a collation.
pub fn collate(command: &mut Document, collation: &Document) {
    let statements = match command.keys().next().map_or("", String::as_str) {
        "update" => command.get_array_mut("updates"),
        "delete" => command.get_array_mut("deletes"),
        _ => {
            command.insert("collation", collation.clone());
            return;
        }
    };
    for statement in statements.into_iter().flatten() {
        if let Bson::Document(statement) = statement {
            statement.insert("collation", collation.clone());
        }
    }
}

/// Whether it is on a collection with documents of its own.
fn searches(command: &Document) -> bool {
    let mut names = text::COLLECTIONS
        .iter()
        .map(|(name, _)| name)
        .chain(geo::COLLECTIONS);
    let on = command.values().next().and_then(Bson::as_str);
    names.any(|name| Some(*name) == on)
}

impl Generator {
    /// A command on a collection that holds this many documents, with ids from 1 on.
    pub fn command(&mut self, documents: usize) -> Document {
        let mut command = self.simple_command(documents);
        if self.random.percent(8) {
            read_view(&mut command);
        }
        let searches = searches(&command);
        if self.random.percent(8) && !searches {
            self.add_collation(&mut command);
        }
        if !searches {
            self.add_options(&mut command);
        }
        match self.random.percent(3) {
            true => self.explained(command),
            false => command,
        }
    }

    /// The command, explained: whether that can be done, and what is wrong otherwise.
    pub fn explained(&mut self, command: Document) -> Document {
        let mut explain = doc! { "explain": command };
        match *self
            .random
            .weighted(&[(6, 'p'), (3, 'e'), (1, 'd'), (1, '?')])
        {
            'p' => drop(explain.insert("verbosity", "queryPlanner")),
            'e' => drop(explain.insert("verbosity", "executionStats")),
            'd' => {}
            _ => drop(explain.insert("verbosity", self.value(0))),
        }
        explain
    }

    /// Where equal strings stand for one another in the reply, only the same ones are equal: which
    /// of several is shown is not defined.
    fn add_collation(&mut self, command: &mut Document) {
        let name = command.keys().next().cloned().unwrap_or_default();
        let mut collation = doc! { "locale": *self.random.pick(&["en", "sv", "fr_CA"]) };
        match name.as_str() {
            "aggregate" | "distinct" => drop(collation.insert("caseFirst", "upper")),
            _ => drop(collation.insert("strength", self.random.between(2, 3) as i32)),
        }
        collate(command, &collation);
    }

    fn simple_command(&mut self, documents: usize) -> Document {
        let kinds = [
            (24, "find"),
            (26, "aggregate"),
            (18, "project"),
            (16, "update"),
            (7, "findAndModify"),
            (3, "delete"),
            (3, "count"),
            (3, "distinct"),
            (4, "text"),
            (4, "geo"),
        ];
        match *self.random.weighted(&kinds) {
            "find" => self.find(),
            "aggregate" if self.random.percent(4) => {
                let mut pipeline = vec![self.documents_stage()];
                pipeline.extend(self.pipeline(4));
                doc! { "aggregate": 1, "pipeline": pipeline, "cursor": { "batchSize": BATCH } }
            }
            "aggregate" => aggregate(self.pipeline(6)),
            "project" => {
                let expression = self.expression(2);
                aggregate(vec![doc! { "$project": { "v": expression } }])
            }
            "update" => self.update_command(documents),
            "findAndModify" => self.find_and_modify(documents),
            "delete" => self.delete(),
            "text" => self.text_command(),
            "geo" => self.geo_command(),
            "count" => {
                let mut count = doc! { "count": COLLECTION, "query": self.filter(2) };
                if self.random.percent(20) {
                    count.insert("limit", self.random.between(0, 3) as i32);
                }
                count
            }
            _ => {
                let key = self.path();
                doc! { "distinct": COLLECTION, "key": key, "query": self.filter(1) }
            }
        }
    }

    pub fn find(&mut self) -> Document {
        let mut find = doc! { "find": COLLECTION, "filter": self.filter(2) };
        if self.random.percent(35) {
            find.insert("projection", self.find_projection());
        }
        if self.random.percent(50) {
            let mut sort = self.sort();
            let cut = self.random.percent(30);
            if cut {
                sort.insert("_id", 1);
            }
            find.insert("sort", sort);
            if cut {
                find.insert("limit", self.random.between(0, 4) as i32);
                find.insert("skip", self.random.between(0, 2) as i32);
            }
        }
        find.insert("batchSize", BATCH);
        find
    }

    pub fn find_projection(&mut self) -> Document {
        let mut fields = self.projection_fields();
        self.add_find_projection(&mut fields);
        fields
    }

    /// A filter that names one document, and more about it for positional paths.
    fn one(&mut self, documents: usize) -> Document {
        // Sometimes an id that no document has.
        let id = self.random.between(1, documents as i64 + 2) as i32;
        let mut filter = if self.random.percent(50) {
            self.filter(1)
        } else {
            Document::new()
        };
        filter.insert("_id", id);
        filter
    }

    pub fn update_command(&mut self, documents: usize) -> Document {
        let multi = self.random.percent(40);
        let filter = if multi {
            self.filter(1)
        } else {
            self.one(documents)
        };
        let update = self.update();
        let mut statement = doc! { "q": filter, "u": update.update, "multi": multi };
        if self.random.percent(30) {
            statement.insert("upsert", true);
        }
        if let Some(filters) = update.array_filters {
            statement.insert("arrayFilters", filters);
        }
        doc! { "update": COLLECTION, "updates": [statement] }
    }

    pub fn find_and_modify(&mut self, documents: usize) -> Document {
        let total = self.random.percent(40);
        let query = if total {
            self.filter(1)
        } else {
            self.one(documents)
        };
        let mut command = doc! { "findAndModify": COLLECTION, "query": query };
        if total {
            let mut sort = self.sort();
            sort.insert("_id", 1);
            command.insert("sort", sort);
        }
        if self.random.percent(20) {
            command.insert("remove", true);
        } else {
            let update = self.update();
            command.insert("update", update.update);
            if let Some(filters) = update.array_filters {
                command.insert("arrayFilters", filters);
            }
            if self.random.percent(60) {
                command.insert("new", true);
            }
            if self.random.percent(30) {
                command.insert("upsert", true);
            }
        }
        if self.random.percent(20) {
            command.insert("fields", self.find_projection());
        }
        command
    }
}

pub fn aggregate(pipeline: Vec<Document>) -> Document {
    doc! { "aggregate": COLLECTION, "pipeline": pipeline, "cursor": { "batchSize": BATCH } }
}
