//! One server under test, with the database that a worker has there.

use anyhow::Result;
use bson::{Document, doc};

use crate::case::{
    self, COLLECTION, Case, collection_with, foreign_documents, index_sets, view_over,
    view_pipeline,
};
use crate::compare::Told;
use crate::generate::{geo, text};
use crate::peer::{Answer, Peer};
use crate::shape::Shape;
use crate::story;

pub struct Side {
    peer: Peer,
    database: String,
    /// What each collection holds, by its set of indexes; `None` once that is unknown.
    loaded: Vec<Option<Vec<Document>>>,
    /// The story's commands that were run one after the other, since its database was empty.
    told: Option<Vec<Document>>,
}

impl Side {
    pub fn new(address: &str, database: &str) -> Self {
        Self {
            peer: Peer::new(address),
            database: database.to_owned(),
            loaded: vec![None; index_sets().len()],
            told: None,
        }
    }

    /// Makes the collections and their indexes.
    pub fn prepare(&mut self) -> Result<()> {
        self.peer
            .must(&self.database, &doc! { "dropDatabase": 1 })?;
        for (number, indexes) in index_sets().into_iter().enumerate() {
            let collection = collection_with(number);
            self.peer
                .must(&self.database, &doc! { "create": &collection })?;
            let name = |(at, mut index): (usize, Document)| {
                index.insert("name", format!("i{at}"));
                index
            };
            let indexes: Vec<Document> = indexes.into_iter().enumerate().map(name).collect();
            if !indexes.is_empty() {
                let create = doc! { "createIndexes": &collection, "indexes": indexes };
                self.peer.must(&self.database, &create)?;
            }
            self.make_view(&collection)?;
        }
        self.peer.must(&self.database, &doc! { "create": "d" })?;
        let insert = doc! { "insert": "d", "documents": foreign_documents() };
        self.peer.must(&self.database, &insert)?;
        self.prepare_searched()?;
        self.loaded.fill(None);
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

    /// Through a router: the collection `c` alone, half of it on each of two shards.
    pub fn prepare_sharded(&mut self, shards: [&str; 2]) -> Result<()> {
        let namespace = format!("{}.{COLLECTION}", self.database);
        self.peer
            .must(&self.database, &doc! { "dropDatabase": 1 })?;
        self.peer
            .must("admin", &doc! { "enableSharding": &self.database })?;
        let shard = doc! { "shardCollection": &namespace, "key": { "_id": 1 } };
        self.peer.must("admin", &shard)?;
        self.peer.must(
            "admin",
            &doc! { "split": &namespace, "middle": { "_id": 4 } },
        )?;
        for (id, shard) in [(0, shards[0]), (9, shards[1])] {
            let to = doc! { "moveChunk": &namespace, "find": { "_id": id }, "to": shard };
            // It may be there already.
            let _ = self.peer.run("admin", &to);
        }
        let insert = doc! { "insert": "d", "documents": foreign_documents() };
        self.peer.must(&self.database, &insert)?;
        self.make_view(COLLECTION)?;
        self.prepare_searched()?;
        self.loaded.fill(None);
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

    /// What the server says to a case, in the collection with this set of indexes. `None` if the
    /// documents cannot be put there.
    pub fn tell(&mut self, case: &Case, indexes: usize) -> Option<Told> {
        if let Some(before) = &case.before {
            return Some(self.next_of_story(before, &case.command));
        }
        if let Err(told) = self.load(&case.documents, indexes) {
            return told;
        }
        Some(self.told(&case.command, indexes))
    }

    /// Puts the documents there, and nothing else; they may be there already.
    fn load(&mut self, documents: &[Document], indexes: usize) -> Result<(), Option<Told>> {
        if self.loaded[indexes].as_deref() == Some(documents) {
            return Ok(());
        }
        let collection = collection_with(indexes);
        self.loaded[indexes] = None;
        let clear = doc! { "delete": &collection, "deletes": [{ "q": {}, "limit": 0 }] };
        self.reply(&clear).map_err(Some)?;
        if !documents.is_empty() {
            let insert = doc! { "insert": collection, "documents": documents, "ordered": false };
            let reply = self.reply(&insert).map_err(Some)?;
            if reply.number("n") != Some(documents.len() as i64) {
                return Err(None);
            }
        }
        self.loaded[indexes] = Some(documents.to_vec());
        Ok(())
    }

    fn told(&mut self, command: &Document, indexes: usize) -> Told {
        let collection = collection_with(indexes);
        let writes = case::writes(command);
        if writes {
            self.loaded[indexes] = None;
        }
        let reply = match self.reply(&case::on(command, &collection)) {
            Ok(reply) => reply,
            Err(told) => return told,
        };
        if !writes {
            return Told::Reply { reply, state: None };
        }
        let find = doc! { "find": collection, "sort": { "_id": 1 }, "batchSize": 1000 };
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
