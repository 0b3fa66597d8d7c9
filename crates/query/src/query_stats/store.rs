//! The keys and their figures, in so many bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bson::DateTime;
use parking_lot::Mutex;

use super::key::Key;
use super::metrics::{Execution, Metrics};

/// Each has a lock and a share of the memory of its own.
pub(super) const PARTITIONS: usize = 16;

/// What the tables take for each entry, beside what is in it.
const OVERHEAD_BYTES: usize = 96;

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: Key,
    pub metrics: Metrics,
    last_use: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        size_of::<Metrics>() + self.key.bytes() + OVERHEAD_BYTES
    }
}

#[derive(Default)]
struct Partition {
    entries: HashMap<[u8; 32], Entry>,
    /// By their last use.
    by_use: BTreeMap<u64, [u8; 32]>,
    uses: u64,
    bytes: usize,
}

impl Partition {
    /// Forgets what was not run for the longest time, until no more than so many bytes are left.
    fn shrink(&mut self, bytes_max: usize) -> u64 {
        let mut evicted = 0;
        while self.bytes > bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes();
                evicted += 1;
            }
        }
        evicted
    }

    fn touch(&mut self, hash: &[u8; 32]) {
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(hash) {
            self.by_use.remove(&entry.last_use);
            entry.last_use = self.uses;
            self.by_use.insert(self.uses, *hash);
        }
    }
}

pub(super) struct Store {
    partitions: Vec<Mutex<Partition>>,
    bytes_max: AtomicUsize,
    evicted: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub entries: u64,
    pub bytes: u64,
    pub bytes_max: u64,
    pub evicted: u64,
    /// Those that are larger than there is room.
    pub refused: u64,
}

impl Store {
    pub fn new(bytes_max: usize) -> Store {
        Store {
            partitions: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            bytes_max: AtomicUsize::new(bytes_max),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn share(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed) / PARTITIONS
    }

    /// A query has run.
    pub fn add(&self, key: Key, execution: &Execution) {
        let place = usize::from(key.hash[0]) % PARTITIONS;
        let Some(partition) = self.partitions.get(place) else {
            return;
        };
        let now = DateTime::now();
        let mut partition = partition.lock();
        let hash = key.hash;
        match partition.entries.get_mut(&hash) {
            Some(entry) => entry.metrics.add(execution, now),
            None => {
                let mut metrics = Metrics::new(now);
                metrics.add(execution, now);
                let last_use = 0;
                let entry = Entry {
                    key,
                    metrics,
                    last_use,
                };
                if entry.bytes() > self.share() {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                partition.bytes += entry.bytes();
                partition.entries.insert(hash, entry);
            }
        }
        partition.touch(&hash);
        let evicted = partition.shrink(self.share());
        self.evicted.fetch_add(evicted, Ordering::Relaxed);
    }

    /// Holds no more than so many bytes from now on.
    pub fn limit(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        let share = self.share();
        for partition in &self.partitions {
            let evicted = partition.lock().shrink(share);
            self.evicted.fetch_add(evicted, Ordering::Relaxed);
        }
    }

    /// The entries of a partition, copied: nobody waits while they are shown.
    pub fn partition(&self, place: usize) -> Vec<Entry> {
        let partition = self.partitions.get(place).map(|partition| partition.lock());
        partition.map_or_else(Vec::new, |known| known.entries.values().cloned().collect())
    }

    pub fn figures(&self) -> Figures {
        let mut figures = Figures {
            bytes_max: self.bytes_max.load(Ordering::Relaxed) as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ..Figures::default()
        };
        for partition in &self.partitions {
            let partition = partition.lock();
            figures.entries += partition.entries.len() as u64;
            figures.bytes += partition.bytes as u64;
        }
        figures
    }
}
