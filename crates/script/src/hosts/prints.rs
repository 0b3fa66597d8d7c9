//! What scripts print, in the log: no more than a reader wants to see, and how much is missing.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::frame::{PRINT_BYTES_MAX, print_bytes};

/// All scripts of a process together may print so much at once, and this much every second.
const BURST_BYTES: u64 = 256 << 10;
const BYTES_PER_SECOND: u64 = 16 << 10;
/// What the line that tells of missing ones is charged with.
const NOTICE_BYTES: u64 = 128;

/// Lines that are not in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    pub lines: u64,
    pub bytes: u64,
}

impl LeftOut {
    pub fn add(&mut self, other: LeftOut) {
        self.lines = self.lines.saturating_add(other.lines);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// How much the process may still log of what scripts print.
pub struct Rate(Mutex<Bucket>);

struct Bucket {
    bytes: u64,
    filled_at: Instant,
    /// Of jobs that ended while not even this could be told.
    left_out: LeftOut,
}

impl Default for Rate {
    fn default() -> Self {
        Rate(Mutex::new(Bucket {
            bytes: BURST_BYTES,
            filled_at: Instant::now(),
            left_out: LeftOut::default(),
        }))
    }
}

impl Bucket {
    fn take(&mut self, now: Instant, bytes: u64) -> bool {
        let elapsed = now.saturating_duration_since(self.filled_at);
        let gained = (elapsed.as_secs_f64() * BYTES_PER_SECOND as f64) as u64;
        if gained > 0 {
            self.bytes = self.bytes.saturating_add(gained).min(BURST_BYTES);
            self.filled_at = now;
        }
        let enough = self.bytes >= bytes;
        if enough {
            self.bytes -= bytes;
        }
        enough
    }

    /// What to tell of lines that are missing; nothing while there is no room for that either.
    fn tell(&mut self, now: Instant, left_out: LeftOut) -> Option<LeftOut> {
        self.left_out.add(left_out);
        if self.left_out == LeftOut::default() || !self.take(now, NOTICE_BYTES) {
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

/// What the scripts of one job, or of one session, print.
pub struct Prints {
    rate: Arc<Rate>,
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    bytes: usize,
    left_out: LeftOut,
}

impl Prints {
    pub fn new(rate: &Arc<Rate>) -> Arc<Prints> {
        Arc::new(Prints {
            rate: rate.clone(),
            own: Mutex::default(),
        })
    }

    pub fn line(&self, text: &[u8]) {
        if self.admits(text.len()) {
            tracing::info!(text = %String::from_utf8_lossy(text), "a script prints");
        }
    }

    fn admits(&self, length: usize) -> bool {
        let mut own = self.own.lock();
        let bytes = print_bytes(length);
        let fits = own.bytes + bytes <= PRINT_BYTES_MAX
            && self.rate.0.lock().take(Instant::now(), bytes as u64);
        if fits {
            own.bytes += bytes;
        } else {
            own.left_out.add(LeftOut {
                lines: 1,
                bytes: length as u64,
            });
        }
        fits
    }

    /// Lines that the host has not even sent.
    pub fn left_out(&self, more: LeftOut) {
        self.own.lock().left_out.add(more);
    }
}

impl Drop for Prints {
    fn drop(&mut self) {
        let left_out = self.own.get_mut().left_out;
        if left_out == LeftOut::default() {
            return;
        }
        let told = self.rate.0.lock().tell(Instant::now(), left_out);
        if let Some(LeftOut { lines, bytes }) = told {
            tracing::info!(lines, bytes, "scripts printed more; it is left out");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_prints_so_much_and_all_jobs_together_at_a_rate() {
        let rate = Arc::new(Rate::default());
        let prints = || Prints::new(&rate);
        let one = prints();
        let logged = (0..10_000).filter(|_| one.admits(100)).count();
        assert_eq!(logged, PRINT_BYTES_MAX / print_bytes(100));
        let missing = one.own.lock().left_out;
        assert_eq!(missing.lines, 10_000 - logged as u64);
        assert_eq!(missing.bytes, missing.lines * 100);
        let others: usize = (0..100)
            .map(|_| {
                let other = prints();
                (0..1000).filter(|_| other.admits(100)).count()
            })
            .sum();
        // The test itself takes a moment, in which a little more may be printed.
        assert!((logged + others) * print_bytes(100) < 2 * BURST_BYTES as usize);
    }

    #[test]
    fn what_is_left_out_is_told_when_there_is_room() {
        let begun = Instant::now();
        let mut bucket = Bucket {
            bytes: NOTICE_BYTES + 10,
            filled_at: begun,
            left_out: LeftOut::default(),
        };
        let some = LeftOut {
            lines: 2,
            bytes: 10,
        };
        assert!(bucket.take(begun, 10));
        assert_eq!(bucket.tell(begun, some), Some(some));
        assert_eq!(bucket.tell(begun, some), None);
        let later = begun + Duration::from_secs(1);
        let both = LeftOut {
            lines: 4,
            bytes: 20,
        };
        assert_eq!(bucket.tell(later, some), Some(both));
        assert_eq!(bucket.tell(later, LeftOut::default()), None);
    }
}
