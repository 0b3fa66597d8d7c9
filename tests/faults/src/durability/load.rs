//! Writers, each with documents of its own, that know what every one of them may be: what was
//! acknowledged last or, after a statement without an answer, what that would have made of it.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Database};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub const DATABASE: &str = "durability";
/// So many statements of a session go in one command.
const NUMBERED_STATEMENTS: i64 = 5;
const TIMEOUT: Duration = Duration::from_secs(30);
const DOCUMENTS_MAX: usize = 60;
const OP_MSG: i32 = 2013;
const DUPLICATE_KEY: i32 = 11000;

/// What matters of a document; the rest follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    v: i64,
    u: i64,
}

#[derive(Clone, Debug)]
struct Numbered {
    command: Document,
    /// What the document counts once the statement was carried out.
    makes: i64,
    answered: bool,
}

pub struct Writer {
    number: i64,
    rng: StdRng,
    acknowledged: BTreeMap<i64, Content>,
    /// What the statement without an answer would have made of these documents.
    pending: BTreeMap<i64, Option<Content>>,
    next_id: i64,
    next_u: i64,
    session: Bson,
    next_transaction: i64,
    /// The last statement that can be repeated.
    numbered: Option<Numbered>,
    counted: i64,
    counts_pending: i64,
}

/// What all writers of a round share.
pub struct Shared {
    pub stop: AtomicBool,
    pub statements: AtomicU64,
    pub concern: Document,
    pub host: String,
    /// A single server does not take numbered statements.
    pub has_sessions: bool,
}

enum Answer {
    Reply(Document),
    /// Nobody knows what became of it.
    None,
}

async fn ask(database: &Database, command: &Document) -> Result<Answer> {
    let answer = database.run_command(command.clone()).into_future();
    match tokio::time::timeout(TIMEOUT, answer).await {
        Err(_) => bail!("no answer within {TIMEOUT:?} to {command}"),
        Ok(Err(error)) => match &*error.kind {
            mongodb::error::ErrorKind::Command(known) if !is_passing(known.code) => {
                bail!("{error} answers {command}")
            }
            _ => Ok(Answer::None),
        },
        Ok(Ok(reply)) if reply.contains_key("writeConcernError") => Ok(Answer::None),
        Ok(Ok(reply)) => Ok(Answer::Reply(reply)),
    }
}

/// Asks on a connection of its own: the driver would put another session in place of ours.
async fn ask_numbered(host: &str, command: &Document) -> Result<Answer> {
    let mut command = command.clone();
    command.insert("$db", DATABASE);
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(host).await?;
        let body = bson::serialize_to_vec(&command).map_err(std::io::Error::other)?;
        let mut message = Vec::new();
        for number in [21 + body.len() as i32, 1, 0, OP_MSG, 0] {
            message.extend_from_slice(&number.to_le_bytes());
        }
        message.push(0);
        message.extend_from_slice(&body);
        stream.write_all(&message).await?;
        let mut head = [0; 21];
        stream.read_exact(&mut head).await?;
        let length = i32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut reply = vec![0; usize::try_from(length - 21).map_err(std::io::Error::other)?];
        stream.read_exact(&mut reply).await?;
        bson::deserialize_from_slice::<Document>(&reply).map_err(std::io::Error::other)
    };
    let reply = match tokio::time::timeout(TIMEOUT, asked).await {
        Err(_) => bail!("no answer within {TIMEOUT:?} to {command}"),
        Ok(Err(_)) => return Ok(Answer::None),
        Ok(Ok(reply)) => reply,
    };
    let code = reply.get_i32("code").unwrap_or(0);
    if reply.get_f64("ok").is_ok_and(|ok| ok == 1.0) && !reply.contains_key("writeConcernError") {
        return Ok(Answer::Reply(reply));
    }
    ensure!(
        reply.contains_key("writeConcernError") || is_passing(code),
        "{reply} answers {command}"
    );
    Ok(Answer::None)
}

/// What a member says that is about to go, or no longer leads.
fn is_passing(code: i32) -> bool {
    matches!(code, 64 | 91 | 189 | 10107 | 11600 | 11602 | 13435 | 13436)
}

impl Writer {
    pub fn new(number: i64, seed: u64) -> Writer {
        let id = bson::Uuid::new();
        Writer {
            number,
            rng: StdRng::seed_from_u64(seed),
            acknowledged: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_id: 0,
            next_u: 0,
            session: doc! { "id": id }.into(),
            next_transaction: 1,
            numbered: None,
            counted: 0,
            counts_pending: 0,
        }
    }

    /// Writes until told to stop or something is not answered.
    pub async fn run(&mut self, client: &Client, shared: &Shared) -> Result<()> {
        let database = client.database(DATABASE);
        while !shared.stop.load(Ordering::Relaxed) {
            if !self.statement(&database, shared).await? {
                return Ok(());
            }
            shared.statements.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn statement(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        match self.rng.random_range(0..10) {
            0 | 1 => self.insert(database, shared).await,
            2 => self.update_one(database, shared).await,
            3 => self.update_many(database, shared).await,
            4 => self.delete(database, shared).await,
            5 => self.find_and_modify(database, shared).await,
            6 => self.upsert(database, shared).await,
            7 if shared.has_sessions => self.numbered(shared).await,
            8 => self.duplicate(database, shared).await,
            _ => self.count(database, shared).await,
        }
    }

    fn document(&self, id: i64, content: Content) -> Document {
        let Content { v, u } = content;
        doc! {
            "_id": self.name(id), "w": self.number, "n": id, "v": v,
            "u": format!("{}-{u}", self.number), "tags": [u, u + 1], "pad": "x".repeat(100),
        }
    }

    fn name(&self, id: i64) -> String {
        format!("{}-{id}", self.number)
    }

    fn fresh(&mut self) -> Content {
        self.next_u += 2;
        Content {
            v: 0,
            u: self.next_u,
        }
    }

    fn any(&mut self) -> Option<(i64, Content)> {
        let count = self.acknowledged.len();
        if count == 0 {
            return None;
        }
        let at = self.rng.random_range(0..count);
        self.acknowledged
            .iter()
            .nth(at)
            .map(|(id, content)| (*id, *content))
    }

    /// Sends a statement that makes these documents so. False if there was no answer.
    async fn send(
        &mut self,
        database: &Database,
        mut command: Document,
        shared: &Shared,
        makes: BTreeMap<i64, Option<Content>>,
    ) -> Result<Option<Document>> {
        command.insert("writeConcern", shared.concern.clone());
        self.pending = makes;
        let Answer::Reply(reply) = ask(database, &command).await? else {
            return Ok(None);
        };
        ensure!(
            !reply.contains_key("writeErrors"),
            "{reply} answers {command}"
        );
        for (id, content) in std::mem::take(&mut self.pending) {
            match content {
                Some(content) => self.acknowledged.insert(id, content),
                None => self.acknowledged.remove(&id),
            };
        }
        Ok(Some(reply))
    }

    async fn insert(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        if self.acknowledged.len() > DOCUMENTS_MAX {
            return self.delete(database, shared).await;
        }
        let (mut documents, mut makes) = (Vec::new(), BTreeMap::new());
        for _ in 0..self.rng.random_range(1..8) {
            let content = self.fresh();
            self.next_id += 1;
            documents.push(self.document(self.next_id, content));
            makes.insert(self.next_id, Some(content));
        }
        let count = documents.len() as i32;
        let command = doc! { "insert": "docs", "documents": documents };
        let Some(reply) = self.send(database, command, shared, makes).await? else {
            return Ok(false);
        };
        ensure!(
            reply.get_i32("n").ok() == Some(count),
            "{reply} to {count} inserts"
        );
        Ok(true)
    }

    async fn update_one(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let Some((id, before)) = self.any() else {
            return Ok(true);
        };
        let u = self.fresh().u;
        let content = Content { u, ..before };
        let replace = self.rng.random_bool(0.5);
        let document = self.document(id, content);
        let update = match replace {
            true => document,
            false => {
                let text = document.get_str("u")?.to_owned();
                doc! { "$set": { "u": text, "tags": [u, u + 1] } }
            }
        };
        let command =
            doc! { "update": "docs", "updates": [{ "q": { "_id": self.name(id) }, "u": update }] };
        let makes = BTreeMap::from([(id, Some(content))]);
        Ok(self.send(database, command, shared, makes).await?.is_some())
    }

    async fn update_many(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let from = self.rng.random_range(0..=self.next_id);
        let to = from + 10;
        let makes: BTreeMap<i64, Option<Content>> = (self.acknowledged.range(from..to))
            .map(|(id, content)| {
                (
                    *id,
                    Some(Content {
                        v: content.v + 1,
                        ..*content
                    }),
                )
            })
            .collect();
        let count = makes.len() as i32;
        let query = doc! { "w": self.number, "n": { "$gte": from, "$lt": to } };
        let update = doc! { "q": query, "u": { "$inc": { "v": 1_i64 } }, "multi": true };
        let command = doc! { "update": "docs", "updates": [update] };
        let Some(reply) = self.send(database, command, shared, makes).await? else {
            return Ok(false);
        };
        ensure!(
            reply.get_i32("nModified").ok() == Some(count),
            "{reply} to {count} updates"
        );
        Ok(true)
    }

    async fn delete(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let from = self.rng.random_range(0..=self.next_id);
        let to = from + self.rng.random_range(1..20);
        let makes: BTreeMap<i64, Option<Content>> = (self.acknowledged.range(from..to))
            .map(|(id, _)| (*id, None))
            .collect();
        let count = makes.len() as i32;
        let query = doc! { "w": self.number, "n": { "$gte": from, "$lt": to } };
        let command = doc! { "delete": "docs", "deletes": [{ "q": query, "limit": 0 }] };
        let Some(reply) = self.send(database, command, shared, makes).await? else {
            return Ok(false);
        };
        ensure!(
            reply.get_i32("n").ok() == Some(count),
            "{reply} to {count} deletes"
        );
        Ok(true)
    }

    async fn find_and_modify(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let Some((id, before)) = self.any() else {
            return Ok(true);
        };
        let query = doc! { "_id": self.name(id) };
        let (command, after) = if self.rng.random_bool(0.2) {
            let command = doc! { "findAndModify": "docs", "query": query, "remove": true };
            (command, None)
        } else {
            let content = Content {
                v: before.v + 1,
                ..before
            };
            let update = doc! { "$inc": { "v": 1_i64 } };
            let command = doc! { "findAndModify": "docs", "query": query, "update": update };
            (command, Some(content))
        };
        let makes = BTreeMap::from([(id, after)]);
        let Some(reply) = self.send(database, command, shared, makes).await? else {
            return Ok(false);
        };
        let value = reply.get_document("value").context("a value")?;
        ensure!(
            value.get_i64("v").ok() == Some(before.v),
            "{reply} where v is {}",
            before.v
        );
        Ok(true)
    }

    async fn upsert(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let content = self.fresh();
        self.next_id += 1;
        let id = self.next_id;
        let document = self.document(id, content);
        let update = doc! { "q": { "_id": self.name(id) }, "u": document, "upsert": true };
        let command = doc! { "update": "docs", "updates": [update] };
        let makes = BTreeMap::from([(id, Some(content))]);
        Ok(self.send(database, command, shared, makes).await?.is_some())
    }

    /// A key that is taken must stay so.
    async fn duplicate(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let Some((_, content)) = self.any() else {
            return Ok(true);
        };
        let document = self.document(-1, content);
        let command = doc! {
            "insert": "docs", "documents": [document], "writeConcern": shared.concern.clone(),
        };
        match ask(database, &command).await? {
            Answer::None => Ok(false),
            Answer::Reply(reply) => {
                let errors = reply.get_array("writeErrors").context("a write error")?;
                let code = errors[0]
                    .as_document()
                    .and_then(|error| error.get_i32("code").ok());
                ensure!(code == Some(DUPLICATE_KEY), "{reply} to a duplicate");
                Ok(true)
            }
        }
    }

    /// A counter of all writers.
    async fn count(&mut self, database: &Database, shared: &Shared) -> Result<bool> {
        let by = doc! { "$inc": { "all": 1_i64, self.number.to_string(): 1_i64 } };
        let update = doc! { "q": { "_id": "counters" }, "u": by, "upsert": true };
        let command = doc! {
            "update": "counters", "updates": [update], "writeConcern": shared.concern.clone(),
        };
        self.counts_pending = 1;
        match ask(database, &command).await? {
            Answer::None => Ok(false),
            Answer::Reply(reply) => {
                self.counts_pending = 0;
                // Two upserts at once: one of them may be refused, and did nothing.
                if !reply.contains_key("writeErrors") {
                    self.counted += 1;
                }
                Ok(true)
            }
        }
    }

    /// Statements of a session, which can be repeated. All of them change one document; each but the
    /// first finds what those before it did.
    async fn numbered(&mut self, shared: &Shared) -> Result<bool> {
        let makes = self.numbered.as_ref().map_or(0, |before| before.makes);
        let increment = |at: i64| {
            let name = self.name(0);
            let filter = match at {
                0 => doc! { "_id": name },
                _ => doc! { "_id": { "$gte": &name, "$lte": name }, "v": makes + at },
            };
            doc! { "q": filter, "u": { "$inc": { "v": 1_i64 } }, "upsert": at == 0 }
        };
        let updates: Vec<Document> = (0..NUMBERED_STATEMENTS).map(increment).collect();
        let makes = makes + NUMBERED_STATEMENTS;
        let command = doc! {
            "update": "sessions", "updates": updates, "lsid": self.session.clone(),
            "txnNumber": self.next_transaction, "writeConcern": shared.concern.clone(),
        };
        self.next_transaction += 1;
        let mut numbered = Numbered {
            command,
            makes,
            answered: false,
        };
        let answer = ask_numbered(&shared.host, &numbered.command).await?;
        if let Answer::Reply(reply) = &answer {
            ensure!(counts_all(reply), "{reply} to {}", numbered.command);
            numbered.answered = true;
        }
        let goes_on = numbered.answered;
        self.numbered = Some(numbered);
        Ok(goes_on)
    }

    /// Compares what is there with what may be, and goes on from there. None: the server is gone.
    pub async fn check(&mut self, client: &Client, host: &str) -> Result<()> {
        let database = client.database(DATABASE);
        let mut found = BTreeMap::new();
        let mut cursor = database
            .collection::<Document>("docs")
            .find(doc! { "w": self.number })
            .hint(mongodb::options::Hint::Keys(doc! { "w": 1, "n": 1 }))
            .await
            .context(Gone)?;
        while let Some(document) = cursor.try_next().await.context(Gone)? {
            let id = document.get_i64("n")?;
            let u = document.get_array("tags")?[0].as_i64().context("a tag")?;
            let content = Content {
                v: document.get_i64("v")?,
                u,
            };
            let whole = self.document(id, content);
            ensure!(document == whole, "half a document: {document}");
            ensure!(
                found.insert(id, content).is_none(),
                "{document} is there twice"
            );
        }
        let ids: Vec<i64> = (found.keys().chain(self.acknowledged.keys()))
            .chain(self.pending.keys())
            .copied()
            .collect();
        for id in ids {
            let is = found.get(&id);
            let was = self.acknowledged.get(&id);
            let unanswered = self.pending.get(&id).map(Option::as_ref);
            ensure!(
                is == was || unanswered == Some(is),
                "document {} is {is:?}; acknowledged was {was:?}, unanswered is {unanswered:?}",
                self.name(id)
            );
        }
        self.acknowledged = found;
        self.pending.clear();
        self.check_count(&database).await?;
        self.repeat(&database, host).await
    }

    async fn check_count(&mut self, database: &Database) -> Result<()> {
        let counters = database.collection::<Document>("counters");
        let found = counters
            .find_one(doc! {})
            .await
            .context(Gone)?
            .unwrap_or_default();
        let own = found.get_i64(self.number.to_string()).unwrap_or(0);
        let most = self.counted + self.counts_pending;
        ensure!(
            (self.counted..=most).contains(&own),
            "writer {} counts {own}, not {}..={most}",
            self.number,
            self.counted
        );
        let sum: i64 = (found.iter())
            .filter(|(name, _)| !matches!(name.as_str(), "_id" | "all"))
            .filter_map(|(_, value)| value.as_i64())
            .sum();
        ensure!(
            found.is_empty() || found.get_i64("all").ok() == Some(sum),
            "half a count: {found}"
        );
        (self.counted, self.counts_pending) = (own, 0);
        Ok(())
    }

    /// Repeated statements are answered as before, and carried out once.
    async fn repeat(&mut self, database: &Database, host: &str) -> Result<()> {
        let name = self.name(0);
        let sessions = database.collection::<Document>("sessions");
        let Some(numbered) = &mut self.numbered else {
            return Ok(());
        };
        let before = sessions
            .find_one(doc! { "_id": &name })
            .await
            .context(Gone)?;
        let before = before.map_or(0, |found| found.get_i64("v").unwrap_or(-1));
        let least = match numbered.answered {
            true => numbered.makes,
            false => numbered.makes - NUMBERED_STATEMENTS,
        };
        ensure!(
            (least..=numbered.makes).contains(&before),
            "{name} counts {before}, not {least}..={}",
            numbered.makes
        );
        let mut command = numbered.command.clone();
        command.insert("writeConcern", doc! { "w": "majority", "j": true });
        let Answer::Reply(reply) = ask_numbered(host, &command).await? else {
            bail!(Gone);
        };
        ensure!(counts_all(&reply), "{reply} to repeated {command}");
        numbered.answered = true;
        let after = sessions
            .find_one(doc! { "_id": &name })
            .await
            .context(Gone)?;
        let after = after.map_or(0, |found| found.get_i64("v").unwrap_or(-1));
        ensure!(
            after == numbered.makes,
            "{name} counts {after} after a repetition, not {}",
            numbered.makes
        );
        Ok(())
    }
}

/// Whether each of a session's statements has found its document.
fn counts_all(reply: &Document) -> bool {
    let counted = reply.get_i32("n").map(i64::from);
    counted.is_ok_and(|counted| counted == NUMBERED_STATEMENTS)
}

/// The server went away while it was looked at.
#[derive(Debug)]
pub struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the server is gone")
    }
}

impl std::error::Error for Gone {}
