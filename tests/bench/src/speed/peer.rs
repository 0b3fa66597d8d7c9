//! A server of the speed table: the cores it may use, the memory it took, whether it rests.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, program};
use mongodb::{Client, Database};

use super::data::{self, Sizes};
use crate::deployment::memory_mb;
use crate::scenarios::REFERENCE;

/// Ticks of CPU time (10 ms) in [`WINDOW`] up to which a server counts as resting.
const RESTING_TICKS: u64 = 1;
const WINDOW: Duration = Duration::from_millis(100);
/// How long the other's work may hold up a measurement.
const WAIT_FOR_REST: Duration = Duration::from_secs(5);

pub struct Peer {
    pub name: &'static str,
    process: Process,
    client: Client,
}

impl Peer {
    /// Banyan, or the reference, on the first `cores` that this process may use.
    pub async fn start(reference: Option<&Path>, cores: usize) -> Result<Self> {
        let server = reference.map_or_else(|| program("mongod"), Path::to_owned);
        let server = server.to_str().context("the path of the server is text")?;
        let listed: Vec<String> = allowed_cores()?
            .iter()
            .take(cores)
            .map(usize::to_string)
            .collect();
        // It becomes the server: the process id stays.
        let launch = Launch::other("taskset".into());
        let launch = launch.with(["--cpu-list", &listed.join(","), server]);
        let process = launch.start().await;
        let client = process.direct().await;
        let name = if reference.is_some() {
            REFERENCE
        } else {
            "Banyan"
        };
        Ok(Self {
            name,
            process,
            client,
        })
    }

    pub async fn load(&self, sizes: Sizes) -> Result<()> {
        data::load(&self.client, sizes).await
    }

    pub fn database(&self) -> Database {
        data::database(&self.client)
    }

    /// Forgets the peaks of memory so far.
    pub fn reset_peak(&self) -> Result<()> {
        let reset = |process| fs::write(format!("/proc/{process}/clear_refs"), "5");
        reset(self.server())?;
        for host in self.script_hosts()? {
            // It may have ended meanwhile.
            let _ = reset(host);
        }
        Ok(())
    }

    /// The most megabytes that the server and its script hosts had in memory since then.
    pub fn peak_mb(&self) -> Result<f64> {
        let peak = |process| memory_mb(process, "VmHWM:");
        let hosts = self.script_hosts()?.into_iter();
        // One may have ended meanwhile.
        let hosts: f64 = hosts.filter_map(|host| peak(host).ok()).sum();
        Ok(peak(self.server())? + hosts)
    }

    /// Waits until its work in the background is done: flushes, compactions, checkpoints.
    pub async fn rest(&self) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < WAIT_FOR_REST {
            let before = self.ticks()?;
            tokio::time::sleep(WINDOW).await;
            if self.ticks()? - before <= RESTING_TICKS {
                break;
            }
        }
        Ok(())
    }

    /// CPU time that it has used, in ticks.
    fn ticks(&self) -> Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.server()))?;
        let (_, fields) = stat.rsplit_once(')').context("a stat line")?;
        // From the third field of proc(5) on; 14 and 15 are user and system time.
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |at: usize| fields.get(at - 3).context("a field of the stat line");
        Ok(field(14)?.parse::<u64>()? + field(15)?.parse::<u64>()?)
    }

    fn server(&self) -> i32 {
        self.process.pid().as_raw()
    }

    /// The server's children.
    fn script_hosts(&self) -> Result<Vec<i32>> {
        let mut hosts = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.server()))? {
            let children = fs::read_to_string(thread?.path().join("children"));
            // A thread may have ended meanwhile.
            for child in children.unwrap_or_default().split_whitespace() {
                hosts.push(child.parse()?);
            }
        }
        Ok(hosts)
    }
}

/// The cores that this process, and so what it starts, may run on.
pub fn allowed_cores() -> Result<Vec<usize>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .context("the list of allowed cores")?;
    let mut cores = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<usize>()?..=last.parse()?);
    }
    ensure!(!cores.is_empty(), "no core is allowed");
    Ok(cores)
}
