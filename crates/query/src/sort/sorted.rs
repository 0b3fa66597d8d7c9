//! What was sorted, in order: lists in memory and runs on disk, merged as they are taken.

use std::marker::PhantomData;

use super::kept::{Found, List, PLACE_BYTES, Piece};
use crate::error::QueryError;
use crate::heap;
use crate::memory::Holding;
use crate::spill::{Merge, Runs, Spilled, damaged};

/// What a sort has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct SortStats {
    /// What was sorted, with its keys, whether or not it was in memory at once.
    pub bytes: u64,
    pub keys: u64,
    /// Runs that were written for lack of memory.
    pub spills: u64,
}

impl SortStats {
    pub fn add(&mut self, other: SortStats) {
        self.bytes += other.bytes;
        self.keys += other.keys;
        self.spills += other.spills;
    }
}

/// What one sorter has sorted.
pub(super) struct SortedPart {
    pub list: List,
    pub runs: Option<Runs>,
    pub limit: Option<usize>,
    pub stats: SortStats,
    pub holding: Holding,
}

/// The items of a sort, in order.
pub struct Sorted<T> {
    left: usize,
    lists: Vec<List>,
    /// Those of the lists that have a record, as a binary heap, the least on top.
    heap: Vec<usize>,
    disk: Option<Merge>,
    holdings: Vec<Holding>,
    stats: SortStats,
    of: PhantomData<fn() -> T>,
}

impl<T: Spilled> Sorted<T> {
    pub(super) fn of(parts: Vec<SortedPart>) -> Result<Sorted<T>, QueryError> {
        let mut sorted = Sorted {
            left: usize::MAX,
            lists: Vec::new(),
            heap: Vec::new(),
            disk: None,
            holdings: Vec::new(),
            stats: SortStats::default(),
            of: PhantomData,
        };
        let mut runs: Option<Runs> = None;
        for part in parts {
            sorted.left = part.limit.unwrap_or(usize::MAX);
            sorted.stats.add(part.stats);
            sorted.lists.push(part.list);
            sorted.holdings.push(part.holding);
            match (&mut runs, part.runs) {
                (Some(runs), Some(more)) => runs.join(more),
                (None, more) => runs = more,
                (Some(_), None) => {}
            }
        }
        sorted.disk = runs.map(Runs::merge).transpose()?;
        let has_record = |at: &usize| sorted.lists[*at].top().is_some();
        sorted.heap = (0..sorted.lists.len()).filter(has_record).collect();
        for at in (0..sorted.heap.len() / 2).rev() {
            sorted.sift_down(at);
        }
        Ok(sorted)
    }

    /// The next item.
    pub fn next_item(&mut self) -> Result<Option<T>, QueryError> {
        let found = self.next_found()?;
        let item = found.map(|found| T::read(&found.value).ok_or_else(damaged));
        item.transpose()
    }

    /// The next item with its key.
    pub fn next_entry(&mut self) -> Result<Option<(Vec<u8>, T)>, QueryError> {
        let Some(found) = self.next_found()? else {
            return Ok(None);
        };
        let item = T::read(&found.value).ok_or_else(damaged)?;
        Ok(Some((found.key().to_vec(), item)))
    }

    /// The bytes of the next item, where they lie.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, QueryError> {
        Ok(self.next_found()?.map(|found| found.value))
    }

    fn next_found(&mut self) -> Result<Option<Found>, QueryError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let budget = self.holdings.first().map(Holding::budget);
        let in_memory = self.heap.first().and_then(|at| self.lists[*at].top());
        let comes_next = |key: &[u8]| in_memory.is_none_or(|in_memory| key < in_memory);
        if let Some(merge) = &mut self.disk
            && let Some((order, value)) = merge.top().filter(|(order, _)| comes_next(order))
        {
            budget.map_or(Ok(()), |b| b.spend_bytes(order.len() + value.len()))?;
            let key = order.len().checked_sub(PLACE_BYTES).ok_or_else(damaged)?;
            let found = Found::copy(&order[..key], value);
            merge.advance()?;
            return Ok(Some(found));
        }
        budget.map_or(Ok(()), |budget| budget.spend(1))?;
        let Some(at) = self.heap.first() else {
            return Ok(None);
        };
        let list = &mut self.lists[*at];
        let found = list.next();
        if list.top().is_none() {
            self.heap.swap_remove(0);
        }
        if self.heap.len() > 1 {
            self.sift_down(0);
        }
        Ok(found)
    }

    fn sift_down(&mut self, at: usize) {
        let lists = &self.lists;
        heap::sift_down(&mut self.heap, at, |a, b| lists[a].top() < lists[b].top());
    }

    pub fn stats(&self) -> SortStats {
        self.stats
    }
}
