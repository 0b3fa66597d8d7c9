//! How a member takes part in a set, as it was started.

use std::path::PathBuf;
use std::time::Instant;

use tokio::runtime::Handle;

pub struct SetOptions {
    pub log_dir: PathBuf,
    /// `name:port` of this process.
    pub address: String,
    /// `--replSet`; without it the member is a set of one that nobody can join.
    pub name: Option<String>,
    /// `--selfInitiate`.
    pub self_initiate: bool,
    /// Config servers may form a set whose name was not given on their command line.
    pub config_server: bool,
    /// `--oplogSize`.
    pub log_bytes_max: u64,
    /// `--oplogMinRetentionHours`.
    pub log_hours_min: f64,
    /// The runtime that carries what holds the set together; without one, that of the caller.
    pub vital: Option<Handle>,
    pub process_started: Instant,
}

/// Why a member cannot start with what its directory holds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
