//! Capped collections that are full: loads, writers whom a tailable cursor follows, and many writers
//! on a set of three.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bson::{Document, RawDocumentBuf, doc};
use futures::TryStreamExt;
use futures::future::try_join_all;
use mongodb::options::CursorType;
use mongodb::{Client, Collection};

use crate::deployment::{Standalone, set_of_three};
use crate::load::{per_second, post};
use crate::report::{Expected, Line, Report};
use crate::scenarios::{REFERENCE, Settings};

/// What the collection holds.
const DOCUMENTS_MAX: usize = 20_000;
/// Documents of one `insert_many`.
const BATCH: usize = 1_000;
/// Documents of one load.
const LOADED: usize = 40_000;
const WRITERS: usize = 4;
/// On a set, where a write waits for the disks of others.
const WRITERS_ON_A_SET: usize = 16;

pub async fn run(settings: &Settings, report: &mut Report) -> Result<()> {
    let mut peers = vec![Standalone::start(None, &[]).await];
    if let Some(program) = &settings.reference {
        peers.push(Standalone::start(Some(program), &[]).await);
    }
    let mut loads = [Vec::new(), Vec::new()];
    let mut followed = [Vec::new(), Vec::new()];
    for _ in 0..settings.rounds {
        for (at, peer) in peers.iter().enumerate() {
            let log = full(&peer.client).await?;
            let started = Instant::now();
            fill(&log, LOADED).await?;
            loads[at].push(per_second(LOADED as u64, started.elapsed()));
            followed[at].push(tail(&log, settings.duration).await?);
        }
    }
    for (what, [ours, other]) in [
        ("capped: load where it is full", loads),
        ("capped: followed by a cursor", followed),
    ] {
        report.add(Line {
            what: what.to_owned(),
            unit: "1/s",
            ours,
            beside: REFERENCE,
            other,
            expected: Expected::AtLeast(1.0),
        });
    }
    drop(peers);
    on_a_set(settings, report).await
}

/// Inserts one by one into a full collection.
async fn on_a_set(settings: &Settings, report: &mut Report) -> Result<()> {
    let mut sets = vec![set_of_three(None).await];
    if settings.reference.is_some() {
        sets.push(set_of_three(settings.reference.as_deref()).await);
    }
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..settings.rounds {
        for (at, (_, client)) in sets.iter().enumerate() {
            let log = full(client).await?;
            rates[at].push(write(&log, settings.duration).await?);
        }
    }
    let [ours, other] = rates;
    report.add(Line {
        what: format!("capped: {WRITERS_ON_A_SET} writers, set of 3"),
        unit: "1/s",
        ours,
        beside: REFERENCE,
        other,
        expected: Expected::AtLeast(1.0),
    });
    Ok(())
}

async fn write(log: &Collection<Document>, duration: Duration) -> Result<f64> {
    let started = Instant::now();
    let writers = (0..WRITERS_ON_A_SET).map(|_| async move {
        let mut written = 0;
        while started.elapsed() < duration {
            log.insert_one(post(written)).await?;
            written += 1;
        }
        anyhow::Ok(written)
    });
    let written: usize = try_join_all(writers).await?.into_iter().sum();
    Ok(per_second(written as u64, started.elapsed()))
}

/// A capped collection that every insert removes something from.
async fn full(client: &Client) -> Result<Collection<Document>> {
    let bench = client.database("bench");
    let log = bench.collection::<Document>("log");
    log.drop().await?;
    let max = i32::try_from(DOCUMENTS_MAX)?;
    bench
        .run_command(doc! { "create": "log", "capped": true, "size": 1 << 30, "max": max })
        .await?;
    fill(&log, DOCUMENTS_MAX).await?;
    Ok(log)
}

async fn fill(log: &Collection<Document>, documents: usize) -> Result<()> {
    for from in (0..documents).step_by(BATCH) {
        let batch = from..documents.min(from + BATCH);
        log.insert_many(batch.map(post)).await?;
    }
    Ok(())
}

/// Documents a second that a cursor brings while some write one after the other.
async fn tail(log: &Collection<Document>, duration: Duration) -> Result<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let raw = log.clone_with_type::<RawDocumentBuf>();
    let tail = raw.find(doc! {}).cursor_type(CursorType::TailableAwait);
    let mut tail = tail.await?;
    for _ in 0..DOCUMENTS_MAX {
        tail.try_next().await?.context("a document")?;
    }
    let writers = (0..WRITERS).map(|_| {
        let (log, stop) = (log.clone(), stop.clone());
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                log.insert_one(post(number)).await?;
            }
            anyhow::Ok(())
        })
    });
    let writers: Vec<_> = writers.collect();
    let (mut seen, started) = (0, Instant::now());
    while started.elapsed() < duration {
        tail.try_next().await?.context("the cursor lives on")?;
        seen += 1;
    }
    let rate = per_second(seen, started.elapsed());
    stop.store(true, Ordering::Relaxed);
    for outcome in try_join_all(writers).await? {
        outcome?;
    }
    Ok(rate)
}
