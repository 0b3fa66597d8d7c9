//! Views across processes: what a restart, an election and a join keep, what several shards answer as
//! one, and who may define and read them.

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

const GRAPH_CONTAINS_CYCLE: i32 = 5;
const NAMESPACE_EXISTS: i32 = 48;
const COMMAND_NOT_SUPPORTED_ON_VIEW: i32 = 166;
const OPTION_NOT_SUPPORTED_ON_VIEW: i32 = 167;

async fn code_of(database: &Database, command: Document) -> Result<i32> {
    match database.run_command(command.clone()).await {
        Ok(reply) => bail!("{command}: {reply}"),
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            other => bail!("{command}: {other}"),
        },
    }
}

/// All documents that a command's cursor gives.
async fn all(database: &Database, command: Document) -> Result<Vec<Document>> {
    let cursor = database.run_cursor_command(command).await?;
    Ok(cursor.try_collect().await?)
}

/// A number that stands under the same name in all documents.
fn numbers(documents: &[Document], name: &str) -> Vec<i64> {
    let number = |document: &Document| match document.get(name) {
        Some(Bson::Int32(n)) => Some(i64::from(*n)),
        Some(Bson::Int64(n)) => Some(*n),
        _ => None,
    };
    documents.iter().filter_map(number).collect()
}

async fn ids(database: &Database, view: &str) -> Result<Vec<i64>> {
    let found = all(database, doc! { "find": view, "sort": { "_id": 1 } }).await?;
    Ok(numbers(&found, "_id"))
}

async fn insert_numbers(database: &Database, collection: &str, count: i32) -> Result<()> {
    let documents = (0..count).map(|n| doc! { "_id": n, "a": n % 3, "b": format!("b{}", n % 5) });
    let collection = database.collection::<Document>(collection);
    collection.insert_many(documents).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_uses_the_indexes_below_it_and_outlives_a_restart() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    insert_numbers(&test, "c", 30).await?;
    let index = doc! { "key": { "a": 1 }, "name": "a_1" };
    test.run_command(doc! { "createIndexes": "c", "indexes": [index] })
        .await?;
    let ones = doc! { "create": "ones", "viewOn": "c", "pipeline": [{ "$match": { "a": 1 } }] };
    test.run_command(ones).await?;
    let named = doc! { "create": "named", "viewOn": "ones", "pipeline": [{ "$unset": "a" }] };
    test.run_command(named).await?;
    server.kill();
    server.start().await;

    let test = server.direct().await.database("test");
    ensure!(ids(&test, "named").await? == (1..30).step_by(3).collect::<Vec<i64>>());
    // What the crash cut off of the index's build is done after the start, beside readers.
    let text = eventually("the view uses the index", || async {
        let query = doc! { "find": "named", "filter": { "b": "b4" } };
        let explain = doc! { "explain": query, "verbosity": "queryPlanner" };
        let text = test.run_command(explain).await?.to_string();
        ensure!(text.contains("IXSCAN") && text.contains("a_1"), "{text}");
        anyhow::Ok(text)
    })
    .await;
    ensure!(
        text.contains("test.c"),
        "the plan is one of the collection: {text}"
    );
    // The batches of a cursor over a view.
    let batches = all(&test, doc! { "find": "named", "batchSize": 2 }).await?;
    ensure!(batches.len() == 10, "{batches:?}");

    let listed = all(
        &test,
        doc! { "listCollections": 1, "filter": { "type": "view" } },
    )
    .await?;
    ensure!(listed.len() == 2, "{listed:?}");
    for view in &listed {
        ensure!(view.get_document("info")?.get_bool("readOnly")?, "{view}");
        ensure!(!view.contains_key("idIndex"), "{view}");
    }
    let ones = test.collection::<Document>("ones");
    let written = ones.insert_one(doc! { "a": 1 }).await;
    ensure!(written.is_err(), "a view was written to");
    let rename = doc! { "renameCollection": "test.ones", "to": "test.twos" };
    let admin = server.direct().await.database("admin");
    ensure!(code_of(&admin, rename).await? == COMMAND_NOT_SUPPORTED_ON_VIEW);
    let circle = doc! { "collMod": "ones", "viewOn": "named", "pipeline": [] };
    ensure!(code_of(&test, circle).await? == GRAPH_CONTAINS_CYCLE);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_go_through_elections_and_joins() -> Result<()> {
    let mut set = ReplicaSet::start("rs0", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    insert_numbers(&test, "c", 9).await?;
    test.run_command(doc! { "create": "v", "viewOn": "c", "pipeline": [{ "$match": { "a": 0 } }] })
        .await?;
    test.run_command(doc! { "create": "gone", "viewOn": "c" })
        .await?;
    test.run_command(doc! { "drop": "gone" }).await?;

    let first = set.primary().await;
    set.members[first].kill();
    let changed = doc! { "collMod": "v", "viewOn": "c", "pipeline": [{ "$match": { "a": 2 } }] };
    eventually("another member leads and changes the view", || async {
        test.run_command(changed.clone()).await.context("collMod")
    })
    .await;
    ensure!(ids(&test, "v").await? == [2, 5, 8]);

    // The old primary takes the change from the log.
    set.members[first].start().await;
    let secondary = set.members[first].direct().await.database("test");
    let read = doc! { "find": "v" };
    eventually(
        "the member that was away shows the view as it is",
        || async {
            let reply = secondary.run_command(read.clone()).await?;
            let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
            ensure!(batch.len() == 3, "{reply}");
            let a = batch
                .iter()
                .filter_map(|found| found.as_document()?.get_i32("a").ok());
            ensure!(a.eq([2, 2, 2]), "{reply}");
            Ok(())
        },
    )
    .await;
    let stored = all(&secondary, doc! { "find": "system.views" }).await;
    let stored = stored.or_else(|_| Ok::<_, anyhow::Error>(Vec::new()))?;
    ensure!(stored.len() <= 1, "{stored:?}");
    Ok(())
}

/// A cluster in which `test.c` lies on two shards, and `test.d` on the first alone.
async fn two_shards() -> Result<(Cluster, Client)> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    for command in [
        doc! { "balancerStop": 1 },
        doc! { "enableSharding": "test", "primaryShard": "shard0" },
        doc! { "shardCollection": "test.c", "key": { "_id": 1 } },
        doc! { "split": "test.c", "middle": { "_id": 15 } },
        doc! { "moveChunk": "test.c", "find": { "_id": 15 }, "to": "shard1" },
    ] {
        admin.run_command(command).await?;
    }
    let test = client.database("test");
    insert_numbers(&test, "c", 30).await?;
    insert_numbers(&test, "d", 6).await?;
    Ok((cluster, client))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_reads_views_wherever_their_documents_are() -> Result<()> {
    let (cluster, client) = two_shards().await?;
    let test = client.database("test");
    for view in [
        doc! { "create": "v", "viewOn": "c", "pipeline": [{ "$match": { "a": 1 } }] },
        doc! { "create": "vv", "viewOn": "v", "pipeline": [{ "$project": { "b": 1 } }] },
        doc! { "create": "small", "viewOn": "d", "pipeline": [{ "$match": { "a": 1 } }] },
        doc! {
            "create": "joined", "viewOn": "d", "pipeline": [
                { "$lookup": { "from": "v", "localField": "b", "foreignField": "b", "as": "z" } },
                { "$addFields": { "z": { "$size": "$z" } } },
            ],
        },
        doc! { "create": "cased", "viewOn": "c", "collation": { "locale": "en", "strength": 2 } },
    ] {
        test.run_command(view).await?;
    }
    let expected: Vec<i64> = (1..30).step_by(3).collect();
    ensure!(ids(&test, "v").await? == expected);
    ensure!(ids(&test, "vv").await? == expected);
    ensure!(ids(&test, "small").await? == [1, 4]);
    // In batches, and limited.
    let batches = all(&test, doc! { "find": "v", "batchSize": 3 }).await?;
    ensure!(batches.len() == expected.len());
    let last = doc! { "find": "v", "sort": { "_id": -1 }, "skip": 1, "limit": 2, "batchSize": 1 };
    ensure!(numbers(&all(&test, last).await?, "_id") == [25, 22]);
    let reply = test
        .run_command(doc! { "find": "v", "batchSize": 1 })
        .await?;
    ensure!(
        reply.get_document("cursor")?.get_str("ns")? == "test.v",
        "{reply}"
    );

    for (command, n) in [
        (doc! { "count": "v" }, 10),
        (doc! { "count": "v", "query": { "_id": { "$gte": 15 } } }, 5),
        (doc! { "count": "vv", "skip": 8, "limit": 5 }, 2),
        (doc! { "count": "cased", "query": { "b": "B4" } }, 6),
        (doc! { "count": "small" }, 2),
    ] {
        let reply = test.run_command(command.clone()).await?;
        ensure!(
            numbers(std::slice::from_ref(&reply), "n") == [n],
            "{command}: {reply}"
        );
    }
    let reply = test
        .run_command(doc! { "distinct": "v", "key": "b" })
        .await?;
    let mut values: Vec<&str> = reply
        .get_array("values")?
        .iter()
        .filter_map(Bson::as_str)
        .collect();
    values.sort_unstable();
    ensure!(values == ["b0", "b1", "b2", "b3", "b4"], "{reply}");
    let group = doc! { "$group": { "_id": "$b", "n": { "$sum": 1 } } };
    let grouped = doc! {
        "aggregate": "v", "pipeline": [group, { "$sort": { "_id": 1 } }], "cursor": {},
    };
    ensure!(numbers(&all(&test, grouped).await?, "n") == [2, 2, 2, 2, 2]);

    // Views inside of other pipelines, whose own documents are on one shard or on both.
    let joined = all(&test, doc! { "find": "joined", "sort": { "_id": 1 } }).await?;
    ensure!(numbers(&joined, "z") == [2, 2, 2, 2, 2, 2], "{joined:?}");
    for from in ["d", "c"] {
        let lookup = doc! {
            "from": "v", "localField": "_id", "foreignField": "_id", "as": "z",
        };
        let pipeline = vec![
            doc! { "$match": { "_id": { "$lt": 6 } } },
            doc! { "$lookup": lookup },
            doc! { "$match": { "z": { "$size": 1 } } },
            doc! { "$unionWith": { "coll": "vv", "pipeline": [{ "$match": { "_id": 28 } }] } },
            doc! { "$sort": { "_id": 1 } },
        ];
        let found = all(
            &test,
            doc! { "aggregate": from, "pipeline": pipeline, "cursor": {} },
        );
        let found = found.await?;
        ensure!(numbers(&found, "_id") == [1, 4, 28], "{from}: {found:?}");
    }
    let collated = doc! {
        "aggregate": "c", "cursor": {}, "pipeline": [{ "$unionWith": "cased" }],
    };
    ensure!(code_of(&test, collated).await? == OPTION_NOT_SUPPORTED_ON_VIEW);

    // What is explained is the aggregation on all shards.
    let query = doc! { "find": "v", "filter": { "b": "b1" } };
    let explained = test
        .run_command(doc! { "explain": query, "verbosity": "queryPlanner" })
        .await?
        .to_string();
    ensure!(
        explained.contains("shard0") && explained.contains("shard1"),
        "{explained}"
    );

    // A view is written to, sharded and made again on no shard.
    let v = test.collection::<Document>("v");
    let written = v.insert_one(doc! { "a": 1 }).await;
    ensure!(written.is_err(), "a view was written to");
    let admin = client.database("admin");
    let shard = doc! { "shardCollection": "test.v", "key": { "_id": 1 } };
    ensure!(code_of(&admin, shard).await? == COMMAND_NOT_SUPPORTED_ON_VIEW);
    ensure!(code_of(&test, doc! { "create": "v", "viewOn": "c" }).await? == NAMESPACE_EXISTS);
    let listed = all(
        &test,
        doc! { "listCollections": 1, "filter": { "type": "view" } },
    )
    .await?;
    ensure!(listed.len() == 5, "{listed:?}");

    let changed = doc! { "collMod": "v", "viewOn": "c", "pipeline": [{ "$match": { "a": 2 } }] };
    test.run_command(changed).await?;
    ensure!(ids(&test, "v").await? == (2..30).step_by(3).collect::<Vec<i64>>());
    test.run_command(doc! { "drop": "v" }).await?;
    ensure!(ids(&test, "v").await?.is_empty());
    ensure!(ids(&test, "vv").await?.is_empty());
    drop(cluster);
    Ok(())
}
