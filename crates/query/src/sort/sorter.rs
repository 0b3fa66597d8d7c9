//! The sorter: items by their keys, in memory as long as they fit, in sorted runs on disk beyond.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::{self, Consumer, Holding};
use crate::spill::{Merge, Runs, Spilled, damaged};

/// So many entries are sorted at once.
const CHUNK_ITEMS: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: usize = 10;

/// Sorts items by their keys, keeping the first `limit` of them if there is one.
pub struct Sorter<T> {
    kept: Kept<T>,
    limit: Option<usize>,
    arrived: u64,
    bytes: usize,
    holding: Holding,
    /// What did not fit.
    runs: Option<Runs>,
    /// Of a limit: what does not come before this is not among the first.
    cutoff: Option<Vec<u8>>,
    stats: SortStats,
}

enum Kept<T> {
    All(Vec<Entry<T>>),
    /// The greatest on top, so that the first of a limit are at hand.
    First(BinaryHeap<Entry<T>>),
}

/// What a sort has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct SortStats {
    /// What was sorted, with its keys, whether or not it was in memory at once.
    pub bytes: u64,
    pub keys: u64,
    /// Runs that were written for lack of memory.
    pub spills: u64,
}

#[derive(Debug)]
struct Entry<T> {
    key: Vec<u8>,
    arrival: u64,
    bytes: usize,
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        self.key
            .cmp(&other.key)
            .then_with(|| self.arrival.cmp(&other.arrival))
    }
}

impl<T> Kept<T> {
    fn new(limit: Option<usize>) -> Kept<T> {
        match limit {
            None => Kept::All(Vec::new()),
            Some(_) => Kept::First(BinaryHeap::new()),
        }
    }

    fn into_vec(self) -> Vec<Entry<T>> {
        match self {
            Kept::All(entries) => entries,
            Kept::First(heap) => heap.into_vec(),
        }
    }
}

impl<T: Spilled> Sorter<T> {
    /// A limit of zero is none.
    pub fn new(limit: Option<usize>, budget: &Budget) -> Sorter<T> {
        let consumer = match limit {
            None | Some(0) => &memory::consumer::SORT,
            Some(_) => &memory::consumer::TOP_SORT,
        };
        Sorter::of(consumer, limit, budget)
    }

    /// A sorter of another stage.
    pub(crate) fn of(
        consumer: &'static Consumer,
        limit: Option<usize>,
        budget: &Budget,
    ) -> Sorter<T> {
        let limit = limit.filter(|limit| *limit > 0);
        Sorter {
            kept: Kept::new(limit),
            limit,
            arrived: 0,
            bytes: 0,
            holding: budget.holding(consumer),
            runs: None,
            cutoff: None,
            stats: SortStats::default(),
        }
    }

    /// Whether an item with this key would be kept. Asking first saves making the item.
    pub fn wants(&self, key: &[u8]) -> bool {
        let (Some(limit), Kept::First(heap)) = (self.limit, &self.kept) else {
            return true;
        };
        if self
            .cutoff
            .as_ref()
            .is_some_and(|cutoff| key >= &cutoff[..])
        {
            return false;
        }
        match heap.peek() {
            Some(worst) => heap.len() < limit || key < worst.key.as_slice(),
            None => true,
        }
    }

    /// `item_bytes` is what the item holds in memory.
    pub fn push(&mut self, key: Vec<u8>, item: T, item_bytes: usize) -> Result<(), QueryError> {
        let arrival = self.arrived;
        self.arrived += 1;
        if !self.wants(&key) {
            return Ok(());
        }
        let bytes = key.len() + item_bytes + size_of::<Entry<T>>();
        self.bytes += bytes;
        self.stats.bytes += bytes as u64;
        self.stats.keys += 1;
        let entry = Entry {
            key,
            arrival,
            bytes,
            item,
        };
        match &mut self.kept {
            Kept::All(entries) => entries.push(entry),
            Kept::First(heap) => {
                heap.push(entry);
                if self.limit.is_some_and(|limit| heap.len() > limit)
                    && let Some(worst) = heap.pop()
                {
                    self.bytes -= worst.bytes;
                    self.stats.bytes -= worst.bytes as u64;
                }
            }
        }
        match self.holding.fits(self.bytes) {
            true => Ok(()),
            false => self.spill(),
        }
    }

    /// Writes what is held to a run.
    #[cold]
    fn spill(&mut self) -> Result<(), QueryError> {
        if !self.holding.budget().may_spill() {
            return Err(self.holding.exceeded());
        }
        let budget = self.holding.budget().clone();
        let kept = std::mem::replace(&mut self.kept, Kept::new(self.limit));
        let mut entries = Chunks::sort(kept.into_vec(), &budget)?;
        let limit = self.limit.map(|limit| limit as u64);
        let runs = self.runs.get_or_insert_with(|| Runs::new(&budget, limit));
        let cutoff = &mut self.cutoff;
        runs.write(|writer| {
            while let Some(entry) = entries.next() {
                budget.spend_bytes(entry.bytes)?;
                writer.push(&entry.key, |out| entry.item.write(out))?;
                if Some(writer.records()) == limit {
                    *cutoff = Some(entry.key);
                }
            }
            Ok(())
        })?;
        self.stats.spills += 1;
        memory::count(&budget.memory().figures.sort_spills, 1);
        self.bytes = 0;
        self.holding.set(0)
    }

    /// How many items have come, less those that a limit has dropped.
    pub fn len(&self) -> u64 {
        let kept = match &self.kept {
            Kept::All(entries) => entries.len(),
            Kept::First(heap) => heap.len(),
        };
        kept as u64 + self.runs.as_ref().map_or(0, |runs| runs.written.records)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn stats(&self) -> SortStats {
        self.stats
    }

    /// The items in order. Long lists are sorted in chunks, so that the work can be ended on the
    /// way, and merged as they are taken.
    pub fn finish(self) -> Result<Sorted<T>, QueryError> {
        let budget = self.holding.budget();
        let figures = &budget.memory().figures;
        memory::count(&figures.keys_sorted, self.stats.keys);
        memory::count(&figures.bytes_sorted, self.stats.bytes);
        Ok(Sorted {
            left: self.limit.unwrap_or(usize::MAX),
            memory: Chunks::sort(self.kept.into_vec(), budget)?,
            disk: self.runs.map(Runs::merge).transpose()?,
            holding: self.holding,
            stats: self.stats,
        })
    }
}

/// Entries in memory, sorted in chunks that are merged as they are taken.
struct Chunks<T> {
    chunks: Vec<std::vec::IntoIter<Entry<T>>>,
    /// The first of each chunk, with the chunk's number.
    heads: BinaryHeap<Reverse<(Entry<T>, usize)>>,
}

impl<T> Chunks<T> {
    fn sort(mut entries: Vec<Entry<T>>, budget: &Budget) -> Result<Chunks<T>, QueryError> {
        let mut chunks = Vec::with_capacity(entries.len() / CHUNK_ITEMS + 1);
        while !entries.is_empty() {
            let mut chunk = entries.split_off(entries.len().saturating_sub(CHUNK_ITEMS));
            let key_bytes: usize = chunk.iter().map(|entry| entry.key.len()).sum();
            // Each entry is compared about as often as the chunk's size has bits.
            budget.spend_bytes(CHUNK_BITS * key_bytes)?;
            budget.spend(CHUNK_BITS * chunk.len())?;
            chunk.sort_unstable();
            chunks.push(chunk.into_iter());
        }
        let mut heads = BinaryHeap::with_capacity(chunks.len());
        for (index, chunk) in chunks.iter_mut().enumerate() {
            heads.extend(chunk.next().map(|entry| Reverse((entry, index))));
        }
        Ok(Chunks { chunks, heads })
    }

    fn top(&self) -> Option<&[u8]> {
        self.heads.peek().map(|Reverse((entry, _))| &entry.key[..])
    }

    fn next(&mut self) -> Option<Entry<T>> {
        let mut head = self.heads.peek_mut()?;
        let Reverse((entry, chunk)) = &mut *head;
        match self.chunks.get_mut(*chunk).and_then(Iterator::next) {
            Some(following) => Some(std::mem::replace(entry, following)),
            None => {
                let Reverse((entry, _)) = PeekMut::pop(head);
                Some(entry)
            }
        }
    }
}

/// What was sorted, in order.
pub struct Sorted<T> {
    left: usize,
    memory: Chunks<T>,
    disk: Option<Merge>,
    holding: Holding,
    stats: SortStats,
}

impl<T: Spilled> Sorted<T> {
    /// The next item.
    pub fn next_item(&mut self) -> Result<Option<T>, QueryError> {
        Ok(self.next_entry()?.map(|(_, item)| item))
    }

    /// The next item with its key.
    pub fn next_entry(&mut self) -> Result<Option<(Vec<u8>, T)>, QueryError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        // Of equal keys, those on disk came earlier.
        let in_memory = self.memory.top();
        let comes_next = |key: &[u8]| in_memory.is_none_or(|in_memory| key <= in_memory);
        if let Some(merge) = &mut self.disk
            && let Some((key, value)) = merge.top().filter(|(key, _)| comes_next(key))
        {
            self.holding.budget().spend_bytes(key.len() + value.len())?;
            let entry = (key.to_vec(), T::read(value).ok_or_else(damaged)?);
            merge.advance()?;
            return Ok(Some(entry));
        }
        let Some(entry) = self.memory.next() else {
            return Ok(None);
        };
        // What becomes less is always within the limits.
        self.holding
            .fits(self.holding.bytes().saturating_sub(entry.bytes));
        Ok(Some((entry.key, entry.item)))
    }

    pub fn stats(&self) -> SortStats {
        self.stats
    }
}
