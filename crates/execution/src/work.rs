//! What one command has done: counted while it runs, added to the process's counters when it ends,
//! told by the log if it was slow, and by `currentOp` meanwhile.

use std::sync::Arc;

use banyan_process::figures::Counter;
use parking_lot::Mutex;

use crate::stats::PlanSummaryStats;

/// One command's counts.
#[derive(Default)]
pub struct Work {
    // Statements that were tried, whatever came of them; documents for an insert.
    pub insert_tried: Counter,
    pub update_tried: Counter,
    pub delete_tried: Counter,
    // Documents.
    pub inserted: Counter,
    pub upserted: Counter,
    pub matched: Counter,
    pub modified: Counter,
    pub deleted: Counter,
    pub returned: Counter,
    pub keys_examined: Counter,
    pub documents_examined: Counter,
    pub collection_scans: Counter,
    pub tailable_scans: Counter,
    /// Results that had to be sorted, as no index gave the order.
    pub sorts: Counter,
    pub write_errors: Counter,
    pub retried: Counter,
    /// Records found by their `_id`, without a plan.
    pub by_id: Counter,
    // Where it waited, in microseconds.
    pub latch_wait: Counter,
    pub commit_wait: Counter,
    pub concern_wait: Counter,
    /// The last plan that it ran.
    plan: Mutex<Option<Arc<PlanSummaryStats>>>,
}

impl Work {
    /// A plan begins to run, or goes on. What the one before it has cost is counted.
    pub fn begin(&self, cost: &Arc<PlanSummaryStats>) {
        if let Some(scan) = cost.begin() {
            self.collection_scans.add(1);
            self.tailable_scans.add(u64::from(scan.tailable));
        }
        let before = self.plan.lock().replace(cost.clone());
        if let Some(before) = before {
            self.count(&before);
        }
    }

    /// The plan that it runs.
    pub fn plan(&self) -> Option<Arc<PlanSummaryStats>> {
        self.plan.lock().clone()
    }

    /// One record was looked up by its `_id`.
    pub fn found_by_id(&self, found: bool) {
        self.by_id.add(1);
        self.keys_examined.add(u64::from(found));
        self.documents_examined.add(u64::from(found));
    }

    /// Counts what the last plan has cost.
    pub fn settle(&self) {
        if let Some(plan) = self.plan() {
            self.count(&plan);
        }
    }

    fn count(&self, cost: &PlanSummaryStats) {
        let (keys, documents) = cost.take_new();
        self.keys_examined.add(keys);
        self.documents_examined.add(documents);
    }

    /// `IXSCAN { a: 1 }`.
    pub fn plan_summary(&self) -> Option<String> {
        match self.plan() {
            Some(cost) => Some(cost.summary.to_string()),
            None => (self.by_id.value() > 0).then(|| "IDHACK".to_owned()),
        }
    }

    /// Takes over what a command that ran as a part of this one has done.
    pub fn absorb(&self, part: &Work) {
        part.settle();
        let pairs = [
            (&self.insert_tried, &part.insert_tried),
            (&self.update_tried, &part.update_tried),
            (&self.delete_tried, &part.delete_tried),
            (&self.inserted, &part.inserted),
            (&self.upserted, &part.upserted),
            (&self.matched, &part.matched),
            (&self.modified, &part.modified),
            (&self.deleted, &part.deleted),
            (&self.keys_examined, &part.keys_examined),
            (&self.documents_examined, &part.documents_examined),
            (&self.collection_scans, &part.collection_scans),
            (&self.latch_wait, &part.latch_wait),
            (&self.commit_wait, &part.commit_wait),
        ];
        for (whole, part) in pairs {
            whole.add(part.value());
        }
    }
}
