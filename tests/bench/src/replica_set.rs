//! What a set of three costs and gives: group commit, reads with consistency, change streams, and
//! the time without a primary.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{ReplicaSet, within};
use bson::{Document, doc};
use futures::future::try_join_all;
use mongodb::{Client, Database};

use crate::deployment::{Standalone, set_of_three};
use crate::report::{Expected, Line, Report, at_percentile};
use crate::scenarios::{REFERENCE, Settings};
use crate::{bare, load};

/// Rounds of kills and step downs for each round of a rate: 30 with the default of 3.
const TURNS: usize = 10;

/// Single inserts that a majority has on disk.
pub async fn inserts(settings: &Settings, report: &mut Report) -> Result<()> {
    let (_set, client) = set_of_three(None).await;
    let alone = Standalone::start(None, &[]).await;
    let reference = match &settings.reference {
        Some(program) => Some(set_of_three(Some(program)).await),
        None => None,
    };
    let mut figures: Vec<[Vec<f64>; 3]> = Vec::new();
    for clients in [1, 64] {
        let mut sides = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..settings.rounds {
            let insert = load::Operation::Insert;
            sides[0].push(load::rate(&client, insert, clients, settings.duration).await?);
            sides[1].push(load::rate(&alone.client, insert, clients, settings.duration).await?);
            if let Some((_, other)) = &reference {
                sides[2].push(load::rate(other, insert, clients, settings.duration).await?);
            }
        }
        report.add(Line {
            what: format!("set of 3: insert, {clients} clients"),
            unit: "1/s",
            ours: sides[0].clone(),
            beside: REFERENCE,
            other: sides[2].clone(),
            expected: Expected::AtLeast(2.0),
        });
        figures.push(sides);
    }
    let [single, many] = &mut figures[..] else {
        return Ok(());
    };
    report.add(Line {
        what: "set of 3: insert, 64 clients".to_owned(),
        unit: "1/s",
        ours: many[0].clone(),
        beside: "standalone",
        other: std::mem::take(&mut many[1]),
        expected: Expected::AtLeast(0.4),
    });
    report.add(Line {
        what: "set of 3: 64 clients beside 1".to_owned(),
        unit: "1/s",
        ours: std::mem::take(&mut many[0]),
        beside: "1 client",
        other: std::mem::take(&mut single[0]),
        expected: Expected::AtLeast(5.0),
    });
    Ok(())
}

/// Reads of a set: linearizable beside local ones, and those of all members beside the primary's.
pub async fn reads(settings: &Settings, report: &mut Report) -> Result<()> {
    let (set, client) = set_of_three(None).await;
    bare::prepare(&client).await?;
    let primary = set.members[set.primary().await].host();
    let everybody: Vec<String> = set.members.iter().map(|member| member.host()).collect();
    within(
        Duration::from_secs(10),
        "every member has the documents",
        || async {
            for member in &set.members {
                let points = member.direct().await.database("bench");
                let points = points.collection::<Document>("points");
                let count = points.estimated_document_count().await?;
                ensure!(count == bare::POINTS as u64, "{count} documents");
            }
            Ok(())
        },
    )
    .await;
    let mut sides = [Vec::new(), Vec::new(), Vec::new()];
    let measure = |hosts: &[String], operation| {
        tokio::task::block_in_place(|| bare::rate_of(hosts, operation, 16, settings.duration))
    };
    for _ in 0..settings.rounds {
        let own = std::slice::from_ref(&primary);
        sides[0].push(measure(own, bare::Operation::FindLinearizable)?);
        sides[1].push(measure(own, bare::Operation::Find)?);
        sides[2].push(measure(&everybody, bare::Operation::FindNearest)?);
    }
    let [linearizable, local, all] = sides;
    report.add(Line {
        what: "set of 3: linearizable read, 16 conn".to_owned(),
        unit: "1/s",
        ours: linearizable,
        beside: "local",
        other: local.clone(),
        expected: Expected::AtLeast(0.5),
    });
    report.add(Line {
        what: "set of 3: reads of all members, 3 x 16 conn".to_owned(),
        unit: "1/s",
        ours: all,
        beside: "primary",
        other: local,
        expected: Expected::Nothing,
    });
    Ok(())
}

/// From the moment a write is acknowledged to the moment its event is there.
pub async fn change_stream(settings: &Settings, report: &mut Report) -> Result<()> {
    let (_set, client) = set_of_three(None).await;
    let ours = event_delays(&client, settings.rounds * 200).await?;
    let other = match &settings.reference {
        Some(program) => {
            let (_set, client) = set_of_three(Some(program)).await;
            event_delays(&client, settings.rounds * 200).await?
        }
        None => Vec::new(),
    };
    report.add(Line {
        what: "change stream: write to event".to_owned(),
        unit: "ms",
        ours: ours.clone(),
        beside: REFERENCE,
        other,
        expected: Expected::Nothing,
    });
    let limit = vec![2.0; ours.len()];
    report.add(Line {
        what: "change stream: write to event".to_owned(),
        unit: "ms",
        ours,
        beside: "limit",
        other: limit,
        expected: Expected::AtMost(1.0),
    });
    Ok(())
}

async fn event_delays(client: &Client, writes: usize) -> Result<Vec<f64>> {
    let watched = client.database("bench").collection::<Document>("watched");
    watched.insert_one(doc! { "_id": -1 }).await?;
    let mut stream = watched.watch().await?;
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        while let Some(event) = futures::StreamExt::next(&mut stream).await {
            let at = Instant::now();
            if event.is_err() || arrived.send(at).is_err() {
                return;
            }
        }
    });
    let mut delays = Vec::with_capacity(writes);
    for number in 0..writes {
        watched.insert_one(doc! { "_id": number as i64 }).await?;
        let acknowledged = Instant::now();
        let at = tokio::time::timeout(Duration::from_secs(10), arrivals.recv()).await?;
        let at = at.context("the change stream ended")?;
        delays.push(at.saturating_duration_since(acknowledged).as_secs_f64() * 1e3);
    }
    reader.abort();
    Ok(delays)
}

/// How long nothing can be written after the primary is killed, and after it steps down.
pub async fn failover(settings: &Settings, report: &mut Report) -> Result<()> {
    let mut set = ReplicaSet::start("bench", 3, &[]).await;
    let turns = settings.rounds * TURNS;
    let mut killed = Vec::new();
    for _ in 0..turns {
        let primary = set.primary().await;
        let client = ready_client(&set).await?;
        set.members[primary].kill();
        killed.push(until_written(&client).await?);
        set.members[primary].start().await;
        set.settled().await;
    }
    let mut stepped_down = Vec::new();
    for _ in 0..turns {
        let primary = set.primary().await;
        let client = ready_client(&set).await?;
        // Those who led in the turns before may lead again.
        for (index, member) in set.members.iter().enumerate() {
            if index != primary {
                let unfreeze = doc! { "replSetFreeze": 0 };
                let admin = member.direct().await.database("admin");
                admin.run_command(unfreeze).await?;
            }
        }
        let admin = set.members[primary].direct().await.database("admin");
        stepped_down.push(longest_pause(&client, &admin).await?);
        set.settled().await;
    }
    for (what, seconds, median, worst) in [
        ("killed", killed, 1.5, 3.0),
        ("stepped down", stepped_down, 0.3, 0.3),
    ] {
        let last = at_percentile(&seconds, 99.0).context("there were rounds")?;
        report.add(Line {
            what: format!("no primary, {what}: median"),
            unit: "s",
            other: vec![median; seconds.len()],
            ours: seconds,
            beside: "limit",
            expected: Expected::AtMost(1.0),
        });
        report.add(Line {
            what: format!("no primary, {what}: 99th percentile"),
            unit: "s",
            ours: vec![last],
            beside: "limit",
            other: vec![worst],
            expected: Expected::AtMost(1.0),
        });
    }
    Ok(())
}

/// A client that knows the set and has connections.
async fn ready_client(set: &ReplicaSet) -> Result<Client> {
    let client = set.client().await;
    let writes = (0..4).map(|_| async {
        let posts = client.database("bench").collection::<Document>("failover");
        posts.insert_one(doc! { "before": true }).await
    });
    try_join_all(writes).await?;
    Ok(client)
}

/// The longest time between two acknowledged writes, in seconds, while the primary steps down.
async fn longest_pause(client: &Client, primary: &Database) -> Result<f64> {
    let posts = client.database("bench").collection::<Document>("failover");
    let stepping = async {
        primary.run_command(doc! { "replSetStepDown": 60 }).await?;
        anyhow::Ok(())
    };
    let mut stepping = pin!(stepping);
    let mut longest = Duration::ZERO;
    loop {
        let started = Instant::now();
        let mut writing = pin!(posts.insert_one(doc! { "before": true }).into_future());
        let done = tokio::select! {
            biased;
            stepped = &mut stepping => {
                stepped?;
                writing.await?;
                true
            }
            written = &mut writing => {
                written?;
                false
            }
        };
        longest = longest.max(started.elapsed());
        if done {
            // Only a write that began afterwards is known to have found the new primary.
            let afterwards = Duration::from_secs_f64(until_written(client).await?);
            return Ok(longest.max(afterwards).as_secs_f64());
        }
    }
}

/// Seconds until one more write is acknowledged; a driver with default options sees no error.
async fn until_written(client: &Client) -> Result<f64> {
    let started = Instant::now();
    let posts = client.database("bench").collection::<Document>("failover");
    posts.insert_one(doc! { "before": false }).await?;
    Ok(started.elapsed().as_secs_f64())
}
