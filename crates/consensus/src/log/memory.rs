//! A disk in memory that can lose what was not synced, for the simulation.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use raft::eraftpb::{Entry, HardState};

use super::{Batch, Disk, Loaded, LogError, Terms};
use crate::machine::Membership;

#[derive(Clone, Default)]
struct Image {
    hard: HardState,
    membership: Membership,
    terms: Terms,
    entries: BTreeMap<u64, Entry>,
    stale: bool,
    ahead: bool,
}

#[derive(Default)]
struct Platter {
    written: Image,
    synced: Image,
    fails: bool,
}

/// Clones share the platter: it outlives a crash of the member that wrote it.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk {
    platter: Arc<Mutex<Platter>>,
}

impl MemoryDisk {
    pub fn lose_unsynced(&self) {
        let mut platter = self.platter.lock();
        platter.written = platter.synced.clone();
    }

    /// The next write fails, as if the machine had stopped before it.
    pub fn fail_next_write(&self) {
        self.platter.lock().fails = true;
    }
}

impl Disk for MemoryDisk {
    fn load(&mut self) -> Result<Loaded, LogError> {
        let platter = self.platter.lock();
        let image = &platter.written;
        Ok(Loaded {
            hard: image.hard.clone(),
            membership: image.membership.clone(),
            terms: image.terms.clone(),
            first_index: image.entries.keys().next().copied().unwrap_or(0),
            last_index: image.entries.keys().next_back().copied().unwrap_or(0),
            stale: image.stale,
            ahead: image.ahead,
            reached: 0,
        })
    }

    fn write(&mut self, batch: &Batch<'_>, sync: bool) -> Result<(), LogError> {
        let mut platter = self.platter.lock();
        if std::mem::take(&mut platter.fails) {
            return Err(LogError::Io("it was told to fail".into()));
        }
        let image = &mut platter.written;
        if batch.reset {
            image.entries.clear();
            image.stale = batch.stale;
        }
        if let Some(first) = batch.entries.first() {
            image.entries.split_off(&first.index);
            image
                .entries
                .extend(batch.entries.iter().map(|e| (e.index, e.clone())));
        }
        if let Some(hard) = batch.hard {
            image.hard = hard.clone();
        }
        if let Some(membership) = batch.membership {
            image.membership = membership.clone();
        }
        if let Some(terms) = batch.terms {
            image.terms = terms.clone();
        }
        if let Some(ahead) = batch.ahead {
            image.ahead = ahead;
        }
        if let Some(first) = batch.compact {
            image.entries = image.entries.split_off(&first);
        }
        if sync {
            platter.synced = platter.written.clone();
        }
        Ok(())
    }

    fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError> {
        let platter = self.platter.lock();
        let mut left = bytes_max;
        let mut found = Vec::new();
        for entry in platter
            .written
            .entries
            .range(low..high)
            .map(|(_, entry)| entry)
        {
            let size = entry.data.len() as u64;
            if size > left && !found.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            found.push(entry.clone());
        }
        Ok(found)
    }

    fn bytes_used(&self) -> u64 {
        self.platter
            .lock()
            .written
            .entries
            .values()
            .map(|entry| entry.data.len() as u64)
            .sum()
    }
}
