//! Writes that are in no table yet.

use std::ops::Bound;
use std::sync::Arc;

use fjall::Slice;
use lsm_tree::{InternalValue, Memtable, SeqNo, ValueType};

use super::chunk::Chunk;
use super::direction::Direction;
use super::entries::{Entries, Rest};
use super::state::State;

/// Where a version of a key lies: newer ones come before older ones.
fn place(key: &[u8], seqno: SeqNo) -> InternalValue {
    InternalValue::from_components(key, b"", seqno, ValueType::Value)
}

/// From where it goes on.
enum From {
    /// This key.
    Key(Vec<u8>),
    /// Behind what was read last.
    Last,
}

pub(super) struct Memory {
    memtable: Arc<Memtable>,
    from: From,
    /// How many entries were read.
    read: u64,
}

impl Memory {
    pub(super) fn new(memtable: Arc<Memtable>) -> Memory {
        Memory {
            memtable,
            from: From::Key(Vec::new()),
            read: 0,
        }
    }

    fn go_to(&mut self, key: &[u8]) {
        self.from = From::Key(key.to_vec());
    }

    /// Reads one behind the range, so that it is known where there is nothing.
    fn take(
        &mut self,
        chunk: &mut Chunk,
        seqno: SeqNo,
        upper: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Rest {
        let from = match &self.from {
            // The engine has no empty keys.
            From::Key(key) if key.is_empty() => Bound::Unbounded,
            From::Key(key) => Bound::Included(place(key, seqno.saturating_sub(1)).key),
            From::Last => match chunk.last_key() {
                Some(last) => Bound::Excluded(place(last, 0).key),
                None => Bound::Unbounded,
            },
        };
        self.from = From::Last;
        chunk.begin();
        let mut rest = Rest::Ended;
        for entry in self.memtable.items.range((from, Bound::Unbounded)) {
            self.read += 1;
            let key = entry.key();
            if key.seqno >= seqno {
                continue;
            }
            let is_behind = !Direction::Forward.is_before(&key.user_key, upper);
            chunk.push_value(
                (&key.user_key, &[]),
                entry.value().clone(),
                key.seqno,
                key.value_type.is_tombstone(),
            );
            if is_behind || chunk.len() >= wanted {
                rest = Rest::More;
                break;
            }
        }
        chunk.bound(upper);
        rest
    }
}

impl Entries for Memory {
    fn seek(&mut self, key: Option<&[u8]>) {
        self.go_to(key.unwrap_or_default());
    }

    fn fill(
        &mut self,
        _state: &State,
        chunk: &mut Chunk,
        seqno: SeqNo,
        upper: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Result<Rest, lsm_tree::Error> {
        Ok(self.take(chunk, seqno, upper, wanted))
    }

    fn read_in_memory(&self) -> u64 {
        self.read
    }
}

/// The same from its end.
pub(super) struct BackwardMemory {
    memtable: Arc<Memtable>,
    /// Where to go first: before this key, or to the end.
    wanted: Option<Option<Vec<u8>>>,
    read: u64,
}

impl BackwardMemory {
    pub(super) fn new(memtable: Arc<Memtable>) -> BackwardMemory {
        BackwardMemory {
            memtable,
            wanted: None,
            read: 0,
        }
    }

    /// As forward. A version is the newest visible one only when another key has followed.
    fn take(
        &mut self,
        chunk: &mut Chunk,
        seqno: SeqNo,
        lower: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Rest {
        let before = match &self.wanted {
            Some(before) => before.as_deref(),
            None => chunk.last_key(),
        };
        // The engine has no empty keys.
        let before = before.filter(|before| !before.is_empty());
        let before = match before {
            Some(key) => Bound::Excluded(place(key, SeqNo::MAX).key),
            None => Bound::Unbounded,
        };
        self.wanted = None;
        chunk.begin();
        let mut rest = Rest::Ended;
        let mut entries = self.memtable.items.range((Bound::Unbounded, before));
        while let Some(entry) = entries.next_back() {
            self.read += 1;
            let key = entry.key();
            if key.seqno >= seqno {
                continue;
            }
            let (value, is_removed) = (entry.value().clone(), key.value_type.is_tombstone());
            if let Some(last) = chunk.last_key().filter(|_| chunk.len() > 0) {
                if *last == *key.user_key {
                    chunk.replace(value, key.seqno, is_removed);
                    continue;
                }
                if chunk.len() >= wanted || !Direction::Backward.is_before(last, lower) {
                    rest = Rest::More;
                    break;
                }
            }
            chunk.push_value((&key.user_key, &[]), value, key.seqno, is_removed);
        }
        chunk.bound(lower);
        rest
    }
}

impl Entries for BackwardMemory {
    fn seek(&mut self, before: Option<&[u8]>) {
        self.wanted = Some(before.map(<[u8]>::to_vec));
    }

    fn fill(
        &mut self,
        _state: &State,
        chunk: &mut Chunk,
        seqno: SeqNo,
        lower: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Result<Rest, lsm_tree::Error> {
        Ok(self.take(chunk, seqno, lower, wanted))
    }

    fn read_in_memory(&self) -> u64 {
        self.read
    }
}

/// Single keys. A search tells the next key that is there, too: between the two nothing has to be
/// searched for.
pub(super) struct MemoryPoints {
    memory: Memory,
    chunk: Chunk,
    rest: Rest,
}

impl MemoryPoints {
    pub(super) fn new(memtable: Arc<Memtable>) -> MemoryPoints {
        MemoryPoints {
            memory: Memory::new(memtable),
            chunk: Chunk::new(Direction::Forward),
            rest: Rest::More,
        }
    }

    /// How many entries were read.
    pub(super) fn read(&self) -> u64 {
        self.memory.read
    }

    /// What is known of a key: its value, and nothing if it was removed. `None`: it is not here.
    pub(super) fn get(&mut self, key: &[u8], seqno: SeqNo) -> Option<Option<Slice>> {
        if !self.chunk.go_to(key, self.rest == Rest::Ended) {
            self.chunk.begin_at(key);
            self.memory.go_to(key);
            let (memory, chunk) = (&mut self.memory, &mut self.chunk);
            self.rest = memory.take(chunk, seqno, &Bound::Unbounded, 1);
        }
        if self.chunk.head()? != key {
            return None;
        }
        let is_there = !self.chunk.is_removed();
        Some(is_there.then(|| self.chunk.kept_value()))
    }
}
