//! What must hold, and what is known so far. Every part of a run reports here; the first
//! contradiction ends it.

use std::collections::{BTreeMap, HashMap};

use banyan_consensus::{PeerId, Position};

use crate::random::mix;
use crate::state::Op;

#[derive(Default)]
pub struct Truth {
    /// The first contradiction.
    violation: Option<String>,
    leaders: BTreeMap<u64, PeerId>,
    /// Every entry that any log ever held, and the term of the one before it.
    entries: HashMap<Position, (u64, Option<u64>)>,
    /// Term and hash by index.
    committed: BTreeMap<u64, (u64, u64)>,
    /// What the state is after an index.
    digests: HashMap<u64, (u64, PeerId)>,
    /// When an entry was written, by its own word.
    times: BTreeMap<u64, u64>,
    acknowledged: BTreeMap<Op, Position>,
    newest_acknowledged: u64,
    pub trace: u64,
}

impl Truth {
    pub fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn mark(&mut self, value: u64) {
        self.trace = mix(self.trace, value);
    }

    pub fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// True if the leader of the term was not known before.
    pub fn leads(&mut self, id: PeerId, term: u64) -> bool {
        let known = self.leaders.insert(term, id);
        if let Some(other) = known.filter(|&other| other != id) {
            self.violated(|| format!("members {other} and {id} both lead in term {term}"));
        }
        known.is_none()
    }

    /// A log holds this entry after one of the term `before` (if that is known).
    pub fn holds(&mut self, id: PeerId, position: Position, hash: u64, before: Option<u64>) {
        let (known_hash, known_before) = *self.entries.entry(position).or_insert((hash, before));
        if known_hash != hash {
            self.violated(|| {
                format!("logs differ: member {id} holds another entry at {position:?}")
            });
        }
        match (known_before, before) {
            (Some(a), Some(b)) if a != b => self.violated(|| {
                format!(
                    "logs differ before {position:?}: member {id} has term {b} there, another {a}"
                )
            }),
            (None, Some(_)) => {
                self.entries.insert(position, (hash, before));
            }
            _ => {}
        }
    }

    pub fn commits(&mut self, id: PeerId, position: Position, hash: u64) {
        let fact = (position.term, hash);
        let known = *self.committed.entry(position.index).or_insert(fact);
        if known != fact {
            self.violated(|| {
                format!(
                    "a committed entry is lost: member {id} commits {position:?} where term {} \
                     was committed",
                    known.0
                )
            });
        }
    }

    pub fn committed(&self, index: u64) -> Option<(u64, u64)> {
        self.committed.get(&index).copied()
    }

    pub fn newest_committed(&self) -> Option<Position> {
        self.newest_committed_by(u64::MAX)
    }

    /// In this term or before.
    pub fn newest_committed_by(&self, last_term: u64) -> Option<Position> {
        let newest_first = self.committed.iter().rev();
        newest_first
            .map(|(&index, &(term, _))| Position { term, index })
            .find(|position| position.term <= last_term)
    }

    /// The state of a member after `position`.
    pub fn state(&mut self, id: PeerId, position: Position, digest: u64) {
        let (known, by) = *self.digests.entry(position.index).or_insert((digest, id));
        if known != digest {
            self.violated(|| {
                format!("states differ at {position:?}: that of member {id} and that of {by}")
            });
        }
        if let Some((term, _)) = self.committed(position.index)
            && term != position.term
        {
            self.violated(|| format!("member {id} has applied {position:?}, not term {term}"));
        }
    }

    /// The entry at an index says that it was written at `time`, its last operation at `last`.
    pub fn time(&mut self, index: u64, first: u64, last: u64) {
        let before = self
            .times
            .range(..index)
            .next_back()
            .map(|(&at, &time)| (at, time));
        let after = self
            .times
            .range(index + 1..)
            .next()
            .map(|(&at, &time)| (at, time));
        if let Some((at, time)) = before.filter(|&(_, time)| time >= first) {
            self.violated(|| {
                format!("entry {index} has time {first:x}, and {at} before it {time:x}")
            });
        }
        if let Some((at, time)) = after.filter(|&(_, time)| time <= last) {
            self.violated(|| {
                format!("entry {index} has time {last:x}, and {at} after it {time:x}")
            });
        }
        self.times.insert(index, last);
    }

    pub fn acknowledge(&mut self, op: Op, position: Position) {
        match self.committed(position.index) {
            Some((term, _)) if term == position.term => {}
            other => self.violated(|| {
                format!("{op:?} was acknowledged at {position:?}, where {other:?} is committed")
            }),
        }
        self.newest_acknowledged = self.newest_acknowledged.max(position.index);
        if let Some(known) = self.acknowledged.insert(op, position) {
            self.violated(|| format!("{op:?} was acknowledged at {known:?} and {position:?}"));
        }
    }

    /// Everything that a reader who asks now must see.
    pub fn newest_acknowledged(&self) -> u64 {
        self.newest_acknowledged
    }

    pub fn acknowledged(&self) -> impl Iterator<Item = (&Op, &Position)> {
        self.acknowledged.iter()
    }

    pub fn acknowledged_count(&self) -> usize {
        self.acknowledged.len()
    }
}
