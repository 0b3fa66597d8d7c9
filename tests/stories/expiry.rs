//! Indexes with `expireAfterSeconds`: whose time is over goes, by the primary's hand.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually, within};
use bson::{Bson, DateTime, Document, doc};
use futures::StreamExt;
use mongodb::change_stream::event::OperationType;
use mongodb::{Client, Collection, Database};

const SOON: Duration = Duration::from_secs(30);
const QUICKLY: &[&str] = &["--setParameter", "ttlMonitorSleepSecs=1"];

fn ago(hours: i64) -> DateTime {
    DateTime::from_millis(DateTime::now().timestamp_millis() - hours * 3_600_000)
}

async fn index(test: &Database, name: &str, more: Document) -> Result<()> {
    let mut index = doc! { "key": { "at": 1 }, "name": "at" };
    index.extend(more);
    test.run_command(doc! { "createIndexes": name, "indexes": [index] })
        .await?;
    Ok(())
}

async fn ids(collection: &Collection<Document>) -> Result<Vec<Bson>> {
    let sorted = collection.find(doc! {}).sort(doc! { "_id": 1 });
    let mut found = sorted.await?;
    let mut ids = Vec::new();
    while let Some(document) = found.next().await {
        ids.push(document?.get("_id").context("an _id")?.clone());
    }
    Ok(ids)
}

async fn left(collection: &Collection<Document>, wanted: &[i32]) {
    let wanted: Vec<Bson> = wanted.iter().map(|id| Bson::from(*id)).collect();
    within(SOON, "what is over goes", || async {
        let left = ids(collection).await?;
        ensure!(left == wanted, "{left:?}");
        Ok(())
    })
    .await;
}

async fn figures(client: &Client) -> Result<(i64, i64)> {
    let admin = client.database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
    let ttl = status.get_document("metrics")?.get_document("ttl")?;
    Ok((ttl.get_i64("passes")?, ttl.get_i64("deletedDocuments")?))
}

#[tokio::test]
async fn documents_go_by_the_earliest_date_in_the_field() -> Result<()> {
    let server = Launch::mongod().with_all(QUICKLY).start().await;
    let client = server.direct().await;
    let test = client.database("test");
    let dated = test.collection::<Document>("dated");
    dated
        .insert_many([
            doc! { "_id": 1, "at": ago(2) },
            doc! { "_id": 2, "at": ago(0) },
            doc! { "_id": 3, "at": [ago(-5), ago(2), "x"] },
            doc! { "_id": 4, "at": [ago(-5), ago(0)] },
            doc! { "_id": 5, "at": 5 },
            doc! { "_id": 6, "at": "2001-01-01" },
            doc! { "_id": 7 },
            doc! { "_id": 8, "at": Bson::Null },
            doc! { "_id": 9, "at": { "at": ago(2) } },
            doc! { "_id": 10, "at": bson::Timestamp { time: 1, increment: 1 } },
            doc! { "_id": 11, "at": ago(-5) },
            doc! { "_id": 12, "at": [] },
        ])
        .await?;
    index(&test, "dated", doc! { "expireAfterSeconds": 3600 }).await?;
    left(&dated, &[2, 4, 5, 6, 7, 8, 9, 10, 11, 12]).await;

    // Another time for the same index, and a time for one that had none.
    let sooner = doc! { "collMod": "dated", "index": { "name": "at", "expireAfterSeconds": 0 } };
    let told = test.run_command(sooner).await?;
    ensure!(told.get_i64("expireAfterSeconds_old")? == 3600, "{told}");
    ensure!(told.get_i64("expireAfterSeconds_new")? == 0, "{told}");
    left(&dated, &[5, 6, 7, 8, 9, 10, 11, 12]).await;
    let plain = test.collection::<Document>("plain");
    index(&test, "plain", doc! {}).await?;
    plain
        .insert_many([doc! { "_id": 1, "at": ago(2) }, doc! { "_id": 2 }])
        .await?;
    let (passes, deleted) = figures(&client).await?;
    ensure!(deleted == 4, "{deleted}");
    within(SOON, "two passes go by", || async {
        ensure!(figures(&client).await?.0 >= passes + 2);
        Ok(())
    })
    .await;
    ensure!(ids(&plain).await?.len() == 2);
    let key = doc! { "keyPattern": { "at": 1 }, "expireAfterSeconds": 3600 };
    test.run_command(doc! { "collMod": "plain", "index": key })
        .await?;
    left(&plain, &[2]).await;

    // Only what the index holds, whether or not the planner sees it.
    for (name, more) in [
        (
            "partial",
            doc! { "partialFilterExpression": { "done": true } },
        ),
        ("hidden", doc! { "hidden": true }),
    ] {
        let some = test.collection::<Document>(name);
        some.insert_many([
            doc! { "_id": 1, "at": ago(2), "done": true },
            doc! { "_id": 2, "at": ago(2), "done": name == "hidden" },
            doc! { "_id": 3, "at": ago(0), "done": true },
        ])
        .await?;
        let mut options = doc! { "expireAfterSeconds": 3600 };
        options.extend(more);
        index(&test, name, options).await?;
        let stays: &[i32] = if name == "hidden" { &[3] } else { &[2, 3] };
        left(&some, stays).await;
    }

    // Nothing goes while the monitor is turned off.
    let admin = client.database("admin");
    let turn = |on: bool| admin.run_command(doc! { "setParameter": 1, "ttlMonitorEnabled": on });
    turn(false).await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (passes, _) = figures(&client).await?;
    plain.insert_one(doc! { "_id": 3, "at": ago(2) }).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(figures(&client).await?.0 == passes);
    ensure!(ids(&plain).await?.len() == 2);
    turn(true).await?;
    left(&plain, &[2]).await;
    Ok(())
}

#[tokio::test]
async fn the_primary_deletes_and_everybody_hears_of_it() -> Result<()> {
    let set = ReplicaSet::start("expiry", 3, QUICKLY).await;
    let client = set.client().await;
    let test = client.database("test");
    let dated = test.collection::<Document>("dated");
    index(&test, "dated", doc! { "expireAfterSeconds": 3600 }).await?;
    let mut changes = dated.watch().await?;
    // More than one batch.
    const MANY: i32 = 25_000;
    for from in (0..MANY).step_by(5_000) {
        let documents = (from..from + 5_000).map(|n| doc! { "_id": n, "at": ago(2) });
        dated.insert_many(documents).await?;
    }
    dated.insert_one(doc! { "_id": MANY, "at": ago(0) }).await?;
    left(&dated, &[MANY]).await;
    let mut deleted = 0;
    while deleted < MANY {
        let event = tokio::time::timeout(SOON, changes.next()).await?;
        let event = event.context("an event")??;
        deleted += i32::from(event.operation_type == OperationType::Delete);
    }
    let leader = set.primary().await;
    for (number, member) in set.members.iter().enumerate() {
        let direct = member.direct().await;
        let (passes, deleted) = figures(&direct).await?;
        let is_leader = number == leader;
        ensure!(is_leader == (passes > 0), "{number}: {passes}");
        let expected = if is_leader { i64::from(MANY) } else { 0 };
        ensure!(deleted == expected, "{number}: {deleted}");
        let oplog = direct.database("local").collection::<Document>("oplog.rs");
        within(SOON, "the log says so", || async {
            let deletes = oplog.find_one(doc! { "op": "d", "ns": "test.dated" });
            ensure!(deletes.await?.is_some());
            Ok(())
        })
        .await;
    }

    // Whoever leads next goes on.
    let direct = set.members[leader].direct().await.database("admin");
    // It closes its connections.
    let _ = direct.run_command(doc! { "replSetStepDown": 60 }).await;
    eventually("another member leads", || async {
        ensure!(set.primary().await != leader);
        Ok(())
    })
    .await;
    dated.insert_one(doc! { "_id": -1, "at": ago(2) }).await?;
    left(&dated, &[MANY]).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_shard_deletes_its_own() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    for shard in &cluster.shards {
        let own = shard.client().await.database("admin");
        let quickly = doc! { "setParameter": 1, "ttlMonitorSleepSecs": 1 };
        own.run_command(quickly).await?;
    }
    let test = client.database("test");
    let dated = test.collection::<Document>("dated");
    index(&test, "dated", doc! {}).await?;
    let documents = (-20..20).map(|n| doc! { "_id": n, "at": ago(i64::from(n & 1) + 1) });
    dated.insert_many(documents).await?;
    let key = doc! { "shardCollection": "test.dated", "key": { "_id": 1 } };
    admin.run_command(key).await?;
    let split = doc! { "split": "test.dated", "middle": { "_id": 0 } };
    admin.run_command(split).await?;
    let databases = client
        .database("config")
        .collection::<Document>("databases");
    let entry = databases.find_one(doc! { "_id": "test" }).await?;
    let entry = entry.context("the database")?;
    let away = match entry.get_str("primary")? {
        "shard0" => "shard1",
        _ => "shard0",
    };
    let request = doc! { "moveChunk": "test.dated", "find": { "_id": 0 }, "to": away };
    admin.run_command(request).await?;
    let change = doc! { "name": "at", "expireAfterSeconds": 5400 };
    let told = test
        .run_command(doc! { "collMod": "dated", "index": change })
        .await?;
    ensure!(told.get_i64("expireAfterSeconds_new")? == 5400, "{told}");
    within(SOON, "both shards have deleted", || async {
        let left = dated.count_documents(doc! {}).await?;
        ensure!(left == 20, "{left}");
        Ok(())
    })
    .await;
    for shard in &cluster.shards {
        let own = shard.client().await.database("test");
        let listed = own.run_command(doc! { "listIndexes": "dated" }).await?;
        let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
        let at = listed.iter().filter_map(Bson::as_document);
        let at: Vec<_> = at
            .filter(|index| index.get_str("name").is_ok_and(|name| name == "at"))
            .collect();
        ensure!(
            at.len() == 1 && at[0].get_i32("expireAfterSeconds")? == 5400,
            "{at:?}"
        );
    }
    Ok(())
}
