//! What running a plan has cost so far, for the counters, `currentOp` and the slow log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use banyan_query::CanonicalQuery;

use crate::cache::PlanCacheKey;
use crate::operators::Examined;
use crate::plan::summary::Summary;

/// Shared by the plan that runs and by whoever tells of it.
#[derive(Debug, Default)]
pub struct PlanSummaryStats {
    keys: AtomicU64,
    documents: AtomicU64,
    /// What of it has been taken note of already.
    counted_keys: AtomicU64,
    counted_documents: AtomicU64,
    has_begun: AtomicBool,
    /// The plan in a line.
    pub summary: Summary,
    tailable: bool,
    /// What it answers; its hashes are worked out for whoever asks.
    query: Option<Arc<CanonicalQuery>>,
    choice: OnceLock<Choice>,
}

/// How a plan was chosen, where there were several.
#[derive(Debug, Default)]
pub struct Choice {
    pub plan_cache_key: u32,
    /// By a trial, and not by the plan cache.
    pub from_multi_planner: bool,
    /// Why the plan of the cache was given up.
    pub replan_reason: Option<String>,
}

/// A scan of a whole collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    pub tailable: bool,
}

impl PlanSummaryStats {
    pub fn new(summary: Summary, query: Arc<CanonicalQuery>) -> PlanSummaryStats {
        PlanSummaryStats {
            summary,
            query: Some(query),
            ..PlanSummaryStats::default()
        }
    }

    /// Of a cursor that tails a collection.
    pub fn of_tailing() -> PlanSummaryStats {
        PlanSummaryStats {
            summary: Summary::Scan,
            tailable: true,
            ..PlanSummaryStats::default()
        }
    }

    pub(crate) fn choose(&self, choice: Choice) {
        // A plan is chosen once.
        let _ = self.choice.set(choice);
    }

    /// `None`: there were no several to choose from.
    pub fn choice(&self) -> Option<&Choice> {
        self.choice.get()
    }

    /// `queryHash`.
    pub fn query_hash(&self) -> Option<u32> {
        self.query.as_ref().map(|query| query.shape().hash())
    }

    /// `planCacheKey`.
    pub fn plan_cache_key(&self) -> Option<u32> {
        if let Some(choice) = self.choice.get() {
            return Some(choice.plan_cache_key);
        }
        let query = self.query.as_ref()?;
        let plans = std::iter::once(self.summary.name());
        Some(PlanCacheKey::new(query, plans).hash())
    }

    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    pub fn documents(&self) -> u64 {
        self.documents.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, examined: &Examined) {
        self.keys.store(examined.keys, Ordering::Relaxed);
        self.documents.store(examined.documents, Ordering::Relaxed);
    }

    /// The plan begins, or goes on; the scan of a collection that has just begun.
    pub fn begin(&self) -> Option<Scan> {
        if self.has_begun.swap(true, Ordering::Relaxed) {
            return None;
        }
        let indexes = self.summary.indexes();
        for (at, index) in indexes.iter().enumerate() {
            // However many branches use it.
            if !indexes[..at].iter().any(|before| before.id == index.id) {
                index.note_use();
            }
        }
        matches!(self.summary, Summary::Scan).then_some(Scan {
            tailable: self.tailable,
        })
    }

    /// The keys and documents that were examined since this was last asked.
    pub fn take_new(&self) -> (u64, u64) {
        let (keys, documents) = (self.keys(), self.documents());
        let known_keys = self.counted_keys.swap(keys, Ordering::Relaxed);
        let known_documents = self.counted_documents.swap(documents, Ordering::Relaxed);
        (
            keys.saturating_sub(known_keys),
            documents.saturating_sub(known_documents),
        )
    }
}
