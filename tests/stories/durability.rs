//! `kill -9` at random moments of a write load on one data node: what was acknowledged is there after
//! the restart, once, and indexes agree with records.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, eventually};
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::Client;
use mongodb::options::ClientOptions;
use rand::Rng;

const ROUNDS: usize = 5;
const WRITERS: i64 = 6;

/// A client that reports the first failure instead of trying again.
async fn impatient(host: &str) -> Result<Client> {
    let mut options =
        ClientOptions::parse(format!("mongodb://{host}/?directConnection=true")).await?;
    options.retry_writes = Some(false);
    options.server_selection_timeout = Some(Duration::from_millis(500));
    Ok(Client::with_options(options)?)
}

#[derive(Default)]
struct Acknowledged {
    inserts: tokio::sync::Mutex<Vec<i64>>,
    increments: AtomicI64,
    attempted_increments: AtomicI64,
}

/// Inserts and increments until the server is gone.
async fn write(client: Client, next: Arc<AtomicI64>, acknowledged: Arc<Acknowledged>) {
    let database = client.database("test");
    let posts = database.collection::<Document>("posts");
    let counters = database.collection::<Document>("counters");
    loop {
        let id = next.fetch_add(1, Ordering::Relaxed);
        if posts
            .insert_one(doc! { "_id": id, "parity": id % 2 })
            .await
            .is_err()
        {
            return;
        }
        acknowledged.inserts.lock().await.push(id);
        acknowledged
            .attempted_increments
            .fetch_add(1, Ordering::Relaxed);
        let one = doc! { "$inc": { "n": 1_i64 } };
        if counters
            .update_one(doc! { "_id": "all" }, one)
            .await
            .is_err()
        {
            return;
        }
        acknowledged.increments.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_moments_lose_nothing_acknowledged() -> Result<()> {
    let mut mongod = Launch::mongod().start().await;
    let database = mongod.direct().await.database("test");
    let posts = database.collection::<Document>("posts");
    posts
        .create_index(
            mongodb::IndexModel::builder()
                .keys(doc! { "parity": 1 })
                .build(),
        )
        .await?;
    database
        .collection::<Document>("counters")
        .insert_one(doc! { "_id": "all", "n": 0_i64 })
        .await?;
    let next = Arc::new(AtomicI64::new(0));
    let acknowledged = Arc::new(Acknowledged::default());
    for round in 0..ROUNDS {
        let before = acknowledged.inserts.lock().await.len();
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            let client = impatient(&mongod.host()).await?;
            writers.push(tokio::spawn(write(
                client,
                next.clone(),
                acknowledged.clone(),
            )));
        }
        eventually("writes", || async {
            let written = acknowledged.inserts.lock().await.len() - before;
            if written >= 20 {
                Ok(())
            } else {
                bail!("{written} writes")
            }
        })
        .await;
        let moment = Duration::from_millis(rand::rng().random_range(0..300));
        tokio::time::sleep(moment).await;
        mongod.kill();
        for writer in writers {
            writer.await?;
        }
        mongod.start().await;

        let database = mongod.direct().await.database("test");
        let mut cursor = database
            .collection::<Document>("posts")
            .find(doc! {})
            .await?;
        let mut found = HashSet::new();
        while let Some(post) = cursor.try_next().await? {
            ensure!(
                found.insert(post.get_i64("_id")?),
                "round {round}: {post} is there twice"
            );
        }
        for id in acknowledged.inserts.lock().await.iter() {
            ensure!(
                found.contains(id),
                "round {round}: {id} was acknowledged and is gone"
            );
        }
        let counter = database
            .collection::<Document>("counters")
            .find_one(doc! {})
            .await?;
        let n = counter.context("the counter is there")?.get_i64("n")?;
        let least = acknowledged.increments.load(Ordering::Relaxed);
        let most = acknowledged.attempted_increments.load(Ordering::Relaxed);
        ensure!(
            (least..=most).contains(&n),
            "round {round}: {n} is not in {least}..={most}"
        );
        let validated = database
            .run_command(doc! { "validate": "posts", "full": true })
            .await?;
        ensure!(validated.get_bool("valid")?, "round {round}: {validated}");
    }
    Ok(())
}

/// What lay in memory when the server was killed is in the log. Nothing older is ever answered.
#[tokio::test]
async fn a_state_behind_its_log_is_replayed_before_the_first_answer() -> Result<()> {
    let mut mongod = Launch::mongod().start().await;
    let client = mongod.direct().await;
    let posts = client.database("test").collection::<Document>("posts");
    posts.insert_one(doc! { "_id": -1 }).await?;
    for batch in 0..50 {
        let documents = (0..1_000).map(|n| doc! { "_id": batch * 1_000 + n, "s": "x".repeat(100) });
        posts.insert_many(documents).await?;
    }
    for round in 0..2 {
        mongod.kill();
        mongod.start().await;
        let client = mongod.direct().await;
        let posts = client.database("test").collection::<Document>("posts");
        let found = posts.count_documents(doc! {}).await?;
        ensure!(found == 50_001, "round {round}: {found} documents");
    }
    Ok(())
}
