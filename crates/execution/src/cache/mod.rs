//! The plan cache: what a trial of several plans has found, for queries of the same shape.
//!
//! Its rules are MongoDB's. A new entry is inactive: it notes how much work the plan took that won.
//! Once a trial needs no more than that, the entry is active and its plan runs without a trial.
//! Where one needs more, what the entry notes grows, so that it becomes active at last. A plan that
//! takes many times the work that its entry notes is given up ([`crate::trial::run_cached`]); the
//! entry is inactive again, and a trial decides.
//!
//! An entry names a plan and holds none: the bounds are always those of the query at hand. The key
//! is made of the shape and of the plans that may serve ([`PlanCacheKey`]), so that the named plan
//! is one of those that the planner has found for this very query.

mod key;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use banyan_query::PlanCacheShape;
use banyan_storage::{Collection, Index, Namespace};
use bson::{DateTime, RawDocumentBuf};
use parking_lot::{Mutex, MutexGuard};

pub use key::{PlanCacheKey, PlanName};

use crate::index_filters::IndexFilters;

/// A collection has no more entries; the one that was not used for the longest time goes first.
const ENTRIES_MAX: usize = 5_000;
/// What an inactive entry notes grows by this factor.
const WORKS_GROWTH: u64 = 2;
/// What all entries of the process keep for `$planCacheStats` beside themselves.
const CREATION_BYTES_MAX: usize = 512 << 20;

/// What is known in memory about the queries on a collection, for as long as that exists.
#[derive(Debug, Default)]
pub struct CollectionQueryInfo {
    pub plan_cache: PlanCache,
    pub index_filters: IndexFilters,
}

impl CollectionQueryInfo {
    pub fn of(collection: &Collection) -> Arc<CollectionQueryInfo> {
        let info = collection.extension(CollectionQueryInfo::default);
        info.unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub struct PlanCache {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the entries were made for: those of other indexes, or another name, are void.
    namespace: Option<Namespace>,
    indexes: Vec<Weak<Index>>,
    entries: HashMap<PlanCacheKey, Entry>,
    /// Counts the uses of all entries.
    uses: u64,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub plan: PlanName,
    pub works: u64,
    pub is_active: bool,
    pub created: DateTime,
    /// `None` where all that is kept has become too much.
    pub creation: Option<Arc<Creation>>,
    last_use: u64,
}

/// The trial that made an entry, for `$planCacheStats`.
#[derive(Debug, Default)]
pub struct Creation {
    pub query: RawDocumentBuf,
    pub sort: RawDocumentBuf,
    pub projection: RawDocumentBuf,
    /// How it compares strings, if not by their bytes.
    pub collation: Option<RawDocumentBuf>,
    pub plan: RawDocumentBuf,
    /// The best first.
    pub candidates: Vec<CandidateStats>,
    pub has_index_filter: bool,
    /// What of it is counted in [`CREATION_BYTES`].
    pub(crate) counted: usize,
}

/// What a plan has done in a trial.
#[derive(Debug, Clone)]
pub struct CandidateStats {
    pub score: f64,
    pub stats: RawDocumentBuf,
}

static CREATION_BYTES: AtomicUsize = AtomicUsize::new(0);

impl Creation {
    pub fn bytes(&self) -> usize {
        let documents = [&self.query, &self.sort, &self.projection, &self.plan];
        let stats = self.candidates.iter().map(|candidate| &candidate.stats);
        let documents = documents.into_iter().chain(&self.collation).chain(stats);
        documents.map(|document| document.as_bytes().len()).sum()
    }

    /// Counts its bytes among those of all; `None` where there is no room for them.
    fn counted(mut self) -> Option<Arc<Creation>> {
        self.counted = self.bytes();
        let before = CREATION_BYTES.fetch_add(self.counted, Ordering::Relaxed);
        (before + self.counted <= CREATION_BYTES_MAX).then(|| Arc::new(self))
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        CREATION_BYTES.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl PlanCache {
    fn state(&self, collection: &Collection) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if !state.is_of(collection) {
            *state = State {
                namespace: Some(collection.namespace.clone()),
                indexes: collection.indexes.iter().map(Arc::downgrade).collect(),
                ..State::default()
            };
        }
        state
    }

    /// The plan of an active entry, and the work that it should take.
    pub fn active(&self, collection: &Collection, key: &PlanCacheKey) -> Option<(PlanName, u64)> {
        let mut state = self.state(collection);
        state.uses += 1;
        let uses = state.uses;
        let entry = state.entries.get_mut(key)?;
        entry.last_use = uses;
        entry.is_active.then(|| (entry.plan.clone(), entry.works))
    }

    /// The plan of an entry takes far more work than it should.
    pub fn deactivate(&self, collection: &Collection, key: &PlanCacheKey) {
        if let Some(entry) = self.state(collection).entries.get_mut(key) {
            entry.is_active = false;
        }
    }

    /// A trial is over: the plan that won, and the work that it took.
    pub fn learn(
        &self,
        collection: &Collection,
        key: PlanCacheKey,
        plan: PlanName,
        works: u64,
        creation: impl FnOnce() -> Creation,
    ) {
        let works = works.max(1);
        let is_active = match self.state(collection).entries.get_mut(&key) {
            None => false,
            Some(known) if works <= known.works => true,
            Some(known) => {
                if !known.is_active {
                    known.works = known.works.saturating_mul(WORKS_GROWTH);
                }
                return;
            }
        };
        // Drawn without the lock, as it takes its time.
        let creation = creation().counted();
        let mut state = self.state(collection);
        state.uses += 1;
        let entry = Entry {
            plan,
            works,
            is_active,
            created: DateTime::now(),
            creation,
            last_use: state.uses,
        };
        state.entries.insert(key, entry);
        state.evict();
    }

    pub fn clear(&self) {
        self.state.lock().entries.clear();
    }

    /// Removes what is known of queries of a shape.
    pub fn remove(&self, shape: &PlanCacheShape) {
        let mut state = self.state.lock();
        state.entries.retain(|key, _| !key.is_of(shape));
    }

    /// All entries, the most recently used first.
    pub fn entries(&self, collection: &Collection) -> Vec<(PlanCacheKey, Entry)> {
        let state = self.state(collection);
        let entries = state.entries.iter();
        let mut entries: Vec<_> = entries.map(|(k, e)| (k.clone(), e.clone())).collect();
        entries.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.last_use));
        entries
    }
}

impl State {
    fn is_of(&self, collection: &Collection) -> bool {
        let same = |(known, index): (&Weak<Index>, &Arc<Index>)| {
            std::ptr::eq(known.as_ptr(), Arc::as_ptr(index))
        };
        self.namespace.as_ref() == Some(&collection.namespace)
            && self.indexes.len() == collection.indexes.len()
            && self.indexes.iter().zip(&collection.indexes).all(same)
    }

    fn evict(&mut self) {
        while self.entries.len() > ENTRIES_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.entries.remove(&key);
        }
    }
}
