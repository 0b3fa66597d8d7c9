//! What is attacked, and what has to hold of it after every batch.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use banyan_diff::random::Random;
use banyan_tests::{Cluster, ClusterShape, Launch, Process, ReplicaSet};
use bson::{Bson, Document, doc};

use crate::connection::ask;
use crate::forge::{Facts, Peer};
use crate::templates::DATABASE;

/// A ping takes longer only if something holds up the threads that serve connections.
const PING_MAX: Duration = Duration::from_secs(10);
/// Between batches a server holds what its collections, caches and buffers take.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// A set has a primary again within this time, whatever its members were told.
const PRIMARY_MAX: Duration = Duration::from_secs(60);
/// Who runs for so long is asked to end, and has so long to do so.
const RUNNING_SECONDS_MAX: i64 = 3;
const ENDING_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    Standalone,
    Set,
    Cluster,
}

impl Shape {
    pub const ALL: [Shape; 3] = [Shape::Standalone, Shape::Set, Shape::Cluster];

    pub fn name(self) -> &'static str {
        match self {
            Shape::Standalone => "standalone",
            Shape::Set => "set",
            Shape::Cluster => "cluster",
        }
    }

    pub fn of_name(name: &str) -> Option<Shape> {
        Shape::ALL.into_iter().find(|shape| shape.name() == name)
    }
}

enum Running {
    Standalone(Box<Process>),
    Set(ReplicaSet),
    Cluster(Box<Cluster>),
}

impl Running {
    fn processes(&mut self) -> Vec<&mut Process> {
        match self {
            Running::Standalone(process) => vec![process],
            Running::Set(set) => set.members.iter_mut().collect(),
            Running::Cluster(cluster) => {
                let cluster = &mut **cluster;
                let mut all = vec![&mut cluster.router];
                for shard in &mut cluster.shards {
                    all.extend(&mut shard.members);
                }
                all.extend(&mut cluster.config.members);
                all
            }
        }
    }
}

/// One process among those of a server.
struct Watched {
    port: u16,
    /// How far its files have been read.
    read: Vec<(PathBuf, u64)>,
}

pub struct Server {
    pub shape: Shape,
    running: Running,
    watched: Vec<Watched>,
}

impl Server {
    pub async fn start(shape: Shape) -> Self {
        let mut running = match shape {
            Shape::Standalone => Running::Standalone(Box::new(Launch::mongod().start().await)),
            Shape::Set => Running::Set(ReplicaSet::start("fuzzed", 3, &[]).await),
            Shape::Cluster => {
                let cluster = Cluster::start(ClusterShape::default()).await;
                let admin = cluster.client().await.database("admin");
                for command in [
                    doc! { "enableSharding": DATABASE },
                    doc! { "shardCollection": format!("{DATABASE}.sharded"), "key": { "k": 1 } },
                    doc! { "shardCollection": format!("{DATABASE}.c"), "key": { "_id": "hashed" } },
                ] {
                    let done = admin.run_command(command).await;
                    done.expect("a collection of the cluster is sharded");
                }
                Running::Cluster(Box::new(cluster))
            }
        };
        let watched = running
            .processes()
            .into_iter()
            .map(|process| {
                let log = process.log_path();
                let output = log.with_file_name("output");
                Watched {
                    port: process.port,
                    read: vec![(log, 0), (output, 0)],
                }
            })
            .collect();
        Self {
            shape,
            running,
            watched,
        }
    }

    /// The ports of its processes; that of the router comes first.
    pub fn ports(&self) -> Vec<u16> {
        self.watched.iter().map(|watched| watched.port).collect()
    }

    /// The process that a message of clients goes to; one for members goes to any.
    pub fn target(&self, random: &mut Random, for_members: bool) -> usize {
        match (self.shape, for_members) {
            (Shape::Standalone, _) | (Shape::Cluster, false) => 0,
            (Shape::Set, _) => random.below(self.watched.len()),
            (Shape::Cluster, true) => random.below(self.watched.len()),
        }
    }

    /// What its members say about themselves; empty where there are none.
    pub fn facts(&self) -> Facts {
        let heartbeat = |port: u16| {
            let reply = ask(port, &doc! { "replSetHeartbeat": "" }, PING_MAX).ok()?;
            Some(Peer {
                id: reply.get_i64("peer").ok()? as u64,
                term: reply.get_i64("term").ok()? as u64,
                last_index: reply.get_i64("lastIndex").ok()? as u64,
                last_term: reply.get_i64("lastTerm").ok()? as u64,
                commit_index: reply.get_i64("commitIndex").ok()? as u64,
                address: format!("127.0.0.1:{port}"),
            })
        };
        Facts {
            peers: self.ports().into_iter().filter_map(heartbeat).collect(),
        }
    }

    /// What does not hold of it.
    pub fn problems(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (at, process) in self.running.processes().into_iter().enumerate() {
            let watched = &mut self.watched[at];
            let name = format!("process {at} on port {}", watched.port);
            for line in watched.panics() {
                problems.push(format!("{name} panicked: {line}"));
            }
            if let Err(status) = process.is_running() {
                problems.push(format!("{name} has ended: {status:?}\n{}", tail(process)));
                continue;
            }
            if let Err(error) = ask(watched.port, &doc! { "ping": 1 }, PING_MAX) {
                problems.push(format!("{name} does not answer a ping: {error:#}"));
                continue;
            }
            let is_router = self.shape == Shape::Cluster && at == 0;
            if !is_router && let Err(problem) = ends_operations(watched.port) {
                problems.push(format!("{name}: {problem}"));
            }
            let memory = memory_bytes(process);
            if memory > MEMORY_BYTES_MAX {
                problems.push(format!("{name} holds {} MB", memory >> 20));
            }
        }
        if problems.is_empty() && self.shape != Shape::Standalone {
            problems.extend(self.without_primaries());
        }
        problems
    }

    /// The sets that elect nobody.
    fn without_primaries(&self) -> Option<String> {
        let began = Instant::now();
        loop {
            let mut sets: BTreeMap<String, bool> = BTreeMap::new();
            for port in self.ports() {
                // A router is of no set.
                if let Ok(hello) = ask(port, &doc! { "hello": 1 }, PING_MAX)
                    && let Ok(set) = hello.get_str("setName")
                {
                    let leads = hello.get_bool("isWritablePrimary").unwrap_or(false);
                    *sets.entry(set.to_owned()).or_default() |= leads;
                }
            }
            let lost = sets.into_iter().find(|(_, leads)| !leads);
            let (set, _) = lost?;
            if began.elapsed() > PRIMARY_MAX {
                return Some(format!("the set {set} has no primary"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The most memory that one of its processes holds.
    pub fn memory_bytes(&mut self) -> u64 {
        let processes = self.running.processes();
        let held = processes.into_iter().map(|process| memory_bytes(process));
        held.max().unwrap_or(0)
    }

    /// Begins anew with its data, so that they do not grow from batch to batch.
    pub fn clear(&self) {
        if self.shape == Shape::Cluster {
            return;
        }
        for port in self.ports() {
            // Only the primary does.
            let _ = crate::batch::answer(port, DATABASE, &doc! { "dropDatabase": 1 });
        }
    }

    pub fn logs(&mut self) -> Vec<String> {
        let processes = self.running.processes();
        processes.into_iter().map(|process| process.log()).collect()
    }
}

fn tail(process: &Process) -> String {
    let log = process.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

impl Watched {
    /// The lines about panics that have come since the last time.
    fn panics(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for (path, read) in &mut self.read {
            let Ok(mut file) = File::open(path) else {
                continue;
            };
            let mut bytes = Vec::new();
            if file.seek(SeekFrom::Start(*read)).is_err() || file.read_to_end(&mut bytes).is_err() {
                continue;
            }
            *read += bytes.len() as u64;
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                if line.contains("panicked at") {
                    let end = (at + 3).min(lines.len());
                    found.push(lines[at..end].join(" "));
                }
            }
        }
        found
    }
}

fn memory_bytes(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

/// Ends every operation of a client that has run for long; `Err` names one that goes on.
fn ends_operations(port: u16) -> Result<(), String> {
    let running = |seconds: i64| -> Result<Vec<Document>, String> {
        let listed = ask(port, &doc! { "currentOp": 1 }, PING_MAX);
        let listed = listed.map_err(|error| format!("{error:#}"))?;
        let operations = listed.get_array("inprog").cloned().unwrap_or_default();
        let documents = operations.iter().filter_map(Bson::as_document);
        let long = documents.filter(|operation| {
            let ran = operation.get_i64("secs_running").unwrap_or(0);
            ran >= seconds && operation.contains_key("client")
        });
        Ok(long.cloned().collect())
    };
    let long = running(RUNNING_SECONDS_MAX)?;
    if long.is_empty() {
        return Ok(());
    }
    for operation in &long {
        let id = operation.get("opid").cloned().unwrap_or(Bson::Null);
        ask(port, &doc! { "killOp": 1, "op": id }, PING_MAX)
            .map_err(|error| format!("{error:#}"))?;
    }
    let began = Instant::now();
    loop {
        let still = running(0)?;
        let same = |operation: &&Document| {
            long.iter()
                .any(|old| old.get("opid") == operation.get("opid"))
        };
        let Some(left) = still.iter().find(same) else {
            return Ok(());
        };
        if began.elapsed() > ENDING_MAX {
            return Err(format!("an operation cannot be ended: {left}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
