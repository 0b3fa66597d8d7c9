//! Entries of the log in order, from an index or a time on.

use std::sync::Arc;

use banyan_consensus::Position;
use bytes::Bytes;

use super::log::Log;
use super::recent::Seen;
use crate::entry::Header;

/// Read at once, at most, and at least one entry.
const BYTES_PER_READ: u64 = 4 << 20;

/// Entries without data (a leader's first, changes of members) have no time; so many may follow
/// each other in what is read to find one that has.
const BYTES_PER_PROBE: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The log begins behind what was asked for.
    #[error("the log was cut past index {0}")]
    Cut(u64),
    /// A snapshot has taken the place of the state that the log was read for.
    #[error("the state was replaced by a snapshot")]
    Replaced,
    #[error("cannot read the log: {0}")]
    Log(String),
}

/// Follows the log as far as it is applied here.
pub struct LogReader {
    log: Arc<Log>,
    next: u64,
    installs: u64,
}

impl LogReader {
    /// Begins at this index.
    pub fn from_index(log: Arc<Log>, next: u64) -> LogReader {
        let installs = log.replica.machine.installs();
        LogReader {
            log,
            next,
            installs,
        }
    }

    /// Begins behind what is applied now.
    pub fn from_now(log: Arc<Log>) -> LogReader {
        let next = log.replica.machine.applied_index() + 1;
        LogReader::from_index(log, next)
    }

    /// Begins at the first entry that has an operation at this time or later.
    pub fn from_time(log: Arc<Log>, time: u64) -> Result<LogReader, ReadError> {
        let next = find_time(&log, time)?;
        Ok(LogReader::from_index(log, next))
    }

    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// The index of the entry that is read next.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Whether everything that is applied has been read.
    pub fn is_at_end(&self) -> bool {
        self.next > self.log.replica.machine.applied_index()
    }

    /// The next entries; none if everything that is applied was read.
    pub fn read(&mut self) -> Result<Vec<Arc<Seen>>, ReadError> {
        let machine = &self.log.replica.machine;
        let end = machine.applied_index() + 1;
        if machine.installs() != self.installs {
            return Err(ReadError::Replaced);
        }
        if self.next >= end {
            return Ok(Vec::new());
        }
        let mut entries = self.log.recent.read(self.next, self.installs);
        if entries.is_empty() {
            for (position, data) in read(&self.log, self.next, BYTES_PER_READ)? {
                if position.index < end {
                    let seen = Seen::new(position, data);
                    let seen = seen.map_err(|error| ReadError::Log(error.to_string()))?;
                    entries.push(Arc::new(seen));
                }
            }
            // What a reader far behind reads is of no use to the others.
            if entries
                .last()
                .is_some_and(|last| last.position.index + 1 == end)
            {
                self.log.recent.keep(&entries, self.installs);
            }
        }
        if let Some(last) = entries.last() {
            self.next = last.position.index + 1;
        }
        Ok(entries)
    }
}

/// The first index that the log still has.
pub fn first_index(log: &Log) -> u64 {
    log.replica.group.first_index().max(1)
}

fn read(log: &Log, from: u64, bytes_max: u64) -> Result<Vec<(Position, Bytes)>, ReadError> {
    let entries = match log.replica.group.entries(from, bytes_max) {
        Ok(entries) => entries,
        Err(_) if first_index(log) > from => return Err(ReadError::Cut(from)),
        Err(error) => return Err(ReadError::Log(error.to_string())),
    };
    match entries.first() {
        Some((first, _)) if first.index > from => Err(ReadError::Cut(from)),
        // A snapshot has taken the place of all of it.
        None if first_index(log) > from => Err(ReadError::Cut(from)),
        _ => Ok(entries),
    }
}

/// The first entry at or behind `index` that has a time: its index, and the times of its first and
/// last operation.
fn timed(log: &Log, index: u64, end: u64) -> Result<Option<(u64, Header)>, ReadError> {
    let mut at = index;
    while at < end {
        let entries = read(log, at, BYTES_PER_PROBE)?;
        let Some((last, _)) = entries.last() else {
            return Ok(None);
        };
        at = last.index + 1;
        for (position, data) in entries {
            if position.index >= end {
                return Ok(None);
            }
            if let Some(header) = Header::read(&data) {
                return Ok(Some((position.index, header)));
            }
        }
    }
    Ok(None)
}

/// The index of the first entry whose last operation is at `time` or later; one behind what is
/// applied if there is none.
fn find_time(log: &Log, time: u64) -> Result<u64, ReadError> {
    let end = log.replica.machine.applied_index() + 1;
    loop {
        let low = first_index(log).min(end);
        match search(log, time, low, end) {
            // It was cut meanwhile.
            Err(ReadError::Cut(_)) if first_index(log) > low => {}
            found => return found,
        }
    }
}

fn search(log: &Log, time: u64, mut low: u64, end: u64) -> Result<u64, ReadError> {
    // Everything before `low` is too early, `high` and what follows is not.
    let mut high = end;
    while low < high {
        let middle = low + (high - low) / 2;
        match timed(log, middle, high)? {
            Some((index, header)) if header.time() < time => low = index + 1,
            // What lies between the middle and the entry found has no time.
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The header of the first entry that the log still has, if it has one with a time.
pub fn first_header(log: &Log) -> Result<Option<Header>, ReadError> {
    let end = log.replica.machine.applied_index() + 1;
    let found = timed(log, first_index(log).min(end), end)?;
    Ok(found.map(|(_, header)| header))
}
