//! How the fetching of a snapshot goes, for `rs.status()`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use banyan_storage::Part;
use bson::{DateTime, RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

const ATTEMPTS_KEPT: usize = 10;

/// Shared by the fetching and by those who ask.
#[derive(Default)]
pub struct InitialSync {
    current: Mutex<Option<Running>>,
    history: Mutex<History>,
    /// Of each part, in this attempt and (if it was resumed) before.
    copied: [AtomicU64; 3],
    /// What an attempt that was resumed found.
    resumed: AtomicU64,
}

#[derive(Clone)]
struct Running {
    source: String,
    index: u64,
    totals: [u64; 3],
    started: DateTime,
    clock: Instant,
    slices: usize,
    slices_done: usize,
}

#[derive(Default)]
struct History {
    first: Option<DateTime>,
    failed: u32,
    attempts: VecDeque<Attempt>,
}

/// An attempt that has ended.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub duration: Duration,
    pub source: String,
    /// `OK`, or what went wrong.
    pub status: String,
}

/// A picture of it.
#[derive(Debug, Clone)]
pub struct Status {
    pub source: String,
    /// Where in the log the state that is fetched stands.
    pub index: u64,
    pub started: DateTime,
    pub elapsed: Duration,
    pub parts: Vec<PartStatus>,
    pub slices: usize,
    pub slices_done: usize,
    pub total_bytes: u64,
    pub copied_bytes: u64,
    pub remaining: Option<Duration>,
    pub failed_attempts: u32,
    pub attempts: Vec<Attempt>,
}

#[derive(Debug, Clone)]
pub struct PartStatus {
    pub name: &'static str,
    pub total_bytes: u64,
    pub copied_bytes: u64,
}

impl InitialSync {
    pub(super) fn begin(&self, source: &str, index: u64, totals: [u64; 3], copied: [u64; 3]) {
        for (counter, copied) in self.copied.iter().zip(copied) {
            counter.store(copied, Ordering::Relaxed);
        }
        self.resumed.store(copied.iter().sum(), Ordering::Relaxed);
        let started = DateTime::now();
        self.history.lock().first.get_or_insert(started);
        *self.current.lock() = Some(Running {
            source: source.to_owned(),
            index,
            totals,
            started,
            clock: Instant::now(),
            slices: 0,
            slices_done: 0,
        });
    }

    pub(super) fn plan_slices(&self, slices: usize) {
        if let Some(running) = &mut *self.current.lock() {
            running.slices = slices;
        }
    }

    pub(super) fn slice_done(&self) {
        if let Some(running) = &mut *self.current.lock() {
            running.slices_done += 1;
        }
    }

    pub(super) fn copied(&self, part: Part, bytes: usize) {
        self.copied[usize::from(part.tag())].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn end(&self, source: &str, took: Duration, outcome: &Result<(), String>) {
        let mut history = self.history.lock();
        if outcome.is_err() {
            history.failed = history.failed.saturating_add(1);
        }
        if history.attempts.len() == ATTEMPTS_KEPT {
            history.attempts.pop_front();
        }
        history.attempts.push_back(Attempt {
            duration: took,
            source: source.to_owned(),
            status: outcome.clone().err().unwrap_or_else(|| "OK".to_owned()),
        });
        *self.current.lock() = None;
    }

    /// `None` while no snapshot is fetched.
    pub fn status(&self) -> Option<Status> {
        let running = self.current.lock().clone()?;
        let history = self.history.lock();
        let parts: Vec<PartStatus> = Part::ALL
            .iter()
            .map(|part| {
                let tag = usize::from(part.tag());
                let copied_bytes = self.copied[tag].load(Ordering::Relaxed);
                PartStatus {
                    name: part.name(),
                    // The total is an estimate.
                    total_bytes: running.totals[tag].max(copied_bytes),
                    copied_bytes,
                }
            })
            .collect();
        let total_bytes: u64 = parts.iter().map(|part| part.total_bytes).sum();
        let copied_bytes: u64 = parts.iter().map(|part| part.copied_bytes).sum();
        let elapsed = running.clock.elapsed();
        let fresh = copied_bytes.saturating_sub(self.resumed.load(Ordering::Relaxed));
        let rate = fresh as f64 / elapsed.as_secs_f64().max(0.001);
        let left = total_bytes.saturating_sub(copied_bytes) as f64;
        let remaining = (fresh > 0).then(|| Duration::from_secs_f64((left / rate).min(1e9)));
        Some(Status {
            source: running.source,
            index: running.index,
            started: history.first.unwrap_or(running.started),
            elapsed,
            parts,
            slices: running.slices,
            slices_done: running.slices_done,
            total_bytes,
            copied_bytes,
            remaining,
            failed_attempts: history.failed,
            attempts: history.attempts.iter().cloned().collect(),
        })
    }
}

impl Status {
    /// As `replSetGetStatus` shows it under `initialSyncStatus`.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut attempts = RawArrayBuf::new();
        for attempt in &self.attempts {
            attempts.push(rawdoc! {
                "durationMillis": attempt.duration.as_millis() as i64,
                "status": attempt.status.as_str(),
                "syncSource": attempt.source.as_str(),
            });
        }
        let mut parts = RawDocumentBuf::new();
        for part in &self.parts {
            let sizes = rawdoc! {
                "approxTotalBytes": part.total_bytes as i64,
                "copiedBytes": part.copied_bytes as i64,
            };
            match part.name {
                "records" => parts.append(cstr!("records"), sizes),
                "indexes" => parts.append(cstr!("indexes"), sizes),
                _ => parts.append(cstr!("meta"), sizes),
            }
        }
        let mut out = rawdoc! {
            "method": "snapshot",
            "syncSource": self.source.as_str(),
            "failedInitialSyncAttempts": self.failed_attempts as i32,
            "initialSyncStart": self.started,
            "totalInitialSyncElapsedMillis": self.elapsed.as_millis() as i64,
            "initialSyncAttempts": attempts,
            "approxTotalDataSize": self.total_bytes as i64,
            "approxTotalBytesCopied": self.copied_bytes as i64,
        };
        if let Some(remaining) = self.remaining {
            let remaining = remaining.as_millis() as i64;
            out.append(cstr!("remainingInitialSyncEstimatedMillis"), remaining);
        }
        out.append(cstr!("slices"), self.slices as i32);
        out.append(cstr!("slicesCopied"), self.slices_done as i32);
        out.append(cstr!("parts"), parts);
        out
    }

    /// A line for `infoMessage`.
    pub fn line(&self) -> String {
        let percent = (self.copied_bytes * 100).checked_div(self.total_bytes.max(1));
        format!(
            "initial sync from {}: {} of about {} MB ({}%)",
            self.source,
            self.copied_bytes >> 20,
            self.total_bytes >> 20,
            percent.unwrap_or(0).min(100)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_leaves_out_what_was_there_before() {
        let sync = InitialSync::default();
        assert!(sync.status().is_none());
        sync.begin("a:1", 7, [1000, 500, 10], [400, 0, 0]);
        let status = sync.status().unwrap();
        assert_eq!((status.total_bytes, status.copied_bytes), (1510, 400));
        assert_eq!(status.remaining, None, "nothing to estimate from");
        sync.copied(Part::Indexes, 600);
        let status = sync.status().unwrap();
        assert_eq!(status.total_bytes, 1610, "an estimate that was too low");
        assert!(status.remaining.is_some());
        sync.end("a:1", Duration::from_secs(1), &Err("cut".to_owned()));
        assert!(sync.status().is_none());
        sync.begin("b:1", 9, [10; 3], [0; 3]);
        let status = sync.status().unwrap();
        assert_eq!(status.failed_attempts, 1);
        assert_eq!(status.attempts[0].status, "cut");
        let document = status.to_document();
        assert_eq!(document.get_i64("approxTotalDataSize").unwrap(), 30);
    }
}
