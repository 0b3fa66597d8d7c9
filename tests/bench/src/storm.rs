//! Get or create: ten clients at once ask for the document with a key, and make it if it is not there.
//! There has to be one of each in the end, whoever came first, and nobody may be told of an error that
//! drivers do not repeat by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use futures::TryStreamExt;
use futures::future::try_join_all;
use mongodb::options::ReturnDocument;
use mongodb::{Client, IndexModel};

use crate::deployment::{Standalone, set_of_three};
use crate::load::per_second;
use crate::report::{Expected, Line, Report};
use crate::scenarios::{REFERENCE, Settings};

const CLIENTS: usize = 10;
/// How often all of them together ask for a key before they go on to the next.
const ASKED: u64 = 50;

pub async fn run(settings: &Settings, report: &mut Report) -> Result<()> {
    let reference = settings.reference.as_deref();
    let ours = Standalone::start(None, &[]).await;
    let other = match reference {
        Some(_) => Some(Standalone::start(reference, &[]).await),
        None => None,
    };
    let clients = [Some(&ours), other.as_ref()].map(|peer| peer.map(|peer| &peer.client));
    compare("alone", clients, settings, report).await?;
    drop((ours, other));
    let (_ours, client) = set_of_three(None).await;
    let other = match reference {
        Some(_) => Some(set_of_three(reference).await),
        None => None,
    };
    let clients = [Some(&client), other.as_ref().map(|(_, client)| client)];
    compare("set of 3", clients, settings, report).await
}

async fn compare(
    peers: &str,
    clients: [Option<&Client>; 2],
    settings: &Settings,
    report: &mut Report,
) -> Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..settings.rounds {
        for (at, client) in clients.iter().enumerate() {
            if let Some(client) = client {
                rates[at].push(storm(client, settings.duration).await?);
            }
        }
    }
    let [ours, other] = rates;
    report.add(Line {
        what: format!("{peers}: {CLIENTS} clients get or create"),
        unit: "1/s",
        ours,
        beside: REFERENCE,
        other,
        expected: Expected::AtLeast(1.0),
    });
    Ok(())
}

/// Upserts a second; an error if one fails, or if they leave anything but one document for a key.
async fn storm(client: &Client, duration: Duration) -> Result<f64> {
    let things = client.database("bench").collection::<Document>("things");
    things.drop().await?;
    let unique = mongodb::options::IndexOptions::builder()
        .unique(true)
        .build();
    let by_key = IndexModel::builder()
        .keys(doc! { "key": 1 })
        .options(unique)
        .build();
    things.create_index(by_key).await?;
    let asked = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let tasks = (0..CLIENTS).map(|_| {
        let (things, asked, stop) = (things.clone(), asked.clone(), stop.clone());
        tokio::spawn(async move {
            // Of each key, who it was for this client.
            let mut known: Vec<(i64, Document)> = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let key = i64::try_from(asked.fetch_add(1, Ordering::Relaxed) / ASKED)?;
                let create = doc! { "$setOnInsert": { "made": bson::oid::ObjectId::new() } };
                let got = things
                    .find_one_and_update(doc! { "key": key }, create)
                    .upsert(true)
                    .return_document(ReturnDocument::After);
                let got = got.await?.context("the document is there by now")?;
                match known.last() {
                    Some((last, known)) if *last == key => {
                        ensure!(got == *known, "{key} was {known}, and is {got}");
                    }
                    _ => known.push((key, got)),
                }
            }
            anyhow::Ok(known)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(duration).await;
    stop.store(true, Ordering::Relaxed);
    let known: Vec<Vec<(i64, Document)>> = try_join_all(tasks)
        .await?
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let rate = per_second(asked.load(Ordering::Relaxed), started.elapsed());
    let found = things.find(doc! {}).sort(doc! { "key": 1 }).await?;
    let found: Vec<Document> = found.try_collect().await?;
    for (key, document) in found.iter().enumerate() {
        ensure!(
            document.get_i64("key")? == i64::try_from(key)?,
            "{document} in place of {key}"
        );
    }
    for (key, document) in known.iter().flatten() {
        ensure!(
            found.get(usize::try_from(*key)?) == Some(document),
            "{document} is not what stayed"
        );
    }
    Ok(rate)
}
