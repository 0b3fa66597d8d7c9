//! The kinds of work of the speed table: how one is done, timed, and what it answered.

use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

use super::data::Sizes;

/// A command, as the manual writes it.
pub type Command = fn(Sizes) -> Document;

pub enum Work {
    /// One command and its reply.
    Reply(Command),
    /// A cursor read to its end; the order of its documents is not told.
    Cursor(Command),
    /// A cursor read to its end; the order is part of the answer.
    Ordered(Command),
    /// A cursor read to its end; which documents it returns is left to chance.
    Random(Command),
    /// Small commands one after another on one connection: one for each so many documents, from the
    /// number of the command.
    Series(usize, fn(Sizes, i32) -> Document),
    /// The driver's `insert_many` into a collection.
    Insert(&'static str, fn(Sizes) -> Vec<RawDocumentBuf>),
    /// The TTL monitor empties a collection: from the first document that goes to the last.
    Expiry(&'static str),
}

/// What a peer answered: peers with the same data have equal ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub documents: u64,
    /// Of all bytes; zero where they were only counted.
    pub hash: u64,
}

/// Whether the answer is hashed or only counted, as in every run that is timed: hashing costs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Hash,
    Count,
}

impl Work {
    pub async fn run(
        &self,
        database: &Database,
        sizes: Sizes,
        look: Look,
    ) -> Result<(Duration, Answer)> {
        match *self {
            Self::Reply(command) => one_reply(database, command(sizes)).await,
            Self::Cursor(command) => read(database, command(sizes), look, Order::Any).await,
            Self::Ordered(command) => read(database, command(sizes), look, Order::Told).await,
            Self::Random(command) => read(database, command(sizes), Look::Count, Order::Any).await,
            Self::Series(divisor, command) => {
                let numbers = 0..sizes.part(divisor);
                series(database, numbers.map(|at| command(sizes, at)).collect()).await
            }
            Self::Expiry(collection) => expire(database, collection).await,
            Self::Insert(collection, documents) => {
                let documents = documents(sizes);
                let started = Instant::now();
                let done = database
                    .collection::<RawDocumentBuf>(collection)
                    .insert_many(&documents)
                    .await?;
                let elapsed = started.elapsed();
                let documents = done.inserted_ids.len() as u64;
                Ok((elapsed, Answer { documents, hash: 0 }))
            }
        }
    }
}

/// Runs what puts things in order; nothing to drop is in order too.
pub async fn prepare(database: &Database, command: Document) -> Result<()> {
    const NAMESPACE_NOT_FOUND: i32 = 26;
    const INDEX_NOT_FOUND: i32 = 27;
    match database.run_command(command).await {
        Ok(reply) => refuse_write_errors(&reply),
        Err(error) => match *error.kind {
            ErrorKind::Command(ref refused)
                if [NAMESPACE_NOT_FOUND, INDEX_NOT_FOUND].contains(&refused.code) =>
            {
                Ok(())
            }
            _ => Err(error.into()),
        },
    }
}

/// What a cursor returns, in any order.
pub async fn answer(database: &Database, command: Document) -> Result<Answer> {
    let (_, answer) = read(database, command, Look::Hash, Order::Any).await?;
    Ok(answer)
}

async fn one_reply(database: &Database, command: Document) -> Result<(Duration, Answer)> {
    let started = Instant::now();
    let reply = database.run_command(command).await?;
    let elapsed = started.elapsed();
    let mut answer = Answer::default();
    answer.add_reply(&reply)?;
    Ok((elapsed, answer))
}

/// How often is looked whether documents have gone.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long that may take.
const EXPIRY_MAX: Duration = Duration::from_secs(300);

async fn expire(database: &Database, collection: &str) -> Result<(Duration, Answer)> {
    let admin = database.client().database("admin");
    let set = |parameter: &str, value: Bson| {
        admin.run_command(doc! { "setParameter": 1, parameter: value })
    };
    let left = || async {
        let count = database.run_command(doc! { "count": collection }).await?;
        anyhow::Ok(count.get_i32("n")?)
    };
    let documents = left().await?;
    set("ttlMonitorSleepSecs", 1.into()).await?;
    set("ttlMonitorEnabled", true.into()).await?;
    let patience = Instant::now();
    while left().await? == documents {
        ensure!(patience.elapsed() < EXPIRY_MAX, "nothing expires");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let started = Instant::now();
    while left().await? > 0 {
        ensure!(patience.elapsed() < EXPIRY_MAX, "not everything expires");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let elapsed = started.elapsed();
    // What is put in order for the next time is not to go at once.
    set("ttlMonitorEnabled", false.into()).await?;
    let documents = u64::try_from(documents)?;
    Ok((elapsed, Answer { documents, hash: 0 }))
}

async fn series(database: &Database, commands: Vec<Document>) -> Result<(Duration, Answer)> {
    let mut replies = Vec::with_capacity(commands.len());
    let started = Instant::now();
    for command in commands {
        replies.push(database.run_command(command).await?);
    }
    let elapsed = started.elapsed();
    let mut answer = Answer::default();
    for reply in &replies {
        answer.add_reply(reply)?;
    }
    Ok((elapsed, answer))
}

async fn read(
    database: &Database,
    command: Document,
    look: Look,
    order: Order,
) -> Result<(Duration, Answer)> {
    let mut answer = Answer::default();
    let started = Instant::now();
    let mut cursor = database.run_cursor_command(command).await?;
    while cursor.advance().await? {
        match look {
            Look::Hash => answer.add(cursor.current().as_bytes(), order),
            Look::Count => answer.documents += 1,
        }
    }
    Ok((started.elapsed(), answer))
}

#[derive(Clone, Copy)]
enum Order {
    Any,
    Told,
}

/// The fields of a reply that tell of the data. The rest is the server's own.
const TELLING: [&str; 7] = [
    "cursor",
    "n",
    "nModified",
    "numIndexesAfter",
    "upserted",
    "value",
    "values",
];

impl Answer {
    fn add(&mut self, bytes: &[u8], order: Order) {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        let so_far = match order {
            Order::Any => self.hash,
            Order::Told => self.hash.wrapping_mul(31),
        };
        self.hash = so_far.wrapping_add(hasher.finish());
        self.documents += 1;
    }

    fn add_reply(&mut self, reply: &Document) -> Result<()> {
        refuse_write_errors(reply)?;
        for field in TELLING {
            match reply.get(field) {
                Some(Bson::Array(values)) => self.add_values(values)?,
                Some(Bson::Document(cursor)) if field == "cursor" => {
                    self.add_values(cursor.get_array("firstBatch")?)?;
                }
                Some(value) => self.add_values(std::slice::from_ref(value))?,
                None => {}
            }
        }
        Ok(())
    }

    fn add_values(&mut self, values: &[Bson]) -> Result<()> {
        for value in values {
            let bytes = RawDocumentBuf::try_from(&doc! { "": value.clone() })
                .context("a value of a reply")?;
            self.add(bytes.as_bytes(), Order::Any);
        }
        Ok(())
    }
}

fn refuse_write_errors(reply: &Document) -> Result<()> {
    let errors = reply.get_array("writeErrors");
    ensure!(errors.is_err(), "the server answered {errors:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(values: &[&[u8]], order: Order) -> Answer {
        let mut answer = Answer::default();
        for value in values {
            answer.add(value, order);
        }
        answer
    }

    #[test]
    fn the_order_counts_only_where_it_is_told() {
        for (order, same) in [(Order::Any, true), (Order::Told, false)] {
            let one = answer(&[b"a", b"b"], order);
            let other = answer(&[b"b", b"a"], order);
            assert_eq!(one == other, same);
        }
    }

    #[test]
    fn another_byte_or_one_more_document_is_another_answer() {
        let answers = [&[b"a".as_slice()][..], &[b"b"], &[b"a", b"a"], &[]];
        for (at, values) in answers.iter().enumerate() {
            for other in &answers[..at] {
                assert_ne!(answer(values, Order::Any), answer(other, Order::Any));
            }
        }
    }

    #[test]
    fn a_reply_is_compared_without_what_is_the_servers_own() -> Result<()> {
        let answer_of = |reply: Document| {
            let mut answer = Answer::default();
            answer.add_reply(&reply).map(|()| answer)
        };
        let one = answer_of(doc! { "n": 3, "ok": 1.0, "electionId": 1 })?;
        assert_eq!(one, answer_of(doc! { "n": 3, "ok": 1.0 })?);
        assert_ne!(one, answer_of(doc! { "n": 4, "ok": 1.0 })?);
        let failed = answer_of(doc! { "n": 3, "writeErrors": [{ "index": 0 }], "ok": 1.0 });
        assert!(failed.is_err());
        Ok(())
    }
}
