//! A writer that makes and drops collections and indexes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Database};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::load::{DATABASE, Gone, Shared};

const TIMEOUT: Duration = Duration::from_secs(30);
const INDEX: &str = "tags_pad";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scratch {
    documents: i64,
    indexed: bool,
}

pub struct Definer {
    rng: StdRng,
    next: u64,
    scratch: BTreeMap<String, Scratch>,
    /// What the command without an answer would have made of a collection.
    pending: Option<(String, Option<Scratch>)>,
}

impl Definer {
    pub fn new(seed: u64) -> Definer {
        Definer {
            rng: StdRng::seed_from_u64(seed),
            next: 0,
            scratch: BTreeMap::new(),
            pending: None,
        }
    }

    pub async fn run(&mut self, client: &Client, shared: &Shared) -> Result<()> {
        let database = client.database(DATABASE);
        while !shared.stop.load(Ordering::Relaxed) {
            if !self.command(&database, shared).await? {
                return Ok(());
            }
            shared.statements.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn command(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let known: Vec<String> = self.scratch.keys().cloned().collect();
        let any = match known.len() {
            0 => None,
            count => known.get(self.rng.random_range(0..count)).cloned(),
        };
        let (name, mut command, makes) = match (self.rng.random_range(0..4), any) {
            (0 | 1, Some(name)) => {
                let before = self.scratch[&name];
                let indexed = !before.indexed;
                let command = if indexed {
                    let index = doc! { "key": { "tags": 1, "pad": 1 }, "name": INDEX };
                    doc! { "createIndexes": &name, "indexes": [index] }
                } else {
                    doc! { "dropIndexes": &name, "index": INDEX }
                };
                (name, command, Some(Scratch { indexed, ..before }))
            }
            (2, Some(name)) => (name.clone(), doc! { "drop": name }, None),
            _ if known.len() < 6 => {
                self.next += 1;
                let name = format!("scratch{}", self.next);
                // Some are so large that their index is built in several batches.
                let (documents, pad) = match self.rng.random_bool(0.1) {
                    true => (200, 20_000),
                    false => (self.rng.random_range(1..200_i64), 50),
                };
                let inserts: Vec<Document> = (0..documents)
                    .map(|n| doc! { "_id": n, "tags": [n, n + 1], "pad": "y".repeat(pad) })
                    .collect();
                let command = doc! { "insert": &name, "documents": inserts };
                let makes = Scratch {
                    documents,
                    indexed: false,
                };
                (name, command, Some(makes))
            }
            _ => return Ok(true),
        };
        command.insert("writeConcern", shared.concern.clone());
        self.pending = Some((name.clone(), makes));
        let answer = std::future::IntoFuture::into_future(database.run_command(command.clone()));
        match tokio::time::timeout(TIMEOUT, answer).await {
            Err(_) => bail!("no answer within {TIMEOUT:?} to {command}"),
            Ok(Err(_)) => Ok(false),
            Ok(Ok(reply)) if reply.contains_key("writeConcernError") => Ok(false),
            Ok(Ok(reply)) => {
                ensure!(
                    !reply.contains_key("writeErrors"),
                    "{reply} answers {command}"
                );
                self.note(&name, makes);
                self.pending = None;
                Ok(true)
            }
        }
    }

    fn note(&mut self, name: &str, is: Option<Scratch>) {
        match is {
            Some(scratch) => self.scratch.insert(name.to_owned(), scratch),
            None => self.scratch.remove(name),
        };
    }

    pub async fn check(&mut self, client: &Client) -> Result<()> {
        let database = client.database(DATABASE);
        let names = database.list_collection_names().await.context(Gone)?;
        let mut found = BTreeMap::new();
        for name in names.into_iter().filter(|name| name.starts_with("scratch")) {
            let collection = database.collection::<Document>(&name);
            let documents = collection.find(doc! {}).sort(doc! { "_id": 1 });
            let documents = documents.await.context(Gone)?;
            let documents: Vec<Document> = documents.try_collect().await.context(Gone)?;
            let indexes = collection.list_index_names().await.context(Gone)?;
            let indexed = indexes.iter().any(|index| index == INDEX);
            let whole = (documents.iter().zip(0_i64..))
                .all(|(document, n)| document.get_i64("_id").is_ok_and(|id| id == n));
            ensure!(whole, "collection {name} lacks documents before others");
            let documents = documents.len() as i64;
            found.insert(name, Scratch { documents, indexed });
        }
        let names: Vec<String> = (found.keys().chain(self.scratch.keys())).cloned().collect();
        for name in names {
            let (is, was) = (found.get(&name), self.scratch.get(&name));
            let unanswered = (self.pending.as_ref())
                .filter(|(pending, _)| *pending == name)
                .map(|(_, makes)| makes.as_ref());
            // The collection comes into being before its documents do, and many of them come in parts.
            let begun = was.is_none()
                && unanswered.flatten().zip(is).is_some_and(|(makes, is)| {
                    !is.indexed && (0..makes.documents).contains(&is.documents)
                });
            ensure!(
                is == was || unanswered == Some(is) || begun,
                "collection {name} is {is:?}; acknowledged was {was:?}, unanswered is {unanswered:?}"
            );
        }
        self.scratch = found;
        self.pending = None;
        Ok(())
    }
}
