//! When the records of sessions that have long ended are looked for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// As long as MongoDB's sessions live by default.
const SESSION_LIFETIME: Duration = Duration::from_secs(30 * 60);
const SWEEP_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Which records are old: what the log's time was at moments of this process.
///
/// The wall clocks that entries carry do not tell. Where one jumps ahead by more than a session's
/// lifetime, the record of a statement would go between the statement and its retry, which would
/// then take effect a second time.
#[derive(Debug, Default)]
pub(super) struct SessionSweeps {
    /// With the time of the entry that was applied last, as [`crate::clock::to_bits`].
    moments: VecDeque<(Instant, u64)>,
}

impl SessionSweeps {
    /// The time up to which records can go, if it is time to look for them.
    pub(super) fn due(&mut self, now: Instant, applied_bits: u64) -> Option<u64> {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        if let Some((latest, _)) = self.moments.back()
            && since(*latest) < SWEEP_INTERVAL
        {
            return None;
        }
        self.moments.push_back((now, applied_bits));
        let is_old = |(moment, _): &(Instant, u64)| since(*moment) >= SESSION_LIFETIME;
        let old = self.moments.partition_point(is_old);
        self.moments.drain(..old).next_back().map(|(_, bits)| bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_once_they_are_as_old_as_a_session_lives() {
        let mut sweeps = SessionSweeps::default();
        let begin = Instant::now();
        let mut at = |minutes: u64, applied_bits| {
            sweeps.due(begin + Duration::from_secs(60 * minutes), applied_bits)
        };
        assert_eq!(at(0, 100), None);
        assert_eq!(at(1, 200), None, "looked for a minute ago");
        assert_eq!(at(5, 5_000_000), None, "a leap of the log's time is no age");
        assert_eq!(at(12, 5_000_001), None);
        assert_eq!(at(30, 5_000_002), Some(100));
        assert_eq!(at(34, 5_000_003), None);
        assert_eq!(at(100, 5_000_004), Some(5_000_002));
        assert_eq!(at(106, 5_000_005), None);
    }
}
