//! The indexes of a sharded collection: on all of its shards or on none, whatever moves or fails.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, eventually};
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

const INVALID_OPTIONS: i32 = 72;
const CANNOT_CREATE_INDEX: i32 = 67;
const CANNOT_DROP_SHARD_KEY_INDEX: i32 = 373;
const MAX_TIME_MS_EXPIRED: i32 = 50;
const DUPLICATE_KEY: i32 = 11000;

/// A cluster in which `test.posts` lies on two shards, cut at 0.
async fn two_halves() -> Result<(Cluster, Client)> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    for command in [
        doc! { "balancerStop": 1 },
        doc! { "enableSharding": "test", "primaryShard": "shard0" },
        doc! { "shardCollection": "test.posts", "key": { "k": 1 } },
        doc! { "split": "test.posts", "middle": { "k": 0 } },
        doc! { "moveChunk": "test.posts", "find": { "k": 0 }, "to": "shard1" },
    ] {
        admin.run_command(command).await?;
    }
    Ok((cluster, client))
}

async fn create(test: &Database, index: Document) -> mongodb::error::Result<Document> {
    test.run_command(doc! { "createIndexes": "posts", "indexes": [index] })
        .await
}

async fn drop_index(test: &Database, index: &str) -> mongodb::error::Result<Document> {
    test.run_command(doc! { "dropIndexes": "posts", "index": index })
        .await
}

fn code(outcome: mongodb::error::Result<Document>) -> Result<i32> {
    match outcome {
        Ok(reply) => bail!("it was done: {reply}"),
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            other => bail!("{other}"),
        },
    }
}

/// The indexes of `test.posts` as one shard has them, in any order.
async fn indexes_of(cluster: &Cluster, shard: usize) -> Result<BTreeSet<String>> {
    let client = cluster.shards[shard].client().await;
    let posts = client.database("test").collection::<Document>("posts");
    let listed = posts.list_indexes().await?;
    let models: Vec<_> = listed.try_collect().await?;
    let shown = models.iter().map(|model| {
        let options = model.options.clone().unwrap_or_default();
        let name = options.name.unwrap_or_default();
        format!(
            "{name} {} {:?} {:?}",
            model.keys, options.unique, options.hidden
        )
    });
    Ok(shown.collect())
}

/// What both shards have.
async fn same_on_both(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let (one, other) = (indexes_of(cluster, 0).await?, indexes_of(cluster, 1).await?);
    ensure!(one == other, "{one:?} on shard0, {other:?} on shard1");
    Ok(one)
}

fn has(indexes: &BTreeSet<String>, name: &str) -> bool {
    let start = format!("{name} ");
    indexes.iter().any(|index| index.starts_with(&start))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_index_is_on_no_shard_and_the_shard_keys_stays() -> Result<()> {
    let (cluster, client) = two_halves().await?;
    let (test, admin) = (client.database("test"), client.database("admin"));
    let posts = test.collection::<Document>("posts");
    // Two of a kind, on the second shard only.
    posts
        .insert_many([-1, 10, 10].map(|k| doc! { "k": k, "u": 1 }))
        .await?;

    let unique = doc! { "key": { "k": 1, "u": 1 }, "name": "k_1_u_1", "unique": true };
    ensure!(code(create(&test, unique.clone()).await)? == DUPLICATE_KEY);
    ensure!(!has(&same_on_both(&cluster).await?, "k_1_u_1"));
    posts.delete_one(doc! { "k": 10 }).await?;
    let reply = create(&test, unique).await?;
    ensure!(reply.get_document("raw")?.len() == 2, "{reply}");
    ensure!(has(&same_on_both(&cluster).await?, "k_1_u_1"));
    posts
        .insert_one(doc! { "k": 10, "u": 1 })
        .await
        .err()
        .context("a duplicate")?;

    // Unique on each shard is not unique.
    let elsewhere = doc! { "key": { "u": 1 }, "name": "u_1", "unique": true };
    ensure!(code(create(&test, elsewhere.clone()).await)? == CANNOT_CREATE_INDEX);
    admin
        .run_command(doc! { "shardCollection": "test.hashed", "key": { "k": "hashed" } })
        .await?;
    let led = (doc! { "k": 1 }, "led", true);
    let not_led = (doc! { "u": 1, "k": 1 }, "not_led", false);
    for (key, name, allowed) in [led, not_led] {
        let index = doc! { "key": key, "name": name, "unique": true };
        let command = doc! { "createIndexes": "hashed", "indexes": [index] };
        let outcome = test.run_command(command).await;
        match allowed {
            true => drop(outcome?),
            false => ensure!(code(outcome)? == CANNOT_CREATE_INDEX),
        }
    }
    test.run_command(doc! { "createIndexes": "other", "indexes": [elsewhere] })
        .await?;
    let other = doc! { "shardCollection": "test.other", "key": { "k": 1 } };
    ensure!(code(admin.run_command(other).await)? == INVALID_OPTIONS);

    // What the chunks are ranges of stays, as long as nothing else serves.
    drop_index(&test, "k_1").await?;
    ensure!(code(drop_index(&test, "k_1_u_1").await)? == CANNOT_DROP_SHARD_KEY_INDEX);
    let hide = doc! { "collMod": "posts", "index": { "name": "k_1_u_1", "hidden": true } };
    ensure!(code(test.run_command(hide).await)? == INVALID_OPTIONS);
    create(&test, doc! { "key": { "u": 1 }, "name": "u_1" }).await?;
    let hide = doc! { "collMod": "posts", "index": { "name": "u_1", "hidden": true } };
    let reply = test.run_command(hide).await?;
    ensure!(reply.get_bool("hidden_new")?, "{reply}");
    let indexes = same_on_both(&cluster).await?;
    let is_hidden = |index: &String| index.starts_with("u_1 ") && index.ends_with("Some(true)");
    ensure!(indexes.iter().any(is_hidden), "{indexes:?}");
    drop_index(&test, "*").await?;
    let left = same_on_both(&cluster).await?;
    ensure!(left.len() == 2 && has(&left, "k_1_u_1"), "{left:?}");
    let direct = cluster.shards[0].client().await.database("test");
    ensure!(code(drop_index(&direct, "k_1_u_1").await)? == CANNOT_DROP_SHARD_KEY_INDEX);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_range_finds_every_index_where_it_comes() -> Result<()> {
    let (cluster, client) = two_halves().await?;
    let (test, admin) = (client.database("test"), client.database("admin"));
    let posts = test.collection::<Document>("posts");
    let pad = "x".repeat(500);
    let documents = (0..4_000).map(|k| doc! { "k": k, "pad": &pad, "n": k % 7 });
    posts.insert_many(documents).await?;

    // Indexes come and go while the range moves to and fro; in between one shard has no part.
    let over = Arc::new(AtomicBool::new(false));
    let changing = {
        let (over, test) = (over.clone(), test.clone());
        tokio::spawn(async move {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) || round < 4 {
                let name = format!("f{round}");
                let mut key = Document::new();
                key.insert(name.as_str(), 1);
                create(&test, doc! { "key": key, "name": name.as_str() }).await?;
                if round >= 3 {
                    drop_index(&test, &format!("f{}", round - 3)).await?;
                }
                round += 1;
            }
            anyhow::Ok(round)
        })
    };
    for to in ["shard0", "shard1", "shard0", "shard1"] {
        let request = doc! { "moveChunk": "test.posts", "find": { "k": 0 }, "to": to };
        eventually("the range moves", || async {
            admin.run_command(request.clone()).await.map(drop)
        })
        .await;
    }
    over.store(true, Ordering::Relaxed);
    let rounds = changing.await??;
    let indexes = same_on_both(&cluster).await?;
    ensure!(has(&indexes, &format!("f{}", rounds - 1)), "{indexes:?}");
    ensure!(indexes.len() == 2 + 3, "{indexes:?}");
    ensure!(posts.count_documents(doc! { "n": 3 }).await? == 571);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_indexes_is_finished_whoever_fails() -> Result<()> {
    let (mut cluster, client) = two_halves().await?;
    let (test, admin) = (client.database("test"), client.database("admin"));
    create(&test, doc! { "key": { "old": 1 }, "name": "old" }).await?;

    cluster.shards[1].members[0].kill();
    let create_new = doc! {
        "createIndexes": "posts", "indexes": [{ "key": { "new": 1 }, "name": "new" }],
        "maxTimeMS": 500,
    };
    ensure!(code(test.run_command(create_new).await)? == MAX_TIME_MS_EXPIRED);
    let moved = doc! { "moveChunk": "test.posts", "find": { "k": -1 }, "to": "shard1" };
    admin
        .run_command(moved.clone())
        .await
        .err()
        .context("nothing moves meanwhile")?;
    cluster.config.members[0].kill();
    cluster.config.members[0].start().await;
    cluster.shards[1].members[0].start().await;
    let open = client
        .database("config")
        .collection::<Document>("indexChanges");
    eventually("the index is taken back, or made", || async {
        ensure!(open.count_documents(doc! {}).await? == 0);
        Ok(())
    })
    .await;
    same_on_both(&cluster).await?;

    cluster.shards[1].members[0].kill();
    let drop_old = doc! { "dropIndexes": "posts", "index": "old", "maxTimeMS": 500 };
    ensure!(code(test.run_command(drop_old).await)? == MAX_TIME_MS_EXPIRED);
    cluster.shards[1].members[0].start().await;
    eventually("the index is dropped on both", || async {
        ensure!(open.count_documents(doc! {}).await? == 0);
        ensure!(!has(&same_on_both(&cluster).await?, "old"));
        Ok(())
    })
    .await;
    eventually("the range moves", || async {
        admin.run_command(moved.clone()).await.map(drop)
    })
    .await;
    same_on_both(&cluster).await?;
    Ok(())
}
