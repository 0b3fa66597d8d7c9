//! What moves a group that has no threads, and what looks into it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raft::eraftpb::{Entry, EntryType};

use crate::driver::Shared;
use crate::machine::{Membership, PeerId, Position, StateMachine};
use crate::message;
use crate::surroundings;

/// Does what the threads of a group do, a piece at a time.
pub struct Stepper<S: StateMachine> {
    shared: Arc<Shared<S>>,
    next_tick: Instant,
    last_durable: Instant,
}

/// How a member stands after a turn.
#[derive(Clone, Debug)]
pub struct LogView {
    pub term: u64,
    pub vote: PeerId,
    pub leader: Option<PeerId>,
    pub leads: bool,
    pub commit: u64,
    pub base: Position,
    pub last: u64,
    pub installing: bool,
    pub membership: Membership,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub position: Position,
    /// Of its kind and its bytes.
    pub hash: u64,
}

impl<S: StateMachine> Stepper<S> {
    pub(super) fn new(shared: Arc<Shared<S>>) -> Stepper<S> {
        let now = surroundings::now();
        Stepper {
            next_tick: now + shared.simulated_tick(),
            last_durable: now,
            shared,
        }
    }

    /// When the driving thread would wake up; none if it would not sleep.
    pub fn sleeps_for(&self) -> Option<Duration> {
        let until = self.shared.simulated_due(self.next_tick).err()?;
        Some(until.saturating_duration_since(surroundings::now()))
    }

    /// What the driving thread does when it wakes up.
    pub fn turn(&mut self) {
        let sync_due = self
            .shared
            .simulated_due(self.next_tick)
            .unwrap_or_default();
        self.shared.turn(sync_due, &mut self.next_tick);
    }

    /// The next tick comes as much later: a clock that runs slow, or a process that slept.
    pub fn delay_tick(&mut self, by: Duration) {
        self.next_tick += by;
    }

    /// What the applying thread does next; false if nothing waits.
    pub fn apply(&self) -> bool {
        self.shared.simulated_apply()
    }

    /// What the log upkeep does every second.
    pub fn keep_up(&mut self) {
        self.shared.simulated_upkeep(&mut self.last_durable);
    }

    /// The group has found that it must not go on.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    pub fn look(&self) -> LogView {
        self.shared.simulated_core(|core| LogView {
            term: core.term(),
            vote: core.vote(),
            leader: core.leader(),
            leads: core.is_leader(),
            commit: core.commit(),
            base: core.log().base(),
            last: core.log().last(),
            installing: core.installing(),
            membership: core.membership().clone(),
        })
    }

    /// The term of a written entry.
    pub fn term_of(&self, index: u64) -> Option<u64> {
        self.shared.simulated_core(|core| core.log().term_of(index))
    }

    /// Written entries of `low..high`.
    pub fn entries(&self, low: u64, high: u64) -> Result<Vec<LogEntry>, String> {
        let mut found = Vec::new();
        let mut next = low;
        while next < high {
            let read = self
                .shared
                .simulated_core(|core| core.log().read(next, high, u64::MAX))
                .map_err(|error| error.to_string())?;
            if read.is_empty() {
                return Err(format!("entry {next} is missing"));
            }
            next += read.len() as u64;
            found.extend(read.iter().map(view));
        }
        Ok(found)
    }
}

fn view(entry: &Entry) -> LogEntry {
    let mut hasher = DefaultHasher::new();
    (entry.get_entry_type() == EntryType::EntryNormal).hash(&mut hasher);
    entry.data.hash(&mut hasher);
    LogEntry {
        position: Position {
            term: entry.term,
            index: entry.index,
        },
        hash: hasher.finish(),
    }
}

/// A message in a few words, for a trace.
pub fn describe(frame: &[u8]) -> String {
    let Some(frame) = message::decode(frame) else {
        return "an unreadable message".to_owned();
    };
    let message = frame.message;
    let mut words = format!("{:?} of term {}", message.msg_type, message.term);
    if message.index != 0 || message.log_term != 0 {
        words += &format!(", at {}/{}", message.log_term, message.index);
    }
    if let (Some(first), Some(last)) = (message.entries.first(), message.entries.last()) {
        words += &format!(", entries {}..={}", first.index, last.index);
    }
    if message.commit != 0 {
        words += &format!(", commit {}", message.commit);
    }
    if message.reject {
        words += &format!(", refused (hint {})", message.reject_hint);
    }
    words
}
