//! Reading all records of a collection on several threads, each of which sorts the keys that it
//! makes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bson::RawDocument;

use super::gather::Gather;
use super::load::{Load, LoadPhase};
use super::runs::Run;
use crate::StorageError;
use crate::index::Index;
use crate::record_id::RecordId;

/// What a build's threads hold in memory together.
const SORT_MEMORY_BYTES: usize = 64 << 20;
/// So many records are read from one snapshot: an old one keeps what was overwritten since.
const SNAPSHOT_RECORDS: usize = 50_000;
/// Between two looks at whether to go on; a record counts as some more than its bytes.
const SLICE_BYTES: usize = 128 * 1024;
const RECORD_BYTES: usize = 1024;
/// So many record ids are a piece of work at least.
const PIECE_IDS_MIN: u64 = 1024;
/// So many pieces for each thread, so that all of them end at about the same time.
const PIECES_EACH: u64 = 16;

type Bounds = (Bound<RecordId>, Bound<RecordId>);

/// What was found for the indexes of a build.
pub(super) struct Scanned {
    pub(super) runs: Vec<Vec<Run>>,
    /// Where documents had arrays.
    pub(super) arrays: Vec<BTreeSet<Box<str>>>,
}

impl Scanned {
    fn nothing(indexes: usize) -> Scanned {
        Scanned {
            runs: (0..indexes).map(|_| Vec::new()).collect(),
            arrays: vec![BTreeSet::new(); indexes],
        }
    }

    fn absorb(&mut self, other: Scanned) {
        for (mine, theirs) in self.runs.iter_mut().zip(other.runs) {
            mine.extend(theirs);
        }
        for (mine, theirs) in self.arrays.iter_mut().zip(other.arrays) {
            mine.extend(theirs);
        }
    }
}

/// A scan that goes on.
struct Scan<'a> {
    load: &'a Load<'a>,
    pieces: Vec<Bounds>,
    next: AtomicUsize,
    done: AtomicU64,
    total: u64,
    memory_bytes: usize,
}

impl Load<'_> {
    /// Reads all records. Those that come meanwhile are touched, also those of a clustered collection
    /// that come before the last one. `None`: the load is to end.
    pub(super) fn scan(&self) -> Result<Option<Scanned>, StorageError> {
        let indexes = self.build.indexes.len();
        let collection = self.address.collection;
        let (total, first, last) = {
            let snapshot = self.store.snapshot();
            let (documents, _) = snapshot.counts(collection)?;
            let first = snapshot.records(collection, .., false).next().transpose()?;
            let last = snapshot.last_record_id(collection)?;
            (u64::try_from(documents).unwrap_or(0), first, last)
        };
        let (Some((first, _)), Some(last)) = (first, last) else {
            return Ok(Some(Scanned::nothing(indexes)));
        };
        let workers = self.workers(total);
        let scan = Scan {
            load: self,
            pieces: pieces(&first, &last, workers),
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            total,
            memory_bytes: SORT_MEMORY_BYTES / (indexes * workers).max(1),
        };
        let mut scanned = Scanned::nothing(indexes);
        for part in self.on_all(workers, &|_| scan.read_pieces())? {
            match part {
                Some(part) => scanned.absorb(part),
                None => return Ok(None),
            }
        }
        Ok(Some(scanned))
    }
}

/// The records divided by their ids, which lie about evenly. Those of a clustered collection may lie
/// anywhere: they are one piece.
fn pieces(first: &RecordId, last: &RecordId, workers: usize) -> Vec<Bounds> {
    let whole = (Bound::Unbounded, Bound::Included(last.clone()));
    let (Some(first), Some(end)) = (first.as_number(), last.as_number()) else {
        return vec![whole];
    };
    let pieces = workers as u64 * PIECES_EACH;
    let ids = (end - first) / pieces + 1;
    let ids = ids.clamp(PIECE_IDS_MIN, SNAPSHOT_RECORDS as u64);
    // Ids are given out one after the other, so there are not many pieces without any.
    let starts = (0..=(end - first) / ids).map(|piece| first + piece * ids);
    let piece = |start: u64| {
        let behind = (start + ids).min(end.saturating_add(1));
        (
            Bound::Included(RecordId::number(start)),
            Bound::Excluded(RecordId::number(behind)),
        )
    };
    starts.map(piece).collect()
}

impl Scan<'_> {
    /// What one thread does.
    fn read_pieces(&self) -> Result<Option<Scanned>, StorageError> {
        let load = self.load;
        let scratch = load.store.path().join("state").join("scratch");
        let gather = |index: &Arc<Index>| Gather::new(&scratch, self.memory_bytes, index.id);
        let indexes = &load.build.indexes;
        let mut reader = Reader {
            load,
            gathers: indexes.iter().map(gather).collect(),
            arrays: vec![BTreeSet::new(); indexes.len()],
        };
        let mut slice = 0;
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !self.read_piece(piece.clone(), &mut reader, &mut slice)? {
                return Ok(None);
            }
        }
        Ok(Some(Scanned {
            runs: reader.gathers.into_iter().map(Gather::finish).collect(),
            arrays: reader.arrays,
        }))
    }

    fn read_piece(
        &self,
        (mut from, until): Bounds,
        reader: &mut Reader<'_>,
        slice: &mut usize,
    ) -> Result<bool, StorageError> {
        let load = self.load;
        'snapshots: loop {
            let snapshot = load.store.snapshot();
            let rest = (from.clone(), until.clone());
            let mut records = 0;
            for (count, found) in snapshot
                .records(load.address.collection, rest, false)
                .enumerate()
            {
                let (record, document) = found?;
                if count == SNAPSHOT_RECORDS {
                    from = Bound::Included(record);
                    self.done.fetch_add(records, Ordering::Relaxed);
                    continue 'snapshots;
                }
                reader.gather(&record, &document)?;
                records += 1;
                *slice += RECORD_BYTES + document.as_bytes().len();
                if *slice >= SLICE_BYTES {
                    *slice = 0;
                    let done = self.done.fetch_add(records, Ordering::Relaxed) + records;
                    records = 0;
                    if !load.goes_on(LoadPhase::Scanning, done, self.total.max(done)) {
                        return Ok(false);
                    }
                }
            }
            self.done.fetch_add(records, Ordering::Relaxed);
            return Ok(true);
        }
    }
}

/// What one thread has found.
struct Reader<'a> {
    load: &'a Load<'a>,
    gathers: Vec<Gather>,
    arrays: Vec<BTreeSet<Box<str>>>,
}

impl Reader<'_> {
    fn gather(&mut self, record: &RecordId, document: &RawDocument) -> Result<(), StorageError> {
        let build = self.load.build;
        for (at, (index, gather)) in build.indexes.iter().zip(&mut self.gathers).enumerate() {
            let Some(keys) = self.load.host.keys(index, document) else {
                build.building.note_unindexable(index.id, record);
                continue;
            };
            if !keys.arrays.is_subset(&self.arrays[at]) {
                self.arrays[at].extend(keys.arrays);
            }
            for key in &keys.keys {
                gather.push(key, record).map_err(fjall::Error::Io)?;
            }
        }
        Ok(())
    }
}
