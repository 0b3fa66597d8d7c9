//! The hybrid clock behind `operationTime` and `$clusterTime`: wall seconds and a counter.
//!
//! The leader gives each entry its times when it appends it, in the order of the log (see
//! [`crate::entry::seal`]): one for each operation. A new leader serves only once it has
//! applied, and so observed, everything before. So times grow along the log: whoever has applied a
//! time has applied everything before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bson::Timestamp;

#[derive(Debug, Default)]
pub struct Clock {
    latest: AtomicU64,
}

impl Clock {
    pub fn new() -> Clock {
        Clock::default()
    }

    /// A time later than every one given out or seen so far.
    pub fn tick(&self) -> Timestamp {
        self.tick_many(1)
    }

    /// The first of `count` consecutive times later than every one given out or
    /// seen so far.
    pub fn tick_many(&self, count: u32) -> Timestamp {
        let wall = wall_seconds() << 32 | 1;
        let first = |latest: u64| wall.max(latest.saturating_add(1));
        let last = |latest: u64| first(latest).saturating_add(u64::from(count.max(1)) - 1);
        let before = self
            .latest
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| {
                Some(last(latest))
            });
        from_bits(first(before.unwrap_or_else(|latest| latest)))
    }

    /// Takes note of a time that somebody else has seen.
    pub fn observe(&self, time: Timestamp) {
        self.latest.fetch_max(to_bits(time), Ordering::Relaxed);
    }

    /// The latest time given out or seen.
    pub fn now(&self) -> Timestamp {
        from_bits(self.latest.load(Ordering::Relaxed))
    }

    pub fn wall_seconds() -> u64 {
        wall_seconds()
    }
}

pub fn to_bits(time: Timestamp) -> u64 {
    u64::from(time.time) << 32 | u64::from(time.increment)
}

pub fn from_bits(bits: u64) -> Timestamp {
    Timestamp {
        time: (bits >> 32) as u32,
        increment: bits as u32,
    }
}

pub fn wall_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn wall_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_grow_whatever_is_observed() {
        let clock = Clock::new();
        let first = clock.tick();
        let second = clock.tick();
        assert!(to_bits(second) > to_bits(first));
        let ahead = Timestamp {
            time: second.time + 100,
            increment: 7,
        };
        clock.observe(ahead);
        let third = clock.tick();
        assert_eq!(
            third,
            Timestamp {
                time: ahead.time,
                increment: 8
            }
        );
        clock.observe(first);
        assert_eq!(clock.now(), third);
        let fourth = clock.tick_many(5);
        assert_eq!(to_bits(fourth), to_bits(third) + 1);
        assert_eq!(to_bits(clock.now()), to_bits(fourth) + 4);
    }
}
