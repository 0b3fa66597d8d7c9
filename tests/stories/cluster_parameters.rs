//! Parameters of whole sets and clusters: who keeps them, who knows of them, and what they do.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

const TIME_OVER: i32 = 50;

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

/// The parameter as a process tells it.
async fn told(admin: &Database, name: &str) -> Result<Document> {
    let reply = admin
        .run_command(doc! { "getClusterParameter": name })
        .await?;
    let first = reply.get_array("clusterParameters")?.first();
    Ok(first.and_then(Bson::as_document).context("one")?.clone())
}

/// A read that takes a while.
async fn slow(client: &Client, more: Document) -> mongodb::error::Result<Document> {
    let mut find = doc! { "find": "items", "filter": { "$where": "sleep(400) || true" } };
    find.extend(more);
    client.database("shop").run_command(find).await
}

fn read_time(milliseconds: i64) -> Document {
    doc! { "setClusterParameter": { "defaultMaxTimeMS": { "readOperations": milliseconds } } }
}

/// Reads that name no time end after the set's; every member knows it, also after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_gives_reads_their_time() -> Result<()> {
    let mut set = ReplicaSet::start("timed", 2, &[]).await;
    let client = set.client().await;
    let admin = client.database("admin");
    let items = client.database("shop").collection::<Document>("items");
    items.insert_one(doc! { "_id": 1 }).await?;
    ensure!(
        told(&admin, "defaultMaxTimeMS")
            .await?
            .get_i64("readOperations")?
            == 0
    );
    slow(&client, doc! {}).await?;
    admin.run_command(read_time(50)).await?;
    ensure!(code(slow(&client, doc! {}).await) == Some(TIME_OVER));
    slow(&client, doc! { "maxTimeMS": 0 }).await?;
    slow(&client, doc! { "maxTimeMS": 30_000 }).await?;
    let written = doc! { "aggregate": "items", "cursor": {}, "pipeline": [
        { "$match": { "$expr": { "$function": {
            "body": "function() { sleep(400); return true; }", "args": [], "lang": "js",
        } } } },
        { "$out": "copy" },
    ] };
    client.database("shop").run_command(written).await?;

    for member in &mut set.members {
        let own = member.direct().await.database("admin");
        eventually("every member knows", || async {
            let known = told(&own, "defaultMaxTimeMS").await?;
            ensure!(known.get_i64("readOperations")? == 50, "{known}");
            ensure!(known.get_timestamp("clusterParameterTime")?.time > 0);
            Ok(())
        })
        .await;
    }
    let primary = set.primary().await;
    set.members[primary].kill();
    set.members[primary].start().await;
    eventually("reads end early", || async {
        ensure!(code(slow(&client, doc! {}).await) == Some(TIME_OVER));
        Ok(())
    })
    .await;
    eventually("the time is taken back", || async {
        admin.run_command(read_time(0)).await?;
        Ok::<_, mongodb::error::Error>(())
    })
    .await;
    slow(&client, doc! {}).await?;
    Ok(())
}

/// How documents were before is shown for as long as the parameter says.
#[tokio::test]
async fn images_are_shown_for_a_time() -> Result<()> {
    let set = ReplicaSet::start("imaged", 1, &[]).await;
    let client = set.client().await;
    let (admin, shop) = (client.database("admin"), client.database("shop"));
    let images = doc! { "enabled": true };
    shop.run_command(doc! { "create": "items", "changeStreamPreAndPostImages": images })
        .await?;
    let items = shop.collection::<Document>("items");
    items.insert_one(doc! { "_id": 1, "a": 1 }).await?;
    let since = shop.run_command(doc! { "ping": 1 }).await?;
    let since = since.get_timestamp("operationTime")?;
    items
        .update_one(doc! { "_id": 1 }, doc! { "$set": { "a": 2 } })
        .await?;
    let before = || async {
        let stage = doc! {
            "fullDocumentBeforeChange": "whenAvailable",
            "startAtOperationTime": since,
        };
        let watch = doc! {
            "aggregate": "items", "cursor": {},
            "pipeline": [{ "$changeStream": stage }, { "$match": { "operationType": "update" } }],
        };
        // A cursor belongs to its session, and the driver may take another for each command.
        let mut session = shop.client().start_session().await?;
        let mut reply = shop.run_command(watch).session(&mut session).await?;
        loop {
            let cursor = reply.get_document("cursor")?;
            let batches = ["firstBatch", "nextBatch"].into_iter();
            let mut events = batches.flat_map(|batch| cursor.get_array(batch)).flatten();
            if let Some(event) = events.next().and_then(Bson::as_document) {
                return Ok::<_, anyhow::Error>(event.get("fullDocumentBeforeChange").cloned());
            }
            let id = cursor.get_i64("id")?;
            let more = doc! { "getMore": id, "collection": "items", "maxTimeMS": 1000 };
            reply = shop.run_command(more).session(&mut session).await?;
        }
    };
    ensure!(before().await? == Some(Bson::Document(doc! { "_id": 1, "a": 1 })));
    let keep = |seconds: Bson| {
        let options = doc! { "preAndPostImages": { "expireAfterSeconds": seconds } };
        admin.run_command(doc! { "setClusterParameter": { "changeStreamOptions": options } })
    };
    ensure!(code(keep(Bson::Int32(-1)).await) == Some(2));
    keep(Bson::Int32(1)).await?;
    eventually("the image is over", || async {
        ensure!(before().await? == Some(Bson::Null));
        Ok(())
    })
    .await;
    keep(Bson::String("off".to_owned())).await?;
    ensure!(before().await? == Some(Bson::Document(doc! { "_id": 1, "a": 1 })));
    Ok(())
}

/// In a cluster the config servers keep them, routers do what they say, and shards learn of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_has_parameters() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    let items = client.database("shop").collection::<Document>("items");
    items.insert_one(doc! { "_id": 1 }).await?;
    slow(&client, doc! {}).await?;
    admin.run_command(read_time(50)).await?;
    ensure!(
        told(&admin, "defaultMaxTimeMS")
            .await?
            .get_i64("readOperations")?
            == 50
    );
    ensure!(code(slow(&client, doc! {}).await) == Some(TIME_OVER));
    slow(&client, doc! { "maxTimeMS": 30_000 }).await?;
    for shard in &cluster.shards {
        let own = shard.client().await.database("admin");
        ensure!(code(own.run_command(read_time(9)).await) == Some(238));
        eventually("the shard knows", || async {
            let known = told(&own, "defaultMaxTimeMS").await?;
            ensure!(known.get_i64("readOperations")? == 50, "{known}");
            Ok(())
        })
        .await;
    }
    // A router has said so for its client.
    slow(&client, doc! { "maxTimeMS": 0 }).await?;
    Ok(())
}

/// A server alone has none.
#[tokio::test]
async fn a_standalone_has_none() -> Result<()> {
    let server = Launch::mongod().start().await;
    let admin = server.direct().await.database("admin");
    ensure!(code(told_by(&admin).await) == Some(20));
    ensure!(code(admin.run_command(read_time(1)).await) == Some(20));
    Ok(())
}

async fn told_by(admin: &Database) -> mongodb::error::Result<Document> {
    admin.run_command(doc! { "getClusterParameter": "*" }).await
}
