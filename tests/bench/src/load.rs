//! Work through the official driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bson::{Document, RawDocumentBuf, doc};
use futures::TryStreamExt;
use futures::future::try_join_all;
use mongodb::Client;
use rand::Rng;

/// Documents of one insert_many.
const BATCH: usize = 1_000;

/// Documents a second that go in by insert_many, into an empty collection.
pub async fn bulk(client: &Client, documents: usize) -> Result<f64> {
    let posts = client.database("bench").collection::<Document>("bulk");
    posts.drop().await?;
    let started = Instant::now();
    for from in (0..documents).step_by(BATCH) {
        posts
            .insert_many((from..documents.min(from + BATCH)).map(post))
            .await?;
    }
    Ok(per_second(documents as u64, started.elapsed()))
}

/// The load's documents: an id as text, some content, two to five of the tags.
pub fn post(number: usize) -> Document {
    let mut random = rand::rng();
    let count = random.random_range(2..=5);
    let tags: Vec<String> = (0..count)
        .map(|_| format!("tag{}", random.random_range(0..super::tag_count::TAGS)))
        .collect();
    doc! { "id": number.to_string(), "content": format!("data for content {number}"), "tags": tags }
}

#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Insert,
    PointRead,
}

/// Operations a second of `clients` tasks for `duration`. Point reads use `bench.points`.
pub async fn rate(
    client: &Client,
    operation: Operation,
    clients: usize,
    duration: Duration,
) -> Result<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (client, stop, done) = (client.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    once(&client, operation).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        })
        .collect();
    // The first operations open the connections: they are not counted.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(duration).await;
    let (after, elapsed) = (done.load(Ordering::Relaxed), started.elapsed());
    stop.store(true, Ordering::Relaxed);
    for outcome in try_join_all(tasks).await? {
        outcome?;
    }
    Ok(per_second(after - before, elapsed))
}

async fn once(client: &Client, operation: Operation) -> Result<()> {
    let database = client.database("bench");
    match operation {
        Operation::Insert => {
            let posts = database.collection::<Document>("singles");
            posts
                .insert_one(doc! { "n": 1, "content": "data for content" })
                .await?;
        }
        Operation::PointRead => {
            let id = rand::rng().random_range(0..super::bare::POINTS);
            let points = database.collection::<RawDocumentBuf>("points");
            ensure!(
                points.find_one(doc! { "_id": id }).await?.is_some(),
                "{id} is missing"
            );
        }
    }
    Ok(())
}

/// Documents a second that a scan of the bulk collection returns.
pub async fn scan(client: &Client, documents: usize) -> Result<f64> {
    let posts = client
        .database("bench")
        .collection::<RawDocumentBuf>("bulk");
    let started = Instant::now();
    let mut cursor = posts.find(doc! { "id": { "$gte": "" } }).await?;
    let mut found = 0;
    while cursor.try_next().await?.is_some() {
        found += 1;
    }
    ensure!(found == documents, "{found} of {documents} documents");
    Ok(per_second(documents as u64, started.elapsed()))
}

#[expect(clippy::cast_precision_loss, reason = "a rate has no such precision")]
pub fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
