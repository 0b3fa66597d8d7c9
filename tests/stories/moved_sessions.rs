//! Writes that are sent again while the documents move from shard to shard: each counts once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape};
use bson::{Bson, Document, doc};

use crate::concerns::{Wire, session};

/// A collection of which negative keys are on one shard and the others on the same, to begin with.
pub fn shard(wire: &mut Wire, collection: &str) -> Result<[String; 2]> {
    let ns = format!("test.{collection}");
    wire.ok("admin", doc! { "balancerStop": 1 })?;
    wire.ok("admin", doc! { "shardCollection": &ns, "key": { "k": 1 } })?;
    wire.ok("admin", doc! { "split": &ns, "middle": { "k": 0 } })?;
    let find = doc! { "find": "databases", "filter": { "_id": "test" } };
    let found = wire.ok("config", find)?;
    let batch = found.get_document("cursor")?.get_array("firstBatch")?;
    let database = batch[0].as_document().context("the database")?;
    let home = database.get_str("primary")?.to_owned();
    let other = if home == "shard0" { "shard1" } else { "shard0" };
    Ok([home, other.to_owned()])
}

pub fn move_to(wire: &mut Wire, collection: &str, k: i32, shard: &str) -> Result<()> {
    let ns = format!("test.{collection}");
    wire.ok(
        "admin",
        doc! { "moveChunk": ns, "find": { "k": k }, "to": shard },
    )
    .map(drop)
}

/// The same with twelve documents, the negative keys moved to the other shard.
pub fn seeded(
    wire: &mut Wire,
    collection: &str,
    document: impl Fn(i32) -> Document,
) -> Result<[String; 2]> {
    let [home, other] = shard(wire, collection)?;
    move_to(wire, collection, -1, &other)?;
    let documents: Vec<Bson> = (-6..6).map(|k| document(k).into()).collect();
    let insert = doc! { "insert": collection, "documents": documents };
    wire.ok("test", insert)?;
    Ok([home, other])
}

/// The commands that are tried, each in a session of its own.
fn commands() -> Vec<Document> {
    let inc = doc! { "$inc": { "n": 1 } };
    vec![
        doc! { "insert": "c", "documents": [{ "_id": 10, "k": 10 }] },
        // On both sides of the cut.
        doc! { "insert": "c", "documents": [
            { "_id": 11, "k": 11 }, { "_id": -11, "k": -11 }, { "_id": 12, "k": 12 },
        ] },
        doc! { "update": "c", "updates": [
            { "q": { "k": 1 }, "u": &inc },
            { "q": { "k": 20, "_id": 20 }, "u": &inc, "upsert": true },
        ] },
        // By `_id` alone: sent to every shard.
        doc! { "update": "c", "updates": [{ "q": { "_id": 2 }, "u": &inc }] },
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] },
        doc! { "findAndModify": "c", "query": { "k": 4 }, "update": &inc, "new": true },
        doc! { "findAndModify": "c", "query": { "k": 5 }, "remove": true },
    ]
}

/// What an answer says that was done, without what tells that it's an old one.
pub fn essence(mut reply: Document) -> Document {
    for name in [
        "retriedStmtIds",
        "retriedStmtId",
        "operationTime",
        "$clusterTime",
    ] {
        reply.remove(name);
    }
    reply
}

#[tokio::test]
async fn a_retry_finds_its_answer_where_the_document_has_moved() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let mut wire = Wire::connect(&cluster.router)?;
    let [home, other] = seeded(&mut wire, "c", |k| doc! { "_id": k, "k": k, "n": 0 })?;

    let numbered = |session: &Document, number: i64, mut command: Document| {
        command.insert("lsid", session.clone());
        command.insert("txnNumber", number);
        command
    };
    let mut tried = Vec::new();
    for command in commands() {
        let command = numbered(&session(), 1, command);
        let reply = wire.ok("test", command.clone())?;
        tried.push((command, essence(reply)));
    }
    // A session that goes on to a later number on the shard that is to receive.
    let busy = session();
    let update = |k: i32| doc! { "update": "c", "updates": [{ "q": { "k": k }, "u": { "$inc": { "n": 1 } } }] };
    let earlier = numbered(&busy, 1, update(0));
    let later = numbered(&busy, 2, update(-1));
    wire.ok("test", earlier.clone())?;
    wire.ok("test", later.clone())?;
    // One that has found nothing yet is no part of the history.
    let missed = numbered(&session(), 1, update(30));
    ensure!(wire.ok("test", missed.clone())?.get_i32("n")? == 0);

    for (round, shard) in [&other, &home, &other].into_iter().enumerate() {
        move_to(&mut wire, "c", 1, shard)?;
        for (command, first) in &tried {
            let reply = wire.ok("test", command.clone())?;
            ensure!(
                essence(reply.clone()) == *first,
                "{round}: {command}: {reply}"
            );
        }
        if round == 0 {
            let reply = wire.run("test", earlier.clone())?;
            ensure!(reply.get_i32("code").ok() == Some(225), "{reply}");
        }
        ensure!(wire.ok("test", later.clone())?.get_i32("nModified")? == 1);
    }
    wire.ok(
        "test",
        doc! { "insert": "c", "documents": [{ "_id": 30, "k": 30, "n": 0 }] },
    )?;
    ensure!(wire.ok("test", missed)?.get_i32("nModified")? == 1);

    let found = wire.ok(
        "test",
        doc! { "find": "c", "filter": {}, "sort": { "_id": 1 } },
    )?;
    let found = found.get_document("cursor")?.get_array("firstBatch")?;
    let counts: Vec<(i32, i32)> = found
        .iter()
        .filter_map(|document| {
            let document = document.as_document()?;
            Some((
                document.get_i32("_id").ok()?,
                document.get_i32("n").unwrap_or(-1),
            ))
        })
        .collect();
    let expected = [
        (-11, -1),
        (-6, 0),
        (-5, 0),
        (-4, 0),
        (-3, 0),
        (-2, 0),
        (-1, 1),
        (0, 1),
        (1, 1),
        (2, 1),
        (4, 1),
        (10, -1),
        (11, -1),
        (12, -1),
        (20, 1),
        (30, 1),
    ];
    ensure!(counts == expected, "{counts:?}");
    Ok(())
}

const COUNTERS: i32 = 24;
const CLIENTS: i32 = 4;
const MOVES: usize = 12;
const CRASHES: usize = 6;

/// What the clients of the story share.
#[derive(Default)]
struct Story {
    /// Shards crash: what is not numbered may have been done or not.
    crashes: bool,
    stop: AtomicBool,
    cut: AtomicUsize,
    told_again: AtomicUsize,
}

/// How often a client has counted each of its documents, and how often all.
type Counts = (Vec<i32>, i32);

/// A client whose connection breaks again and again before it has the answer, and that then sends
/// the same once more.
fn count(router: &str, story: &Story, client: i32) -> Result<Counts> {
    let connect = || Wire::connect_to(router);
    let mut wire = connect()?;
    let lsid = session();
    let own: Vec<i32> = (0..COUNTERS).filter(|k| k % CLIENTS == client).collect();
    let mut counts = vec![0; own.len()];
    let mut everywhere = 0;
    let mut number = 0_i64;
    while !story.stop.load(Ordering::Relaxed) {
        number += 1;
        let at = number as usize % own.len();
        // Every other time by `_id` alone, which all shards are asked about.
        let field = if number % 2 == 0 { "k" } else { "_id" };
        let command = doc! {
            "update": "c",
            "updates": [{ "q": { field: own[at] }, "u": { "$inc": { "n": 1 } } }],
            "lsid": lsid.clone(),
            "txnNumber": number,
        };
        let mut cuts = number % 3;
        let reply = loop {
            if cuts > 0 {
                cuts -= 1;
                wire.send("test", command.clone())?;
                if number % 2 == 0 {
                    // Long enough that most have been done by then.
                    std::thread::sleep(Duration::from_millis(3));
                }
                wire = connect()?;
                story.cut.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let reply = wire.run("test", command.clone())?;
            if reply.get_f64("ok")? == 1.0 {
                break reply;
            }
            let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
            ensure!(labels.contains(&"RetryableWriteError".into()), "{reply}");
        };
        if reply.contains_key("retriedStmtIds") {
            story.told_again.fetch_add(1, Ordering::Relaxed);
        }
        ensure!(
            reply.get_i32("n")? == 1 && reply.get_i32("nModified")? == 1,
            "{command}: {reply}"
        );
        counts[at] += 1;
        if number % 10 == 0 && !story.crashes {
            let all = doc! {
                "update": "c",
                "updates": [{ "q": {}, "u": { "$inc": { "all": 1 } }, "multi": true }],
            };
            let reply = wire.ok("test", all)?;
            ensure!(reply.get_i32("n")? == COUNTERS, "{reply}");
            everywhere += 1;
        }
    }
    Ok((counts, everywhere))
}

/// Chunks to move, and clients that count meanwhile.
struct Scene {
    cluster: Cluster,
    wire: Wire,
    shards: [String; 2],
    story: Arc<Story>,
    clients: Vec<JoinHandle<Result<Counts>>>,
}

impl Scene {
    async fn begin(crashes: bool) -> Result<Scene> {
        let cluster = Cluster::start(ClusterShape::default()).await;
        let mut wire = Wire::connect(&cluster.router)?;
        let shards = shard(&mut wire, "c")?;
        let seed: Vec<Bson> = (0..COUNTERS)
            .map(|k| doc! { "_id": k, "k": k, "n": 0, "all": 0 }.into())
            .collect();
        wire.ok("test", doc! { "insert": "c", "documents": seed })?;
        let middle = doc! { "k": COUNTERS / 2 };
        wire.ok("admin", doc! { "split": "test.c", "middle": middle })?;
        let story = Arc::new(Story {
            crashes,
            ..Story::default()
        });
        let router = cluster.router.host();
        let clients = (0..CLIENTS).map(|client| {
            let (story, router) = (story.clone(), router.clone());
            std::thread::spawn(move || count(&router, &story, client))
        });
        Ok(Scene {
            clients: clients.collect(),
            cluster,
            wire,
            shards,
            story,
        })
    }

    /// The key and the shard of the next move: one chunk after the other there, then back.
    fn next(&self, round: usize) -> (i32, String) {
        let k = if round.is_multiple_of(2) {
            0
        } else {
            COUNTERS / 2
        };
        (k, self.shards[(1 + round / 2) % 2].clone())
    }

    /// Holds what the clients were told against what is there.
    fn end(mut self) -> Result<()> {
        self.story.stop.store(true, Ordering::Relaxed);
        let mut expected = vec![0; COUNTERS as usize];
        let mut everywhere = 0;
        for (client, ended) in self.clients.into_iter().enumerate() {
            let (counts, all) = ended.join().expect("the client ends")?;
            everywhere += all;
            for (at, count) in counts.into_iter().enumerate() {
                expected[client + at * CLIENTS as usize] = count;
            }
        }
        let find = doc! { "find": "c", "filter": {}, "sort": { "_id": 1 } };
        let found = self.wire.ok("test", find)?;
        let found = found.get_document("cursor")?.get_array("firstBatch")?;
        let mut counted = Vec::new();
        for document in found {
            let document = document.as_document().context("a document")?;
            counted.push(document.get_i32("n")?);
            let all = document.get_i32("all")?;
            ensure!(all == everywhere, "{document}: {everywhere}");
        }
        ensure!(counted == expected, "{counted:?}, not {expected:?}");
        let cut = self.story.cut.load(Ordering::Relaxed);
        let told_again = self.story.told_again.load(Ordering::Relaxed);
        ensure!(cut > 0 && told_again > 0, "{cut}, {told_again}");
        ensure!((everywhere > 0) != self.story.crashes);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_during_moves_counts_once() -> Result<()> {
    let mut scene = Scene::begin(false).await?;
    for round in 0..MOVES {
        let (k, to) = scene.next(round);
        move_to(&mut scene.wire, "c", k, &to)?;
    }
    scene.end()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_counts_once_whoever_crashes() -> Result<()> {
    let mut scene = Scene::begin(true).await?;
    for round in 0..CRASHES {
        let (k, to) = scene.next(round);
        let router = scene.cluster.router.host();
        let moving = std::thread::spawn(move || {
            // The crash may well be the end of it.
            let _ = move_to(&mut Wire::connect_to(&router)?, "c", k, &to);
            Ok::<_, anyhow::Error>(())
        });
        // At any moment of the move.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..120))).await;
        let victim = &mut scene.cluster.shards[round % 3 % 2].members[0];
        victim.kill();
        victim.start().await;
        moving.join().expect("the mover ends")?;
    }
    scene.end()
}
