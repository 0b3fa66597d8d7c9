//! Counts since the start, for `serverStatus` and `top`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// Relaxed atomics: each is exact on its own, together they are a rough picture.
        #[derive(Default)]
        pub struct Counters { $(pub $name: Counter),* }
    };
}

counters! {
    // opcounters
    insert, query, update, delete, getmore, command,
    // metrics.document and metrics.queryExecutor
    documents_returned, documents_inserted, documents_updated, documents_deleted,
    keys_examined, documents_examined, collection_scans,
    // asserts
    user_errors,
    slow_commands,
}

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        i64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
}
