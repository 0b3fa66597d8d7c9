//! The peers: ours and the reference, each as a standalone or a set of three.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use banyan_tests::{Launch, Process, ReplicaSet};
use mongodb::Client;

/// A standalone and the client that talks to it.
pub struct Standalone {
    pub process: Process,
    pub client: Client,
}

impl Standalone {
    pub async fn start(reference: Option<&Path>, extra: &[&'static str]) -> Self {
        let mut launch = match reference {
            Some(program) => Launch::other(program.to_owned()),
            None => Launch::mongod(),
        };
        for argument in extra {
            launch = launch.with([argument]);
        }
        let process = launch.start().await;
        let client = process.direct().await;
        Self { process, client }
    }
}

/// A set of three, its members' journals synced before a write counts (`w: "majority"`).
pub async fn set_of_three(reference: Option<&Path>) -> (ReplicaSet, Client) {
    let launch = match reference {
        Some(program) => Launch::other(program.to_owned()),
        None => Launch::mongod(),
    };
    let set = ReplicaSet::start_as(launch, "bench", 3, &[]).await;
    let client = banyan_tests::connect(&format!("{}&w=majority", set.uri())).await;
    (set, client)
}

/// Megabytes that a process holds in memory.
pub fn resident_mb(process: &Process) -> Result<f64> {
    memory_mb(process.pid().as_raw(), "VmRSS:")
}

/// A size in the status of a process, in megabytes.
pub fn memory_mb(process: i32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: f64 = kilobytes
        .with_context(|| format!("the process has no {field}"))?
        .parse()?;
    Ok(kilobytes / 1024.0)
}
