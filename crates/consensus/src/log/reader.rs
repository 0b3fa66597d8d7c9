//! Reading the log beside the thread that writes it: a reader waits for no append and no sync.
//!
//! What is read must be committed, or at least not be overwritten meanwhile: the log's own thread
//! may read anything, everybody else what is committed.

use std::sync::Arc;

use parking_lot::Mutex;
use raft::eraftpb::Entry;

use super::recent::Recent;
use super::{Disk, LogError};

/// What the writer shows to readers, after each write.
pub(super) struct Written<D> {
    pub disk: D,
    /// Entries from here on can be read.
    pub first: u64,
    pub last: u64,
    pub recent: Recent,
    /// What was found to be damaged first.
    pub damage: Option<String>,
}

pub(crate) struct LogReader<D>(Arc<Mutex<Written<D>>>);

impl<D> Clone for LogReader<D> {
    fn clone(&self) -> LogReader<D> {
        LogReader(self.0.clone())
    }
}

impl<D: Disk> LogReader<D> {
    pub(super) fn new(disk: D, first: u64, last: u64) -> LogReader<D> {
        LogReader(Arc::new(Mutex::new(Written {
            disk,
            first,
            last,
            recent: Recent::new(last + 1),
            damage: None,
        })))
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Written<D>)) {
        change(&mut self.0.lock());
    }

    /// Entries that cannot be read, though they should be there.
    pub fn damage(&self) -> Option<String> {
        self.0.lock().damage.clone()
    }

    pub fn note_damage(&self, what: &str) {
        let mut view = self.0.lock();
        if view.damage.is_none() {
            tracing::error!("the log is damaged: {what}");
            view.damage = Some(what.to_owned());
        }
    }

    pub fn first_index(&self) -> u64 {
        self.0.lock().first
    }

    /// Entries of `low..high` that are within the log, at least one and then no more than
    /// `bytes_max`; there may be more to read behind them.
    pub fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError> {
        let (disk, high) = {
            let view = self.0.lock();
            let high = high.min(view.last + 1);
            if low >= high {
                return Ok(Vec::new());
            }
            if low < view.first {
                return Err(LogError::Cut(low));
            }
            if let Some(entries) = view.recent.read(low, high, bytes_max) {
                return Ok(entries);
            }
            (view.disk.clone(), high)
        };
        let found = disk.read(low, high, bytes_max);
        match found {
            Ok(entries) if entries.first().is_some_and(|entry| entry.index == low) => Ok(entries),
            // It was cut off after we looked.
            _ if self.first_index() > low => Err(LogError::Cut(low)),
            Ok(_) => Err(LogError::Damaged(format!("entry {low} is missing"))),
            Err(LogError::Damaged(what)) => Err(self.place(&disk, low, high, bytes_max, what)),
            Err(error) => Err(error),
        }
    }

    /// Which of the entries it is that cannot be read.
    fn place(&self, disk: &D, low: u64, high: u64, bytes_max: u64, what: String) -> LogError {
        let mut bytes = 0;
        for index in low..high {
            match disk.read(index, index + 1, u64::MAX) {
                Ok(entries) => {
                    bytes += entries
                        .iter()
                        .map(|entry| entry.data.len() as u64)
                        .sum::<u64>();
                }
                Err(LogError::Damaged(what)) => {
                    return LogError::Damaged(format!("entry {index}: {what}"));
                }
                Err(error) => return error,
            }
            if bytes > bytes_max {
                break;
            }
        }
        LogError::Damaged(format!("entries from {low} on: {what}"))
    }
}
