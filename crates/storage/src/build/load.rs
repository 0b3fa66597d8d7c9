//! The load: the keys of what a collection held when the build began, sorted, and put into the
//! indexes so that nobody is held up for long.

use std::collections::BTreeSet;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use banyan_crash::{Point, pass};
use banyan_document::key::{Key, Keys};
use bson::RawDocument;

use super::BuildAddress;
use super::building::Building;
use super::index_build::IndexBuild;
use super::runs::{Merge, Run, damaged, take_apart};
use super::writes::Pending;
use crate::batch::Batch;
use crate::index::Index;
use crate::record_id::RecordId;
use crate::store::Store;
use crate::{CatalogChange, StorageError};

/// What is put into a unique index with the commit lock held once.
const BATCH_KEYS: usize = 256;
const BATCH_BYTES: usize = 64 * 1024;
/// Fewer records or keys are not worth a thread.
const WORKER_ENTRIES: u64 = 1024;

/// What a load asks of its caller.
pub trait LoadHost: Sync {
    /// The keys of a document; `None` if they cannot be made.
    fn keys(&self, index: &Index, document: &RawDocument) -> Option<Keys>;

    /// Called every few milliseconds, by each thread, with nothing held: others may have their turn
    /// here. False ends the load.
    fn goes_on(&self, progress: LoadProgress) -> bool;

    /// On how many threads the load may run at most, the caller's among them.
    fn workers(&self) -> usize;

    /// How many keys each thread writes before they are taken up: some tenths of a second's work, as
    /// what is touched meanwhile is noted.
    fn part_entries(&self) -> u64 {
        256 * 1024
    }
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
pub(super) enum Put {
    Done,
    /// It was dropped after the log had committed its build.
    IndexGone,
    BuildGone,
}

/// How far the keys of all indexes of a build are in.
pub(super) struct Inserted {
    pub(super) done: AtomicU64,
    pub(super) total: u64,
}

/// A build's load that goes on.
pub(super) struct Load<'a> {
    pub(super) store: &'a Store,
    pub(super) address: BuildAddress,
    pub(super) build: &'a IndexBuild,
    pub(super) host: &'a dyn LoadHost,
    /// Of each index: where documents had arrays.
    arrays: Vec<BTreeSet<Box<str>>>,
    /// The host has said so to one of the threads.
    is_stopped: AtomicBool,
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
            arrays: Vec::new(),
            is_stopped: AtomicBool::new(false),
        };
        // Whoever opens the store after a crash has to find the build, and remove what it has put. A
        // checkpoint is made beside the scan.
        let engine = self.engine();
        let begun = engine.database.visible_seqno();
        engine.requests.checkpoint();
        let Some(scanned) = load.scan()? else {
            return Ok(LoadEnd::Stopped);
        };
        engine.persist_up_to(begun)?;
        load.arrays = scanned.arrays;
        let entries = scanned.runs.iter().flatten().map(Run::entries);
        let inserted = Inserted {
            done: AtomicU64::new(0),
            total: entries.sum(),
        };
        for (at, runs) in scanned.runs.into_iter().enumerate() {
            let goes_on = match build.indexes[at].unique {
                true => load.put_all(at, &runs, &inserted)?,
                false => load.write_tables(at, &runs, &inserted)?,
            };
            if !goes_on {
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
    pub(super) fn goes_on(&self, phase: LoadPhase, done: u64, total: u64) -> bool {
        if self.is_stopped.load(Ordering::Relaxed) {
            return false;
        }
        let goes_on = self.host.goes_on(LoadProgress { phase, done, total });
        if !goes_on {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        goes_on
    }

    /// How many threads so many records or keys are worth.
    pub(super) fn workers(&self, entries: u64) -> usize {
        let worth = usize::try_from(entries / WORKER_ENTRIES).unwrap_or(usize::MAX);
        worth.clamp(1, self.host.workers().max(1))
    }

    /// Runs `work` on so many threads, of which the caller's is one. If one of them fails, the others
    /// stop at their next look.
    pub(super) fn on_all<T: Send>(
        &self,
        workers: usize,
        work: &(dyn Fn(usize) -> Result<T, StorageError> + Sync),
    ) -> Result<Vec<T>, StorageError> {
        let run = |number: usize| {
            let done = work(number);
            if done.is_err() {
                self.is_stopped.store(true, Ordering::Relaxed);
            }
            done
        };
        let run = &run;
        thread::scope(|scope| {
            let spawned: Vec<_> = (1..workers)
                .filter_map(|number| {
                    let thread = thread::Builder::new().name("index-build".to_owned());
                    // Whoever cannot be spawned leaves its work to the others.
                    thread.spawn_scoped(scope, move || run(number)).ok()
                })
                .collect();
            let mut done = vec![run(0)];
            for thread in spawned {
                done.push(
                    thread
                        .join()
                        .unwrap_or_else(|panic| panic::resume_unwind(panic)),
                );
            }
            done.into_iter().collect()
        })
    }

    /// Puts what was sorted into a unique index. False: the load is to end.
    fn put_all(&self, at: usize, runs: &[Run], inserted: &Inserted) -> Result<bool, StorageError> {
        let record_ids = self.build.indexes[at].record_ids;
        let mut sorted = Merge::new(runs, None, None).map_err(fjall::Error::Io)?;
        loop {
            let mut chunk: Vec<(Key, RecordId)> = Vec::with_capacity(BATCH_KEYS);
            let mut bytes = 0;
            while chunk.len() < BATCH_KEYS && bytes < BATCH_BYTES {
                let Some(entry) = sorted.next().map_err(fjall::Error::Io)? else {
                    break;
                };
                bytes += entry.len();
                let taken_apart = take_apart(entry, record_ids).ok_or_else(damaged);
                chunk.push(taken_apart.map_err(fjall::Error::Io)?);
            }
            if !self.wait_for_room(inserted)? {
                return Ok(false);
            }
            match self.put(at, &chunk)? {
                Put::BuildGone => return Ok(false),
                Put::IndexGone => return Ok(true),
                Put::Done if chunk.is_empty() => return Ok(true),
                Put::Done => {}
            }
            let count = chunk.len() as u64;
            inserted.done.fetch_add(count, Ordering::Relaxed);
            pass(Point::IndexPart);
        }
    }

    /// Puts keys of records that nobody has touched.
    fn put(&self, at: usize, chunk: &[(Key, RecordId)]) -> Result<Put, StorageError> {
        let building = &self.build.building;
        self.commit_if_there(at, |index, mut batch| {
            let view = self.store.engine().snapshot();
            let keyspaces = self.store.engine().keyspaces();
            let mut pending = Pending::new(&view, &keyspaces.indexes);
            let marks = building.marks.lock();
            let mut grown = 0;
            for (key, record) in chunk {
                if !marks.is_touched(record) {
                    grown += pending.put(index, building, key, record)?;
                }
            }
            drop(marks);
            pending.write(&mut batch);
            batch.index_tally(self.address.collection, index).key_bytes += grown;
            Ok(batch)
        })
    }

    /// With the commit lock held, if the build and the index are still there: commits what `add` has
    /// added to a batch that tells of arrays.
    pub(super) fn commit_if_there(
        &self,
        at: usize,
        add: impl FnOnce(&Arc<Index>, Batch) -> Result<Batch, StorageError>,
    ) -> Result<Put, StorageError> {
        let id = self.build.indexes[at].id;
        let mut put = Put::BuildGone;
        self.store.commit_with(|catalog| {
            let collection = catalog.by_id(self.address.collection);
            let build = collection.and_then(|known| known.build(&self.address.build));
            let Some(build) = build.filter(|build| build.is_same(self.build)) else {
                return Ok(None);
            };
            let Some(index) = build.indexes.iter().find(|index| index.id == id) else {
                put = Put::IndexGone;
                return Ok(None);
            };
            put = Put::Done;
            let mut batch = Batch::new();
            batch.note_arrays(self.address.collection, index, &self.arrays[at]);
            add(index, batch).map(Some)
        })?;
        Ok(put)
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
