//! Records in a plan's order, straight from a snapshot.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_storage::{
    Collection, Index, IndexScan, Record, RecordId, RecordScan, Snapshot, StorageError,
};
use banyan_wire::CommandError;

use super::{InterruptSlot, Ticker};
use crate::counters::Counters;
use crate::errors;
use crate::plan::{Access, IndexBounds, Plan, ScanRange};

/// What running a plan has cost so far, for `explain` and the counters.
#[derive(Debug, Default)]
pub struct Cost {
    keys: AtomicU64,
    documents: AtomicU64,
    /// What of it the process's counters know already.
    counted_keys: AtomicU64,
    counted_documents: AtomicU64,
}

impl Cost {
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    pub fn documents(&self) -> u64 {
        self.documents.load(Ordering::Relaxed)
    }

    /// Adds what is new since the last call to the process's counters.
    pub fn count(&self, counters: &Counters) {
        let (keys, documents) = (self.keys(), self.documents());
        let known_keys = self.counted_keys.swap(keys, Ordering::Relaxed);
        let known_documents = self.counted_documents.swap(documents, Ordering::Relaxed);
        counters.keys_examined.add(keys.saturating_sub(known_keys));
        counters
            .documents_examined
            .add(documents.saturating_sub(known_documents));
    }
}

/// The records that a plan visits, unfiltered.
pub struct Source {
    snapshot: Snapshot,
    collection: Option<Arc<Collection>>,
    walk: Walk,
    ticker: Ticker,
    pub cost: Arc<Cost>,
}

enum Walk {
    Nothing,
    Collection(RecordScan),
    Index(IndexWalk),
}

impl Source {
    pub fn new(snapshot: Snapshot, plan: &Plan, slot: Arc<InterruptSlot>) -> Source {
        let walk = match (&plan.collection, &plan.access) {
            (None, _) | (_, Access::Nothing) => Walk::Nothing,
            (Some(collection), Access::Collection { reverse }) => {
                Walk::Collection(snapshot.records(collection.id, .., *reverse))
            }
            (_, Access::Index { bounds, reverse }) => {
                Walk::Index(IndexWalk::new(std::slice::from_ref(bounds), *reverse))
            }
            (_, Access::Union(parts)) => Walk::Index(IndexWalk::new(parts, false)),
        };
        Source {
            snapshot,
            collection: plan.collection.clone(),
            walk,
            ticker: Ticker::new(slot),
            cost: Arc::default(),
        }
    }

    /// Counts what is inside the bounds without reading a record; only right for exact plans.
    pub fn count_keys(mut self, limit: u64) -> Result<u64, CommandError> {
        let mut count = 0;
        while count < limit {
            let more = match &mut self.walk {
                Walk::Nothing => false,
                Walk::Collection(scan) => match scan.next() {
                    Some(Ok(_)) => true,
                    Some(Err(error)) => return Err(errors::storage(error)),
                    None => false,
                },
                Walk::Index(walk) => {
                    let found = walk.next(&self.snapshot).map_err(errors::storage)?;
                    found.is_some()
                }
            };
            if !more {
                break;
            }
            self.cost.keys.fetch_add(1, Ordering::Relaxed);
            self.ticker.tick()?;
            count += 1;
        }
        Ok(count)
    }

    fn step(&mut self) -> Result<Option<(RecordId, Record)>, CommandError> {
        loop {
            self.ticker.tick()?;
            match &mut self.walk {
                Walk::Nothing => return Ok(None),
                Walk::Collection(scan) => {
                    let found = scan.next().transpose().map_err(errors::storage)?;
                    if let Some((_, record)) = &found {
                        self.cost.documents.fetch_add(1, Ordering::Relaxed);
                        self.ticker.tick_over(record.as_bytes().len())?;
                    }
                    return Ok(found);
                }
                Walk::Index(walk) => {
                    let Some(id) = walk.next(&self.snapshot).map_err(errors::storage)? else {
                        return Ok(None);
                    };
                    self.cost.keys.fetch_add(1, Ordering::Relaxed);
                    if !walk.is_new(id) {
                        continue;
                    }
                    let Some(collection) = &self.collection else {
                        return Ok(None);
                    };
                    let record = self
                        .snapshot
                        .record(collection.id, id)
                        .map_err(errors::storage)?;
                    self.cost.documents.fetch_add(1, Ordering::Relaxed);
                    // Index and records are of one snapshot, so a key without a record is damage.
                    return match record {
                        Some(record) => {
                            self.ticker.tick_over(record.as_bytes().len())?;
                            Ok(Some((id, record)))
                        }
                        None => Err(errors::storage(StorageError::Damaged {
                            place: format!("index of {}", collection.namespace),
                            reason: format!("a key names record {id}, which does not exist"),
                        })),
                    };
                }
            }
        }
    }
}

impl Iterator for Source {
    type Item = Result<(RecordId, Record), CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// Ranges of one or several indexes, one after another.
struct IndexWalk {
    ranges: std::vec::IntoIter<(Arc<Index>, ScanRange)>,
    reverse: bool,
    current: Option<IndexScan>,
    /// The records that have been seen, where one may come again.
    seen: Option<HashSet<RecordId>>,
}

impl IndexWalk {
    fn new(parts: &[IndexBounds], reverse: bool) -> IndexWalk {
        let repeats = parts.len() > 1 || parts.iter().any(|part| part.multikey);
        let mut ranges: Vec<_> = parts
            .iter()
            .flat_map(|part| {
                part.ranges
                    .iter()
                    .map(|range| (part.index.clone(), range.clone()))
            })
            .collect();
        if reverse {
            ranges.reverse();
        }
        IndexWalk {
            ranges: ranges.into_iter(),
            reverse,
            current: None,
            seen: repeats.then(HashSet::new),
        }
    }

    fn is_new(&mut self, id: RecordId) -> bool {
        self.seen.as_mut().is_none_or(|seen| seen.insert(id))
    }

    fn next(&mut self, snapshot: &Snapshot) -> Result<Option<RecordId>, StorageError> {
        loop {
            if let Some(scan) = &mut self.current {
                match scan.next() {
                    Some(entry) => return entry.map(|(_, id)| Some(id)),
                    None => self.current = None,
                }
            }
            let Some((index, range)) = self.ranges.next() else {
                return Ok(None);
            };
            match range.point {
                Some(key) if index.unique => {
                    if let Some(id) = snapshot.unique_lookup(&index, &key)? {
                        return Ok(Some(id));
                    }
                }
                _ => self.current = Some(snapshot.scan_index(&index, range.range, self.reverse)),
            }
        }
    }
}
