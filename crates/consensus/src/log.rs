//! Where entries are kept.
//!
//! [`Log`] is what the core reads and writes: it knows the terms of all its entries, the members,
//! the vote, and keeps the newest entries in memory. Beneath it a [`Disk`] takes one batch at a
//! time: [`disk`] over `raft-engine`, [`memory`] for the simulation, which can lose what was not
//! synced.

mod codec;
pub(crate) mod disk;
#[cfg(test)]
pub(crate) mod memory;
mod recent;
mod terms;
pub(crate) mod watermark;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::machine::{Membership, Position};
pub(crate) use codec::{decode_membership, encode_membership};
use recent::Recent;
pub(crate) use terms::Terms;

/// How finely the log knows where its bytes are.
const MARK_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("the log is damaged: {0}")]
    Damaged(String),
    #[error("the log cannot be read or written: {0}")]
    Io(String),
}

impl From<LogError> for raft::Error {
    fn from(error: LogError) -> raft::Error {
        raft::Error::Store(StorageError::Other(Box::new(error)))
    }
}

/// One atomic write.
#[derive(Default)]
pub(crate) struct Batch<'a> {
    /// Drops every entry first: a snapshot takes their place.
    pub reset: bool,
    /// Contiguous; overwrites what the log holds from the first of them on.
    pub entries: &'a [Entry],
    pub hard: Option<&'a HardState>,
    pub membership: Option<&'a Membership>,
    pub terms: Option<&'a Terms>,
    /// Drops entries before this index.
    pub compact: Option<u64>,
}

/// What a disk holds when it is opened.
#[derive(Default)]
pub(crate) struct Loaded {
    pub hard: HardState,
    pub membership: Membership,
    pub terms: Terms,
    /// Zero if there are no entries.
    pub first_index: u64,
    pub last_index: u64,
}

pub(crate) trait Disk: Send + 'static {
    fn load(&mut self) -> Result<Loaded, LogError>;
    fn write(&mut self, batch: &Batch<'_>, sync: bool) -> Result<(), LogError>;
    /// Entries of `low..high`, at least one and then no more than `bytes_max`.
    fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError>;
    fn bytes_used(&self) -> u64;
}

pub(crate) struct Log<D> {
    disk: D,
    hard: HardState,
    membership: Membership,
    terms: Terms,
    last_index: u64,
    recent: Recent,
    /// Bytes appended, and how many they were after some of the entries.
    bytes: u64,
    marks: VecDeque<(u64, u64)>,
    /// The position the state machine has reached; a snapshot is offered at it.
    applied: Arc<Mutex<Position>>,
}

impl<D: Disk> Log<D> {
    /// The log must reach `committed`, which is known from elsewhere.
    pub fn open(
        mut disk: D,
        applied: Arc<Mutex<Position>>,
        committed: u64,
    ) -> Result<Log<D>, LogError> {
        let loaded = disk.load()?;
        let base = loaded.terms.base();
        let last_index = loaded.last_index.max(base.index);
        if loaded.last_index > 0 && loaded.first_index > base.index + 1 {
            return Err(LogError::Damaged(format!(
                "its entries should begin at index {} but begin at {}",
                base.index + 1,
                loaded.first_index
            )));
        }
        if last_index < committed {
            return Err(LogError::Damaged(format!(
                "index {committed} is committed but the last readable entry is {last_index}"
            )));
        }
        if loaded.hard.commit > last_index {
            return Err(LogError::Damaged(format!(
                "index {} is committed but the last entry is {}",
                loaded.hard.commit, last_index
            )));
        }
        let mut log = Log {
            disk,
            hard: loaded.hard,
            membership: loaded.membership,
            terms: loaded.terms,
            last_index,
            recent: Recent::new(last_index + 1),
            bytes: 0,
            marks: VecDeque::from([(base.index, 0)]),
            applied,
        };
        log.check_last()?;
        log.bytes = log.disk.bytes_used();
        log.marks.push_back((last_index, log.bytes));
        Ok(log)
    }

    /// The last entry must be readable and of the term that the log remembers for it.
    fn check_last(&self) -> Result<(), LogError> {
        if self.last_index == self.base().index {
            return Ok(());
        }
        let entries = self
            .disk
            .read(self.last_index, self.last_index + 1, u64::MAX)?;
        let found = entries.first().map(|entry| entry.term);
        let expected = self.terms.get(self.last_index, self.last_index);
        if found.is_none() || found != expected {
            return Err(LogError::Damaged(format!(
                "entry {} has term {found:?} where {expected:?} was written",
                self.last_index
            )));
        }
        Ok(())
    }

    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// What was cut off, or replaced by a snapshot: everything up to here.
    pub fn base(&self) -> Position {
        self.terms.base()
    }

    pub fn last(&self) -> u64 {
        self.last_index
    }

    pub fn hard(&self) -> &HardState {
        &self.hard
    }

    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    pub fn applied(&self) -> Position {
        *self.applied.lock()
    }

    /// The highest index that may be cut so that about `bytes_max` of entries remain.
    pub fn surplus(&self, bytes_max: u64) -> Option<u64> {
        let kept = |&&(_, bytes): &&(u64, u64)| self.bytes - bytes >= bytes_max;
        self.marks.iter().rev().find(kept).map(|&(index, _)| index)
    }

    /// About how many bytes of entries the log holds.
    pub fn bytes(&self) -> u64 {
        self.bytes - self.marks.front().map_or(0, |&(_, bytes)| bytes)
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        self.terms.get(index, self.last_index)
    }

    /// Writes entries and the vote in one batch.
    pub fn append(
        &mut self,
        entries: &[Entry],
        hard: Option<&HardState>,
        sync: bool,
    ) -> Result<(), LogError> {
        let mut terms_changed = false;
        for entry in entries {
            terms_changed |= self.terms.push(entry.index, entry.term);
        }
        if let Some(hard) = hard {
            self.hard = hard.clone();
        }
        // The commit index rides along with the next entries; it is not worth a write.
        let hard_changed = hard.is_some();
        self.disk.write(
            &Batch {
                entries,
                hard: hard_changed.then_some(&self.hard),
                terms: terms_changed.then_some(&self.terms),
                ..Batch::default()
            },
            sync,
        )?;
        if let Some(last) = entries.last() {
            self.last_index = last.index;
            self.recent.extend(entries);
            self.bytes += entries
                .iter()
                .map(|entry| entry.data.len() as u64 + 32)
                .sum::<u64>();
            if self
                .marks
                .back()
                .is_none_or(|&(_, bytes)| self.bytes - bytes > MARK_BYTES)
            {
                self.marks.push_back((last.index, self.bytes));
            }
        }
        Ok(())
    }

    pub fn note_commit(&mut self, commit: u64) {
        self.hard.commit = commit;
    }

    /// The membership must outlive a crash before its entry is applied: nothing repeats it.
    pub fn set_membership(&mut self, membership: Membership) -> Result<(), LogError> {
        self.disk.write(
            &Batch {
                membership: Some(&membership),
                ..Batch::default()
            },
            true,
        )?;
        self.membership = membership;
        Ok(())
    }

    /// Replaces everything by a snapshot at `base`.
    pub fn reset(
        &mut self,
        base: Position,
        hard: &HardState,
        membership: Membership,
    ) -> Result<(), LogError> {
        let terms = Terms::new(base);
        self.disk.write(
            &Batch {
                reset: true,
                hard: Some(hard),
                membership: Some(&membership),
                terms: Some(&terms),
                ..Batch::default()
            },
            true,
        )?;
        self.hard = hard.clone();
        self.membership = membership;
        self.terms = terms;
        self.last_index = base.index;
        self.recent = Recent::new(base.index + 1);
        self.bytes = 0;
        self.marks = VecDeque::from([(base.index, 0)]);
        Ok(())
    }

    /// Cuts off entries up to and including `index`.
    pub fn compact(&mut self, index: u64) -> Result<(), LogError> {
        let index = index.min(self.last_index);
        let Some(term) = self.term_of(index).filter(|_| index > self.base().index) else {
            return Ok(());
        };
        let mut terms = self.terms.clone();
        terms.cut(Position { term, index });
        self.disk.write(
            &Batch {
                compact: Some(index + 1),
                terms: Some(&terms),
                ..Batch::default()
            },
            false,
        )?;
        self.terms = terms;
        self.recent.cut(index + 1);
        while self
            .marks
            .get(1)
            .is_some_and(|&(marked, _)| marked <= index)
        {
            self.marks.pop_front();
        }
        Ok(())
    }

    /// Entries of `low..high` that are within the log, at least one and then no more than
    /// `bytes_max`.
    pub fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError> {
        if low >= high {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.recent.read(low, high, bytes_max) {
            return Ok(entries);
        }
        let entries = self.disk.read(low, high, bytes_max)?;
        if entries.first().is_none_or(|entry| entry.index != low) {
            return Err(LogError::Damaged(format!("entry {low} is missing")));
        }
        Ok(entries)
    }
}

impl<D: Disk> Storage for Log<D> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(
            self.hard.clone(),
            conf_state(&self.membership),
        ))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base().index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last_index + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        Ok(self.read(low, high, bytes_max)?)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.base().index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.term_of(index)
            .ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base().index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_index)
    }

    /// Only metadata travels through Raft; the follower fetches the state itself.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let applied = self.applied();
        let unavailable = raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        // The membership is the newest one: it holds only from its own index on.
        if applied.index == 0
            || applied.index < request_index
            || applied.index < self.membership.index
            || self.term_of(applied.index).is_none()
        {
            return Err(unavailable);
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = applied.index;
        metadata.term = applied.term;
        metadata.set_conf_state(conf_state(&self.membership));
        snapshot.data = encode_membership(&self.membership).into();
        Ok(snapshot)
    }
}

pub(crate) fn conf_state(membership: &Membership) -> ConfState {
    let mut state = ConfState::default();
    for member in &membership.members {
        if member.voter {
            state.voters.push(member.id);
        } else {
            state.learners.push(member.id);
        }
    }
    state
}
