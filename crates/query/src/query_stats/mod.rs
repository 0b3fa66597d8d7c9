//! Statistics of queries: how often those of one shape were run, and what that took.
//!
//! Whoever runs a query asks [`QueryStats::sample`] whether it counts; that costs one look at a
//! number while nobody wants statistics. A query that counts carries a [`Recording`] until its last
//! batch is read; what that has gathered then goes into the [`store`], under the query's [`key`]. The
//! store holds so many bytes and forgets what was not run for the longest time.

mod key;
mod metrics;
mod rate;
mod size;
mod stage;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use bson::{RawDocumentBuf, Timestamp, rawdoc};
use parking_lot::Mutex;

pub use key::{Asked, Key};
pub use metrics::{Batch, Work};
pub use size::CACHE_SIZE_DEFAULT;
pub use stage::Transform;

use metrics::Execution;
use rate::RateLimit;
use store::Store;

pub const RATE_PARAMETER: &str = "internalQueryStatsRateLimit";
pub const SIZE_PARAMETER: &str = "internalQueryStatsCacheSize";

/// The statistics of a process.
pub struct QueryStats {
    /// How many queries count in a second: none, all (negative), or so many.
    rate: AtomicI64,
    limit: RateLimit,
    limited: AtomicU64,
    store: Store,
    /// As it was set: `1%`.
    size: Mutex<String>,
    memory_bytes: usize,
    started: Instant,
}

impl QueryStats {
    /// On a machine with so much memory.
    pub fn new(memory_bytes: usize) -> QueryStats {
        let bytes = size::parse(CACHE_SIZE_DEFAULT, memory_bytes).unwrap_or_default();
        QueryStats {
            rate: AtomicI64::new(0),
            limit: RateLimit::default(),
            limited: AtomicU64::new(0),
            store: Store::new(bytes),
            size: Mutex::new(CACHE_SIZE_DEFAULT.to_owned()),
            memory_bytes,
            started: Instant::now(),
        }
    }

    /// Whether any queries count.
    pub fn is_on(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// Whether the query that is run now counts.
    pub fn sample(&self) -> bool {
        let per_second = match self.rate.load(Ordering::Relaxed) {
            0 => return false,
            all if all < 0 => return true,
            per_second => per_second.unsigned_abs(),
        };
        let counts = self.limit.allows(per_second, self.started.elapsed());
        if !counts {
            self.limited.fetch_add(1, Ordering::Relaxed);
        }
        counts
    }

    /// How many count in a second, as it was set.
    pub fn rate(&self) -> i64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Answers what it was.
    pub fn set_rate(&self, per_second: i64) -> i64 {
        self.rate.swap(per_second, Ordering::Relaxed)
    }

    /// How large the store may be, as it was set.
    pub fn size(&self) -> String {
        self.size.lock().clone()
    }

    /// `1%` of the machine's memory, `100MB`, `1GB`. `None`: it is no size. Answers what it was.
    pub fn set_size(&self, text: &str) -> Option<String> {
        let bytes = size::parse(text, self.memory_bytes)?;
        let mut size = self.size.lock();
        self.store.limit(bytes);
        Some(std::mem::replace(&mut *size, text.to_owned()))
    }

    /// Begins to count a query.
    pub fn record(self: &Arc<Self>, key: Key) -> Recording {
        Recording {
            stats: self.clone(),
            state: Mutex::new(State {
                key: Some(key),
                execution: Execution::default(),
            }),
        }
    }

    /// For `serverStatus`.
    pub fn figures(&self) -> RawDocumentBuf {
        let figures = self.store.figures();
        let shown = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        rawdoc! {
            "numEntries": shown(figures.entries),
            "numEvicted": shown(figures.evicted),
            "numPartitions": shown(store::PARTITIONS as u64),
            "numQueryStatsStoreWriteErrors": shown(figures.refused),
            "numRateLimitedRequests": shown(self.limited.load(Ordering::Relaxed)),
            "maxSizeBytes": shown(figures.bytes_max),
            "queryStatsStoreSizeEstimateBytes": shown(figures.bytes),
        }
    }

    /// What `$queryStats` yields, as of a time.
    pub fn documents(&self, transform: &Transform, as_of: Timestamp) -> Vec<RawDocumentBuf> {
        let mut documents = Vec::new();
        for partition in 0..store::PARTITIONS {
            let entries = self.store.partition(partition);
            documents.extend(entries.iter().map(|entry| transform.show(entry, as_of)));
        }
        documents
    }
}

/// A query that counts, until its last batch is read. Its command and its cursor hold it; once both
/// are gone it goes into the store.
pub struct Recording {
    stats: Arc<QueryStats>,
    state: Mutex<State>,
}

struct State {
    /// `None`: it does not count any more.
    key: Option<Key>,
    execution: Execution,
}

impl Recording {
    /// A batch was read.
    pub fn add(&self, batch: &Batch) {
        self.state.lock().execution.add(batch);
    }

    /// It has failed, and does not count.
    pub fn discard(&self) {
        self.state.lock().key = None;
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let Some(key) = state.key.take()
            && state.execution.has_run()
        {
            self.stats.store.add(key, &state.execution);
        }
    }
}
