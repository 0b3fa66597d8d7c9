//! What is measured, one function a scenario.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use banyan_tests::{Cluster, ClusterShape, Launch};
use bson::doc;

use crate::deployment::{Standalone, resident_mb};
use crate::report::{Expected, Line, Report};
use crate::{bare, capped, crowd, joining, load, replica_set, secured, speed, storm, tag_count};

pub struct Settings {
    pub duration: Duration,
    pub rounds: usize,
    pub documents: usize,
    pub reference: Option<PathBuf>,
    pub row: Option<String>,
    pub cores: Option<usize>,
}

type Outcome<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
type Scenario = for<'a> fn(&'a Settings, &'a mut Report) -> Outcome<'a>;

pub fn all() -> Vec<(&'static str, Scenario)> {
    vec![
        ("bare", |settings, report| {
            Box::pin(bare_standalone(settings, report))
        }),
        ("driver", |settings, report| {
            Box::pin(driver_standalone(settings, report))
        }),
        ("speed", |settings, report| {
            Box::pin(speed::run(settings, report))
        }),
        ("capped", |settings, report| {
            Box::pin(capped::run(settings, report))
        }),
        ("storm", |settings, report| {
            Box::pin(storm::run(settings, report))
        }),
        ("crowd", |settings, report| {
            Box::pin(crowd::run(settings, report))
        }),
        ("set", |settings, report| {
            Box::pin(replica_set::inserts(settings, report))
        }),
        ("reads", |settings, report| {
            Box::pin(replica_set::reads(settings, report))
        }),
        ("changes", |settings, report| {
            Box::pin(replica_set::change_stream(settings, report))
        }),
        ("failover", |settings, report| {
            Box::pin(replica_set::failover(settings, report))
        }),
        ("tags", |settings, report| Box::pin(tags(settings, report))),
        ("router", |settings, report| {
            Box::pin(router(settings, report))
        }),
        ("idle", |settings, report| Box::pin(idle(settings, report))),
        ("secured", |settings, report| {
            Box::pin(secured::run(settings, report))
        }),
        ("joining", |_, report| Box::pin(joining::run(report))),
    ]
}

pub const REFERENCE: &str = "reference";

/// Ours and, where there is one, the reference; with what the operations need in them.
async fn standalones(settings: &Settings) -> Result<(Standalone, Option<Standalone>)> {
    let ours = Standalone::start(None, &[]).await;
    bare::prepare(&ours.client).await?;
    let Some(program) = &settings.reference else {
        return Ok((ours, None));
    };
    let reference = Standalone::start(Some(program), &[]).await;
    bare::prepare(&reference.client).await?;
    Ok((ours, Some(reference)))
}

/// Point operations of a client that costs next to nothing.
async fn bare_standalone(settings: &Settings, report: &mut Report) -> Result<()> {
    let (ours, reference) = standalones(settings).await?;
    for connections in [1, 16] {
        for (name, operation) in bare::Operation::ALL {
            let measure = |peer: &Standalone| {
                tokio::task::block_in_place(|| {
                    bare::rate(
                        &peer.process.host(),
                        operation,
                        connections,
                        settings.duration,
                    )
                })
            };
            let (mut own, mut other) = (Vec::new(), Vec::new());
            for _ in 0..settings.rounds {
                own.push(measure(&ours)?);
                if let Some(reference) = &reference {
                    other.push(measure(reference)?);
                }
            }
            report.add(Line {
                what: format!("bare: {name}, {connections} conn"),
                unit: "1/s",
                ours: own,
                beside: REFERENCE,
                other,
                expected: Expected::AtLeast(1.5),
            });
        }
    }
    Ok(())
}

/// The same kinds of work through the driver, and bulk work.
async fn driver_standalone(settings: &Settings, report: &mut Report) -> Result<()> {
    let (ours, reference) = standalones(settings).await?;
    let peers: Vec<&Standalone> = std::iter::once(&ours).chain(&reference).collect();
    for (what, kind) in [
        ("bulk load", Kind::Bulk),
        ("scan", Kind::Scan),
        ("insert, 1 client", Kind::Rate(load::Operation::Insert, 1)),
        (
            "insert, 64 clients",
            Kind::Rate(load::Operation::Insert, 64),
        ),
        (
            "point read, 1 client",
            Kind::Rate(load::Operation::PointRead, 1),
        ),
        (
            "point read, 16 clients",
            Kind::Rate(load::Operation::PointRead, 16),
        ),
    ] {
        let mut figures = vec![Vec::new(), Vec::new()];
        for _ in 0..settings.rounds {
            for (at, peer) in peers.iter().enumerate() {
                figures[at].push(kind.measure(&peer.client, settings).await?);
            }
        }
        let other = figures.pop().unwrap_or_default();
        report.add(Line {
            what: format!("driver: {what}"),
            unit: "1/s",
            ours: figures.pop().unwrap_or_default(),
            beside: REFERENCE,
            other,
            expected: Expected::Nothing,
        });
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Bulk,
    Scan,
    Rate(load::Operation, usize),
}

impl Kind {
    async fn measure(self, client: &mongodb::Client, settings: &Settings) -> Result<f64> {
        match self {
            Self::Bulk => load::bulk(client, settings.documents).await,
            Self::Scan => load::scan(client, settings.documents).await,
            Self::Rate(operation, clients) => {
                load::rate(client, operation, clients, settings.duration).await
            }
        }
    }
}

/// The tag count with map-reduce, beside Node over objects in memory, and with one isolate.
async fn tags(settings: &Settings, report: &mut Report) -> Result<()> {
    let ours = Standalone::start(None, &[]).await;
    let single = Standalone::start(None, &["--setParameter", "scriptIsolates=1"]).await;
    load::bulk(&ours.client, settings.documents).await?;
    load::bulk(&single.client, settings.documents).await?;
    let mut figures = [Vec::new(), Vec::new(), Vec::new()];
    // The first job of a server starts its script host.
    tag_count::map_reduce(&ours.client).await?;
    tag_count::map_reduce(&single.client).await?;
    for _ in 0..settings.rounds {
        figures[0].push(tag_count::map_reduce(&ours.client).await?);
        figures[1].push(tokio::task::block_in_place(|| {
            tag_count::node(settings.documents)
        })?);
        figures[2].push(tag_count::map_reduce(&single.client).await?);
    }
    let [two, node, one] = figures;
    report.add(Line {
        what: "tag count: mapReduce".to_owned(),
        unit: "s",
        ours: two.clone(),
        beside: "Node",
        other: node,
        expected: Expected::AtMost(2.5),
    });
    report.add(Line {
        what: "tag count: one isolate beside two".to_owned(),
        unit: "s",
        ours: one,
        beside: "2 isolates",
        other: two,
        expected: Expected::AtLeast(1.6),
    });
    Ok(())
}

/// What a router costs: the same reads through it and directly at the shard.
async fn router(settings: &Settings, report: &mut Report) -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let routed = cluster.client().await;
    bare::prepare(&routed).await?;
    let mut bulk = Vec::new();
    bulk.push(load::bulk(&routed, settings.documents).await?);
    report.add(Line {
        what: "router: bulk load".to_owned(),
        unit: "1/s",
        ours: bulk,
        beside: "",
        other: Vec::new(),
        expected: Expected::Nothing,
    });
    let (primary, direct) = holder(&cluster).await?;
    let operation = bare::Operation::Find;
    for (connections, expected) in [(1, Expected::Nothing), (16, Expected::AtMost(1.6))] {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..settings.rounds {
            for (at, host) in [&cluster.router.host(), &primary].into_iter().enumerate() {
                let rate = tokio::task::block_in_place(|| {
                    bare::rate(host, operation, connections, settings.duration)
                })?;
                figures[at].push(1e6 / rate);
            }
        }
        let [routed, direct] = figures;
        report.add(Line {
            what: format!("router: time of a read, {connections} conn"),
            unit: "us/read",
            ours: routed,
            beside: "direct",
            other: direct,
            expected,
        });
    }
    drop(direct);
    Ok(())
}

/// The shard that holds the unsharded collection of the point reads.
async fn holder(cluster: &Cluster) -> Result<(String, mongodb::Client)> {
    for shard in &cluster.shards {
        let client = shard.client().await;
        let points = client
            .database("bench")
            .collection::<bson::Document>("points");
        if points.find_one(doc! {}).await?.is_some() {
            let primary = shard.primary().await;
            return Ok((shard.members[primary].host(), client));
        }
    }
    anyhow::bail!("no shard holds bench.points")
}

/// Memory of programs that have nothing to do.
async fn idle(_settings: &Settings, report: &mut Report) -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let cluster = Cluster::start(ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (what, process, limit) in [("mongod", &mongod, 80.0), ("mongos", &cluster.router, 30.0)] {
        report.add(Line {
            what: format!("idle: {what} resident"),
            unit: "MB",
            ours: vec![resident_mb(process)?],
            beside: "limit",
            other: vec![limit],
            expected: Expected::AtMost(1.0),
        });
    }
    Ok(())
}
