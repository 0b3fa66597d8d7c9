//! How a group is opened, and how an entry is proposed.

use std::time::Duration;

use crate::machine::PeerId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// An entry is synced to disk before it counts.
    EveryEntry,
    /// A group of one counts an entry once it is written to the operating system, and syncs
    /// within this time. A group of more members always behaves as `EveryEntry`.
    Interval(Duration),
}

#[derive(Clone, Debug)]
pub struct Options {
    pub id: PeerId,
    pub sync: SyncMode,
    pub heartbeat: Duration,
    pub election_timeout: Duration,
    /// Entries are cut off beyond this, unless somebody still needs them (see
    /// [`crate::Group::set_log_limits`]).
    pub log_bytes_max: u64,
    /// So much of what is committed waits in memory to be applied; more waits in the log.
    pub apply_queue_bytes_max: usize,
    /// As by [`crate::Group::set_witness`], from the start.
    pub witness: bool,
    /// As by [`crate::Group::set_apply_delay`], from the start.
    pub apply_delay: Duration,
    /// Called once, with what was found, when the log or the state cannot be trusted any more.
    pub on_fatal: fn(&str),
}

impl Options {
    pub fn new(id: PeerId, sync: SyncMode) -> Options {
        Options {
            id,
            sync,
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_millis(1000),
            log_bytes_max: 256 << 20,
            apply_queue_bytes_max: 64 << 20,
            witness: false,
            apply_delay: Duration::ZERO,
            on_fatal: stop_process,
        }
    }
}

/// Going on after a failed write would serve, or acknowledge, what is not there.
fn stop_process(what: &str) {
    eprintln!("fatal: {what}");
    std::process::exit(14);
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ProposeOptions {
    /// Answer only after the entry is synced to disk, whatever the sync mode.
    pub sync: bool,
    /// The leader's term (see [`crate::Group::leader_term`]) in which the proposal was computed: in
    /// another term it's refused, as what it was computed from may have changed. 0: any.
    pub term: u64,
}
