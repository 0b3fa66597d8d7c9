//! Writes of one document through a router that do not say on which shard it is: no more than one is
//! changed, once, whatever else goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape};
use bson::{Bson, Document, doc};

use crate::concerns::{Wire, session};
use crate::moved_sessions::{self, essence, move_to, shard};
use crate::opcodes::{OP_DELETE, OP_UPDATE, RawClient, bytes, text, word};

/// Negative keys on one shard, the others on the other; `j` says nothing of the key.
fn seeded(wire: &mut Wire, collection: &str) -> Result<[String; 2]> {
    moved_sessions::seeded(
        wire,
        collection,
        |k| doc! { "_id": k, "k": k, "j": k * k % 7, "s": format!("S{}", k + 6) },
    )
}

fn find(wire: &mut Wire, collection: &str, filter: Document) -> Result<Vec<Document>> {
    let find = doc! { "find": collection, "filter": filter, "sort": { "_id": 1 } };
    let found = wire.ok("test", find)?;
    let batch = found.get_document("cursor")?.get_array("firstBatch")?;
    Ok(batch
        .iter()
        .filter_map(|document| document.as_document().cloned())
        .collect())
}

fn count(wire: &mut Wire, collection: &str, filter: Document) -> Result<usize> {
    Ok(find(wire, collection, filter)?.len())
}

fn code(reply: &Document) -> Result<i32> {
    Ok(match reply.get_array("writeErrors") {
        Ok(errors) => errors[0]
            .as_document()
            .context("an error")?
            .get_i32("code")?,
        Err(_) => reply.get_i32("code")?,
    })
}

fn update(wire: &mut Wire, statement: Document) -> Result<(i32, i32)> {
    let reply = wire.ok("test", doc! { "update": "c", "updates": [statement] })?;
    ensure!(reply.get("writeErrors").is_none(), "{reply}");
    Ok((reply.get_i32("n")?, reply.get_i32("nModified")?))
}

#[tokio::test]
async fn one_document_is_changed_wherever_it_is() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let mut wire = Wire::connect(&cluster.router)?;
    let wire = &mut wire;
    seeded(wire, "c")?;

    // Both shards have such documents, or one, or none.
    let flagged = |n: i32| doc! { "$set": { format!("f{n}"): true } };
    for (n, filter, found) in [
        (0, doc! { "j": 1 }, 1),
        (1, doc! { "s": "S7" }, 1),
        (2, doc! { "s": "none" }, 0),
        (3, doc! {}, 1),
        (4, doc! { "k": { "$gt": -3 } }, 1),
    ] {
        ensure!(update(wire, doc! { "q": filter, "u": flagged(n) })? == (found, found));
        let flagged = count(wire, "c", doc! { format!("f{n}"): true })?;
        ensure!(flagged == found as usize, "{n}: {flagged}");
    }
    // The first in an order, of all shards.
    for (order, first) in [(1, -6), (-1, 5)] {
        let sorted = doc! { "q": {}, "u": { "$set": { "o": order } }, "sort": { "k": order } };
        ensure!(update(wire, sorted)? == (1, 1));
        let found = find(wire, "c", doc! { "o": order })?;
        ensure!(found.len() == 1 && found[0].get_i32("k")? == first);
    }
    // Everything that a statement may say.
    let set = doc! { "q": { "s": "S2" }, "u": { "$set": { "a": [{ "v": 1 }, { "v": 2 }] } } };
    ensure!(update(wire, set)? == (1, 1));
    let positional = doc! {
        "q": { "a.v": 2 }, "u": { "$set": { "a.$.w": 1 } }, "sort": { "j": 1 },
        "hint": { "_id": 1 },
    };
    ensure!(update(wire, positional)? == (1, 1));
    let filtered = doc! {
        "q": { "a.v": 2 }, "u": { "$inc": { "a.$[x].v": 10 } }, "arrayFilters": [{ "x.v": 1 }],
    };
    ensure!(update(wire, filtered)? == (1, 1));
    let found = find(wire, "c", doc! { "s": "S2" })?;
    let a = doc! { "a": [{ "v": 11 }, { "v": 2, "w": 1 }] };
    ensure!(found[0].get("a") == a.get("a"), "{found:?}");
    let collated = doc! {
        "q": { "s": "s11" }, "u": [{ "$set": { "p": { "$add": ["$k", "$$one"] } } }],
        "c": { "one": 1 }, "collation": { "locale": "en", "strength": 2 },
    };
    ensure!(update(wire, collated)? == (1, 1));
    ensure!(count(wire, "c", doc! { "p": 6 })? == 1);
    // A replacement is that of the document that is found, which stays where it is.
    let replacement = doc! { "q": { "s": "S0" }, "u": { "k": -6, "new": true } };
    ensure!(update(wire, replacement)? == (1, 1));
    ensure!(count(wire, "c", doc! { "new": true, "_id": -6 })? == 1);
    let elsewhere = doc! { "q": { "new": true }, "u": { "k": 100 } };
    let reply = wire.run("test", doc! { "update": "c", "updates": [elsewhere] })?;
    ensure!(code(&reply)? == 283, "it would have to move: {reply}");

    // Wrong ones are refused as everywhere.
    for (statement, expected) in [
        (doc! { "q": { "j": 1 }, "u": { "$bad": { "x": 1 } } }, 9),
        (
            doc! { "q": { "j": 1 }, "u": { "$set": { "_id": 100 } } },
            66,
        ),
        (
            doc! { "q": { "j": 1 }, "u": { "$set": { "x": 1 } }, "hint": "none" },
            2,
        ),
        (doc! { "q": { "$bad": 1 }, "u": { "$set": { "x": 1 } } }, 2),
        (
            doc! { "q": {}, "u": { "$set": { "x": 1 } }, "multi": true, "sort": { "k": 1 } },
            9,
        ),
        (
            doc! { "q": {}, "u": { "$set": { "k": 1 } }, "multi": true },
            72,
        ),
    ] {
        let command = doc! { "update": "c", "updates": [statement.clone()] };
        let reply = wire.run("test", command)?;
        ensure!(code(&reply)? == expected, "{statement}: {reply}");
    }

    // Both steps are explained.
    let explained =
        doc! { "update": "c", "updates": [{ "q": { "j": 4 }, "u": { "$set": { "x": 1 } } }] };
    let explained = wire.ok(
        "test",
        doc! { "explain": explained, "verbosity": "executionStats" },
    )?;
    let plan = explained
        .get_document("queryPlanner")?
        .get_document("winningPlan")?;
    ensure!(plan.get_str("stage")? == "SHARD_WRITE", "{explained}");
    ensure!(plan.get_array("shards")?.len() == 1, "{explained}");
    let input = plan.get_document("inputStage")?;
    ensure!(input.get_array("shards")?.len() == 2, "{explained}");
    let statistics = explained.get_document("executionStats")?;
    ensure!(statistics.contains_key("inputStage"), "{explained}");

    // Batches of both kinds, and `bulkWrite`.
    let statements = |n: i32| -> Vec<Bson> {
        vec![
            doc! { "q": { "k": 1 }, "u": { "$set": { "b": n } } }.into(),
            doc! { "q": { "s": { "$in": ["S1", "S10"] } }, "u": { "$set": { "b": n } } }.into(),
            doc! { "q": { "s": "none" }, "u": { "$set": { "b": n } } }.into(),
            doc! { "q": { "j": 4, "b": { "$ne": n } }, "u": { "$bad": 1 } }.into(),
            doc! { "q": { "j": 2, "b": { "$ne": n } }, "u": { "$set": { "b": n } } }.into(),
        ]
    };
    for (n, ordered, changed) in [(1, true, 2), (2, false, 3)] {
        let command = doc! { "update": "c", "updates": statements(n), "ordered": ordered };
        let reply = wire.ok("test", command)?;
        ensure!(
            code(&reply)? == 9 && reply.get_i32("n")? == changed,
            "{reply}"
        );
        ensure!(count(wire, "c", doc! { "b": n })? == changed as usize);
    }
    let bulk = doc! {
        "bulkWrite": 1, "nsInfo": [{ "ns": "test.c" }], "ops": [
            { "update": 0, "filter": { "j": 4 }, "updateMods": { "$set": { "bulk": 1 } }, "sort": { "k": -1 } },
            { "delete": 0, "filter": { "bulk": 1 } },
        ],
    };
    let reply = wire.ok("admin", bulk)?;
    ensure!(reply.get_i32("nErrors")? == 0, "{reply}");
    ensure!(
        (reply.get_i32("nModified")?, reply.get_i32("nDeleted")?) == (1, 1),
        "{reply}"
    );
    ensure!(count(wire, "c", doc! {})? == 11);

    // Deletes, by both generations of messages.
    let delete = doc! { "delete": "c", "deletes": [{ "q": { "j": { "$gte": 0 } }, "limit": 1 }] };
    ensure!(wire.ok("test", delete)?.get_i32("n")? == 1);
    ensure!(count(wire, "c", doc! {})? == 10);
    let mut old = RawClient::connect(&cluster.router)?;
    let one = 1;
    let filter = bytes(&doc! { "j": { "$gte": 0 } });
    old.send(
        OP_DELETE,
        &[word(0), text("test.c"), word(one), filter.clone()],
    )?;
    let set = bytes(&doc! { "$set": { "old": true } });
    old.send(OP_UPDATE, &[word(0), text("test.c"), word(0), filter, set])?;
    let told = old.command(&doc! { "getLastError": 1 })?;
    ensure!(told.get_i32("n")? == 1, "{told}");
    ensure!(count(wire, "c", doc! {})? == 9);
    ensure!(count(wire, "c", doc! { "old": true })? == 1);
    Ok(())
}

#[tokio::test]
async fn the_first_of_all_shards_is_found_and_modified() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let mut wire = Wire::connect(&cluster.router)?;
    let wire = &mut wire;
    seeded(wire, "c")?;
    let modify = |more: Document| {
        let mut command = doc! { "findAndModify": "c" };
        command.extend(more);
        command
    };
    for (sort, first) in [
        (doc! { "k": 1 }, -6),
        (doc! { "k": -1 }, 5),
        (doc! { "s": 1, "j": -1 }, -6),
    ] {
        let command = modify(doc! {
            "query": { "j": { "$gte": 0 } }, "sort": sort, "update": { "$inc": { "n": 1 } }, "new": true,
        });
        let reply = wire.ok("test", command)?;
        ensure!(
            reply.get_document("value")?.get_i32("k")? == first,
            "{reply}"
        );
        let told = doc! { "n": 1, "updatedExisting": true };
        ensure!(*reply.get_document("lastErrorObject")? == told, "{reply}");
    }
    let removed = wire.ok(
        "test",
        modify(doc! { "query": {}, "sort": { "k": -1 }, "remove": true }),
    )?;
    ensure!(
        removed.get_document("value")?.get_i32("k")? == 5,
        "{removed}"
    );
    let none = wire.ok(
        "test",
        modify(doc! { "query": { "s": "none" }, "remove": true }),
    )?;
    ensure!(none.get("value") == Some(&Bson::Null), "{none}");
    ensure!(
        *none.get_document("lastErrorObject")? == doc! { "n": 0 },
        "{none}"
    );
    let by_id = modify(doc! { "query": { "_id": 2 }, "update": { "$set": { "by": "id" } } });
    ensure!(
        wire.ok("test", by_id)?
            .get_document("value")?
            .get_i32("k")?
            == 2
    );
    let bad = modify(doc! { "query": { "j": 1 }, "update": { "$bad": 1 } });
    ensure!(code(&wire.run("test", bad)?)? == 9);

    // What is inserted goes where it belongs, whatever the filter says of that.
    for (n, k) in [(0, -50), (1, 50), (2, -51), (3, 51)] {
        let command = modify(doc! {
            "query": { "n": n + 100 }, "update": { "$set": { "k": k } }, "upsert": true, "new": true,
        });
        let reply = wire.ok("test", command)?;
        ensure!(reply.get_document("value")?.get_i32("k")? == k, "{reply}");
        ensure!(count(wire, "c", doc! { "k": k, "n": n + 100 })? == 1);
    }
    // With a hashed `_id` for its key, by a number that is made for it.
    wire.ok(
        "admin",
        doc! { "shardCollection": "test.h", "key": { "_id": "hashed" } },
    )?;
    for n in 0..8 {
        let statement = doc! { "q": { "n": n }, "u": { "$inc": { "times": 1 } }, "upsert": true };
        for times in [1, 2] {
            let command = doc! { "update": "h", "updates": [statement.clone()] };
            let reply = wire.ok("test", command)?;
            ensure!(reply.get_i32("n")? == 1, "{reply}");
            ensure!((times == 1) == reply.get("upserted").is_some(), "{reply}");
        }
    }
    ensure!(count(wire, "h", doc! { "times": 2 })? == 8);
    // Only what one document is meant by.
    let many = doc! { "q": { "n": 9 }, "u": { "$set": { "k": 1 } }, "upsert": true, "multi": true };
    let reply = wire.run("test", doc! { "update": "h", "updates": [many] })?;
    ensure!(code(&reply)? == 61, "{reply}");
    Ok(())
}

/// Commands that change one document each, of which there are several that match.
fn numbered() -> Vec<Document> {
    let inc = doc! { "$inc": { "n": 1 }, "$set": { "j": 100 } };
    let statement = |filter: Document| doc! { "q": filter, "u": &inc };
    vec![
        doc! { "update": "c", "updates": [statement(doc! { "j": 1 }), statement(doc! { "j": 4 })] },
        doc! { "update": "c", "ordered": false, "updates": [
            statement(doc! { "j": 2 }), { "q": { "k": 3 }, "u": { "$inc": { "n": 1 } } },
        ] },
        doc! { "update": "c", "updates": [{ "q": { "new": 1 }, "u": { "$set": { "k": 40, "new": 2 } }, "upsert": true }] },
        doc! { "delete": "c", "deletes": [{ "q": { "j": 4 }, "limit": 1 }] },
        doc! { "findAndModify": "c", "query": { "j": { "$lt": 50 } }, "sort": { "k": -1 }, "update": &inc },
        doc! { "findAndModify": "c", "query": { "j": { "$lt": 50 } }, "sort": { "k": 1 }, "remove": true },
    ]
}

#[tokio::test]
async fn what_is_sent_again_is_told_and_not_done_again() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let mut wire = Wire::connect(&cluster.router)?;
    let wire = &mut wire;
    let [home, other] = seeded(wire, "c")?;
    let mut tried = Vec::new();
    for mut command in numbered() {
        command.insert("lsid", session());
        command.insert("txnNumber", 1_i64);
        let reply = wire.ok("test", command.clone())?;
        ensure!(reply.get("writeErrors").is_none(), "{command}: {reply}");
        tried.push((command, essence(reply)));
    }
    let there = find(wire, "c", doc! {})?;
    ensure!(there.len() == 12 + 1 - 2, "{there:?}");
    // Also where the documents, and what is known of their writes, have moved, and a shard is left
    // with nothing.
    for (k, to) in [
        (None, &home),
        (Some(1), &other),
        (Some(-1), &home),
        (Some(1), &home),
        (Some(-1), &other),
    ] {
        if let Some(k) = k {
            move_to(wire, "c", k, to)?;
        }
        for (command, first) in &tried {
            let reply = wire.ok("test", command.clone())?;
            let told = ["retriedStmtIds", "retriedStmtId"];
            ensure!(
                told.iter().any(|name| reply.contains_key(name)),
                "{command}: {reply}"
            );
            ensure!(
                essence(reply.clone()) == *first,
                "{command}: {reply}, not {first}"
            );
        }
        ensure!(find(wire, "c", doc! {})? == there);
    }
    Ok(())
}

const JOBS: i32 = 240;
const WORKERS: usize = 6;
const MOVES: usize = 6;

/// What the workers share.
#[derive(Default)]
struct Queue {
    stop: AtomicBool,
    cut: AtomicUsize,
    again: AtomicUsize,
    done: AtomicI32,
}

/// Takes one job after the other out of the queue, and cuts its connection now and then before it is
/// told which it got. What it got, by its own account.
fn work(router: &str, queue: &Queue, worker: usize) -> Result<Vec<i32>> {
    let connect = || Wire::connect_to(router);
    let mut wire = connect()?;
    let lsid = session();
    let mut got = Vec::new();
    let (mut number, mut asked) = (1_i64, 0);
    loop {
        asked += 1;
        let mut command = doc! {
            "findAndModify": "jobs", "query": { "state": "new" },
            "update": { "$set": { "state": "taken" }, "$inc": { "times": 1 } },
            "lsid": lsid.clone(), "txnNumber": number,
        };
        if worker.is_multiple_of(2) {
            command.insert("sort", doc! { "place": 1 });
        }
        let mut cuts = (asked + worker) % 3;
        let reply = loop {
            if cuts > 0 {
                cuts -= 1;
                wire.send("test", command.clone())?;
                std::thread::sleep(Duration::from_millis(rand::random_range(0..6)));
                wire = connect()?;
                queue.cut.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let reply = wire.run("test", command.clone())?;
            if reply.get_f64("ok")? == 1.0 {
                break reply;
            }
            let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
            ensure!(labels.contains(&"RetryableWriteError".into()), "{reply}");
        };
        if reply.contains_key("retriedStmtId") {
            queue.again.fetch_add(1, Ordering::Relaxed);
        }
        match reply.get_document("value") {
            Ok(job) => {
                got.push(job.get_i32("_id")?);
                // Until it has a job it asks under the same number: that nothing was found is not
                // recorded, and a try that it gave up may still find something.
                number += 1;
                queue.done.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) if queue.stop.load(Ordering::Relaxed) => return Ok(got),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_a_job_twice_and_none_is_lost_while_chunks_move() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let mut wire = Wire::connect(&cluster.router)?;
    let [home, other] = shard(&mut wire, "jobs")?;
    let queue = Arc::new(Queue::default());
    let router = cluster.router.host();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (queue, router) = (queue.clone(), router.clone());
            std::thread::spawn(move || work(&router, &queue, worker))
        })
        .collect();
    let share = JOBS / MOVES as i32;
    for round in 0..MOVES {
        let jobs: Vec<Bson> = (0..share)
            .map(|n| n + round as i32 * share)
            .map(|id| {
                let k = if id % 2 == 0 { id + 1 } else { -id };
                doc! { "_id": id, "k": k, "place": id * 7 % 11, "state": "new" }.into()
            })
            .collect();
        let reply = wire.ok("test", doc! { "insert": "jobs", "documents": jobs })?;
        ensure!(reply.get_i32("n")? == share, "{reply}");
        let (k, to) = match round % 4 {
            0 => (-1, &other),
            1 => (1, &other),
            2 => (-1, &home),
            _ => (1, &home),
        };
        move_to(&mut wire, "jobs", k, to)?;
    }
    for _ in 0..2_000 {
        if queue.done.load(Ordering::Relaxed) >= JOBS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    queue.stop.store(true, Ordering::Relaxed);
    let mut times = BTreeMap::new();
    for worker in workers {
        for job in worker.join().expect("the worker ends")? {
            *times.entry(job).or_insert(0) += 1;
        }
    }
    let expected: BTreeMap<i32, i32> = (0..JOBS).map(|id| (id, 1)).collect();
    ensure!(times == expected, "{times:?}");
    let counted = wire.ok("test", doc! { "count": "jobs", "query": { "times": 1 } })?;
    ensure!(counted.get_i32("n")? == JOBS, "{counted}");
    let (cut, again) = (
        queue.cut.load(Ordering::Relaxed),
        queue.again.load(Ordering::Relaxed),
    );
    ensure!(cut > 0 && again > 0, "{cut}, {again}");
    Ok(())
}
