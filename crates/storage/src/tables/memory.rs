//! Writes that are in no table yet.

use std::ops::Bound;
use std::sync::Arc;

use lsm_tree::{InternalValue, Memtable, SeqNo, ValueType};

use super::chunk::{Chunk, is_below};
use super::run::Rest;

/// Where a version of a key lies: newer ones come before older ones.
fn place(key: &[u8], seqno: SeqNo) -> InternalValue {
    InternalValue::from_components(key, b"", seqno, ValueType::Value)
}

/// Single keys. A search that finds nothing tells how far there is nothing, which spares the ones that
/// follow in the order of the keys.
#[derive(Default)]
pub(super) struct MemoryPoints {
    gap: Option<Gap>,
}

/// From a key on there is nothing before another one.
struct Gap {
    from: Vec<u8>,
    /// `None`: there is nothing at all.
    to: Option<Vec<u8>>,
}

impl Gap {
    fn holds(&self, key: &[u8]) -> bool {
        let is_before = |to: &Vec<u8>| key < to.as_slice();
        key >= self.from.as_slice() && self.to.as_ref().is_none_or(is_before)
    }
}

impl MemoryPoints {
    /// The newest version of a key that a snapshot of `seqno` sees.
    pub(super) fn get(
        &mut self,
        memtable: &Memtable,
        key: &[u8],
        seqno: SeqNo,
    ) -> Option<InternalValue> {
        if self.gap.as_ref().is_some_and(|gap| gap.holds(key)) {
            return None;
        }
        let from = place(key, seqno.checked_sub(1)?).key;
        let next = memtable.items.range(from..).next();
        match next {
            Some(entry) if *entry.key().user_key == *key => Some(InternalValue {
                key: entry.key().clone(),
                value: entry.value().clone(),
            }),
            // What is written later is newer than the snapshot.
            next => {
                self.gap = Some(Gap {
                    from: key.to_vec(),
                    to: next.map(|entry| entry.key().user_key.to_vec()),
                });
                None
            }
        }
    }
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
