//! The end of the log, read once for all who follow it.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_consensus::Position;
use banyan_storage::CollectionId;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::entry::{Entry, EntryError, Header};

/// What is kept, at most.
const BYTES_MAX: usize = 16 << 20;
const ENTRIES_MAX: usize = 4096;
/// Handed out at once.
const ENTRIES_PER_READ: usize = 256;

/// An entry, and what it is about.
#[derive(Debug)]
pub struct Seen {
    pub position: Position,
    pub data: Bytes,
    pub about: About,
}

#[derive(Debug, PartialEq, Eq)]
pub enum About {
    /// It has no time and changes nothing.
    Nothing,
    /// Documents of these collections.
    Documents(Header, Vec<CollectionId>),
    /// What exists.
    Definitions(Header),
}

impl Seen {
    pub fn new(position: Position, data: Bytes) -> Result<Seen, EntryError> {
        let about = if data.is_empty() {
            About::Nothing
        } else {
            let entry = Entry::decode(&data)?;
            match entry.collections()? {
                Some(collections) => About::Documents(entry.header, collections),
                None => About::Definitions(entry.header),
            }
        };
        Ok(Seen {
            position,
            data,
            about,
        })
    }
}

#[derive(Default)]
pub struct Recent(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    /// Consecutive in the log.
    entries: VecDeque<Arc<Seen>>,
    bytes: usize,
    /// See [`crate::write::Machine::installs`].
    installs: u64,
}

impl Recent {
    /// Entries from an index on, if the first of them is here.
    pub fn read(&self, from: u64, installs: u64) -> Vec<Arc<Seen>> {
        let ring = self.0.lock();
        let Some(first) = ring.entries.front() else {
            return Vec::new();
        };
        let offset = from.checked_sub(first.position.index);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        match offset {
            Some(offset) if ring.installs == installs => {
                let found = ring.entries.iter().skip(offset).take(ENTRIES_PER_READ);
                found.cloned().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Keeps what was read from the log, if it follows what is here, or is newer.
    pub fn keep(&self, entries: &[Arc<Seen>], installs: u64) {
        let mut ring = self.0.lock();
        if ring.installs > installs {
            return;
        }
        if ring.installs < installs {
            *ring = Ring {
                installs,
                ..Ring::default()
            };
        }
        for entry in entries {
            let index = entry.position.index;
            match ring.entries.back().map(|last| last.position.index) {
                Some(last) if index <= last => continue,
                Some(last) if index > last + 1 => {
                    ring.entries.clear();
                    ring.bytes = 0;
                }
                _ => {}
            }
            ring.bytes += entry.data.len();
            ring.entries.push_back(entry.clone());
            while ring.bytes > BYTES_MAX || ring.entries.len() > ENTRIES_MAX {
                let Some(oldest) = ring.entries.pop_front() else {
                    break;
                };
                ring.bytes -= oldest.data.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64) -> Arc<Seen> {
        let position = Position { term: 1, index };
        Arc::new(Seen::new(position, Bytes::new()).unwrap())
    }

    fn indexes(recent: &Recent, from: u64, installs: u64) -> Vec<u64> {
        let found = recent.read(from, installs);
        found.iter().map(|seen| seen.position.index).collect()
    }

    #[test]
    fn what_follows_is_kept_and_what_is_newer_takes_its_place() {
        let recent = Recent::default();
        assert!(indexes(&recent, 1, 0).is_empty());
        recent.keep(&[entry(3), entry(4)], 0);
        recent.keep(&[entry(4), entry(5)], 0);
        recent.keep(&[entry(2)], 0);
        assert_eq!(indexes(&recent, 3, 0), [3, 4, 5]);
        assert_eq!(indexes(&recent, 5, 0), [5]);
        assert!(indexes(&recent, 2, 0).is_empty());
        assert!(indexes(&recent, 6, 0).is_empty());
        recent.keep(&[entry(9)], 0);
        assert_eq!(indexes(&recent, 9, 0), [9]);
        assert!(indexes(&recent, 3, 0).is_empty());
    }

    #[test]
    fn another_state_has_another_history() {
        let recent = Recent::default();
        recent.keep(&[entry(3)], 0);
        assert!(indexes(&recent, 3, 1).is_empty());
        recent.keep(&[entry(3)], 1);
        recent.keep(&[entry(4)], 0);
        assert_eq!(indexes(&recent, 3, 1), [3]);
    }

    #[test]
    fn the_oldest_go_first() {
        let recent = Recent::default();
        let entries: Vec<_> = (1..=ENTRIES_MAX as u64 + 10).map(entry).collect();
        recent.keep(&entries, 0);
        assert!(indexes(&recent, 10, 0).is_empty());
        assert_eq!(indexes(&recent, 11, 0)[0], 11);
    }
}
