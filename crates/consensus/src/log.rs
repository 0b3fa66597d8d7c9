//! Where entries are kept.
//!
//! [`Log`] is what the core reads and writes: it knows the terms of all its entries, the members,
//! the vote, and keeps the newest entries in memory. Beneath it a [`Disk`] takes one batch at a
//! time: [`disk`] over `raft-engine`, [`memory`] for the simulation, which can lose what was not
//! synced.

mod codec;
pub(crate) mod disk;
mod files;
#[cfg(test)]
pub(crate) mod memory;
mod reader;
mod recent;
mod terms;
pub(crate) mod watermark;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::machine::{Membership, Position};
pub(crate) use codec::{decode_membership, encode_membership};
pub(crate) use reader::LogReader;
use recent::Recent;
pub(crate) use terms::Terms;

/// How finely the log knows where its bytes are.
const MARK_BYTES: u64 = 1 << 20;
/// Read at once while entries are only looked at.
const VERIFY_BYTES: u64 = 4 << 20;
/// Into how many parts a log is divided that was not watched as it grew.
const MARKS_AT_START: u64 = 64;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("the log is damaged: {0}")]
    Damaged(String),
    #[error("the log cannot be read or written: {0}")]
    Io(String),
    #[error("entry {0} was cut off")]
    Cut(u64),
    #[error("{0}")]
    Apply(String),
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
    /// With `reset`: no snapshot has taken their place yet.
    pub stale: bool,
    /// Contiguous; overwrites what the log holds from the first of them on.
    pub entries: &'a [Entry],
    pub hard: Option<&'a HardState>,
    pub membership: Option<&'a Membership>,
    pub terms: Option<&'a Terms>,
    /// Drops entries before this index.
    pub compact: Option<u64>,
    /// See [`Log::is_ahead`].
    pub ahead: Option<bool>,
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
    /// The log was given up, and with it the state: see [`Log::abandon`].
    pub stale: bool,
    pub ahead: bool,
    /// See [`Log::reached`].
    pub reached: u64,
}

/// Clones are handles on the same disk, as far as reading goes.
pub(crate) trait Disk: Clone + Send + 'static {
    fn load(&mut self) -> Result<Loaded, LogError>;
    fn write(&mut self, batch: &Batch<'_>, sync: bool) -> Result<(), LogError>;
    /// Entries of `low..high`, at least one and then no more than `bytes_max`, or fewer.
    fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError>;
    fn bytes_used(&self) -> u64;
}

/// A clone takes the place of the log that it was cloned from; both must not be written.
#[derive(Clone)]
pub(crate) struct Log<D> {
    disk: D,
    hard: HardState,
    membership: Membership,
    terms: Terms,
    last_index: u64,
    stale: bool,
    ahead: bool,
    reached: u64,
    reader: LogReader<D>,
    /// Bytes appended, and how many they were after some of the entries.
    bytes: u64,
    marks: VecDeque<(u64, u64)>,
    /// The position the state machine has reached; a snapshot is offered at it.
    applied: Arc<Mutex<Position>>,
    /// A member without data has no state to offer.
    offers_snapshots: bool,
    /// The first index that somebody holds in this log, or `u64::MAX`.
    held_from: Arc<AtomicU64>,
}

impl<D: Disk> Log<D> {
    /// The log must reach `committed`, which is known from elsewhere, and often later than what the
    /// log says itself: that waits for the next entries.
    pub fn open(
        mut disk: D,
        applied: Arc<Mutex<Position>>,
        committed: u64,
    ) -> Result<Log<D>, LogError> {
        let loaded = disk.load()?;
        // What has been applied was committed.
        let committed = committed.max(loaded.reached);
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
            reader: LogReader::new(disk.clone(), base.index + 1, last_index),
            disk,
            hard: loaded.hard,
            membership: loaded.membership,
            terms: loaded.terms,
            last_index,
            stale: loaded.stale,
            ahead: loaded.ahead,
            reached: loaded.reached,
            bytes: 0,
            marks: VecDeque::from([(base.index, 0)]),
            applied,
            offers_snapshots: true,
            held_from: Arc::new(AtomicU64::new(u64::MAX)),
        };
        log.hard.commit = log.hard.commit.max(committed);
        log.check_last()?;
        log.bytes = log.disk.bytes_used();
        log.guess_marks();
        Ok(log)
    }

    /// Where the bytes of a log are that was there before: as if all entries were of one size.
    fn guess_marks(&mut self) {
        let (base, length) = (self.base().index, self.last_index - self.base().index);
        for part in 1..=MARKS_AT_START.min(length) {
            let parts = MARKS_AT_START.min(length);
            let share =
                |whole: u64| (u128::from(whole) * u128::from(part) / u128::from(parts)) as u64;
            self.marks
                .push_back((base + share(length), share(self.bytes)));
        }
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

    /// The entries from `from` on must be readable: they are yet to be applied or sent.
    pub fn verify(&self, from: u64) -> Result<(), LogError> {
        let mut next = from.max(self.base().index + 1);
        while next <= self.last_index {
            let entries = self.read(next, self.last_index + 1, VERIFY_BYTES)?;
            for entry in &entries {
                if entry.index != next || self.term_of(next) != Some(entry.term) {
                    return Err(LogError::Damaged(format!(
                        "where entry {next} should be, there is entry {} of term {}",
                        entry.index, entry.term
                    )));
                }
                next += 1;
            }
        }
        Ok(())
    }

    pub fn disk(&self) -> &D {
        &self.disk
    }

    pub fn reader(&self) -> LogReader<D> {
        self.reader.clone()
    }

    /// The state beside the log belongs to a history that was given up.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// When the log was opened: parts of the state on the disk may hold what entries up to here did.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// To be kept up to date by whoever keeps the holds.
    pub fn held_from(&self) -> Arc<AtomicU64> {
        self.held_from.clone()
    }

    pub fn set_offers_snapshots(&mut self, offers: bool) {
        self.offers_snapshots = offers;
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
            self.reader.update(|view| {
                view.last = last.index;
                view.recent.extend(entries);
            });
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

    /// Appends an entry and with it, in one write, makes `membership` the truth, whatever the rest
    /// of the group believes.
    pub fn force(
        &mut self,
        entry: &Entry,
        hard: &HardState,
        membership: Membership,
    ) -> Result<(), LogError> {
        let mut terms = self.terms.clone();
        terms.push(entry.index, entry.term);
        let entries = std::slice::from_ref(entry);
        self.disk.write(
            &Batch {
                entries,
                hard: Some(hard),
                membership: Some(&membership),
                terms: Some(&terms),
                ..Batch::default()
            },
            true,
        )?;
        self.terms = terms;
        self.hard = hard.clone();
        self.membership = membership;
        self.last_index = entry.index;
        self.bytes += entry.data.len() as u64 + 32;
        self.reader.update(|view| {
            view.last = entry.index;
            view.recent.extend(entries);
        });
        Ok(())
    }

    /// Gives up every entry, and the state that was made of them: until a snapshot takes their
    /// place, also after a crash, [`Log::is_stale`].
    pub fn abandon(&mut self) -> Result<(), LogError> {
        let mut hard = self.hard.clone();
        hard.commit = 0;
        let membership = self.membership.clone();
        self.replace(Position::default(), &hard, membership, true)
    }

    /// A state from elsewhere has taken the place of ours, or is about to: it may come from entries
    /// that this log holds and never handed over, and that may have changed the members.
    pub fn is_ahead(&self) -> bool {
        self.ahead
    }

    /// Synced before the state is touched; there is no hurry afterwards.
    pub fn set_ahead(&mut self, ahead: bool) -> Result<(), LogError> {
        if self.ahead != ahead {
            let batch = Batch {
                ahead: Some(ahead),
                ..Batch::default()
            };
            self.disk.write(&batch, ahead)?;
            self.ahead = ahead;
        }
        Ok(())
    }

    /// Replaces everything by a snapshot at `base`.
    pub fn reset(
        &mut self,
        base: Position,
        hard: &HardState,
        membership: Membership,
    ) -> Result<(), LogError> {
        self.replace(base, hard, membership, false)
    }

    fn replace(
        &mut self,
        base: Position,
        hard: &HardState,
        membership: Membership,
        stale: bool,
    ) -> Result<(), LogError> {
        let terms = Terms::new(base);
        self.disk.write(
            &Batch {
                reset: true,
                stale,
                hard: Some(hard),
                membership: Some(&membership),
                terms: Some(&terms),
                ahead: Some(self.ahead),
                ..Batch::default()
            },
            true,
        )?;
        self.hard = hard.clone();
        self.membership = membership;
        self.terms = terms;
        self.last_index = base.index;
        self.stale = stale;
        let disk = self.disk.clone();
        self.reader.update(|view| {
            view.disk = disk;
            view.first = base.index + 1;
            view.last = base.index;
            view.recent = Recent::new(base.index + 1);
        });
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
        // Whoever finds an entry missing sees that it was cut.
        self.reader.update(|view| {
            view.first = index + 1;
            view.recent.cut(index + 1);
        });
        self.disk.write(
            &Batch {
                compact: Some(index + 1),
                terms: Some(&terms),
                ..Batch::default()
            },
            false,
        )?;
        self.terms = terms;
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
        self.reader.read(low, high, bytes_max)
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
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base().index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last_index + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        match self.read(low, high, bytes_max) {
            Ok(entries) => Ok(entries),
            Err(LogError::Cut(_)) => Err(raft::Error::Store(StorageError::Compacted)),
            // Entries that are sent to another member can come with a snapshot as well: what they
            // did is in the state. Entries that this member has to apply cannot be done without.
            Err(LogError::Damaged(what)) if sent_to_another(&context) => {
                self.reader.note_damage(&what);
                Err(raft::Error::Store(StorageError::Compacted))
            }
            Err(error) => Err(error.into()),
        }
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
    ///
    /// A follower that was interrupted may go on with a state it had begun to fetch, as long as the
    /// log follows on it. The log that follows on such a state is held, so where the first hold
    /// begins is early enough for any of them; a later state is always good.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let applied = self.applied();
        let unavailable = raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        // The membership is the newest one: it holds only from its own index on.
        let earliest = request_index.max(self.membership.index).max(1);
        if !self.offers_snapshots || self.stale || applied.index < earliest {
            return Err(unavailable);
        }
        let held = self.held_from.load(Ordering::Acquire).saturating_sub(1);
        let index = held.max(earliest).min(applied.index);
        let (index, term) = match self.term_of(index) {
            Some(term) => (index, term),
            None => (
                applied.index,
                self.term_of(applied.index).ok_or(unavailable)?,
            ),
        };
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = index;
        metadata.term = term;
        metadata.set_conf_state(conf_state(&self.membership));
        snapshot.data = encode_membership(&self.membership).into();
        Ok(snapshot)
    }
}

/// Of everything that reads the log, only sending could wait for its entries.
fn sent_to_another(context: &GetEntriesContext) -> bool {
    context.can_async()
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
