//! What was applied since the start, for `serverStatus`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::entry::Tally;

#[derive(Default)]
pub(super) struct Counters {
    batches: AtomicU64,
    operations: AtomicU64,
    micros: AtomicU64,
    inserts: AtomicU64,
    updates: AtomicU64,
    deletes: AtomicU64,
    commands: AtomicU64,
}

impl Counters {
    /// A batch of entries has been applied.
    pub(super) fn note(&self, operations: u64, tally: Tally, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        for (counter, count) in [
            (&self.batches, 1),
            (&self.operations, operations),
            (&self.micros, micros),
            (&self.inserts, tally.inserts),
            (&self.updates, tally.updates),
            (&self.deletes, tally.deletes),
            (&self.commands, tally.commands),
        ] {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> ApplyCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ApplyCounts {
            batches: of(&self.batches),
            operations: of(&self.operations),
            total_millis: of(&self.micros) / 1000,
            tally: Tally {
                inserts: of(&self.inserts),
                updates: of(&self.updates),
                deletes: of(&self.deletes),
                commands: of(&self.commands),
            },
        }
    }
}

/// The same as plain numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ApplyCounts {
    pub batches: u64,
    pub operations: u64,
    pub total_millis: u64,
    /// By what they do.
    pub tally: Tally,
}
