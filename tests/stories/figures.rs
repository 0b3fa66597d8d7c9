//! The figures that operators and their tools watch: each operation changes them by what MongoDB
//! changes them by. The tables of deltas were recorded from a `mongod` 6.0.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process, ReplicaSet, eventually, within};
use bson::{Bson, Document, doc};
use mongodb::options::{ReadPreference, SelectionCriteria};
use mongodb::{Client, Database};

use crate::operating::admin;

/// The integers below some sections of `serverStatus`, by their paths.
type Figures = BTreeMap<String, i64>;

fn flatten(prefix: &str, document: &Document, out: &mut Figures) {
    for (name, value) in document {
        let path = match prefix {
            "" => name.clone(),
            _ => format!("{prefix}.{name}"),
        };
        match value {
            Bson::Document(inner) => flatten(&path, inner, out),
            Bson::Int32(n) => {
                out.insert(path, i64::from(*n));
            }
            Bson::Int64(n) => {
                out.insert(path, *n);
            }
            _ => {}
        }
    }
}

/// What is compared: other figures depend on the time, or on what else the process does.
const WATCHED: &[&str] = &[
    "opcounters.",
    "metrics.document.",
    "metrics.queryExecutor.",
    "metrics.operation.",
    "metrics.commands.",
    "opLatencies.",
];

async fn status(client: &Client) -> Result<Document> {
    let status = client.database("admin");
    Ok(status.run_command(doc! { "serverStatus": 1 }).await?)
}

async fn figures(client: &Client) -> Result<Figures> {
    let mut all = Figures::new();
    flatten("", &status(client).await?, &mut all);
    all.retain(|name, _| {
        let watched = WATCHED.iter().any(|prefix| name.starts_with(prefix));
        let varies = name.ends_with(".latency") || name.starts_with("metrics.commands.hello.");
        watched && !varies
    });
    Ok(all)
}

/// What an operation adds, without what asking adds. What the driver's own monitor asks for comes
/// and goes, so the commands' sums are left out.
async fn added(client: &Client, commands: &[Document]) -> Result<Figures> {
    let before = figures(client).await?;
    for command in commands {
        // One that is refused is counted as well.
        let _ = client
            .database("figures")
            .run_command(command.clone())
            .await;
    }
    let mut after = figures(client).await?;
    for (name, value) in &mut after {
        *value -= before.get(name).copied().unwrap_or(0);
    }
    after.retain(|name, value| {
        let own = [
            "metrics.commands.serverStatus.total",
            // Of the client that has waited for the server.
            "metrics.commands.endSessions.total",
            "opcounters.command",
            "opLatencies.commands.ops",
        ];
        *value != 0 && !own.contains(&name.as_str())
    });
    Ok(after)
}

/// `metrics.document.inserted` is written `document.inserted`, `metrics.commands.find.total`
/// `find.total`.
fn expected(table: &str) -> Figures {
    let lines = table.split(',').map(str::trim).filter(|l| !l.is_empty());
    let parse = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap_or((line, "1"));
        let name = match name.split('.').next().unwrap_or_default() {
            "opcounters" | "opLatencies" => name.to_owned(),
            "document" | "queryExecutor" | "operation" => format!("metrics.{name}"),
            _ => format!("metrics.commands.{name}"),
        };
        (name, value.parse().expect("a number"))
    };
    lines.map(parse).collect()
}

/// Commands, and what they add.
fn mix() -> Vec<(Vec<Document>, &'static str)> {
    let documents: Vec<Document> = (0..1000)
        .map(|n| doc! { "_id": n, "a": n % 10, "b": n })
        .collect();
    let one = |command: Document| vec![command];
    let update = |q: Document, u: Document, multi: bool| doc! { "q": q, "u": u, "multi": multi };
    vec![
        (
            one(doc! { "insert": "c", "documents": documents }),
            "insert.total, document.inserted 1000, opcounters.insert 1000, opLatencies.writes.ops",
        ),
        (
            one(doc! { "insert": "c", "documents": [{ "_id": 2000 }, { "_id": 1 }, { "_id": 9 }] }),
            "insert.total, document.inserted, opcounters.insert 2, opLatencies.writes.ops",
        ),
        (
            one(doc! {
                "insert": "c", "documents": [{ "_id": 2002 }, { "_id": 1 }, { "_id": 2003 }],
                "ordered": false,
            }),
            "insert.total, document.inserted 2, opcounters.insert 3, opLatencies.writes.ops",
        ),
        (
            one(doc! {
                "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }],
            }),
            "createIndexes.total",
        ),
        (
            one(doc! { "find": "c", "batchSize": 100, "singleBatch": true }),
            "find.total, document.returned 100, queryExecutor.collectionScans.nonTailable, \
             queryExecutor.collectionScans.total, queryExecutor.scannedObjects 100, \
             opLatencies.reads.ops, opcounters.query",
        ),
        (
            one(doc! { "find": "c", "filter": { "a": 3 } }),
            "find.total, document.returned 100, queryExecutor.scanned 100, \
             queryExecutor.scannedObjects 100, opLatencies.reads.ops, opcounters.query",
        ),
        (
            one(doc! { "find": "c", "filter": { "_id": 5 } }),
            "find.total, document.returned, queryExecutor.scanned, queryExecutor.scannedObjects, \
             opLatencies.reads.ops, opcounters.query",
        ),
        (
            one(doc! { "find": "c", "filter": { "_id": "none" } }),
            "find.total, opLatencies.reads.ops, opcounters.query",
        ),
        (
            one(doc! { "find": "c", "sort": { "b": -1 }, "limit": 5 }),
            "find.total, document.returned 5, operation.scanAndOrder, opLatencies.reads.ops, \
             queryExecutor.collectionScans.nonTailable, queryExecutor.collectionScans.total, \
             queryExecutor.scannedObjects 1003, opcounters.query",
        ),
        (
            one(doc! { "find": "c", "filter": { "$foo": 1 } }),
            "find.total, find.failed, opLatencies.reads.ops, opcounters.query",
        ),
        (
            one(doc! { "count": "c" }),
            "count.total, opLatencies.reads.ops",
        ),
        (
            one(doc! { "count": "c", "query": { "b": { "$gt": 5 } } }),
            "count.total, queryExecutor.collectionScans.nonTailable, opLatencies.reads.ops, \
             queryExecutor.collectionScans.total, queryExecutor.scannedObjects 1003",
        ),
        (
            one(doc! { "distinct": "c", "key": "b", "query": { "b": { "$lt": 10 } } }),
            "distinct.total, queryExecutor.collectionScans.nonTailable, opLatencies.reads.ops, \
             queryExecutor.collectionScans.total, queryExecutor.scannedObjects 1003",
        ),
        (
            one(doc! {
                "aggregate": "c", "pipeline": [{ "$match": { "a": 3 } }], "cursor": {},
            }),
            "aggregate.total, document.returned 100, queryExecutor.scanned 100, \
             queryExecutor.scannedObjects 100, opLatencies.reads.ops",
        ),
        (
            one(doc! {
                "update": "c",
                "updates": [update(doc! { "_id": 1 }, doc! { "$set": { "z": 1 } }, false)],
            }),
            "update.total, document.updated, queryExecutor.scanned, opcounters.update, \
             queryExecutor.scannedObjects, opLatencies.writes.ops",
        ),
        (
            one(doc! { "update": "c", "updates": [
                update(doc! { "_id": 1 }, doc! { "$set": { "z": 2 } }, false),
                update(doc! { "_id": 2 }, doc! { "$set": { "z": 2 } }, false),
                update(doc! { "_id": "none" }, doc! { "$set": { "z": 2 } }, false),
            ] }),
            "update.total, document.updated 2, queryExecutor.scanned 2, opcounters.update 3, \
             queryExecutor.scannedObjects 2, opLatencies.writes.ops",
        ),
        (
            one(doc! { "update": "c", "updates": [
                update(doc! { "b": { "$lt": 10 } }, doc! { "$inc": { "z": 2 } }, true),
            ] }),
            "update.total, document.updated 10, queryExecutor.collectionScans.nonTailable, \
             queryExecutor.collectionScans.total, queryExecutor.scannedObjects 1003, \
             opcounters.update, opLatencies.writes.ops",
        ),
        (
            one(doc! { "update": "c", "updates": [
                { "q": { "_id": 3000 }, "u": { "$set": { "z": 3 } }, "upsert": true },
            ] }),
            "update.total, opcounters.update, opLatencies.writes.ops",
        ),
        (
            one(doc! { "update": "c", "updates": [
                update(doc! { "_id": 1 }, doc! { "$set": { "z": 9 } }, false),
                update(doc! { "_id": 1 }, doc! { "$bad": { "z": 9 } }, false),
                update(doc! { "_id": 2 }, doc! { "$set": { "z": 9 } }, false),
            ] }),
            "update.total, document.updated, queryExecutor.scanned, opcounters.update 2, \
             queryExecutor.scannedObjects, opLatencies.writes.ops",
        ),
        (
            one(doc! {
                "findAndModify": "c", "query": { "a": 7 }, "update": { "$set": { "z": 1 } },
            }),
            "findAndModify.total, document.updated, queryExecutor.scanned, \
             queryExecutor.scannedObjects, opLatencies.writes.ops",
        ),
        (
            one(doc! { "findAndModify": "c", "query": { "_id": 3000 }, "remove": true }),
            "findAndModify.total, document.deleted, queryExecutor.scanned, \
             queryExecutor.scannedObjects, opLatencies.writes.ops",
        ),
        (
            one(doc! { "delete": "c", "deletes": [{ "q": { "_id": 8 }, "limit": 1 }] }),
            "delete.total, document.deleted, queryExecutor.scanned, \
             queryExecutor.scannedObjects, opcounters.delete, opLatencies.writes.ops",
        ),
        (
            one(doc! { "delete": "c", "deletes": [{ "q": { "a": 9 }, "limit": 0 }] }),
            "delete.total, document.deleted 100, queryExecutor.scanned 100, \
             queryExecutor.scannedObjects 100, opcounters.delete, opLatencies.writes.ops",
        ),
        (
            one(doc! {
                "explain": { "find": "c", "filter": { "a": 3 } }, "verbosity": "executionStats",
            }),
            "explain.total",
        ),
        (
            vec![
                doc! { "nosuch": 1 },
                doc! { "nosuch2": 1 },
                doc! { "ping": 1 },
            ],
            "<UNKNOWN> 2, ping.total",
        ),
    ]
}

#[tokio::test]
async fn each_operation_adds_what_it_adds_in_mongodb() -> Result<()> {
    let server = Launch::mongod().start().await;
    let client = server.direct().await;
    let mut wrong = Vec::new();
    for (commands, table) in mix() {
        let added = added(&client, &commands).await?;
        let expected = expected(table);
        if added != expected {
            let first = commands.first().and_then(|command| command.keys().next());
            wrong.push(format!("{first:?}: {added:?}\n  expected {expected:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));

    // A cursor's batches are reads, too.
    let database = client.database("figures");
    let before = figures(&client).await?;
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = client.start_session().await?;
    let found = database
        .run_command(doc! { "find": "c", "batchSize": 300 })
        .session(&mut session)
        .await?;
    let mut id = found.get_document("cursor")?.get_i64("id")?;
    let mut batches = 0;
    while id != 0 {
        let more = doc! { "getMore": id, "collection": "c", "batchSize": 300 };
        let reply = database.run_command(more).session(&mut session).await?;
        id = reply.get_document("cursor")?.get_i64("id")?;
        batches += 1;
    }
    let after = figures(&client).await?;
    let delta = |name: &str| after[name] - before.get(name).copied().unwrap_or(0);
    ensure!(batches > 1 && delta("opcounters.getmore") == batches);
    ensure!(delta("metrics.queryExecutor.collectionScans.total") == 1);
    ensure!(delta("opLatencies.reads.ops") == batches + 1);
    let documents = delta("metrics.document.returned");
    ensure!(documents == delta("metrics.queryExecutor.scannedObjects"));

    // What MongoDB's tools read, by the types that they read it as.
    let status = status(&client).await?;
    let uptime = status.get_f64("uptime")?;
    ensure!(uptime.fract() == 0.0, "mongostat reads it as an integer");
    for section in [
        "asserts",
        "connections",
        "extra_info",
        "globalLock",
        "mem",
        "network",
    ] {
        status.get_document(section).context(section)?;
    }
    ensure!(status.get_document("extra_info")?.get_i64("page_faults")? >= 0);
    ensure!(status.get("repl").is_none(), "there is no set");
    let asked = doc! { "serverStatus": 1, "opLatencies": { "histograms": true }, "metrics": 0 };
    let detailed = client.database("admin").run_command(asked).await?;
    ensure!(detailed.get("metrics").is_none());
    let reads = detailed
        .get_document("opLatencies")?
        .get_document("reads")?;
    let buckets = reads.get_array("histogram")?.iter();
    let counts = buckets.filter_map(|bucket| bucket.as_document()?.get_i64("count").ok());
    ensure!(counts.sum::<i64>() == reads.get_i64("ops")?, "{reads}");
    Ok(())
}

/// The numbers that `top` has of a collection.
async fn top(server: &Process, namespace: &str) -> Result<Option<Figures>> {
    let reply = admin(server, doc! { "top": 1 }).await?;
    let totals = reply.get_document("totals")?;
    ensure!(totals.get_str("note")? == "all times in microseconds");
    let Ok(found) = totals.get_document(namespace) else {
        return Ok(None);
    };
    let mut counts = Figures::new();
    flatten("", found, &mut counts);
    ensure!(counts["total.time"] > 0, "{found}");
    counts.retain(|name, count| name.ends_with(".count") && *count > 0);
    Ok(Some(counts))
}

#[tokio::test]
async fn top_tells_how_long_each_collection_was_worked_on() -> Result<()> {
    let server = Launch::mongod().start().await;
    let database = server.direct().await.database("figures");
    let run = |command: Document| database.run_command(command);
    run(doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }, { "_id": 3 }] }).await?;
    let set = |id: i32| doc! { "q": { "_id": id }, "u": { "$set": { "a": 1 } } };
    run(doc! { "update": "c", "updates": [set(1), set(2)] }).await?;
    run(doc! { "delete": "c", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] }).await?;
    let mut session = database.client().start_session().await?;
    let find = run(doc! { "find": "c", "batchSize": 1 });
    let found = find.session(&mut session).await?;
    let id = found.get_document("cursor")?.get_i64("id")?;
    let more = run(doc! { "getMore": id, "collection": "c" });
    more.session(&mut session).await?;
    run(doc! { "count": "c", "query": { "a": 1 } }).await?;
    run(doc! { "aggregate": "c", "pipeline": [], "cursor": {} }).await?;
    let modify = doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "a": 2 } };
    run(modify).await?;
    run(doc! { "find": "none" }).await?;
    let expected: Figures = [
        ("total", 9),
        ("readLock", 4),
        ("writeLock", 5),
        ("insert", 1),
        ("update", 2),
        ("remove", 1),
        ("queries", 1),
        ("getmore", 1),
        ("commands", 3),
    ]
    .into_iter()
    .map(|(name, count)| (format!("{name}.count"), count))
    .collect();
    let counts = top(&server, "figures.c").await?;
    ensure!(counts.as_ref() == Some(&expected), "{counts:?}");
    ensure!(top(&server, "figures.none").await?.is_none());

    // What is dropped is gone, and does not come back with the name.
    run(doc! { "drop": "c" }).await?;
    ensure!(top(&server, "figures.c").await?.is_none());
    run(doc! { "insert": "c", "documents": [{ "_id": 1 }] }).await?;
    let counts = top(&server, "figures.c").await?.context("it is new")?;
    ensure!(counts["total.count"] == 1, "{counts:?}");
    Ok(())
}

/// How often an index finds documents, how long a collection was worked on, and how often it was
/// scanned, is told of the collection alone.
#[tokio::test]
async fn the_use_of_collections_and_indexes_is_told() -> Result<()> {
    let server = Launch::mongod().start().await;
    let database = server.direct().await.database("figures");
    let run = |command: Document| database.run_command(command);
    let index = doc! { "key": { "a": 1 }, "name": "a_1" };
    run(doc! { "createIndexes": "c", "indexes": [index] }).await?;
    run(doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }, { "_id": 2, "a": 2 }] }).await?;
    for _ in 0..3 {
        run(doc! { "find": "c", "filter": { "a": 1 } }).await?;
    }
    run(doc! { "find": "c", "filter": { "_id": 1 } }).await?;
    run(doc! { "find": "c" }).await?;
    let set = doc! { "q": { "a": 2 }, "u": { "$set": { "b": 1 } } };
    run(doc! { "update": "c", "updates": [set] }).await?;
    let all = |stage: Document| {
        let database = database.clone();
        async move {
            let command = doc! { "aggregate": "c", "pipeline": [stage], "cursor": {} };
            let reply = database.run_command(command).await?;
            let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
            let documents = batch.iter().filter_map(Bson::as_document);
            Ok::<_, anyhow::Error>(documents.cloned().collect::<Vec<_>>())
        }
    };
    let mut uses = BTreeMap::new();
    for index in all(doc! { "$indexStats": {} }).await? {
        let operations = index.get_document("accesses")?.get_i64("ops")?;
        uses.insert(index.get_str("name")?.to_owned(), operations);
    }
    ensure!(uses["a_1"] == 4 && uses["_id_"] == 1, "{uses:?}");
    let asked = doc! { "latencyStats": { "histograms": true }, "queryExecStats": {} };
    let told = all(doc! { "$collStats": asked }).await?.remove(0);
    let latencies = told.get_document("latencyStats")?;
    let operations = |class: &str| latencies.get_document(class)?.get_i64("ops");
    ensure!(operations("writes")? == 2, "{told}");
    ensure!(operations("reads")? >= 5, "{told}");
    let histogram = latencies.get_document("writes")?.get_array("histogram")?;
    ensure!(!histogram.is_empty(), "{told}");
    let scans = told
        .get_document("queryExecStats")?
        .get_document("collectionScans")?;
    ensure!(scans.get_i64("total")? == 1, "{told}");
    Ok(())
}

async fn count(database: &Database) -> Result<i64> {
    let reply = database.run_command(doc! { "count": "c" }).await?;
    Ok(i64::from(reply.get_i32("n")?))
}

/// `count`, `collStats`, `$collStats` and `dbStats` of one member agree.
async fn agree(server: &Process, documents: i64) -> Result<()> {
    let client = server.direct().await;
    let database = client.database("figures");
    let secondary = SelectionCriteria::ReadPreference(ReadPreference::SecondaryPreferred {
        options: Default::default(),
    });
    let ask = |command: Document| {
        database
            .run_command(command)
            .selection_criteria(secondary.clone())
    };
    let number = |document: &Document, name: &str| match document.get(name) {
        Some(Bson::Int32(n)) => i64::from(*n),
        Some(Bson::Int64(n)) => *n,
        _ => -1,
    };
    let counted = ask(doc! { "count": "c" }).await?;
    let scanned = ask(doc! { "count": "c", "query": { "_id": { "$exists": true } } }).await?;
    let stats = ask(doc! { "collStats": "c" }).await?;
    let whole = ask(doc! { "dbStats": 1 }).await?;
    let staged = doc! {
        "aggregate": "c", "pipeline": [{ "$collStats": { "count": {}, "storageStats": {} } }],
        "cursor": {},
    };
    let staged = ask(staged).await?;
    let staged = staged.get_document("cursor")?.get_array("firstBatch")?;
    let staged = staged.first().and_then(Bson::as_document);
    let staged = staged.context("one document")?.clone();
    let sizes = ask(doc! { "aggregate": "c", "cursor": {}, "pipeline": [
        { "$group": { "_id": null, "bytes": { "$sum": { "$bsonSize": "$$ROOT" } } } },
    ] });
    let sizes = sizes.await?;
    let sizes = sizes.get_document("cursor")?.get_array("firstBatch")?;
    let bytes = sizes.first().and_then(Bson::as_document);
    let bytes = bytes.map_or(0, |sizes| number(sizes, "bytes"));
    let told = [
        number(&counted, "n"),
        number(&scanned, "n"),
        number(&stats, "count"),
        number(&whole, "objects"),
        number(&staged, "count"),
        number(staged.get_document("storageStats")?, "count"),
    ];
    ensure!(told == [documents; 6], "{told:?}, not {documents}");
    let told = (number(&stats, "size"), whole.get_f64("dataSize")? as i64);
    ensure!(told == (bytes, bytes), "{told:?}, not {bytes} bytes");
    Ok(())
}

#[tokio::test]
async fn members_count_alike_also_after_they_were_killed() -> Result<()> {
    let mut set = ReplicaSet::start("figures", 3, &[]).await;
    let primary = set.primary().await;
    let follower = (primary + 1) % 3;
    let before = status(&set.members[follower].direct().await).await?;
    let database = set.client().await.database("figures");
    let documents: Vec<Document> = (0..2000).map(|n| doc! { "_id": n, "a": "x" }).collect();
    database
        .collection("c")
        .insert_many(documents.clone())
        .await?;
    let c = database.collection::<Document>("c");
    c.update_many(
        doc! { "_id": { "$lt": 700 } },
        doc! { "$set": { "a": "longer" } },
    )
    .await?;
    c.delete_many(doc! { "_id": { "$gte": 1900 } }).await?;
    for member in &set.members {
        eventually("it counts 1900", || agree(member, 1900)).await;
    }

    // What a secondary applies is told apart from what it is asked.
    let after = status(&set.members[follower].direct().await).await?;
    for (name, expected) in [("insert", 2000), ("update", 700), ("delete", 100)] {
        let of = |status: &Document, section: &str| -> Result<i64> {
            Ok(status.get_document(section)?.get_i64(name)?)
        };
        let applied = of(&after, "opcountersRepl")? - of(&before, "opcountersRepl")?;
        // Sessions are refreshed through the log as well.
        ensure!(
            (expected..expected + 20).contains(&applied),
            "{name} {applied}"
        );
        ensure!(of(&after, "opcounters")? - of(&before, "opcounters")? == 0);
    }
    let repl = after.get_document("repl")?;
    ensure!(repl.get_str("setName")? == "figures" && repl.get_bool("secondary")?);
    ensure!(!repl.get_bool("ismaster")? && repl.get_array("hosts")?.len() == 3);

    for member in [follower, primary] {
        set.members[member].kill();
        set.members[member].start().await;
        set.settled().await;
        agree(&set.members[member], 1900).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_standalone_counts_right_after_it_was_killed() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let database = server.direct().await.database("figures");
    let documents: Vec<Document> = (0..5000).map(|n| doc! { "_id": n, "a": "x" }).collect();
    database.collection("c").insert_many(documents).await?;
    let c = database.collection::<Document>("c");
    c.delete_many(doc! { "_id": { "$lt": 100 } }).await?;
    agree(&server, 4900).await?;
    // So that the log has it before the kill.
    let journaled = doc! {
        "insert": "c", "documents": [{ "_id": -1 }], "writeConcern": { "w": 1, "j": true },
    };
    database.run_command(journaled).await?;
    server.kill();
    server.start().await;
    agree(&server, 4901).await
}

#[tokio::test]
async fn a_router_counts_what_it_is_asked_and_sums_what_its_shards_hold() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let router = client.database("admin");
    let run = |command: Document| router.run_command(command);
    run(doc! { "shardCollection": "figures.c", "key": { "_id": 1 } }).await?;
    run(doc! { "balancerStop": 1 }).await?;
    run(doc! { "split": "figures.c", "middle": { "_id": 600 } }).await?;

    let before = status(&client).await?;
    let database = client.database("figures");
    let documents: Vec<Document> = (0..1000).map(|n| doc! { "_id": n, "a": n % 3 }).collect();
    for command in [
        doc! { "insert": "c", "documents": documents },
        doc! { "update": "c", "updates": [
            { "q": { "_id": 1 }, "u": { "$set": { "a": 9 } } },
            { "q": { "_id": 700 }, "u": { "$set": { "a": 9 } } },
        ] },
        doc! { "delete": "c", "deletes": [{ "q": { "a": 0 }, "limit": 0 }] },
        doc! { "find": "c", "filter": { "a": 9 } },
        doc! { "count": "c" },
    ] {
        database.run_command(command).await?;
    }
    let after = status(&client).await?;
    let of = |status: &Document, section: &str, name: &str| -> Result<i64> {
        Ok(status.get_document(section)?.get_i64(name)?)
    };
    let delta = |section: &str, name: &str| -> Result<i64> {
        Ok(of(&after, section, name)? - of(&before, section, name)?)
    };
    for (name, expected) in [("insert", 1000), ("update", 2), ("delete", 1), ("query", 1)] {
        let counted = delta("opcounters", name)?;
        ensure!(counted == expected, "{name}: {counted}, not {expected}");
    }
    ensure!(delta("opcounters", "command")? >= 1);
    ensure!(after.get_f64("uptime")?.fract() == 0.0);
    let found = after.get_document("metrics")?.get_document("commands")?;
    ensure!(
        found.get_document("find")?.get_i64("total")? >= 1,
        "{found}"
    );

    // A range goes to the other shard and back, and what it leaves behind goes away.
    let left = count(&database).await?;
    let first = doc! { "_id": 1 };
    for to in ["shard1", "shard0", "shard1"] {
        // The one that has it already is no error.
        run(doc! { "moveChunk": "figures.c", "find": first.clone(), "to": to }).await?;
        ensure!(count(&database).await? == left, "moved to {to}");
    }
    eventually("all figures agree", || async {
        let stats = database.run_command(doc! { "collStats": "c" }).await?;
        let whole = database.run_command(doc! { "dbStats": 1 }).await?;
        let mut stored = 0;
        for shard in &cluster.shards {
            stored += count(&shard.client().await.database("figures")).await?;
        }
        let told = (
            i64::from(stats.get_i32("count")?),
            whole.get_f64("objects")? as i64,
            stored,
            count(&database).await?,
        );
        ensure!(told == (left, left, left, left), "{told:?}, not {left}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn current_op_says_what_runs_and_by_which_plan() -> Result<()> {
    let server = Launch::mongod().start().await;
    let database = server.direct().await.database("figures");
    let c = database.collection::<Document>("c");
    c.insert_one(doc! { "_id": 1, "a": 1 }).await?;
    let index = doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] };
    database.run_command(index).await?;
    // Long enough to be seen on any machine, and ended as soon as it was.
    let busy = "var end = Date.now() + 50000; while (Date.now() < end) {} return true;";
    let indexed = doc! { "a": { "$gte": 0 }, "$where": busy };
    let scanned = doc! { "$where": busy };
    for (command, op, plan) in [
        (
            doc! { "find": "c", "filter": indexed.clone() },
            "query",
            "IXSCAN { a: 1 }",
        ),
        (
            doc! { "delete": "c", "deletes": [{ "q": scanned.clone(), "limit": 0 }] },
            "remove",
            "COLLSCAN",
        ),
        (
            doc! { "update": "c", "updates": [
                { "q": scanned.clone(), "u": { "$set": { "b": 1 } }, "multi": true },
            ] },
            "update",
            "COLLSCAN",
        ),
        (
            doc! { "count": "c", "query": scanned.clone() },
            "command",
            "COLLSCAN",
        ),
    ] {
        let (running, asked) = (database.clone(), command.clone());
        let running = tokio::spawn(async move { running.run_command(asked).await });
        let found = within(
            std::time::Duration::from_secs(30),
            &format!("{op} is seen"),
            || async {
                let listed = admin(&server, doc! { "currentOp": 1, "ns": "figures.c" }).await?;
                let operations = listed.get_array("inprog")?;
                let first = operations.first().and_then(Bson::as_document);
                let first = first.context("nothing runs")?.clone();
                first.get_str("planSummary")?;
                Ok::<_, anyhow::Error>(first)
            },
        )
        .await;
        let opid = found.get_i32("opid")?;
        admin(&server, doc! { "killOp": 1, "op": opid }).await?;
        let _ = running.await?;
        ensure!(found.get_str("op")? == op, "{found}");
        ensure!(found.get_str("planSummary")? == plan, "{found}");
        let shown = found.get_document("command")?;
        ensure!(shown.keys().next() == command.keys().next(), "{found}");
    }
    Ok(())
}
