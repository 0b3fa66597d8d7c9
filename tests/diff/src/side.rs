//! One server under test, with the database that a worker has there.

use anyhow::Result;
use bson::{Bson, Document, doc};

use crate::case::{
    self, COLLECTION, Case, collection_at, foreign_documents, named, view_over, view_pipeline,
};
use crate::compare::Told;
use crate::generate::{geo, text};
use crate::peer::{Answer, Peer};
use crate::shape::Shape;
use crate::story;

pub struct Side {
    peer: Peer,
    database: String,
    /// The collections, the first one without indexes.
    collections: Vec<Collection>,
    /// Cases that were played.
    cases: u64,
    /// The documents of a case are copied until there are as many.
    documents_min: usize,
    /// The story's commands that were run one after the other, since its database was empty.
    told: Option<Vec<Document>>,
}

/// More than a case with copied documents returns.
const BATCH_OF_MANY: i32 = 1_000_000;

/// Collections with indexes that are kept for cases to come.
const KEPT: usize = 24;

/// A collection of a side, whose place gives it its name.
struct Collection {
    indexes: Vec<Document>,
    /// What it holds; `None` once that is unknown.
    holds: Option<Vec<Document>>,
    /// When it was last asked for, counted by cases.
    used: u64,
}

impl Collection {
    fn new(indexes: &[Document]) -> Self {
        Self {
            indexes: indexes.to_vec(),
            holds: None,
            used: 0,
        }
    }
}

impl Side {
    pub fn new(address: &str, database: &str) -> Self {
        Self {
            peer: Peer::new(address),
            database: database.to_owned(),
            collections: Vec::new(),
            cases: 0,
            documents_min: 0,
            told: None,
        }
    }

    /// A side on which cases have so many documents that several workers share in them.
    pub fn with_copies(self, documents_min: usize) -> Self {
        Self {
            documents_min,
            ..self
        }
    }

    /// Makes the collections that every case may read.
    pub fn prepare(&mut self) -> Result<()> {
        self.peer
            .must(&self.database, &doc! { "dropDatabase": 1 })?;
        self.peer
            .must(&self.database, &doc! { "create": COLLECTION })?;
        self.make_view(COLLECTION)?;
        self.peer.must(&self.database, &doc! { "create": "d" })?;
        let insert = doc! { "insert": "d", "documents": foreign_documents() };
        self.peer.must(&self.database, &insert)?;
        self.prepare_searched()?;
        self.collections = vec![Collection::new(&[])];
        self.told = None;
        Ok(())
    }

    /// The collections that are searched.
    fn prepare_searched(&mut self) -> Result<()> {
        for (name, version) in text::COLLECTIONS {
            let create = doc! { "createIndexes": *name, "indexes": [text::index(*version)] };
            self.peer.must(&self.database, &create)?;
            let insert = doc! { "insert": *name, "documents": text::documents() };
            self.peer.must(&self.database, &insert)?;
        }
        for name in geo::COLLECTIONS {
            let create = doc! { "createIndexes": *name, "indexes": geo::indexes(name) };
            self.peer.must(&self.database, &create)?;
            let insert = doc! { "insert": *name, "documents": geo::documents() };
            self.peer.must(&self.database, &insert)?;
        }
        Ok(())
    }

    /// Through a router: the collection `c` alone, half of it on each of two shards, by its ids or by
    /// their hashes.
    pub fn prepare_sharded(&mut self, shards: [&str; 2], is_hashed: bool) -> Result<()> {
        let namespace = format!("{}.{COLLECTION}", self.database);
        self.peer
            .must(&self.database, &doc! { "dropDatabase": 1 })?;
        self.peer
            .must("admin", &doc! { "enableSharding": &self.database })?;
        let by = match is_hashed {
            true => Bson::from("hashed"),
            false => Bson::Int32(1),
        };
        let shard = doc! { "shardCollection": &namespace, "key": { "_id": by } };
        self.peer.must("admin", &shard)?;
        // By their hashes they are on all shards at once.
        if !is_hashed {
            self.peer.must(
                "admin",
                &doc! { "split": &namespace, "middle": { "_id": 4 } },
            )?;
            for (id, shard) in [(0, shards[0]), (9, shards[1])] {
                let to = doc! { "moveChunk": &namespace, "find": { "_id": id }, "to": shard };
                // It may be there already.
                let _ = self.peer.run("admin", &to);
            }
        }
        let insert = doc! { "insert": "d", "documents": foreign_documents() };
        self.peer.must(&self.database, &insert)?;
        self.make_view(COLLECTION)?;
        self.prepare_searched()?;
        self.collections = vec![Collection::new(&[])];
        Ok(())
    }

    fn make_view(&mut self, collection: &str) -> Result<()> {
        let create = doc! {
            "create": view_over(collection), "viewOn": collection, "pipeline": view_pipeline(),
        };
        self.peer.must(&self.database, &create).map(drop)
    }

    pub fn drop_database(&mut self) {
        for database in [self.database.clone(), story::database(&self.database)] {
            let _ = self.peer.run(&database, &doc! { "dropDatabase": 1 });
        }
    }

    /// What the server says to a command of a story, and what its collections are then.
    fn next_of_story(&mut self, before: &[Document], command: &Document) -> Told {
        self.go_on_from(before)
            .and_then(|()| self.tell_next(command))
            .unwrap_or_else(|told| told)
    }

    /// Brings the story's database to where these commands lead.
    fn go_on_from(&mut self, before: &[Document]) -> Result<(), Told> {
        let before = before.iter().filter(|command| !story::only_reads(command));
        let before: Vec<Document> = before.cloned().collect();
        if self.told.as_ref() == Some(&before) {
            return Ok(());
        }
        self.told = None;
        self.in_story(&doc! { "dropDatabase": 1 })?;
        for command in &before {
            self.in_story(command)?;
        }
        self.told = Some(before);
        Ok(())
    }

    fn tell_next(&mut self, command: &Document) -> Result<Told, Told> {
        if story::only_reads(command) {
            let reply = self.in_story(command)?;
            return Ok(Told::Reply { reply, state: None });
        }
        let before = self.told.take();
        let reply = self.in_story(command)?;
        let mut state = Vec::new();
        for look in story::looks() {
            let shown = story::as_state(self.in_story(&look)?);
            state.push((story::name_of(&look), shown));
        }
        self.told = before.map(|mut told| {
            told.push(command.clone());
            told
        });
        let state = Some(Shape::Document(state));
        Ok(Told::Reply { reply, state })
    }

    fn in_story(&mut self, command: &Document) -> Result<Shape, Told> {
        let database = story::database(&self.database);
        let (database, command) = story::addressed(command, &database);
        self.run(&database, &command)
    }

    /// What the server says to a case, in a collection with these indexes. `None` if there can be no
    /// such indexes, or not over the documents.
    pub fn tell(&mut self, case: &Case, indexes: &[Document]) -> Option<Told> {
        if let Some(before) = &case.before {
            return Some(self.next_of_story(before, &case.command));
        }
        let place = match self.place_of(indexes) {
            Ok(place) => place,
            Err(told) => return told,
        };
        if let Err(told) = self.load(&case.documents, place) {
            return told;
        }
        Some(self.told(&case.command, place))
    }

    /// Where the collection with these indexes is; it may be there already.
    fn place_of(&mut self, indexes: &[Document]) -> Result<usize, Option<Told>> {
        self.cases += 1;
        let there = |collection: &Collection| collection.indexes == indexes;
        let place = match self.collections.iter().position(there) {
            Some(place) => place,
            None => self.make(indexes)?,
        };
        self.collections[place].used = self.cases;
        Ok(place)
    }

    /// Makes a collection with these indexes, in the place of the one that was asked for the longest
    /// time ago if there are many.
    fn make(&mut self, indexes: &[Document]) -> Result<usize, Option<Told>> {
        let oldest = (1..self.collections.len()).min_by_key(|at| self.collections[*at].used);
        let place = match oldest {
            Some(oldest) if self.collections.len() > KEPT => oldest,
            _ => self.collections.len(),
        };
        let collection = collection_at(place);
        if place < self.collections.len() {
            // Until the new one is whole no case finds it.
            self.collections[place].indexes.clear();
            for name in [&view_over(&collection), &collection] {
                self.reply(&doc! { "drop": name }).map_err(Some)?;
            }
        }
        let create = doc! { "createIndexes": &collection, "indexes": named(indexes) };
        let reply = self.reply(&create).map_err(Some)?;
        if reply.number("ok") != Some(1) {
            return Err(None);
        }
        self.make_view(&collection).map_err(|_| None)?;
        match self.collections.get_mut(place) {
            Some(there) => *there = Collection::new(indexes),
            None => self.collections.push(Collection::new(indexes)),
        }
        Ok(place)
    }

    /// Puts the documents there, and nothing else; they may be there already.
    fn load(&mut self, documents: &[Document], place: usize) -> Result<(), Option<Told>> {
        if self.collections[place].holds.as_deref() == Some(documents) {
            return Ok(());
        }
        let collection = collection_at(place);
        self.collections[place].holds = None;
        let clear = doc! { "delete": &collection, "deletes": [{ "q": {}, "limit": 0 }] };
        self.reply(&clear).map_err(Some)?;
        if !documents.is_empty() {
            let there = case::copies(documents, self.documents_min);
            let count = there.len() as i64;
            let insert = doc! { "insert": collection, "documents": there, "ordered": false };
            let reply = self.reply(&insert).map_err(Some)?;
            if reply.number("n") != Some(count) {
                return Err(None);
            }
        }
        self.collections[place].holds = Some(documents.to_vec());
        Ok(())
    }

    fn told(&mut self, command: &Document, place: usize) -> Told {
        let collection = collection_at(place);
        let writes = case::writes(command);
        if writes {
            self.collections[place].holds = None;
        }
        let mut command = case::on(command, &collection);
        if self.documents_min > 0 {
            case::widen_batch(&mut command, BATCH_OF_MANY);
        }
        let reply = match self.reply(&command) {
            Ok(reply) => reply,
            Err(told) => return told,
        };
        if !writes {
            return Told::Reply { reply, state: None };
        }
        if !self.collections[place].indexes.is_empty()
            && let Err(told) = self.check_indexes(&collection)
        {
            return told;
        }
        let sort = doc! { "_id": 1 };
        let find = doc! { "find": &collection, "sort": sort, "batchSize": BATCH_OF_MANY };
        match self.reply(&find) {
            Ok(after) => {
                let state = after
                    .get("cursor")
                    .and_then(|cursor| cursor.get("firstBatch"));
                Told::Reply {
                    reply,
                    state: state.cloned(),
                }
            }
            Err(told) => told,
        }
    }

    /// What the server finds wrong with the indexes stands for its answer.
    fn check_indexes(&mut self, collection: &str) -> Result<(), Told> {
        let reply = self.reply(&doc! { "validate": collection })?;
        let valid = reply.get("valid").map(Shape::text);
        match valid.as_deref() {
            Some("true") => Ok(()),
            _ => Err(Told::Reply { reply, state: None }),
        }
    }

    fn reply(&mut self, command: &Document) -> Result<Shape, Told> {
        let database = self.database.clone();
        self.run(&database, command)
    }

    fn run(&mut self, database: &str, command: &Document) -> Result<Shape, Told> {
        match self.peer.run(database, command) {
            Answer::Reply(reply) => Ok(Shape::of_reply(&reply)),
            Answer::Hung => Err(Told::Hung),
            Answer::Closed => Err(Told::Closed),
        }
    }
}
