//! A server of the speed table: the cores it may use, the memory it took, whether it rests.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, program};
use mongodb::{Client, Database};

use super::data::{self, Sizes};
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
        const PEAK: &str = "5";
        for process in self.processes()? {
            fs::write(format!("/proc/{process}/clear_refs"), PEAK)?;
        }
        Ok(())
    }

    /// The most megabytes that the server and its script hosts had in memory since then.
    pub fn peak_mb(&self) -> Result<f64> {
        let mut sum = 0.0;
        for process in self.processes()? {
            sum += memory_mb(process, "VmHWM:")?;
        }
        Ok(sum)
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
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid()))?;
        let (_, fields) = stat.rsplit_once(')').context("a stat line")?;
        // From the third field of proc(5) on; 14 and 15 are user and system time.
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |at: usize| fields.get(at - 3).context("a field of the stat line");
        Ok(field(14)?.parse::<u64>()? + field(15)?.parse::<u64>()?)
    }

    /// The server and its children.
    fn processes(&self) -> Result<Vec<i32>> {
        let server = self.process.pid().as_raw();
        let mut processes = vec![server];
        for thread in fs::read_dir(format!("/proc/{server}/task"))? {
            let children = fs::read_to_string(thread?.path().join("children"));
            // A thread may have ended meanwhile.
            for child in children.unwrap_or_default().split_whitespace() {
                processes.push(child.parse()?);
            }
        }
        Ok(processes)
    }
}

fn memory_mb(process: i32, field: &str) -> Result<f64> {
    let Ok(status) = fs::read_to_string(format!("/proc/{process}/status")) else {
        // A script host may have ended meanwhile.
        return Ok(0.0);
    };
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: f64 = kilobytes.unwrap_or("0").parse()?;
    Ok(kilobytes / 1024.0)
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
