//! What a sorter holds in memory: records one behind the other in slabs, and small entries that are
//! sorted in their stead.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::{Deref, Range};
use std::sync::Arc;

use banyan_document::prefetch::prefetch;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::merge_sort;
use crate::spill::damaged;

/// What stands before a record: the lengths of its key and of its value.
const HEAD_BYTES: usize = 8;
/// Behind its key stands its place in the input.
pub(super) const PLACE_BYTES: usize = 16;
const SLAB_BYTES_MIN: usize = 4 * 1024;
const SLAB_BYTES_MAX: usize = 1024 * 1024;
/// Room is made for no more than this before a value is written: it may turn out to be small.
const EXPECTED_BYTES_MAX: usize = 64 * 1024;
/// So many entries are selected from at once; more are sorted in steps that can be ended.
const SELECTED_MAX: usize = 32 * 1024;
/// Records lie in the order in which they came, so that each is somewhere else than the one before it in
/// order. So many ahead of the one that is taken are fetched from memory, as far as most of them reach.
const AHEAD: usize = 8;
const AHEAD_BYTES: usize = 320;
/// A comparison over no more than this costs no more than reaching the record.
const SHORT_BYTES: usize = 64;

/// Records in the order in which they came.
#[derive(Default)]
pub(super) struct Kept {
    slabs: Vec<Vec<u8>>,
    entries: Vec<Entry>,
    bytes: usize,
}

/// A record, and the part of its key that most comparisons need.
#[derive(Clone, Copy, Debug)]
struct Entry {
    prefix: u64,
    slab: u32,
    start: u32,
}

/// What a record is sorted by: its key, and its place in the input.
fn order<S: Borrow<Vec<u8>>>(slabs: &[S], entry: Entry) -> &[u8] {
    let (key, _) = lengths(slabs, entry);
    part(slabs, entry, HEAD_BYTES, key + PLACE_BYTES)
}

fn part<S: Borrow<Vec<u8>>>(slabs: &[S], entry: Entry, from: usize, length: usize) -> &[u8] {
    let slab = slabs
        .get(entry.slab as usize)
        .map(<S as Borrow<Vec<u8>>>::borrow);
    let from = entry.start as usize + from;
    slab.and_then(|slab| slab.get(from..from + length))
        .unwrap_or_default()
}

/// Of the key and of the value.
fn lengths<S: Borrow<Vec<u8>>>(slabs: &[S], entry: Entry) -> (usize, usize) {
    match <[u8; HEAD_BYTES]>::try_from(part(slabs, entry, 0, HEAD_BYTES)) {
        Ok([a, b, c, d, e, f, g, h]) => (
            u32::from_le_bytes([a, b, c, d]) as usize,
            u32::from_le_bytes([e, f, g, h]) as usize,
        ),
        Err(_) => (0, 0),
    }
}

fn prefix(order: &[u8], from: usize) -> u64 {
    let rest = order.get(from..).unwrap_or_default();
    let mut bytes = [0; 8];
    let length = rest.len().min(8);
    bytes[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(bytes)
}

fn compare<S: Borrow<Vec<u8>>>(slabs: &[S], a: Entry, b: Entry) -> Ordering {
    let in_full = || order(slabs, a).cmp(order(slabs, b));
    a.prefix.cmp(&b.prefix).then_with(in_full)
}

impl Kept {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// What the records and their entries hold.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a record. `write` appends its value, of about `value_bytes`.
    pub fn push(
        &mut self,
        key: &[u8],
        place: [u8; PLACE_BYTES],
        value_bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), QueryError> {
        let value_bytes = value_bytes.min(EXPECTED_BYTES_MAX);
        let slab = self.slab(HEAD_BYTES + key.len() + PLACE_BYTES + value_bytes);
        let start = slab.len();
        slab.extend_from_slice(&[0; HEAD_BYTES]);
        slab.extend_from_slice(key);
        slab.extend_from_slice(&place);
        let value = slab.len();
        write(slab);
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| damaged());
        let (key_bytes, value_bytes) = (length(key.len())?, length(slab.len() - value)?);
        let end = slab.len();
        if let Some(head) = slab.get_mut(start..start + HEAD_BYTES) {
            head[..4].copy_from_slice(&key_bytes.to_le_bytes());
            head[4..].copy_from_slice(&value_bytes.to_le_bytes());
        }
        self.bytes += end - start + size_of::<Entry>();
        self.entries.push(Entry {
            prefix: prefix(key, 0),
            slab: length(self.slabs.len() - 1)?,
            start: length(start)?,
        });
        Ok(())
    }

    /// One with room for so many bytes more.
    fn slab(&mut self, bytes: usize) -> &mut Vec<u8> {
        let has_room = |slab: &Vec<u8>| slab.capacity() - slab.len() >= bytes;
        if !self.slabs.last().is_some_and(has_room) {
            let last = self.slabs.last().map_or(0, Vec::capacity);
            let usual = (2 * last).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX);
            self.slabs.push(Vec::with_capacity(usual.max(bytes)));
        }
        let last = self.slabs.len() - 1;
        &mut self.slabs[last]
    }

    /// Lets go of all but the first `limit` in order; what the last of those is sorted by.
    pub fn prune(&mut self, limit: usize, budget: &Budget) -> Result<Option<Vec<u8>>, QueryError> {
        let Some(last) = limit.checked_sub(1).filter(|_| limit <= self.entries.len()) else {
            return Ok(None);
        };
        let (slabs, entries) = (&self.slabs, &mut self.entries);
        match entries.len() > SELECTED_MAX {
            true => *entries = sort(slabs, std::mem::take(entries), budget)?,
            false => {
                budget.spend(4 * entries.len())?;
                entries.select_nth_unstable_by(last, |a, b| compare(slabs, *a, *b));
            }
        }
        entries.truncate(limit);
        let cutoff = entries.last().map(|last| order(slabs, *last).to_vec());
        self.compact(budget)?;
        Ok(cutoff)
    }

    /// Moves what is left into new slabs.
    fn compact(&mut self, budget: &Budget) -> Result<(), QueryError> {
        let old = std::mem::take(self);
        for entry in old.entries {
            let (key, value) = lengths(&old.slabs, entry);
            let record = part(&old.slabs, entry, 0, HEAD_BYTES + key + PLACE_BYTES + value);
            budget.spend_bytes(record.len())?;
            let slab = self.slab(record.len());
            let start = slab.len();
            slab.extend_from_slice(record);
            self.bytes += record.len() + size_of::<Entry>();
            self.entries.push(Entry {
                prefix: prefix(record.get(HEAD_BYTES..).unwrap_or_default(), 0),
                slab: u32::try_from(self.slabs.len() - 1).map_err(|_| damaged())?,
                start: u32::try_from(start).map_err(|_| damaged())?,
            });
        }
        Ok(())
    }

    /// The records in order.
    pub fn sort(self, budget: &Budget) -> Result<List, QueryError> {
        Ok(List {
            entries: sort(&self.slabs, self.entries, budget)?,
            slabs: self.slabs.into_iter().map(Arc::new).collect(),
            next: 0,
        })
    }
}

/// Sorts entries by the first bytes that not all keys have in common, and by the rest where those
/// are alike.
fn sort(
    slabs: &[Vec<u8>],
    mut entries: Vec<Entry>,
    budget: &Budget,
) -> Result<Vec<Entry>, QueryError> {
    let first = entries.first().map(|first| order(slabs, *first));
    let Some(first) = first else {
        return Ok(entries);
    };
    let (mut common, mut longest) = (first.len(), 0);
    for entry in &entries {
        let order = order(slabs, *entry);
        budget.spend_bytes(common)?;
        common = order
            .iter()
            .zip(first.iter().take(common))
            .position(|(a, b)| a != b)
            .unwrap_or(common.min(order.len()));
        longest = longest.max(order.len());
    }
    for entry in &mut entries {
        entry.prefix = prefix(order(slabs, *entry), common);
    }
    budget.spend(entries.len())?;
    let weight = match longest - common {
        0..=SHORT_BYTES => 1,
        long => long,
    };
    let compare = |a: &Entry, b: &Entry| compare(slabs, *a, *b);
    merge_sort::sort(entries, compare, |_| weight, budget)
}

/// Records in order.
#[derive(Default)]
pub(super) struct List {
    slabs: Vec<Arc<Vec<u8>>>,
    entries: Vec<Entry>,
    next: usize,
}

impl List {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// What the next record is sorted by.
    pub fn top(&self) -> Option<&[u8]> {
        let entry = self.entries.get(self.next)?;
        Some(order(&self.slabs, *entry))
    }

    /// Passes the next record over.
    pub fn next(&mut self) -> Option<Found> {
        let entry = *self.entries.get(self.next)?;
        if let Some(soon) = self.entries.get(self.next + AHEAD)
            && let Some(slab) = self.slabs.get(soon.slab as usize)
        {
            let start = soon.start as usize;
            prefetch(slab, start..start + AHEAD_BYTES);
        }
        self.next += 1;
        let slab = self.slabs.get(entry.slab as usize)?.clone();
        let (key, value) = lengths(&self.slabs, entry);
        let key_start = entry.start as usize + HEAD_BYTES;
        let start = key_start + key + PLACE_BYTES;
        Some(Found {
            key: (key_start, key_start + key),
            value: Piece {
                slab,
                start,
                end: start + value,
            },
        })
    }
}

/// A record that was taken out.
pub(super) struct Found {
    key: (usize, usize),
    pub value: Piece,
}

impl Found {
    /// A copy of a record that lies elsewhere.
    pub fn copy(key: &[u8], value: &[u8]) -> Found {
        let mut slab = Vec::with_capacity(key.len() + value.len());
        slab.extend_from_slice(key);
        slab.extend_from_slice(value);
        Found {
            key: (0, key.len()),
            value: Piece {
                start: key.len(),
                end: slab.len(),
                slab: Arc::new(slab),
            },
        }
    }

    pub fn key(&self) -> &[u8] {
        let (start, end) = self.key;
        self.value.slab.get(start..end).unwrap_or_default()
    }
}

/// Bytes that lie in a slab with others. Cloning copies none.
#[derive(Clone, Debug)]
pub struct Piece {
    slab: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.slab.get(self.start..self.end).unwrap_or_default()
    }
}

impl Piece {
    /// Nothing, where there are not so many bytes in the slab.
    pub fn new(slab: Arc<Vec<u8>>, range: Range<usize>) -> Piece {
        Piece {
            slab,
            start: range.start,
            end: range.end,
        }
    }

    /// What is behind the first so many bytes.
    pub fn behind(mut self, bytes: usize) -> Piece {
        self.start = (self.start + bytes).min(self.end);
        self
    }
}
