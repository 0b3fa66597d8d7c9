//! The sorters of runs of one stage that have seen parts of an input.

use super::sorted::{SortStats, Sorted};
use super::sorter::{Sorter, Sorters};
use crate::error::QueryError;
use crate::spill::Spilled;

/// A run's own sorter, and those of the runs that it has absorbed.
pub(crate) struct Parts<T> {
    own: Sorter<T>,
    absorbed: Vec<Sorter<T>>,
}

impl<T: Spilled> Parts<T> {
    pub fn new(sorters: &Sorters) -> Parts<T> {
        Parts {
            own: sorters.make(),
            absorbed: Vec::new(),
        }
    }

    pub fn own(&mut self) -> &mut Sorter<T> {
        &mut self.own
    }

    pub fn absorb(&mut self, other: Parts<T>) {
        self.absorbed.push(other.own);
        self.absorbed.extend(other.absorbed);
        // Whatever comes now comes behind all parts.
        self.own.begin(u64::MAX);
    }

    fn all(&self) -> impl Iterator<Item = &Sorter<T>> {
        std::iter::once(&self.own).chain(&self.absorbed)
    }

    pub fn len(&self) -> u64 {
        self.all().map(Sorter::len).sum()
    }

    pub fn stats(&self) -> SortStats {
        let mut stats = SortStats::default();
        self.all().for_each(|sorter| stats.add(sorter.stats()));
        stats
    }

    /// The items of all of them in order.
    pub fn finish(self) -> Result<Sorted<T>, QueryError> {
        let own = std::iter::once(self.own);
        Sorter::merge(own.chain(self.absorbed))
    }
}
