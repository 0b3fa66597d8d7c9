//! The sorter: items by their keys, in memory as long as they fit, in sorted runs on disk beyond.

use std::marker::PhantomData;
use std::sync::Arc;

use super::kept::{Kept, List, PLACE_BYTES};
use super::sorted::{SortStats, Sorted, SortedPart};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::{self, Consumer, Holding, Together};
use crate::spill::{Runs, Spilled};

/// Beyond its limit a sorter takes in at least so many items before it drops any.
const EXTRA_ITEMS: usize = 64;
/// What was dropped may take up so many bytes beside what is kept.
const EXTRA_BYTES: usize = 1024 * 1024;

/// Sorts items by their keys, keeping the first `limit` of them if there is one. No key is the
/// beginning of another.
///
/// Items with equal keys keep the order in which they came. A sorter that is given parts of an
/// input in any order ([`Sorter::begin`]) keeps the order of the input.
pub struct Sorter<T> {
    kept: Kept,
    /// What was kept, once there will be no more.
    sealed: Option<List>,
    limit: Option<usize>,
    /// The part of the input that is read, and how many items have come of all.
    part: u64,
    arrived: u64,
    /// What was held after dropping what a limit leaves out.
    pruned_bytes: usize,
    holding: Holding,
    /// What did not fit.
    runs: Option<Runs>,
    /// Of a limit: what does not come before this is not among the first.
    cutoff: Option<Vec<u8>>,
    stats: SortStats,
    of: PhantomData<fn() -> T>,
}

/// What makes the sorters of a stage that several threads work for. They share the stage's memory.
#[derive(Clone)]
pub struct Sorters {
    consumer: &'static Consumer,
    limit: Option<usize>,
    budget: Budget,
    together: Option<Arc<Together>>,
}

impl Sorters {
    /// A limit of zero is none.
    pub fn new(limit: Option<usize>, budget: &Budget) -> Sorters {
        Sorters::of(consumer(limit), limit, budget, Some(&Arc::default()))
    }

    /// With what the runs of one stage hold together, if there may be several.
    pub fn within(
        limit: Option<usize>,
        budget: &Budget,
        together: Option<&Arc<Together>>,
    ) -> Sorters {
        Sorters::of(consumer(limit), limit, budget, together)
    }

    /// The same of another stage.
    pub(crate) fn of(
        consumer: &'static Consumer,
        limit: Option<usize>,
        budget: &Budget,
        together: Option<&Arc<Together>>,
    ) -> Sorters {
        Sorters {
            consumer,
            limit,
            budget: budget.clone(),
            together: together.cloned(),
        }
    }

    pub fn make<T: Spilled>(&self) -> Sorter<T> {
        let mut sorter = Sorter::of(self.consumer, self.limit, &self.budget);
        if let Some(together) = &self.together {
            sorter.holding.join(together);
        }
        sorter
    }
}

fn consumer(limit: Option<usize>) -> &'static Consumer {
    match limit {
        None | Some(0) => &memory::consumer::SORT,
        Some(_) => &memory::consumer::TOP_SORT,
    }
}

impl<T: Spilled> Sorter<T> {
    /// A limit of zero is none.
    pub fn new(limit: Option<usize>, budget: &Budget) -> Sorter<T> {
        Sorter::of(consumer(limit), limit, budget)
    }

    /// A sorter of another stage.
    pub(crate) fn of(
        consumer: &'static Consumer,
        limit: Option<usize>,
        budget: &Budget,
    ) -> Sorter<T> {
        Sorter {
            kept: Kept::default(),
            sealed: None,
            limit: limit.filter(|limit| *limit > 0),
            part: 0,
            arrived: 0,
            pruned_bytes: 0,
            holding: budget.holding(consumer),
            runs: None,
            cutoff: None,
            stats: SortStats::default(),
            of: PhantomData,
        }
    }

    /// What comes from now on belongs to the part of the input that begins at `part`.
    pub fn begin(&mut self, part: u64) {
        self.part = part;
    }

    /// Whether an item with this key may be among those of the limit. Asking first saves making
    /// the item.
    pub fn wants(&self, key: &[u8]) -> bool {
        let Some(cutoff) = &self.cutoff else {
            return true;
        };
        let (last, place) = cutoff.split_at(cutoff.len().saturating_sub(PLACE_BYTES));
        key.cmp(last)
            .then_with(|| self.place()[..].cmp(place))
            .is_lt()
    }

    /// Where the next item stands in the input.
    fn place(&self) -> [u8; PLACE_BYTES] {
        let mut place = [0; PLACE_BYTES];
        place[..8].copy_from_slice(&self.part.to_be_bytes());
        place[8..].copy_from_slice(&self.arrived.to_be_bytes());
        place
    }

    pub fn push(&mut self, key: &[u8], item: &T) -> Result<(), QueryError> {
        self.push_with(key, 0, |out| item.write(out))
    }

    /// `write` appends the item's bytes, about `item_bytes`, as [`Spilled::write`] does.
    pub fn push_with(
        &mut self,
        key: &[u8],
        item_bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), QueryError> {
        let (wanted, place) = (self.wants(key), self.place());
        self.arrived += 1;
        if !wanted {
            return Ok(());
        }
        let before = self.kept.bytes();
        self.kept.push(key, place, item_bytes, write)?;
        self.stats.bytes += (self.kept.bytes() - before) as u64;
        self.stats.keys += 1;
        if let Some(limit) = self.limit
            && self.kept.len() > limit
            && (self.kept.len() - limit >= limit.max(EXTRA_ITEMS)
                || self.kept.bytes() > 2 * self.pruned_bytes + EXTRA_BYTES)
        {
            self.prune(limit)?;
        }
        match self.holding.fits(self.kept.bytes()) {
            true => Ok(()),
            false => self.make_room(),
        }
    }

    /// Drops what is not among the first of the limit.
    fn prune(&mut self, limit: usize) -> Result<(), QueryError> {
        let before = self.kept.bytes();
        let cutoff = self.kept.prune(limit, self.holding.budget())?;
        // Of two limits the one that lets less through.
        if let Some(cutoff) = cutoff
            && self.cutoff.as_ref().is_none_or(|known| cutoff < *known)
        {
            self.cutoff = Some(cutoff);
        }
        self.pruned_bytes = self.kept.bytes();
        self.stats.bytes -= (before - self.kept.bytes()) as u64;
        Ok(())
    }

    #[cold]
    fn make_room(&mut self) -> Result<(), QueryError> {
        if let Some(limit) = self.limit
            && self.kept.len() > limit
        {
            self.prune(limit)?;
            if self.holding.fits(self.kept.bytes()) {
                return Ok(());
            }
        }
        self.spill()
    }

    /// Writes what is held to a run.
    fn spill(&mut self) -> Result<(), QueryError> {
        if !self.holding.budget().may_spill() {
            return Err(self.holding.exceeded());
        }
        let budget = self.holding.budget().clone();
        let mut entries = std::mem::take(&mut self.kept).sort(&budget)?;
        let limit = self.limit.map(|limit| limit as u64);
        let runs = self.runs.get_or_insert_with(|| Runs::new(&budget, limit));
        let cutoff = &mut self.cutoff;
        runs.write(|writer| {
            while let Some(order) = entries.top() {
                if limit.is_some_and(|limit| writer.records() >= limit) {
                    break;
                }
                let order = order.to_vec();
                let Some(found) = entries.next() else { break };
                budget.spend_bytes(order.len() + found.value.len())?;
                writer.push(&order, |out| out.extend_from_slice(&found.value))?;
                if Some(writer.records()) == limit
                    && cutoff.as_ref().is_none_or(|known| order < *known)
                {
                    *cutoff = Some(order);
                }
            }
            Ok(())
        })?;
        self.stats.spills += 1;
        self.pruned_bytes = 0;
        memory::count(&budget.memory().figures.sort_spills, 1);
        self.holding.set(0)
    }

    /// How many items there are to be handed out.
    pub fn len(&self) -> u64 {
        let on_disk = self.runs.as_ref().map_or(0, |runs| runs.written.records);
        let sealed = self.sealed.as_ref().map_or(0, List::len);
        let all = (self.kept.len() + sealed) as u64 + on_disk;
        all.min(self.limit.map_or(u64::MAX, |limit| limit as u64))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn stats(&self) -> SortStats {
        self.stats
    }

    /// Sorts what is held, as there will be no more.
    pub fn seal(&mut self) -> Result<(), QueryError> {
        if self.sealed.is_some() {
            return Ok(());
        }
        if let Some(limit) = self.limit
            && self.kept.len() > limit
        {
            self.prune(limit)?;
        }
        let budget = self.holding.budget();
        let figures = &budget.memory().figures;
        memory::count(&figures.keys_sorted, self.stats.keys);
        memory::count(&figures.bytes_sorted, self.stats.bytes);
        self.sealed = Some(std::mem::take(&mut self.kept).sort(budget)?);
        Ok(())
    }

    fn into_part(mut self) -> Result<SortedPart, QueryError> {
        self.seal()?;
        Ok(SortedPart {
            list: self.sealed.unwrap_or_default(),
            runs: self.runs,
            limit: self.limit,
            stats: self.stats,
            holding: self.holding,
        })
    }

    /// The items in order.
    pub fn finish(self) -> Result<Sorted<T>, QueryError> {
        Sorter::merge([self])
    }

    /// The items of several sorters of one stage, each of a part of the input, in order.
    pub fn merge(sorters: impl IntoIterator<Item = Sorter<T>>) -> Result<Sorted<T>, QueryError> {
        let parts = sorters.into_iter().map(Sorter::into_part);
        Sorted::of(parts.collect::<Result<_, _>>()?)
    }
}
