//! A client that costs next to nothing: OP_MSG requests built beforehand, one blocking socket and one
//! thread per connection, replies counted and not decoded.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::oid::ObjectId;
use bson::{Document, RawDocumentBuf, doc, rawdoc};
use rand::Rng;

use crate::door::{Door, Stream};

/// Documents that the point operations choose from.
pub const POINTS: i32 = 10_000;
/// Messages that each connection goes round through.
const MESSAGES: usize = 512;
const OP_MSG: i32 = 2013;

#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Ping,
    Find,
    FindLinearizable,
    /// On any member.
    FindNearest,
    Increment,
    Insert,
}

impl Operation {
    pub const ALL: [(&'static str, Self); 4] = [
        ("ping", Self::Ping),
        ("point read", Self::Find),
        ("$inc", Self::Increment),
        ("insert", Self::Insert),
    ];

    fn command(self) -> RawDocumentBuf {
        let id = rand::rng().random_range(0..POINTS);
        match self {
            Self::Ping => rawdoc! { "ping": 1, "$db": "bench" },
            Self::Find => rawdoc! {
                "find": "points", "filter": { "_id": id }, "limit": 1, "singleBatch": true, "$db": "bench"
            },
            Self::FindLinearizable => rawdoc! {
                "find": "points", "filter": { "_id": id }, "limit": 1, "singleBatch": true, "$db": "bench",
                "readConcern": { "level": "linearizable" }
            },
            Self::FindNearest => rawdoc! {
                "find": "points", "filter": { "_id": id }, "limit": 1, "singleBatch": true, "$db": "bench",
                "$readPreference": { "mode": "nearest" }
            },
            Self::Increment => rawdoc! {
                "update": "points",
                "updates": [{ "q": { "_id": id }, "u": { "$inc": { "n": 1 } } }],
                "$db": "bench"
            },
            Self::Insert => rawdoc! {
                "insert": "inserted",
                "documents": [{ "_id": ObjectId::from_bytes(PLACEHOLDER), "n": id, "content": "data for content" }],
                "$db": "bench"
            },
        }
    }
}

/// Stands in a built insert where each sent one has a fresh id.
const PLACEHOLDER: [u8; 12] = *b"\xfe\xfdBENCH-ID\xfd\xfe";

struct Message {
    bytes: Vec<u8>,
    id_at: Option<usize>,
}

fn message(operation: Operation) -> Message {
    let body = operation.command();
    let length = 16 + 4 + 1 + body.as_bytes().len();
    let mut bytes = Vec::with_capacity(length);
    for word in [i32::try_from(length).unwrap_or(i32::MAX), 1, 0, OP_MSG, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(body.as_bytes());
    let id_at = bytes
        .windows(PLACEHOLDER.len())
        .position(|window| window == PLACEHOLDER);
    Message { bytes, id_at }
}

/// Operations a second over `connections` for `duration`.
pub fn rate(
    host: &str,
    operation: Operation,
    connections: usize,
    duration: Duration,
) -> Result<f64> {
    rate_of(&[host.to_owned()], operation, connections, duration)
}

/// The same, by connections that are opened so.
pub fn rate_through(
    door: &Door,
    host: &str,
    operation: Operation,
    connections: usize,
    duration: Duration,
) -> Result<f64> {
    let hosts = [host.to_owned()];
    rate_of_all(door, &hosts, operation, connections, duration)
}

/// Operations a second of all hosts together, over `connections` to each.
pub fn rate_of(
    hosts: &[String],
    operation: Operation,
    connections: usize,
    duration: Duration,
) -> Result<f64> {
    rate_of_all(&Door::default(), hosts, operation, connections, duration)
}

fn rate_of_all(
    door: &Door,
    hosts: &[String],
    operation: Operation,
    connections: usize,
    duration: Duration,
) -> Result<f64> {
    let start = Barrier::new(connections * hosts.len() + 1);
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let sockets: Vec<Box<dyn Stream>> = hosts
        .iter()
        .flat_map(|host| (0..connections).map(move |_| door.open(host)))
        .collect::<Result<_>>()?;
    thread::scope(|scope| {
        let workers: Vec<_> = sockets
            .into_iter()
            .map(|mut socket| {
                scope.spawn(|| {
                    work(&mut *socket, operation, &start, &stop, &done).map(|()| drop(socket))
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        thread::sleep(duration);
        let total = done.load(Ordering::Relaxed);
        let elapsed = started.elapsed();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker
                .join()
                .map_err(|_| anyhow::anyhow!("a connection's thread panicked"))??;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate has no such precision")]
        Ok(total as f64 / elapsed.as_secs_f64())
    })
}

fn work(
    socket: &mut dyn Stream,
    operation: Operation,
    start: &Barrier,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Result<()> {
    let mut messages: Vec<Message> = (0..MESSAGES).map(|_| message(operation)).collect();
    let mut buffer = vec![0; 64 * 1024];
    let checked = exchange(socket, &mut messages[0], &mut buffer).and_then(check);
    start.wait();
    checked?;
    for at in (0..MESSAGES).cycle() {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        exchange(socket, &mut messages[at], &mut buffer)?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Sends one message and reads its whole reply.
fn exchange<'a>(
    socket: &mut dyn Stream,
    message: &mut Message,
    buffer: &'a mut [u8],
) -> Result<&'a [u8]> {
    if let Some(at) = message.id_at {
        message.bytes[at..at + PLACEHOLDER.len()].copy_from_slice(&ObjectId::new().bytes());
    }
    socket.write_all(&message.bytes)?;
    let mut have = 0;
    loop {
        let read = socket.read(&mut buffer[have..])?;
        ensure!(read > 0, "the server closed the connection");
        have += read;
        if let Some(length) = buffer.first_chunk::<4>() {
            let length = usize::try_from(i32::from_le_bytes(*length))?;
            if have >= length {
                return Ok(&buffer[..length]);
            }
        }
    }
}

fn check(reply: &[u8]) -> Result<()> {
    let body: Document = bson::deserialize_from_slice(reply.get(21..).context("a short reply")?)?;
    let works = body.get_f64("ok").is_ok_and(|ok| ok == 1.0) && !body.contains_key("writeErrors");
    if works {
        Ok(())
    } else {
        bail!("the server answered {body}")
    }
}

/// The documents that point reads and increments work on.
pub async fn prepare(client: &mongodb::Client) -> Result<()> {
    let points = client.database("bench").collection::<Document>("points");
    points.drop().await?;
    let documents = (0..POINTS).map(|id| doc! { "_id": id, "n": 0, "content": "data for content" });
    points.insert_many(documents).await?;
    Ok(())
}
