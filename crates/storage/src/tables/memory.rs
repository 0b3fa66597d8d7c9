//! Writes that are in no table yet.

use std::ops::Bound;
use std::sync::Arc;

use fjall::Slice;
use lsm_tree::{InternalValue, Memtable, SeqNo, ValueType};

use super::chunk::{Chunk, is_below};
use super::run::Rest;

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
    pub(super) read: u64,
}

impl Memory {
    pub(super) fn new(memtable: Arc<Memtable>) -> Memory {
        Memory {
            memtable,
            from: From::Key(Vec::new()),
            read: 0,
        }
    }

    pub(super) fn seek(&mut self, key: &[u8]) {
        self.from = From::Key(key.to_vec());
    }

    /// Takes what comes next into the chunk, about so many entries. Reads one behind the range, so that
    /// it is known where there is nothing.
    pub(super) fn fill(
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
            let is_behind = !is_below(&key.user_key, upper);
            chunk.push_value(
                &key.user_key,
                entry.value(),
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
            chunk: Chunk::default(),
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
            self.memory.seek(key);
            let (memory, chunk) = (&mut self.memory, &mut self.chunk);
            self.rest = memory.fill(chunk, seqno, &Bound::Unbounded, 1);
        }
        if self.chunk.head()? != key {
            return None;
        }
        let is_there = !self.chunk.is_removed();
        Some(is_there.then(|| self.chunk.kept_value()))
    }
}
