//! The load: the keys of what a collection held when the build began, sorted, and put into the
//! indexes in batches that hold up nobody for long.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use banyan_crash::{Point, pass};
use banyan_document::key::Keys;
use bson::RawDocument;
use fjall::AbstractTree;

use super::sorter::{Entry, Sorter};
use super::writes::Pending;
use super::{BuildAddress, Building, IndexBuild};
use crate::batch::Batch;
use crate::catalog::Index;
use crate::record_id::RecordId;
use crate::store::{Engine, Store};
use crate::{CatalogChange, StorageError};

/// What the sorters of one build hold in memory together.
const SORT_MEMORY_BYTES: usize = 64 << 20;
/// So many records are read from one snapshot: an old one keeps what was overwritten since.
const SNAPSHOT_RECORDS: usize = 50_000;
/// Between two looks at whether to go on; a record counts as some more than its bytes.
const SLICE_BYTES: usize = 128 * 1024;
const RECORD_BYTES: usize = 1024;
/// What is put with the commit lock held once.
const BATCH_KEYS: usize = 256;
const BATCH_BYTES: usize = 64 * 1024;
/// The engine's journal is synced after so many bytes: a flush would find more to sync, and hold up
/// writers meanwhile.
const SYNC_BYTES: usize = 2 << 20;
/// The engine halts writers when it has more unflushed tables, or more runs, than this.
const SEALED_TABLES_MAX: usize = 1;
const RUNS_MAX: usize = 12;
const PRESSURE_PAUSE: Duration = Duration::from_millis(2);

/// What a load asks of its caller.
pub trait LoadHost: Sync {
    /// The keys of a document; `None` if they cannot be made.
    fn keys(&self, index: &Index, document: &RawDocument) -> Option<Keys>;

    /// Called every few milliseconds, with nothing held: others may have their turn here. False ends
    /// the load.
    fn goes_on(&self, progress: LoadProgress) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPhase {
    /// Reading records.
    Scanning,
    /// Putting sorted keys into the index.
    Inserting,
}

/// How far a load has come, in records or keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    pub phase: LoadPhase,
    pub done: u64,
    pub total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEnd {
    Complete,
    /// The host said so, or the build is gone.
    Stopped,
}

/// What came of putting keys.
enum Put {
    Done,
    /// It was dropped after the log had committed its build.
    IndexGone,
    BuildGone,
}

/// A build's load that goes on.
struct Load<'a> {
    store: &'a Store,
    address: BuildAddress,
    build: &'a IndexBuild,
    host: &'a dyn LoadHost,
    /// An earlier load may have put keys already.
    is_repeated: bool,
    /// Of each index: where documents had arrays.
    arrays: Vec<BTreeSet<Box<str>>>,
    unsynced_bytes: usize,
}

impl Store {
    /// Loads the keys of a build's indexes; the caller found the build in the catalog. Returns once
    /// they are complete.
    pub fn load_build(
        &self,
        address: BuildAddress,
        build: &IndexBuild,
        host: &dyn LoadHost,
    ) -> Result<LoadEnd, StorageError> {
        if build.is_loaded() {
            return Ok(LoadEnd::Complete);
        }
        let mut load = Load {
            store: self,
            address,
            build,
            host,
            is_repeated: build.building.begin_load(),
            arrays: vec![BTreeSet::new(); build.indexes.len()],
            unsynced_bytes: 0,
        };
        let scratch = self.path().join("state").join("scratch");
        let Some(sorters) = load.scan(&scratch)? else {
            return Ok(LoadEnd::Stopped);
        };
        let total = sorters.iter().map(Sorter::count).sum();
        let mut done = 0;
        for (at, sorter) in sorters.into_iter().enumerate() {
            if !load.insert(at, sorter, &mut done, total)? {
                return Ok(LoadEnd::Stopped);
            }
        }
        let ended = self.finish_load(address, &build.building)?;
        Ok(if ended {
            LoadEnd::Complete
        } else {
            LoadEnd::Stopped
        })
    }
}

impl Load<'_> {
    fn goes_on(&self, phase: LoadPhase, done: u64, total: u64) -> bool {
        self.host.goes_on(LoadProgress { phase, done, total })
    }

    /// Reads all records and sorts their keys. Those that come meanwhile are touched, also those of
    /// a clustered collection that come before the last one.
    fn scan(&mut self, scratch: &Path) -> Result<Option<Vec<Sorter>>, StorageError> {
        let indexes = &self.build.indexes;
        let memory = SORT_MEMORY_BYTES / indexes.len().max(1);
        let mut sorters: Vec<Sorter> = indexes
            .iter()
            .map(|index| Sorter::new(scratch, memory, index.record_ids))
            .collect();
        let collection = self.address.collection;
        let (total, last) = {
            let snapshot = self.store.snapshot();
            let (documents, _) = snapshot.counts(collection)?;
            (
                u64::try_from(documents).unwrap_or(0),
                snapshot.last_record_id(collection)?,
            )
        };
        let Some(last) = last else {
            return Ok(Some(sorters));
        };
        let mut from = Bound::Unbounded;
        let (mut done, mut slice) = (0, 0);
        'snapshots: loop {
            let snapshot = self.store.snapshot();
            let rest = (from.clone(), Bound::Included(last.clone()));
            for (count, found) in snapshot.records(collection, rest, false).enumerate() {
                let (record, document) = found?;
                if count == SNAPSHOT_RECORDS {
                    from = Bound::Included(record);
                    continue 'snapshots;
                }
                self.sort_keys(&mut sorters, &record, &document)?;
                done += 1;
                slice += RECORD_BYTES + document.as_bytes().len();
                if slice >= SLICE_BYTES {
                    slice = 0;
                    if !self.goes_on(LoadPhase::Scanning, done, total.max(done)) {
                        return Ok(None);
                    }
                }
            }
            return Ok(Some(sorters));
        }
    }

    fn sort_keys(
        &mut self,
        sorters: &mut [Sorter],
        record: &RecordId,
        document: &RawDocument,
    ) -> Result<(), StorageError> {
        for (at, (index, sorter)) in self.build.indexes.iter().zip(sorters).enumerate() {
            let Some(keys) = self.host.keys(index, document) else {
                self.build.building.note_unindexable(index.id, record);
                continue;
            };
            if !keys.arrays.is_subset(&self.arrays[at]) {
                self.arrays[at].extend(keys.arrays);
            }
            for key in &keys.keys {
                sorter.push(key, record).map_err(fjall::Error::Io)?;
            }
        }
        Ok(())
    }

    /// Puts what was sorted into one index. False: it is to end.
    fn insert(
        &mut self,
        at: usize,
        sorter: Sorter,
        done: &mut u64,
        total: u64,
    ) -> Result<bool, StorageError> {
        let mut sorted = sorter.finish().map_err(fjall::Error::Io)?;
        loop {
            let mut chunk: Vec<Entry> = Vec::with_capacity(BATCH_KEYS);
            let mut bytes = 0;
            while chunk.len() < BATCH_KEYS && bytes < BATCH_BYTES {
                let Some((key, record)) = sorted.next().map_err(fjall::Error::Io)? else {
                    break;
                };
                bytes += key.len();
                chunk.push((key, record));
            }
            if !self.goes_on(LoadPhase::Inserting, *done, total) {
                return Ok(false);
            }
            while self.store.engine().is_pressed() {
                if !self.goes_on(LoadPhase::Inserting, *done, total) {
                    return Ok(false);
                }
                std::thread::sleep(PRESSURE_PAUSE);
            }
            match self.put(at, &chunk)? {
                Put::BuildGone => return Ok(false),
                Put::IndexGone => return Ok(true),
                Put::Done if chunk.is_empty() => return Ok(true),
                Put::Done => {}
            }
            *done += chunk.len() as u64;
            self.unsynced_bytes += bytes + chunk.len() * 32;
            if self.unsynced_bytes >= SYNC_BYTES {
                self.unsynced_bytes = 0;
                self.store.engine().sync_journal()?;
            }
            pass(Point::IndexPart);
        }
    }

    /// Puts keys of records that nobody has touched.
    fn put(&self, at: usize, chunk: &[Entry]) -> Result<Put, StorageError> {
        let (address, building) = (self.address, &self.build.building);
        let id = self.build.indexes[at].id;
        let mut put = Put::BuildGone;
        self.store.commit_with(|catalog| {
            let collection = catalog.by_id(address.collection);
            let build = collection.and_then(|known| known.build(&address.build));
            let Some(build) = build.filter(|build| build.is_same(self.build)) else {
                return Ok(None);
            };
            let Some(index) = build.indexes.iter().find(|index| index.id == id) else {
                put = Put::IndexGone;
                return Ok(None);
            };
            put = Put::Done;
            let mut batch = Batch::new();
            batch.note_arrays(address.collection, index, &self.arrays[at]);
            let view = self.store.engine().database.snapshot();
            let keyspaces = self.store.engine().keyspaces();
            let mut pending = Pending::new(&view, &keyspaces.indexes);
            let marks = building.marks.lock();
            let mut grown = 0;
            for (key, record) in chunk {
                if !marks.touched.contains(record) {
                    let absent = !self.is_repeated;
                    grown += pending.put(index, building, key, record, absent)?;
                }
            }
            drop(marks);
            pending.write(&mut batch);
            batch.index_tally(address.collection, index).key_bytes += grown;
            Ok(Some(batch))
        })?;
        Ok(put)
    }
}

impl Engine {
    /// Whether further writes of index keys would soon make the engine hold up its writers.
    fn is_pressed(&self) -> bool {
        let tree = &self.keyspaces().indexes.tree;
        tree.sealed_memtable_count() > SEALED_TABLES_MAX || tree.l0_run_count() > RUNS_MAX
    }

    fn sync_journal(&self) -> Result<(), StorageError> {
        Ok(self.database.persist(fjall::PersistMode::SyncData)?)
    }
}

impl Store {
    /// The build's indexes hold all keys: readers get them if the log has committed the build, or
    /// once it does. False: the build is gone.
    fn finish_load(
        &self,
        address: BuildAddress,
        building: &Arc<Building>,
    ) -> Result<bool, StorageError> {
        self.commit_with(|catalog| {
            let collection = catalog.by_id(address.collection);
            let build = collection.and_then(|known| known.build(&address.build));
            if !build.is_some_and(|build| Arc::ptr_eq(&build.building, building)) {
                return Ok(None);
            }
            let mut batch = Batch::new();
            batch.change_catalog(CatalogChange::FinishIndexBuild {
                collection: address.collection,
                build: address.build,
            });
            Ok(Some(batch))
        })
    }
}
