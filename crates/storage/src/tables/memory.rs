//! Writes that are in no table yet.

use std::ops::Bound;
use std::sync::Arc;

use lsm_tree::{InternalValue, Memtable, SeqNo, ValueType};

use super::chunk::{Chunk, is_below};
use super::run::Rest;

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
        let place = |key: &[u8], seqno| {
            InternalValue::from_components(key, b"", seqno, ValueType::Value).key
        };
        let from = match &self.from {
            // The engine has no empty keys.
            From::Key(key) if key.is_empty() => Bound::Unbounded,
            // Newer versions come before older ones.
            From::Key(key) => Bound::Included(place(key, seqno.saturating_sub(1))),
            From::Last => match chunk.last_key() {
                Some(last) => Bound::Excluded(place(last, 0)),
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
