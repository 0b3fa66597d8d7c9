//! Documents that a shard has given away: when they go, how fast, and whom they are in the way of.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, eventually, within};
use bson::oid::ObjectId;
use bson::{Document, doc};
use mongodb::{Client, Collection};

/// As many of the least size as one chunk takes without being cut.
const MANY: i32 = 12_000;
const SOON: Duration = Duration::from_secs(30);

/// A collection that is cut in two.
async fn shard(
    client: &Client,
    name: &str,
    documents: i32,
    middle: i32,
) -> Result<Collection<Document>> {
    let collection = client.database("test").collection::<Document>(name);
    let documents = (0..documents).map(|k| doc! { "_id": k, "k": k });
    collection.insert_many(documents).await?;
    let index = mongodb::IndexModel::builder().keys(doc! { "k": 1 }).build();
    collection.create_index(index).await?;
    let ns = format!("test.{name}");
    let admin = client.database("admin");
    let key = doc! { "shardCollection": &ns, "key": { "k": 1 } };
    admin.run_command(key).await?;
    let split = doc! { "split": &ns, "middle": { "k": middle } };
    admin.run_command(split).await?;
    Ok(collection)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_go_quickly_and_are_in_nobodys_way() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    let stays = shard(&client, "stays", 200, 100).await?;
    let config = client.database("config");
    let entry = config
        .collection::<Document>("databases")
        .find_one(doc! { "_id": "test" })
        .await?;
    let entry = entry.context("the database")?;
    let home = usize::from(entry.get_str("primary")? == "shard1");
    let away = format!("shard{}", 1 - home);
    let direct = cluster.shards[home].client().await;
    let stored = |name: &str| direct.database("test").collection::<Document>(name);
    let delay = |seconds: i32| doc! { "setParameter": 1, "orphanCleanupDelaySecs": seconds };
    let on_home = direct.database("admin");

    // They stay for as long as they are told to, unseen.
    on_home.run_command(delay(3600)).await?;
    let request = doc! { "moveChunk": "test.stays", "find": { "k": 100 }, "to": &away };
    admin.run_command(request).await?;
    let deletions = direct
        .database("config")
        .collection::<Document>("rangeDeletions");
    let task = deletions
        .find_one(doc! { "nss": "test.stays" })
        .await?
        .context("a task")?;
    ensure!(task.get_str("whenToClean")? == "delayed", "{task}");
    ensure!(task.get_i64("numOrphanDocs")? == 100, "{task}");
    ensure!(stored("stays").count_documents(doc! {}).await? == 200);
    ensure!(stays.count_documents(doc! {}).await? == 200);

    // Of two tasks that can never be carried out one makes no sense, the other has no index.
    let uuid = task.get("collectionUuid").context("its collection")?;
    let hopeless = doc! {
        "_id": ObjectId::new(), "nss": "test.stays", "collectionUuid": uuid,
        "keyPattern": { "q": 1 }, "range": { "min": { "q": 100 }, "max": { "q": 110 } },
        "whenToClean": "now",
    };
    let senseless = doc! { "_id": ObjectId::new(), "nss": "test.stays" };
    deletions.insert_many([hopeless, senseless]).await?;
    eventually("the failing task is shown", || async {
        let status = on_home.run_command(doc! { "serverStatus": 1 }).await?;
        let statistics = status.get_document("shardingStatistics")?;
        let failing = statistics.get_array("rangeDeleterTasksFailing")?;
        let failing = failing.first().and_then(|task| task.as_document());
        ensure!(failing.context("none fails")?.get_i32("code")? == 27);
        ensure!(
            statistics.get_i64("rangeDeleterTasks")? == 2,
            "{statistics}"
        );
        anyhow::Ok(())
    })
    .await;

    // Others go on, and fast.
    let many = shard(&client, "many", MANY, MANY / 2).await?;
    let middle = doc! { "k": MANY / 2 };
    let go = doc! {
        "moveChunk": "test.many", "find": middle.clone(), "to": &away, "_waitForDelete": true,
    };
    // Beside deleting as many on this machine, now.
    let plain = direct.database("test").collection::<Document>("plain");
    plain
        .insert_many((0..MANY / 2).map(|k| doc! { "_id": k, "k": k }))
        .await?;
    let started = Instant::now();
    plain.delete_many(doc! {}).await?;
    let fast = Duration::from_secs(3) + 20 * started.elapsed();
    let started = Instant::now();
    tokio::time::timeout(SOON, admin.run_command(go.clone())).await??;
    let took = started.elapsed();
    ensure!(took < fast, "{took:?}, not within {fast:?}");
    ensure!(stored("many").count_documents(doc! {}).await? == MANY as u64 / 2);
    // What comes back need not wait for its delay, nor for what is left of others.
    let come =
        doc! { "moveChunk": "test.many", "find": middle.clone(), "to": format!("shard{home}") };
    tokio::time::timeout(SOON, admin.run_command(come.clone())).await??;
    let go_on = doc! { "moveChunk": "test.many", "find": middle, "to": &away };
    tokio::time::timeout(SOON, admin.run_command(go_on)).await??;
    ensure!(stored("many").count_documents(doc! {}).await? == MANY as u64);
    tokio::time::timeout(SOON, admin.run_command(come)).await??;
    ensure!(many.count_documents(doc! { "k": { "$gte": 0 } }).await? == MANY as u64);

    // A restart forgets none of them; this one allows no delay.
    cluster.shards[home].members[0].kill();
    cluster.shards[home].members[0].start().await;
    let direct = cluster.shards[home].client().await;
    let stored = direct.database("test").collection::<Document>("stays");
    within(SOON, "the orphans from before the restart go", || async {
        let left = stored.count_documents(doc! {}).await?;
        ensure!(left == 100, "{left} are stored");
        anyhow::Ok(())
    })
    .await;
    ensure!(stays.count_documents(doc! { "k": { "$gte": 0 } }).await? == 200);
    Ok(())
}
