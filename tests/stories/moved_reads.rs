//! Reads through a router that never hears of moves, of any member, while chunks move through
//! another one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, connect, eventually};
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::options::{
    CollectionOptions, ReadConcern, ReadPreference, ReadPreferenceOptions, SelectionCriteria,
};
use mongodb::{Client, Collection};

const DOCUMENTS: i32 = 400;

fn preferences() -> [(&'static str, ReadPreference); 5] {
    let options = || Some(ReadPreferenceOptions::default());
    [
        ("primary", ReadPreference::Primary),
        (
            "primaryPreferred",
            ReadPreference::PrimaryPreferred { options: options() },
        ),
        (
            "secondary",
            ReadPreference::Secondary { options: options() },
        ),
        (
            "secondaryPreferred",
            ReadPreference::SecondaryPreferred { options: options() },
        ),
        ("nearest", ReadPreference::Nearest { options: options() }),
    ]
}

/// What the readers share.
#[derive(Default)]
struct Readers {
    stop: AtomicBool,
    rounds: [AtomicUsize; 10],
}

/// Counts, finds and sums everything until the story ends.
async fn read(posts: Collection<Document>, readers: Arc<Readers>, place: usize) -> Result<()> {
    let all: BTreeSet<i32> = (0..DOCUMENTS).collect();
    while !readers.stop.load(Ordering::Relaxed) {
        let counted = posts.count_documents(doc! { "k": { "$gte": 0 } }).await?;
        ensure!(counted == all.len() as u64, "{counted} are counted");
        let found: Vec<Document> = posts.find(doc! {}).await?.try_collect().await?;
        let ids: BTreeSet<i32> = found.iter().flat_map(|d| d.get_i32("_id")).collect();
        ensure!(
            found.len() == all.len() && ids == all,
            "{} are found",
            found.len()
        );
        let pipeline = vec![doc! { "$group": { "_id": null, "sum": { "$sum": "$k" } } }];
        let summed: Vec<Document> = posts.aggregate(pipeline).await?.try_collect().await?;
        let sum = summed.first().context("a sum")?.get_i32("sum")?;
        ensure!(sum == all.iter().sum::<i32>(), "the sum is {sum}");
        readers.rounds[place].fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn shard_posts(client: &Client) -> Result<Collection<Document>> {
    let admin = client.database("admin");
    admin
        .run_command(doc! { "shardCollection": "test.posts", "key": { "k": 1 } })
        .await?;
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    for k in (100..DOCUMENTS).step_by(100) {
        let split = doc! { "split": "test.posts", "middle": { "k": k } };
        admin.run_command(split).await?;
    }
    let posts = client.database("test").collection::<Document>("posts");
    posts
        .insert_many((0..DOCUMENTS).map(|k| doc! { "_id": k, "k": k }))
        .await?;
    Ok(posts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_every_member_miss_nothing_that_moves() -> Result<()> {
    let shape = ClusterShape {
        members_per_shard: 3,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start(shape).await;
    let client = cluster.client().await;
    shard_posts(&client).await?;
    let other = Launch::mongos(&cluster.config.connection_string())
        .start()
        .await;
    let deaf = connect(&format!("mongodb://{}/", other.host())).await;
    let readers = Arc::new(Readers::default());
    let mut reading = Vec::new();
    for (name, preference) in preferences() {
        for (level, concern) in [
            ("local", ReadConcern::local()),
            ("majority", ReadConcern::majority()),
        ] {
            let options = CollectionOptions::builder()
                .selection_criteria(SelectionCriteria::ReadPreference(preference.clone()))
                .read_concern(concern)
                .build();
            let posts = deaf
                .database("test")
                .collection_with_options("posts", options);
            let place = reading.len();
            let task = tokio::spawn(read(posts, readers.clone(), place));
            reading.push((format!("{name}, {level}"), task));
        }
    }
    let everybody_reads_on = || async {
        let seen: Vec<usize> = readers
            .rounds
            .iter()
            .map(|r| r.load(Ordering::Relaxed))
            .collect();
        eventually("every reader has read on", || async {
            let late = (0..reading.len()).find(|place| {
                let is_over = reading[*place].1.is_finished();
                !is_over && readers.rounds[*place].load(Ordering::Relaxed) < seen[*place] + 1
            });
            late.map_or(Ok(()), Err)
        })
        .await;
    };
    everybody_reads_on().await;
    let admin = client.database("admin");
    let databases = client
        .database("config")
        .collection::<Document>("databases");
    let entry = databases.find_one(doc! { "_id": "test" }).await?;
    let at_home = entry.context("the database")?.get_str("primary")? == "shard0";
    let shards = if at_home {
        ["shard0", "shard1"]
    } else {
        ["shard1", "shard0"]
    };
    for (k, to) in [(0, 1), (200, 1), (0, 0), (300, 1)] {
        let request = doc! {
            "moveChunk": "test.posts", "find": { "k": k }, "to": shards[to], "_waitForDelete": true,
        };
        admin.run_command(request).await?;
        everybody_reads_on().await;
    }
    readers.stop.store(true, Ordering::Relaxed);
    for (name, task) in reading {
        task.await?.with_context(|| format!("under {name}"))?;
    }

    // Only who asks for what is available sees the documents that are left behind.
    for shard in &cluster.shards {
        let admin = shard.client().await.database("admin");
        let keep = doc! { "setParameter": 1, "orphanCleanupDelaySecs": 3600 };
        admin.run_command(keep).await?;
    }
    let go = doc! { "moveChunk": "test.posts", "find": { "k": 0 }, "to": shards[1] };
    admin.run_command(go).await?;
    let count = async |concern: ReadConcern| {
        let [_, _, (_, secondary), ..] = preferences();
        let options = CollectionOptions::builder()
            .selection_criteria(SelectionCriteria::ReadPreference(secondary))
            .read_concern(concern)
            .build();
        let posts = client.database("test");
        let posts = posts.collection_with_options::<Document>("posts", options);
        posts.count_documents(doc! { "k": { "$gte": 0 } }).await
    };
    ensure!(count(ReadConcern::local()).await? == DOCUMENTS as u64);
    let available = count(ReadConcern::available()).await?;
    ensure!(
        available == DOCUMENTS as u64 + 100,
        "{available} are available"
    );
    Ok(())
}
