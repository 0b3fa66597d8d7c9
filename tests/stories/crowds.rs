//! Many large operations at once, and those that nobody wants any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process, ReplicaSet, eventually};
use bson::{Document, doc};
use mongodb::{Client, Collection};
use nix::sys::signal::{Signal, kill};

use crate::concerns::Wire;

/// How long a scan takes that is alone, or longer: a crowd of them is one in any build.
const SCAN_TAKES: Duration = Duration::from_millis(150);
const SCANS: usize = 160;
const LASTS: Duration = Duration::from_secs(8);

async fn term(member: &Process) -> Result<i64> {
    let admin = member.direct().await.database("admin");
    let status = admin.run_command(doc! { "replSetGetStatus": 1 }).await?;
    Ok(status.get_i64("term")?)
}

/// Asks again and again until `until`; the time that each answer took.
async fn ask(member: &Process, command: Document, until: Instant) -> Result<Vec<Duration>> {
    let admin = member.direct().await.database("admin");
    let mut took = Vec::new();
    while Instant::now() < until {
        let asked = Instant::now();
        admin.run_command(command.clone()).await?;
        took.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    took.sort();
    Ok(took)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// A count that reads every document.
async fn scan(collection: &Collection<Document>) -> Result<u64> {
    let filter = doc! { "a": { "$gte": 0 }, "b": { "$ne": "" } };
    Ok(collection.count_documents(filter).await?)
}

async fn scans(client: Client, documents: i32, until: Instant) -> Result<u64> {
    let collection = client.database("test").collection("crowd");
    let mut scans = 0;
    while Instant::now() < until {
        let counted = scan(&collection).await?;
        ensure!(counted == documents as u64, "{counted}");
        scans += 1;
    }
    Ok(scans)
}

/// Puts in as many documents as a scan needs to take its time.
async fn fill(collection: &Collection<Document>) -> Result<i32> {
    let mut documents = 0;
    loop {
        let more = documents + documents.max(4_000);
        while documents < more {
            let batch = documents..documents + 4_000;
            let batch = batch.map(|n| doc! { "_id": n, "a": n % 97, "b": "text" });
            collection.insert_many(batch).await?;
            documents += 4_000;
        }
        let began = Instant::now();
        scan(collection).await?;
        if began.elapsed() >= SCAN_TAKES {
            return Ok(documents);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_leave_a_primary_its_lead() -> Result<()> {
    let set = ReplicaSet::start("crowd", 3, &[]).await;
    let primary = &set.members[set.primary().await];
    let client = primary.direct().await;
    let collection = client.database("test").collection::<Document>("crowd");
    let documents = fill(&collection).await?;
    let before = term(primary).await?;
    let until = Instant::now() + LASTS;
    // A client keeps so many connections at the most.
    let clients = [client, primary.direct().await];
    let mut crowd = tokio::task::JoinSet::new();
    for number in 0..SCANS {
        crowd.spawn(scans(
            clients[number % clients.len()].clone(),
            documents,
            until,
        ));
    }
    let point = doc! { "find": "crowd", "filter": { "_id": 5 } };
    let points = primary.direct().await.database("test");
    let reads = async {
        let mut took = Vec::new();
        while Instant::now() < until {
            let asked = Instant::now();
            points.run_command(point.clone()).await?;
            took.push(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        took.sort();
        Ok::<_, anyhow::Error>(took)
    };
    let (pings, hellos, reads) = tokio::join!(
        ask(primary, doc! { "ping": 1 }, until),
        ask(primary, doc! { "hello": 1 }, until),
        reads,
    );
    let (pings, hellos, reads) = (pings?, hellos?, reads?);
    let mut done = 0;
    while let Some(scanned) = crowd.join_next().await {
        let scanned = scanned??;
        ensure!(scanned > 0, "a scan had no turn");
        done += scanned;
    }
    ensure!(term(primary).await? == before, "there was an election");
    for (what, took) in [("ping", &pings), ("hello", &hellos), ("point read", &reads)] {
        let (median, late) = (percentile(took, 50), percentile(took, 95));
        // Idle they take a millisecond. Unhindered scans make it seconds.
        ensure!(
            median < Duration::from_millis(250) && late < Duration::from_millis(1000),
            "{what}: {median:?}, {late:?} beside {done} scans"
        );
    }
    let admin = primary.direct().await.database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
    let queue = status.get_document("queues")?.get_document("execution")?;
    ensure!(queue.get_i64("totalWaits")? > 0, "{queue}");
    ensure!(
        queue.get_i32("out")? == 0 && queue.get_i32("parkedThreads")? == 0,
        "{queue}"
    );
    Ok(())
}

/// The reason that the last line with this message gives.
fn reason(member: &Process, message: &str) -> Option<String> {
    let log = member.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut told = lines.filter(|line| line["msg"] == message);
    let last = told.next_back()?;
    Some(last["attr"]["reason"].as_str()?.to_owned())
}

async fn says(member: &Process, message: &str, words: &str) {
    eventually(&format!("the log says {message}: {words}"), || async {
        let reason = reason(member, message);
        ensure!(
            reason.as_ref().is_some_and(|reason| reason.contains(words)),
            "{reason:?}"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_who_took_or_lost_the_lead_and_why() -> Result<()> {
    let set = ReplicaSet::start("reasons", 3, &[]).await;
    let first = set.primary().await;
    let admin = set.members[first].direct().await.database("admin");
    admin.run_command(doc! { "replSetStepDown": 60 }).await?;
    says(&set.members[first], "lost the lead", "told to step down").await;
    let second = set.primary().await;
    ensure!(second != first);
    says(&set.members[second], "took the lead", "hands the lead over").await;
    let stopped = (0..3).filter(|index| *index != second);
    let stopped: Vec<&Process> = stopped.map(|index| &set.members[index]).collect();
    for member in &stopped {
        kill(member.pid(), Signal::SIGSTOP)?;
    }
    says(
        &set.members[second],
        "lost the lead",
        "heard no majority for",
    )
    .await;
    for member in &stopped {
        kill(member.pid(), Signal::SIGCONT)?;
    }
    Ok(())
}

/// How many operations on the collection `endless` run on this server.
async fn endless(server: &Process) -> Result<usize> {
    let admin = server.direct().await.database("admin");
    let running = admin.run_command(doc! { "currentOp": 1 }).await?;
    let of_interest = |operation: &&bson::Bson| {
        let namespace = operation
            .as_document()
            .and_then(|found| found.get_str("ns").ok());
        namespace == Some("test.endless")
    };
    Ok(running
        .get_array("inprog")?
        .iter()
        .filter(of_interest)
        .count())
}

async fn runs(server: &Process, count: usize) {
    eventually(&format!("{count} operations on test.endless"), || async {
        let found = endless(server).await?;
        ensure!(found == count, "{found}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_operation() -> Result<()> {
    let server = Launch::mongod().start().await;
    let collection = server
        .direct()
        .await
        .database("test")
        .collection::<Document>("endless");
    collection.insert_one(doc! { "_id": 1 }).await?;
    let endless = doc! { "find": "endless", "filter": { "$where": "while (true) {}" } };
    let mut leaves = Wire::connect(&server)?;
    leaves.send("test", endless)?;
    runs(&server, 1).await;
    drop(leaves);
    runs(&server, 0).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_ends_what_a_client_that_leaves_has_asked_of_shards() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 1,
        members_per_shard: 1,
        configs: 1,
    })
    .await;
    let collection = cluster
        .client()
        .await
        .database("test")
        .collection::<Document>("endless");
    let numbers: Vec<i32> = (0..1_000).collect();
    let document = doc! { "_id": 1, "a": &numbers, "b": &numbers, "c": &numbers };
    collection.insert_one(document).await?;
    let stages = ["$a", "$b", "$c"].map(|path| doc! { "$unwind": path });
    let mut stages: Vec<_> = stages.into();
    // It asks for all three, so nothing can be left out before.
    let sum = doc! { "$add": ["$a", "$b", "$c"] };
    stages.push(doc! { "$match": { "$expr": { "$eq": [sum, -1] } } });
    stages.push(doc! { "$out": "made" });
    let commands = [
        doc! { "find": "endless", "filter": { "$where": "while (true) {}" } },
        doc! { "aggregate": "endless", "pipeline": stages, "cursor": {} },
        doc! {
            "mapReduce": "endless", "map": "function() { while (true) {} }",
            "reduce": "function(key, values) { return values[0]; }", "out": { "inline": 1 },
        },
    ];
    let shard = &cluster.shards[0].members[0];
    for endless in commands {
        let mut leaves = Wire::connect(&cluster.router)?;
        leaves.send("test", endless)?;
        runs(shard, 1).await;
        drop(leaves);
        runs(shard, 0).await;
    }
    Ok(())
}

/// Parsing that takes long holds up nobody but its client.
#[tokio::test(flavor = "multi_thread")]
async fn pings_are_answered_while_requests_are_parsed() -> Result<()> {
    let server = Arc::new(Launch::mongod().start().await);
    let collection = server
        .direct()
        .await
        .database("test")
        .collection::<Document>("c");
    collection.insert_one(doc! { "_id": 1 }).await?;
    let (over, parsed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let mut parsing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (client, over, parsed) = (server.direct().await, over.clone(), parsed.clone());
        parsing.spawn(async move {
            // Constant, so it is worked out while the filter is read: some seconds of work.
            let sizes = (0..40).map(|_| doc! { "$size": { "$range": [0, 3_000_000] } });
            let sizes: Vec<_> = sizes.collect();
            let filter = doc! { "$expr": { "$gt": [{ "$add": sizes }, 1] } };
            while !over.load(Ordering::Relaxed) {
                let find = doc! { "find": "c", "filter": &filter, "maxTimeMS": 1_000 };
                // Whether it may take that much is not what is asked here.
                let _ = client.database("test").run_command(find).await;
                parsed.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let until = Instant::now() + Duration::from_secs(4);
    let points = server.direct().await.database("test");
    // On a connection that has carried a query: served where queries are.
    points
        .run_command(doc! { "find": "c", "filter": { "_id": 1 } })
        .await?;
    let mut took = Vec::new();
    while Instant::now() < until || parsed.load(Ordering::Relaxed) < 4 {
        let asked = Instant::now();
        points.run_command(doc! { "ping": 1 }).await?;
        took.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    over.store(true, Ordering::Relaxed);
    while parsing.join_next().await.is_some() {}
    took.sort();
    let (median, late) = (percentile(&took, 50), percentile(&took, 95));
    ensure!(
        median < Duration::from_millis(100) && late < Duration::from_millis(500),
        "{median:?}, {late:?}"
    );
    Ok(())
}
