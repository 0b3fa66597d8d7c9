//! Chunks on the move: nothing is lost or doubled, whoever crashes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, connect, eventually};
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::{Client, Collection};

const DOCUMENTS: i32 = 2_000;
const WRITERS: i32 = 4;

/// What the clients of the story know.
#[derive(Default)]
struct Known {
    stop: AtomicBool,
    moves: AtomicUsize,
}

/// What one writer was told about the documents that are its own.
#[derive(Default)]
struct Told {
    /// Increments per document that were acknowledged, and that may have happened.
    increments: BTreeMap<i32, (i32, i32)>,
    inserted: Vec<i32>,
    perhaps_inserted: Vec<i32>,
    deleted: Vec<i32>,
    perhaps_deleted: Vec<i32>,
}

/// Changes its documents, one statement at a time, until the story ends. Without retries an error
/// means that nobody knows.
async fn write(posts: Collection<Document>, known: Arc<Known>, writer: i32) -> Told {
    let mut told = Told::default();
    let mut round = 0;
    while !known.stop.load(Ordering::Relaxed) {
        round += 1;
        let id = (round * 7 % (DOCUMENTS / WRITERS)) * WRITERS + writer;
        let count = told.increments.entry(id).or_default();
        match posts
            .update_one(doc! { "k": id }, doc! { "$inc": { "n": 1 } })
            .await
        {
            Ok(outcome) if outcome.modified_count == 1 => count.0 += 1,
            // Also an acknowledged miss: the last look decides whether the document is there.
            _ => count.1 += 1,
        }
        let fresh = 1_000_000 * (writer + 1) + round;
        let k = f64::from(round * 13 % DOCUMENTS) + 0.5;
        match posts
            .insert_one(doc! { "_id": fresh, "k": k, "n": 0 })
            .await
        {
            Ok(_) => told.inserted.push(fresh),
            Err(_) => told.perhaps_inserted.push(fresh),
        }
        if round % 5 == 0
            && let Some(old) = told.inserted.pop()
        {
            // By `_id` alone, so that it goes to every shard.
            match posts.delete_many(doc! { "_id": old }).await {
                Ok(outcome) if outcome.deleted_count == 1 => told.deleted.push(old),
                Ok(outcome) => panic!("{old} was acknowledged, but not deleted: {outcome:?}"),
                Err(_) => told.perhaps_deleted.push(old),
            }
        }
    }
    told
}

/// Sends chunks from one shard to the other and back.
async fn keep_moving(client: Client, known: Arc<Known>) {
    let admin = client.database("admin");
    let mut round = 0;
    while !known.stop.load(Ordering::Relaxed) {
        round += 1;
        let request = doc! {
            "moveChunk": "test.posts",
            "find": { "k": round * 611 % DOCUMENTS },
            "to": format!("shard{}", round % 2),
        };
        if admin.run_command(request).await.is_ok() {
            known.moves.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn some_moves(known: &Known, count: usize) {
    let before = known.moves.load(Ordering::Relaxed);
    eventually("chunks move", || async {
        let moved = known.moves.load(Ordering::Relaxed) - before;
        if moved >= count { Ok(()) } else { Err(moved) }
    })
    .await;
}

async fn read_all(posts: &Collection<Document>) -> Result<BTreeMap<i32, Document>> {
    let mut found = BTreeMap::new();
    let mut cursor = posts.find(doc! {}).await?;
    while let Some(document) = cursor.try_next().await? {
        let id = document.get_i32("_id")?;
        ensure!(found.insert(id, document).is_none(), "{id} is there twice");
    }
    Ok(found)
}

/// Holds what was acknowledged against what is there.
fn compare(told: &Told, found: &mut BTreeMap<i32, Document>) -> Result<()> {
    for (id, (sure, perhaps)) in &told.increments {
        let document = found.remove(id).with_context(|| format!("{id} is lost"))?;
        let n = document.get_i32("n")?;
        ensure!(
            (*sure..=sure + perhaps).contains(&n),
            "{id}: {n}, not {sure} (+ {perhaps})"
        );
    }
    for id in &told.inserted {
        ensure!(
            found.remove(id).is_some(),
            "{id} was acknowledged and is lost"
        );
    }
    for id in &told.deleted {
        ensure!(!found.contains_key(id), "{id} was deleted and is back");
    }
    for id in told.perhaps_inserted.iter().chain(&told.perhaps_deleted) {
        found.remove(id);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_during_moves_lose_and_double_nothing() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape::default()).await;
    let uri = format!("mongodb://{}/?retryWrites=false", cluster.router.host());
    let client = connect(&uri).await;
    let admin = client.database("admin");
    admin
        .run_command(doc! { "shardCollection": "test.posts", "key": { "k": 1 } })
        .await?;
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    for k in (250..DOCUMENTS).step_by(250) {
        admin
            .run_command(doc! { "split": "test.posts", "middle": { "k": k } })
            .await?;
    }
    let posts = client.database("test").collection::<Document>("posts");
    let documents = (0..DOCUMENTS).map(|id| doc! { "_id": id, "k": id, "n": 0 });
    posts.insert_many(documents).await?;

    let known = Arc::new(Known::default());
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(posts.clone(), known.clone(), writer)))
        .collect();
    let mover = tokio::spawn(keep_moving(client.clone(), known.clone()));
    for victim in [0, 1, 2, 1, 0] {
        some_moves(&known, 2).await;
        let process = match victim {
            2 => &mut cluster.config.members[0],
            shard => &mut cluster.shards[shard].members[0],
        };
        process.kill();
        process.start().await;
    }
    some_moves(&known, 2).await;
    known.stop.store(true, Ordering::Relaxed);
    mover.await?;
    // Each ends a round that it has begun: only then is it known what has to be there.
    let mut told = Vec::new();
    for writer in writers {
        told.push(writer.await?);
    }

    let mut found = read_all(&posts).await?;
    let total = found.len();
    for told in &told {
        compare(told, &mut found)?;
    }
    // A writer need not have come to all of its documents.
    found.retain(|id, _| *id >= DOCUMENTS);
    ensure!(found.is_empty(), "nobody wrote {found:?}");

    // What the migrations left behind is removed.
    eventually("each document is on one shard only", || async {
        let mut stored = 0;
        for shard in &cluster.shards {
            let posts = shard
                .client()
                .await
                .database("test")
                .collection::<Document>("posts");
            stored += posts.count_documents(doc! {}).await?;
        }
        if stored == total as u64 {
            return Ok(());
        }
        bail!("{stored} are stored, {total} are there")
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_is_drained_and_leaves() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    let posts = client.database("test").collection::<Document>("posts");
    // Data first: sharding finds it there, cut into chunks already.
    posts
        .insert_many((0..5_000).map(|k| doc! { "k": k, "pad": "x".repeat(400) }))
        .await?;
    posts
        .create_index(mongodb::IndexModel::builder().keys(doc! { "k": 1 }).build())
        .await?;
    admin
        .run_command(doc! { "shardCollection": "test.posts", "key": { "k": 1 } })
        .await?;
    let chunks = client.database("config").collection::<Document>("chunks");
    ensure!(chunks.count_documents(doc! { "ns": "test.posts" }).await? > 2);
    eventually("the balancer spreads the chunks", || async {
        for shard in ["shard0", "shard1"] {
            let own = doc! { "ns": "test.posts", "shard": shard };
            ensure!(
                chunks.count_documents(own).await? > 1,
                "{shard} has too few"
            );
        }
        Ok(())
    })
    .await;

    let databases = client
        .database("config")
        .collection::<Document>("databases");
    let entry = databases
        .find_one(doc! { "_id": "test" })
        .await?
        .context("the database")?;
    let leaving = if entry.get_str("primary")? == "shard0" {
        "shard1"
    } else {
        "shard0"
    };
    let started = admin.run_command(doc! { "removeShard": leaving }).await?;
    ensure!(started.get_str("state")? == "started", "{started}");
    eventually("the shard has left", || async {
        let state = admin.run_command(doc! { "removeShard": leaving }).await?;
        ensure!(state.get_str("state")? == "completed", "{state}");
        Ok(())
    })
    .await;
    ensure!(posts.count_documents(doc! { "k": { "$gte": 0 } }).await? == 5_000);
    ensure!(chunks.count_documents(doc! { "shard": leaving }).await? == 0);
    let last = admin.run_command(doc! { "listShards": 1 }).await?;
    ensure!(last.get_array("shards")?.len() == 1, "{last}");
    Ok(())
}
