//! What the process is: its address, its command line, the machine under it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use banyan_process::machine;
pub use banyan_wire::version::{
    COMPATIBLE_VERSION, COMPATIBLE_VERSION_ARRAY, WIRE_VERSION_MAX, WIRE_VERSION_MIN,
};
use bson::{RawDocumentBuf, rawdoc};
use tokio_util::sync::CancellationToken;

/// What a member is in a sharded cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClusterRole {
    #[default]
    None,
    Shard,
    Config,
}

/// Fixed at start, apart from what the fields themselves allow.
pub struct ServerInfo {
    /// `mongod`, `configsvr`.
    pub program: String,
    /// `name:port`, as other members and clients reach it.
    pub address: String,
    pub port: u16,
    pub dbpath: PathBuf,
    pub role: ClusterRole,
    /// JavaScript may run; not with `--noscripting`.
    pub scripting: bool,
    pub argv: Vec<String>,
    /// The options in the configuration file's form, for `getCmdLineOpts`.
    pub parsed: RawDocumentBuf,
    pub started: SystemTime,
    pub started_instant: Instant,
    /// Cancelled when the process is to end: `shutdown`, SIGTERM.
    pub stop: CancellationToken,
    /// The last lines of the log, for `getLog`.
    pub recent_log: fn() -> Vec<String>,
    /// The listener's counts, once it listens.
    pub wire_counters: OnceLock<Arc<banyan_wire::Counters>>,
    /// Who is connected to it.
    pub presence: OnceLock<Arc<banyan_wire::Presence>>,
    /// What the operator should know, for `getLog: "startupWarnings"`.
    pub startup_warnings: Vec<String>,
}

impl ServerInfo {
    pub fn new(program: &str, address: String, port: u16, dbpath: PathBuf) -> ServerInfo {
        ServerInfo {
            program: program.to_string(),
            address,
            port,
            dbpath,
            role: ClusterRole::None,
            scripting: true,
            argv: std::env::args().collect(),
            parsed: RawDocumentBuf::new(),
            started: SystemTime::now(),
            started_instant: Instant::now(),
            stop: CancellationToken::new(),
            recent_log: Vec::new,
            wire_counters: OnceLock::new(),
            presence: OnceLock::new(),
            startup_warnings: Vec::new(),
        }
    }
}

fn proc_field(file: &str, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(
        line[field.len()..]
            .trim_start_matches([':', '\t', ' '])
            .trim()
            .to_string(),
    )
}

pub fn cores() -> i32 {
    std::thread::available_parallelism().map_or(1, |n| i32::try_from(n.get()).unwrap_or(i32::MAX))
}

/// `hostInfo`'s three sections.
pub fn host_info() -> RawDocumentBuf {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let distribution = os_release("PRETTY_NAME").unwrap_or_else(|| "Linux".to_string());
    let version = os_release("VERSION_ID").unwrap_or_else(|| release.trim().to_string());
    rawdoc! {
        "system": {
            "currentTime": bson::DateTime::now(),
            "hostname": machine::hostname(),
            "cpuAddrSize": 64,
            "memSizeMB": machine::megabytes(machine::memory_bytes()),
            "memLimitMB": machine::megabytes(machine::memory_limit_bytes()),
            "numCores": cores(),
            "numCoresAvailableToProcess": cores(),
            "cpuArch": std::env::consts::ARCH,
            "numaEnabled": false,
        },
        "os": { "type": "Linux", "name": distribution, "version": version },
        "extra": {
            "versionString": std::fs::read_to_string("/proc/version").unwrap_or_default().trim(),
            "kernelVersion": release.trim(),
            "cpuString": proc_field("/proc/cpuinfo", "model name").unwrap_or_default(),
            "pageSize": 4096_i64,
        },
    }
}

fn os_release(field: &str) -> Option<String> {
    let text = std::fs::read_to_string("/etc/os-release").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with(field) && line[field.len()..].starts_with('='))?;
    Some(line[field.len() + 1..].trim_matches('"').to_string())
}
