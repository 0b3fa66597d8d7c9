//! What running a plan has cost so far, for the counters, `currentOp` and the slow log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
}

/// A scan of a whole collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    pub tailable: bool,
}

impl PlanSummaryStats {
    pub fn new(summary: Summary) -> PlanSummaryStats {
        PlanSummaryStats {
            summary,
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
        let is_scan = matches!(self.summary, Summary::Scan);
        let begins = is_scan && !self.has_begun.swap(true, Ordering::Relaxed);
        begins.then_some(Scan {
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
