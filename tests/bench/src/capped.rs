//! Capped collections that are full: loads, and writers whom a tailable cursor follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bson::{Document, RawDocumentBuf, doc};
use futures::TryStreamExt;
use futures::future::try_join_all;
use mongodb::options::CursorType;
use mongodb::{Client, Collection};

use crate::deployment::Standalone;
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
    Ok(())
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
