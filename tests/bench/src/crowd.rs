//! A crowd of scans beside point reads: how long those wait, and how many scans a server gets done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use futures::future::try_join_all;
use mongodb::Client;
use mongodb::options::ClientOptions;
use rand::Rng;

use crate::deployment::{Standalone, set_of_three};
use crate::report::{Expected, Line, Report, at_percentile};
use crate::scenarios::{REFERENCE, Settings};

/// Documents that a scan looks at.
const DOCUMENTS: i32 = 100_000;
const BATCH: usize = 5_000;
/// How many scan at once: a crowd, and as many as keep a small machine busy.
const CROWD: usize = 300;
const FEW: usize = 4;
/// Each scan of the crowd takes as long as all of them: more than one of each is counted.
const SECONDS: f64 = 60.0;
/// Between two point reads.
const PAUSE: Duration = Duration::from_millis(2);

/// What one peer has done.
struct Figures {
    /// Of point reads, in milliseconds.
    waits: Vec<f64>,
    scans_per_second: f64,
}

/// A standalone and the primary of a set of three.
pub async fn run(settings: &Settings, report: &mut Report) -> Result<()> {
    let reference = settings.reference.as_deref();
    let alone = Standalone::start(None, &[]).await;
    let ours = measure(&alone.process.host()).await?;
    drop(alone);
    let other = match reference {
        Some(_) => {
            let alone = Standalone::start(reference, &[]).await;
            Some(measure(&alone.process.host()).await?)
        }
        None => None,
    };
    tell("alone", ours, other, report)?;
    let primary = |set: &banyan_tests::ReplicaSet, at: usize| set.members[at].host();
    let (set, _client) = set_of_three(None).await;
    let ours = measure(&primary(&set, set.primary().await)).await?;
    drop(set);
    let other = match reference {
        Some(_) => {
            let (set, _client) = set_of_three(reference).await;
            Some(measure(&primary(&set, set.primary().await)).await?)
        }
        None => None,
    };
    tell("set of 3", ours, other, report)
}

fn tell(
    peer: &str,
    [crowd, few]: [Figures; 2],
    other: Option<[Figures; 2]>,
    report: &mut Report,
) -> Result<()> {
    let others = other.as_ref().map(|[crowd, _]| &crowd.waits);
    for (name, percentile, limit) in [("median", 50.0, 5.0), ("99th percentile", 99.0, 20.0)] {
        let at = |waits: &Vec<f64>| at_percentile(waits, percentile).context("nothing was read");
        let wait = at(&crowd.waits)?;
        let what = format!("{peer}: point read beside {CROWD} scans, {name}");
        let line = |beside, other, expected| Line {
            what: what.clone(),
            unit: "ms",
            ours: vec![wait],
            beside,
            other,
            expected,
        };
        report.add(line("limit", vec![limit], Expected::AtMost(1.0)));
        let other = others.map(at).transpose()?;
        report.add(line(
            REFERENCE,
            other.into_iter().collect(),
            Expected::Ahead,
        ));
    }
    let scans = |beside, other, expected| Line {
        what: format!("{peer}: scans, {CROWD} at once"),
        unit: "1/s",
        ours: vec![crowd.scans_per_second],
        beside,
        other,
        expected,
    };
    let best = few.scans_per_second.max(crowd.scans_per_second);
    report.add(scans("few at once", vec![best], Expected::AtLeast(0.9)));
    let other = other.map(|[crowd, _]| crowd.scans_per_second);
    report.add(scans(
        REFERENCE,
        other.into_iter().collect(),
        Expected::AtLeast(0.9),
    ));
    Ok(())
}

/// With the crowd, and with few.
async fn measure(host: &str) -> Result<[Figures; 2]> {
    let mut options =
        ClientOptions::parse(format!("mongodb://{host}/?directConnection=true")).await?;
    options.max_pool_size = Some(u32::try_from(CROWD)? + 10);
    let client = Client::with_options(options.clone())?;
    let reader = Client::with_options(options)?;
    load(&client).await?;
    Ok([
        beside(&client, &reader, CROWD).await?,
        beside(&client, &reader, FEW).await?,
    ])
}

async fn load(client: &Client) -> Result<()> {
    let posts = client.database("bench").collection::<Document>("crowd");
    let post = |id| {
        let text = format!("data for content {id}, and more of it so that a scan has some work");
        doc! { "_id": id, "n": id % 1000, "content": text }
    };
    let documents: Vec<Document> = (0..DOCUMENTS).map(post).collect();
    for batch in documents.chunks(BATCH) {
        posts.insert_many(batch).await?;
    }
    Ok(())
}

/// Point reads beside so many scans.
async fn beside(client: &Client, reader: &Client, scans: usize) -> Result<Figures> {
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let scan = |_| {
        let (client, stop, done) = (client.clone(), stop.clone(), done.clone());
        tokio::spawn(async move {
            let posts = client.database("bench").collection::<Document>("crowd");
            while !stop.load(Ordering::Relaxed) {
                let filter = doc! { "content": { "$regex": "nothing of the kind" } };
                ensure!(posts.count_documents(filter).await? == 0);
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    };
    let tasks: Vec<_> = (0..scans).map(scan).collect();
    // The connections open meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, began) = (done.load(Ordering::Relaxed), Instant::now());
    let posts = reader.database("bench").collection::<Document>("crowd");
    let mut waits = Vec::new();
    while began.elapsed().as_secs_f64() < SECONDS {
        let id = rand::rng().random_range(0..DOCUMENTS);
        let asked = Instant::now();
        ensure!(posts.find_one(doc! { "_id": id }).await?.is_some());
        waits.push(asked.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(PAUSE).await;
    }
    let scanned = done.load(Ordering::Relaxed) - before;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    for outcome in try_join_all(tasks).await? {
        outcome?;
    }
    Ok(Figures {
        waits,
        scans_per_second: crate::load::per_second(scanned, took),
    })
}
