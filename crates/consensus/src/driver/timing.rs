//! The clock of a group: how long a tick is, and how many of them lie between heartbeats. Both may
//! change while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An election timeout is always so many ticks: the length of a tick is what changes.
pub(super) const ELECTION_TICKS: u32 = 40;
/// A leader says at least so often within an election timeout that it is there.
const HEARTBEATS_MIN: u32 = 4;

pub(super) struct Timing {
    tick_micros: AtomicU64,
    heartbeat_ticks: AtomicU64,
    heartbeat_micros: AtomicU64,
}

impl Timing {
    pub fn new(heartbeat: Duration, election_timeout: Duration) -> Timing {
        let timing = Timing {
            tick_micros: AtomicU64::new(0),
            heartbeat_ticks: AtomicU64::new(1),
            heartbeat_micros: AtomicU64::new(0),
        };
        timing.set(Some(heartbeat), election_timeout);
        timing
    }

    /// Without a heartbeat, that stays as it is, as far as it goes with the timeout.
    pub fn set(&self, heartbeat: Option<Duration>, election_timeout: Duration) {
        let tick = (election_timeout / ELECTION_TICKS).max(Duration::from_millis(1));
        let tick_micros = tick.as_micros() as u64;
        if let Some(heartbeat) = heartbeat {
            let micros = heartbeat.as_micros() as u64;
            self.heartbeat_micros.store(micros, Ordering::Relaxed);
        }
        let heartbeat = self.heartbeat_micros.load(Ordering::Relaxed);
        let most = u64::from(ELECTION_TICKS / HEARTBEATS_MIN);
        let ticks = ((heartbeat + tick_micros / 2) / tick_micros).clamp(1, most);
        self.tick_micros.store(tick_micros, Ordering::Relaxed);
        self.heartbeat_ticks.store(ticks, Ordering::Relaxed);
    }

    pub fn tick(&self) -> Duration {
        Duration::from_micros(self.tick_micros.load(Ordering::Relaxed))
    }

    pub fn election_timeout(&self) -> Duration {
        self.tick() * ELECTION_TICKS
    }

    pub fn heartbeat_ticks(&self) -> usize {
        self.heartbeat_ticks.load(Ordering::Relaxed) as usize
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_keep_their_pace_within_the_timeout() {
        let millis = Duration::from_millis;
        let timing = Timing::new(millis(100), millis(1000));
        assert_eq!((timing.tick(), timing.heartbeat_ticks()), (millis(25), 4));
        timing.set(None, millis(10_000));
        assert_eq!((timing.tick(), timing.heartbeat_ticks()), (millis(250), 1));
        timing.set(Some(millis(2000)), millis(10_000));
        assert_eq!((timing.tick(), timing.heartbeat_ticks()), (millis(250), 8));
        timing.set(None, millis(2000));
        assert_eq!((timing.tick(), timing.heartbeat_ticks()), (millis(50), 10));
        timing.set(Some(millis(0)), millis(0));
        assert_eq!((timing.tick(), timing.heartbeat_ticks()), (millis(1), 1));
    }
}
