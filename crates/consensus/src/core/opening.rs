//! Beginning with what the log and the state hold.

use bytes::Bytes;
use parking_lot::Mutex;
use raft::eraftpb::{Entry, EntryType};
use raft::{Config, RawNode};

use crate::log::{Disk, Log, LogError};
use crate::machine::{PeerId, Position};
#[cfg(feature = "simulation")]
use crate::simulated::world::{Bug, planted};

/// Together these are less than what a transport keeps for one member: what is sent to one that is
/// far behind is not dropped on the way.
const MESSAGE_BYTES_MAX: u64 = 512 << 10;
const INFLIGHT_MESSAGES_MAX: usize = 96;
const COMMITTED_BYTES_MAX: u64 = 16 << 20;
/// Applied at once, about, when the log is opened.
const REPLAY_BYTES: u64 = 4 << 20;

pub(crate) struct Settings {
    pub id: PeerId,
    /// How often a leader tells that it is there; may change.
    pub heartbeat_ticks: usize,
    pub election_ticks: usize,
    /// Election timeouts are drawn from it.
    pub seed: u64,
}

pub(super) fn raft_node<D: Disk>(
    settings: &Settings,
    log: Log<D>,
    handed_over: u64,
) -> Result<RawNode<Log<D>>, LogError> {
    let config = Config {
        id: settings.id,
        election_tick: settings.election_ticks,
        // Heartbeats are ours: see `Core::beat`.
        heartbeat_tick: settings.election_ticks - 1,
        min_election_tick: settings.election_ticks,
        max_election_tick: settings.election_ticks * 3 / 2 + 1,
        applied: handed_over.min(log.hard().commit).max(log.base().index),
        max_size_per_msg: MESSAGE_BYTES_MAX,
        max_inflight_msgs: INFLIGHT_MESSAGES_MAX,
        check_quorum: true,
        pre_vote: true,
        skip_bcast_commit: true,
        batch_append: true,
        max_committed_size_per_ready: COMMITTED_BYTES_MAX,
        ..Config::default()
    };
    #[cfg(feature = "simulation")]
    let config = if planted(Bug::ApplyTwice) {
        Config {
            applied: log.base().index,
            ..config
        }
    } else {
        config
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, log, &logger).map_err(|error| LogError::Damaged(error.to_string()))
}

/// Has entries applied until no part of the state on the disk is ahead of another: what was applied
/// before. The position is kept up to date.
pub(super) fn replay<D: Disk>(
    log: &Log<D>,
    applied: &Mutex<Position>,
    mut apply: impl FnMut(Vec<(Position, Bytes)>) -> Result<(), LogError>,
) -> Result<(), LogError> {
    let until = log.reached();
    let begun = applied.lock().index;
    // A state that the log does not go on from is about to be replaced.
    if log.is_stale() || begun < log.base().index || begun >= until {
        return Ok(());
    }
    tracing::info!(from = begun + 1, until, "applying the log again");
    let mut last = begun;
    while last < until {
        let entries = log.read(last + 1, until + 1, REPLAY_BYTES)?;
        let entries: Vec<_> = entries.into_iter().map(plain).collect();
        let Some((position, _)) = entries.last() else {
            return Err(LogError::Damaged(format!("entry {} is missing", last + 1)));
        };
        let position = *position;
        apply(entries)?;
        *applied.lock() = position;
        last = position.index;
    }
    Ok(())
}

/// What of an entry others than the core are told: only what was proposed has data.
pub(crate) fn plain(entry: Entry) -> (Position, Bytes) {
    let position = Position {
        term: entry.term,
        index: entry.index,
    };
    match entry.get_entry_type() {
        EntryType::EntryNormal => (position, entry.data),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => (position, Bytes::new()),
    }
}

/// Brings the log in line with a state that may be ahead of it.
pub(super) fn reconcile<D: Disk>(
    log: &mut Log<D>,
    state: Position,
    id: PeerId,
) -> Result<(), LogError> {
    if log.is_stale() {
        return Ok(());
    }
    let alone = matches!(log.membership().members.as_slice(), [only] if only.id == id);
    if state.index > log.last() && alone {
        // A power cut took entries that were not synced but whose effects were: they happened.
        let mut hard = log.hard().clone();
        hard.term = hard.term.max(state.term);
        hard.commit = state.index;
        let membership = log.membership().clone();
        return log.reset(state, &hard, membership);
    }
    // A membership is written once its entry is committed. Without this, a leader that knows of
    // its own members and of nothing later could neither commit nor offer a snapshot.
    let settled = log.membership().index.min(log.last());
    let mut commit = log.hard().commit.max(log.base().index).max(settled);
    // What is applied is committed, if the log has it (after a snapshot it may not, yet).
    if log.term_of(state.index) == Some(state.term) {
        commit = commit.max(state.index);
    }
    log.note_commit(commit);
    Ok(())
}
