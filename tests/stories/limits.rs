//! What one operation may use: it ends when its time is over or it is killed, wherever it is, and
//! what it holds is bounded.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use mongodb::Database;

use banyan_tests::{Cluster, ClusterShape, Launch, Process, within};

/// How long after its time an operation may still be running, on a loaded machine.
const LATE_MAX: Duration = Duration::from_secs(2);

fn code(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        mongodb::error::ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

/// `$unwind` of three arrays of 1,000: a thousand million documents out of one.
fn unwound(rest: &[Document]) -> Vec<Document> {
    let arrays = ["$x", "$y", "$z"];
    let mut stages: Vec<_> = arrays.map(|path| doc! { "$unwind": path }).into();
    stages.extend_from_slice(rest);
    stages
}

/// Pipelines that would run for minutes on one document, or take gigabytes.
fn endless() -> Vec<Vec<Document>> {
    let growing = doc! { "$reduce": {
        "input": { "$range": [0, 200_000] },
        "initialValue": [],
        "in": { "$concatArrays": ["$$value", ["$$this"]] },
    } };
    vec![
        unwound(&[doc! { "$count": "n" }]),
        unwound(&[doc! { "$sort": { "z": -1, "x": 1 } }, doc! { "$limit": 5 }]),
        vec![doc! { "$facet": { "n": unwound(&[doc! { "$count": "n" }]) } }],
        vec![doc! { "$lookup": {
            "from": "c", "pipeline": unwound(&[doc! { "$count": "n" }]), "as": "found",
        } }],
        unwound(&[doc! { "$project": { "_id": 0 } }, doc! { "$out": "made" }]),
        vec![doc! { "$project": { "a": growing } }],
    ]
}

async fn prepared(mongod: &Process) -> Result<Database> {
    let test = mongod.direct().await.database("test");
    let numbers: Vec<i32> = (0..1000).collect();
    let document = doc! { "_id": 1, "x": &numbers, "y": &numbers, "z": &numbers };
    test.collection("c").insert_one(document).await?;
    Ok(test)
}

#[tokio::test]
async fn an_operation_ends_with_its_time_whatever_it_computes() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = prepared(&mongod).await?;
    let limit = Duration::from_millis(300);
    for pipeline in endless() {
        let began = Instant::now();
        let command = doc! {
            "aggregate": "c",
            "pipeline": &pipeline,
            "cursor": {},
            "maxTimeMS": limit.as_millis() as i64,
        };
        let error = test
            .run_command(command)
            .await
            .expect_err("its time is over");
        ensure!(code(&error) == Some(50), "{pipeline:?}: {error}");
        let took = began.elapsed();
        ensure!(took < limit + LATE_MAX, "{pipeline:?}: {took:?}");
    }
    Ok(())
}

/// The most memory that the process ever had, in KB.
fn resident_kb_max(process: &Process) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let figure = line.and_then(|line| line.split_whitespace().next());
    Ok(figure.context("the kernel tells it")?.parse()?)
}

#[tokio::test]
async fn an_output_that_has_to_end_leaves_nothing_and_is_not_kept_in_memory() -> Result<()> {
    // A small cache: less is gathered in memory before it is written to a table.
    let small = Launch::mongod().with(["--wiredTigerCacheSizeGB", "0.25"]);
    let mongod = small.start().await;
    let test = prepared(&mongod).await?;
    let padded = doc! { "$project": { "_id": 0, "x": 1, "pad": "x".repeat(20_000) } };
    let output = |stage: Document, limit: Duration| {
        doc! {
            "aggregate": "c",
            "pipeline": unwound(&[padded.clone(), stage]),
            "cursor": {},
            "maxTimeMS": limit.as_millis() as i64,
        }
    };
    let made = output(doc! { "$out": "made" }, Duration::from_secs(1));
    let error = test.run_command(made).await.expect_err("its time is over");
    ensure!(code(&error) == Some(50), "{error}");
    let names = test.list_collection_names().await?;
    ensure!(names == ["c"], "{names:?}");

    let before = resident_kb_max(&mongod)?;
    let (mut more, mut written, mut most) = (0, 0, 0);
    // A machine that has much else to do writes little in a short time: less than the write buffers hold.
    for limit in [8, 40].map(Duration::from_secs) {
        let merged = output(doc! { "$merge": "merged" }, limit);
        let error = test
            .run_command(merged)
            .await
            .expect_err("its time is over");
        ensure!(code(&error) == Some(50), "{error}");
        more = resident_kb_max(&mongod)? - before;
        written = test
            .collection::<Document>("merged")
            .estimated_document_count()
            .await?
            * 20;
        // What is read, batched and logged takes some, however much is written.
        most = written / 2 + 64 * 1024;
        if more < most {
            break;
        }
    }
    ensure!(
        more < most,
        "{more} KB more for {written} KB that were written"
    );
    Ok(())
}

#[tokio::test]
async fn a_killed_operation_ends_within_one_document() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = prepared(&mongod).await?;
    let admin = mongod.direct().await.database("admin");
    let pipeline = unwound(&[doc! { "$count": "n" }]);
    let command = doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} };
    let running = tokio::spawn(async move { test.run_command(command).await });
    let operation = within(
        Duration::from_secs(10),
        "the operation is listed",
        || async {
            let reply = admin
                .run_command(doc! { "currentOp": 1, "command.aggregate": "c" })
                .await?;
            let found = reply.get_array("inprog")?.first().cloned();
            let found = found.and_then(|found| found.as_document().cloned());
            found.ok_or_else(|| anyhow::anyhow!("not yet"))
        },
    )
    .await;
    let began = Instant::now();
    let id = operation.get_i32("opid")?;
    admin.run_command(doc! { "killOp": 1, "op": id }).await?;
    let error = running.await?.expect_err("it was killed");
    ensure!(code(&error) == Some(11601), "{error}");
    ensure!(began.elapsed() < LATE_MAX, "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn what_stages_hold_is_bounded() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = prepared(&mongod).await?;
    let group = |operator: &str| doc! { "$group": { "_id": 1, "all": { operator: "$$ROOT" } } };
    for (expected, pipeline) in [
        (4_031_700, vec![doc! { "$facet": { "all": unwound(&[]) } }]),
        (
            4568,
            vec![doc! { "$lookup": { "from": "c", "pipeline": unwound(&[]), "as": "all" } }],
        ),
        (146, unwound(&[group("$push")])),
        (
            16493,
            vec![doc! { "$project": { "a": { "$reduce": {
                "input": { "$range": [0, 40] },
                "initialValue": "x",
                "in": { "$concat": ["$$value", "$$value"] },
            } } } }],
        ),
    ] {
        let command = doc! { "aggregate": "c", "pipeline": &pipeline, "cursor": {} };
        let error = test.run_command(command).await.expect_err("it is too much");
        ensure!(code(&error) == Some(expected), "{pipeline:?}: {error}");
    }
    Ok(())
}

/// Working out constants while parsing would take minutes.
#[tokio::test]
async fn constants_do_not_hold_a_request_up() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = prepared(&mongod).await?;
    let size = doc! { "$size": { "$range": [0, 3_000_000] } };
    let sum = doc! { "$add": vec![size; 300] };
    let command = |collection: &str| {
        doc! {
            "aggregate": collection,
            "pipeline": [{ "$project": { "a": &sum } }],
            "cursor": {},
            "maxTimeMS": 500,
        }
    };
    let began = Instant::now();
    test.run_command(command("empty")).await?;
    ensure!(began.elapsed() < LATE_MAX, "{:?}", began.elapsed());
    let error = test.run_command(command("c")).await.expect_err("too long");
    ensure!(code(&error) == Some(50), "{error}");
    ensure!(began.elapsed() < 2 * LATE_MAX, "{:?}", began.elapsed());
    Ok(())
}

/// What a router puts together of several shards it ends as a server does.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_ends_in_time_what_it_computes_itself() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        members_per_shard: 1,
        configs: 1,
    })
    .await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin
        .run_command(doc! { "shardCollection": "test.c", "key": { "_id": "hashed" } })
        .await?;
    let test = client.database("test");
    let documents: Vec<Document> = (0..20).map(|n| doc! { "_id": n }).collect();
    test.collection("c").insert_many(documents).await?;
    let numbers = doc! { "$range": [0, 1_000] };
    let mut pipeline = vec![
        // From here on it is the router's: the group is of all shards.
        doc! { "$group": { "_id": null, "n": { "$sum": 1 } } },
        doc! { "$project": { "x": &numbers, "y": &numbers, "z": &numbers } },
    ];
    pipeline.extend(unwound(&[doc! { "$count": "n" }]));
    let command = doc! {
        "aggregate": "c", "pipeline": pipeline, "cursor": {}, "maxTimeMS": 1_000,
    };
    let began = Instant::now();
    let error = test.run_command(command).await.expect_err("too long");
    ensure!(code(&error) == Some(50), "{error}");
    ensure!(began.elapsed() < 2 * LATE_MAX, "{:?}", began.elapsed());
    Ok(())
}
