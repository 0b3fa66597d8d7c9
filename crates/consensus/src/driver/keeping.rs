//! How much of the log is kept, and for which members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Entries that members or holders need are kept up to this many times the log's size.
const KEPT_LOG_SIZES: u64 = 4;

pub(crate) struct Keeping {
    bytes_max: AtomicU64,
    min_age_ms: AtomicU64,
    holds: Mutex<Holds>,
    /// The first index that somebody holds, or `u64::MAX`: for the log, which offers snapshots.
    held_from: Arc<AtomicU64>,
    /// When the first entry was written, by the index of that entry.
    oldest: Mutex<Option<(u64, i64)>>,
    /// Bytes that were cut off since files were last removed.
    freed: AtomicU64,
}

#[derive(Default)]
struct Holds {
    next: u64,
    from: BTreeMap<u64, u64>,
}

impl Keeping {
    pub fn new(bytes_max: u64, held_from: Arc<AtomicU64>) -> Keeping {
        Keeping {
            bytes_max: AtomicU64::new(bytes_max),
            min_age_ms: AtomicU64::new(0),
            holds: Mutex::default(),
            held_from,
            oldest: Mutex::default(),
            freed: AtomicU64::new(0),
        }
    }

    pub fn set_limits(&self, bytes_max: u64, min_age: Duration) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        let millis = u64::try_from(min_age.as_millis()).unwrap_or(u64::MAX);
        self.min_age_ms.store(millis, Ordering::Relaxed);
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Beyond this no member's needs count.
    pub fn bytes_bound(&self) -> u64 {
        self.bytes_max().saturating_mul(KEPT_LOG_SIZES)
    }

    pub fn min_age_ms(&self) -> i64 {
        self.min_age_ms.load(Ordering::Relaxed).min(i64::MAX as u64) as i64
    }

    /// The first index that somebody holds.
    pub fn held_from(&self) -> Option<u64> {
        Some(self.held_from.load(Ordering::Acquire)).filter(|&from| from < u64::MAX)
    }

    pub fn hold(self: &Arc<Self>, from: u64) -> LogHold {
        let number = self.change(|holds| {
            holds.next += 1;
            holds.from.insert(holds.next, from);
            holds.next
        });
        LogHold {
            keeping: self.clone(),
            number,
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Holds) -> T) -> T {
        let mut holds = self.holds.lock();
        let changed = change(&mut holds);
        let first = holds.from.values().min().copied().unwrap_or(u64::MAX);
        self.held_from.store(first, Ordering::Release);
        changed
    }

    /// Notes bytes that were cut off; true if it's worth looking for files to remove.
    pub fn freed(&self, bytes: u64, file_bytes: u64) -> bool {
        let freed = self.freed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if freed >= file_bytes {
            self.freed.store(0, Ordering::Relaxed);
        }
        freed >= file_bytes
    }

    pub fn note_oldest(&self, oldest: Option<(u64, i64)>) {
        *self.oldest.lock() = oldest;
    }

    pub fn oldest(&self) -> Option<(u64, i64)> {
        *self.oldest.lock()
    }
}

/// While it lives, entries from an index on are not cut off, within the bound that the log's limits
/// set (see [`crate::Group::set_log_limits`]).
pub struct LogHold {
    keeping: Arc<Keeping>,
    number: u64,
}

impl LogHold {
    /// What is before `from` is no longer needed.
    pub fn move_to(&self, from: u64) {
        self.keeping
            .change(|holds| holds.from.insert(self.number, from));
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        self.keeping.change(|holds| holds.from.remove(&self.number));
    }
}
