//! How many queries of a second count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The queries of the current second: its number in the upper half, how many in the lower.
#[derive(Default)]
pub(super) struct RateLimit {
    current: AtomicU64,
}

impl RateLimit {
    /// Whether one more is allowed, so long after the start.
    pub fn allows(&self, per_second: u64, since_start: Duration) -> bool {
        let second = since_start.as_secs() << 32;
        let count = |current: u64| match current & !u64::from(u32::MAX) == second {
            true => current & u64::from(u32::MAX),
            false => 0,
        };
        let most = per_second.min(u64::from(u32::MAX));
        let next = |current| {
            let count = count(current);
            (count < most).then_some(second | (count + 1))
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.current.fetch_update(set, fetch, next).is_ok()
    }
}
