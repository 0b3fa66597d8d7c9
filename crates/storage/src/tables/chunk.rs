//! Entries that were decoded together.

use std::cmp::Ordering;
use std::ops::Bound;

use fjall::Slice;
use lsm_tree::table::block::decoder::ParsedItem;
use lsm_tree::table::data_block::DataBlockParsedItem;
use lsm_tree::table::util::SliceIndexes;
use lsm_tree::{SeqNo, ValueType};

use super::direction::Direction;

/// Entries of one source in the order that they are read in, the newest visible version of each key.
pub(super) struct Chunk {
    direction: Direction,
    /// Key behind key.
    keys: Vec<u8>,
    entries: Vec<Entry>,
    /// The first entry that was not taken yet.
    at: usize,
    /// Those before lie within the range that is read.
    inside: usize,
    /// The block that values lie in.
    block: Option<Slice>,
    /// The values of the entries where they lie by themselves.
    values: Vec<Slice>,
    /// Where its source was searched from or, if `is_behind`, the last key that was taken in before:
    /// nothing lies between that and the first entry.
    before: Vec<u8>,
    is_behind: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    key: (u32, u32),
    /// Where the value lies in the block.
    value: (u32, u32),
    seqno: SeqNo,
    is_removed: bool,
}

impl Chunk {
    pub(super) fn new(direction: Direction) -> Chunk {
        Chunk {
            direction,
            keys: Vec::new(),
            entries: Vec::new(),
            at: 0,
            inside: 0,
            block: None,
            values: Vec::new(),
            before: Vec::new(),
            is_behind: false,
        }
    }

    /// Empties it, to take in what follows in its source.
    pub(super) fn begin(&mut self) {
        if let Some(last) = self.entries.last() {
            self.before.clear();
            self.before.extend_from_slice(slice(&self.keys, last.key));
            self.is_behind = true;
        }
        self.empty();
        self.block = None;
    }

    /// Empties it, to take in what is found by a search.
    pub(super) fn begin_anew(&mut self) {
        self.begin_at(&[]);
    }

    /// Empties it, to take in what lies from `key` on.
    pub(super) fn begin_at(&mut self, key: &[u8]) {
        self.empty();
        self.block = None;
        self.before.clear();
        self.before.extend_from_slice(key);
        self.is_behind = false;
    }

    /// Values lie in this block from now on.
    pub(super) fn set_block(&mut self, block: &Slice) {
        self.block = Some(block.clone());
    }

    fn empty(&mut self) {
        self.keys.clear();
        self.entries.clear();
        self.values.clear();
        (self.at, self.inside) = (0, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The last key that was taken in, be it before it was emptied.
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        match self.entries.last() {
            Some(last) => Some(slice(&self.keys, last.key)),
            None => self.is_behind.then_some(&self.before),
        }
    }

    /// Takes in an entry with its value in the block, unless a newer version of its key was taken.
    #[inline]
    pub(super) fn push(
        &mut self,
        (prefix, rest): (&[u8], &[u8]),
        value: (usize, usize),
        seqno: SeqNo,
        is_removed: bool,
    ) {
        let start = self.keys.len();
        self.keys.extend_from_slice(prefix);
        self.keys.extend_from_slice(rest);
        let key = &self.keys[start..];
        let last = match self.entries.last() {
            Some(last) => Some(slice(&self.keys, last.key)),
            None => self.is_behind.then_some(self.before.as_slice()),
        };
        // Keys that follow each other mostly differ in their last bytes.
        if last.is_some_and(|last| last.last() == key.last() && last == key) {
            self.keys.truncate(start);
            return;
        }
        // Blocks and chunks are far smaller than 4 GB.
        let key = (start as u32, self.keys.len() as u32);
        let value = (value.0 as u32, value.1 as u32);
        self.entries.push(Entry {
            key,
            value,
            seqno,
            is_removed,
        });
    }

    /// The same with a value that lies by itself.
    pub(super) fn push_value(
        &mut self,
        key: (&[u8], &[u8]),
        value: Slice,
        seqno: SeqNo,
        is_removed: bool,
    ) {
        let before = self.entries.len();
        self.push(key, (0, 0), seqno, is_removed);
        if self.entries.len() > before {
            self.values.push(value);
        }
    }

    /// A newer version of the key that was taken in last. All of them have their values by themselves.
    pub(super) fn replace(&mut self, value: Slice, seqno: SeqNo, is_removed: bool) {
        if let (Some(entry), Some(last)) = (self.entries.last_mut(), self.values.last_mut()) {
            (entry.seqno, entry.is_removed) = (seqno, is_removed);
            *last = value;
        }
    }

    /// Everything lies within the range that is read.
    pub(super) fn all_inside(&mut self) {
        self.inside = self.entries.len();
    }

    /// Finds out what lies within the range that is read, up to this end.
    pub(super) fn bound(&mut self, end: &Bound<Vec<u8>>) {
        let keys = &self.keys;
        let entries = &self.entries;
        let is_inside = |entry: &Entry| self.direction.is_before(slice(keys, entry.key), end);
        self.inside = match entries.last() {
            Some(last) if !is_inside(last) => entries.partition_point(is_inside),
            _ => entries.len(),
        };
    }

    /// Goes to the first entry that does not lie before `key`, in what is read forward. False: it is not
    /// known from what was decoded. `is_all`: nothing follows in the source.
    pub(super) fn go_to(&mut self, key: &[u8], is_all: bool) -> bool {
        let keys = &self.keys;
        let is_known_below = match self.entries.first() {
            Some(first) if key >= slice(keys, first.key) => true,
            _ if self.is_behind => key > self.before.as_slice(),
            _ => key >= self.before.as_slice(),
        };
        let is_known_above = match self.entries.last() {
            Some(last) => key <= slice(keys, last.key),
            None => false,
        };
        if !is_known_below || !(is_known_above || is_all) {
            return false;
        }
        let entries = &self.entries;
        self.at = entries.partition_point(|entry| slice(keys, entry.key) < key);
        true
    }

    /// Whether there is an entry within the range.
    #[inline]
    pub(super) fn has_head(&self) -> bool {
        self.at < self.inside
    }

    /// Whether an entry is there that lies behind the range.
    pub(super) fn ends_behind(&self) -> bool {
        self.inside < self.entries.len()
    }

    #[inline]
    pub(super) fn head(&self) -> Option<&[u8]> {
        if self.at >= self.inside {
            return None;
        }
        Some(slice(&self.keys, self.entries[self.at].key))
    }

    #[inline]
    pub(super) fn seqno(&self) -> SeqNo {
        self.entries.get(self.at).map_or(0, |entry| entry.seqno)
    }

    #[inline]
    pub(super) fn is_removed(&self) -> bool {
        self.entries
            .get(self.at)
            .is_some_and(|entry| entry.is_removed)
    }

    /// The value of the entry that it has come to.
    #[inline]
    pub(super) fn value(&self) -> &[u8] {
        match (&self.block, self.entries.get(self.at)) {
            (Some(block), Some(entry)) => slice(block, entry.value),
            _ => self.values.get(self.at).map_or(&[], |value| value),
        }
    }

    /// The same, to be kept: it keeps its block.
    #[inline]
    pub(super) fn kept_value(&self) -> Slice {
        match (&self.block, self.entries.get(self.at)) {
            (Some(block), Some(entry)) => kept_value(block, entry.value),
            _ => self.values.get(self.at).cloned().unwrap_or_default(),
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.at += 1;
    }

    /// Passes over up to so many entries within the range, and those that are removed among them: how
    /// many are there.
    pub(super) fn pass(&mut self, most: u64) -> u64 {
        let mut passed = 0;
        while passed < most && self.at < self.inside {
            passed += u64::from(!self.entries[self.at].is_removed);
            self.at += 1;
        }
        passed
    }

    /// Which of two heads is read first.
    pub(super) fn order(&self, other: &Chunk) -> Option<Ordering> {
        let order = self.head()?.cmp(other.head()?);
        Some(match self.direction {
            Direction::Forward => order,
            Direction::Backward => order.reverse(),
        })
    }
}

/// A value in a block, which is kept with it.
pub(super) fn kept_value(block: &Slice, (start, end): (u32, u32)) -> Slice {
    let value = DataBlockParsedItem {
        value_type: ValueType::Value,
        seqno: 0,
        prefix: None,
        key: SliceIndexes(0, 0),
        value: Some(SliceIndexes(start as usize, end as usize)),
    };
    value.materialize(block).value
}

#[inline]
fn slice(bytes: &[u8], (start, end): (u32, u32)) -> &[u8] {
    &bytes[start as usize..end as usize]
}
