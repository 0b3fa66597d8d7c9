//! The engine and what is known of its content: handles, catalog, locks.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use banyan_crash::{Point, pass};
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, HashRatioPolicy,
    RestartIntervalPolicy,
};
use fjall::{AbstractTree, CompressionType, KeyspaceCreateOptions, Readable};
use lsm_tree::SeqNo;
use parking_lot::{Mutex, RwLock};

use crate::StorageError;
use crate::catalog::{Catalog, Collection, persist};
use crate::cleanup::dropped::Dropped;
use crate::directory::DataDirectory;
use crate::journal::{self, EarlySync};
use crate::keys;
use crate::keyspaces::{Keyspace, Keyspaces, LargeKeyspaces, Operation};

const KIB: u32 = 1024;
const MIB: u64 = 1024 * 1024;
/// The engine halts writers when so many memtables of a keyspace wait to be flushed, or when its first
/// level has so many runs.
const HALT_SEALED: usize = 4;
const HALT_RUNS: usize = 30;
/// After so many bytes it is looked whether it would: looking costs as much as a small write.
const LOOK_EVERY_BYTES: u64 = MIB;
const HALT_PAUSE: Duration = Duration::from_millis(1);
const HALT_MAX: Duration = Duration::from_secs(10);
/// So many keys are removed in one batch.
const REMOVAL_KEYS: usize = 500;
/// Of a server. Where it can be told to die in the middle of a removal, there has to be one soon.
const REMOVAL_DELAY: Duration = match cfg!(debug_assertions) {
    true => Duration::from_secs(1),
    false => Duration::from_secs(60),
};

/// The bounds of the store's memory. The defaults suit a server that shares its machine.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Blocks kept decoded.
    pub cache_bytes: u64,
    /// What the records keyspace gathers in memory before it writes a table; the indexes
    /// keyspace gathers as much, meta half.
    pub write_buffer_bytes: u64,
    /// Threads that flush and compact.
    pub workers: usize,
    /// How long what was dropped may wait for the tables that hold it to go as a whole, before it is
    /// removed key by key.
    pub removal_delay: Duration,
}

impl StoreOptions {
    /// For a process that may use so many bytes of memory. A quarter is for the cache, which leaves
    /// a half to queries and the rest to the kernel's cache of files.
    pub fn for_memory(bytes: u64) -> StoreOptions {
        let cache_bytes = (bytes.saturating_sub(1024 * MIB) / 4).max(256 * MIB);
        StoreOptions {
            cache_bytes,
            write_buffer_bytes: (cache_bytes / 16).clamp(16 * MIB, 64 * MIB),
            removal_delay: REMOVAL_DELAY,
            ..StoreOptions::default()
        }
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            cache_bytes: 64 * MIB,
            write_buffer_bytes: 16 * MIB,
            workers: 1,
            removal_delay: Duration::ZERO,
        }
    }
}

pub(crate) struct Engine {
    pub(crate) database: fjall::Database,
    keyspaces: RwLock<Arc<Keyspaces>>,
    /// Grows when everything is thrown away: work that was meant for what was there is void.
    pub(crate) epoch: AtomicU64,
    write_buffer_bytes: u64,
    pub(crate) catalog: RwLock<Arc<Catalog>>,
    /// Held by whoever commits a batch with counts or catalog changes.
    pub(crate) commit: Mutex<()>,
    pub(crate) next_id: AtomicU32,
    persisting: Mutex<()>,
    /// Held while a batch is put into the engine.
    committing: Mutex<()>,
    /// What was visible when the batch that is being put into the engine began: all of that is whole.
    /// The highest number while there is no such batch.
    whole_until: AtomicU64,
    /// Written since it was last looked whether the engine would halt writers.
    unlooked_bytes: AtomicU64,
    early_sync: EarlySync,
    // Dropped last: the lock outlives the engine.
    pub(crate) directory: DataDirectory,
}

impl Engine {
    pub(crate) fn open(
        directory: DataDirectory,
        options: &StoreOptions,
    ) -> Result<Engine, StorageError> {
        let state = directory.state();
        journal::mend(&state).map_err(fjall::Error::Io)?;
        let database = fjall::Database::builder(&state)
            .cache_size(options.cache_bytes)
            .manual_journal_persist(true)
            .journal_compression(CompressionType::None)
            .max_journaling_size(256 * MIB)
            .worker_threads(options.workers.max(1))
            .open()?;
        let buffer = options.write_buffer_bytes.max(MIB);
        let keyspaces = open_keyspaces(&database, buffer)?;
        let importing = keyspaces.meta.get(keys::IMPORTING)?.is_some();
        journal::confirm(&state, &keyspaces, importing)?;
        if !journal::has_mark(&state) {
            journal::persist(&state, &database, &keyspaces.meta)?;
        }
        Ok(Engine {
            database,
            keyspaces: RwLock::new(Arc::new(keyspaces)),
            epoch: AtomicU64::new(0),
            write_buffer_bytes: buffer,
            catalog: RwLock::default(),
            commit: Mutex::new(()),
            next_id: AtomicU32::new(1),
            persisting: Mutex::new(()),
            committing: Mutex::new(()),
            whole_until: AtomicU64::new(SeqNo::MAX),
            unlooked_bytes: AtomicU64::new(0),
            early_sync: EarlySync::start(state).map_err(fjall::Error::Io)?,
            directory,
        })
    }

    pub(crate) fn keyspaces(&self) -> Arc<Keyspaces> {
        self.keyspaces.read().clone()
    }

    /// A view of what was committed, in which each batch is there as a whole or not at all.
    ///
    /// Versions of the tables have sequence numbers as batches have. One that a flush or a compaction
    /// has made becomes visible with all that has a lower number, and so with a part of a batch that
    /// began before it and is still being put into the memtables.
    pub(crate) fn snapshot(&self) -> fjall::Snapshot {
        let snapshot = self.database.snapshot();
        fence(Ordering::SeqCst);
        if snapshot.seqno() <= self.whole_until.load(Ordering::Acquire) {
            return snapshot;
        }
        drop(snapshot);
        let _no_batch = self.committing.lock();
        self.database.snapshot()
    }

    /// Waits until everything committed so far is on the disk, and known to be.
    pub(crate) fn persist(&self) -> Result<(), StorageError> {
        let _one_at_a_time = self.persisting.lock();
        let meta = self.keyspaces().meta.clone();
        journal::persist(&self.directory.state(), &self.database, &meta)
    }

    /// Hands the writes to the engine.
    pub(crate) fn write(&self, operations: Vec<Operation>) -> Result<(), StorageError> {
        let keyspaces = self.keyspaces.read();
        self.write_to(&keyspaces, operations)
    }

    /// As [`Engine::write`], but nothing once everything was thrown away since `epoch`: false then.
    pub(crate) fn write_in(
        &self,
        epoch: u64,
        operations: Vec<Operation>,
    ) -> Result<bool, StorageError> {
        // Held meanwhile: the keyspaces are replaced after the epoch has changed.
        let keyspaces = self.keyspaces.read();
        if self.epoch.load(Ordering::Acquire) != epoch {
            return Ok(false);
        }
        self.write_to(&keyspaces, operations)?;
        Ok(true)
    }

    fn write_to(
        &self,
        keyspaces: &Keyspaces,
        operations: Vec<Operation>,
    ) -> Result<(), StorageError> {
        let database = self.database.clone();
        let mut batch = fjall::OwnedWriteBatch::with_capacity(database, operations.len());
        let mut bytes = 0;
        for operation in operations {
            let keyspace = keyspaces.of(operation.keyspace);
            bytes += operation.key.len() + operation.value.as_ref().map_or(0, |value| value.len());
            match operation.value {
                Some(value) => batch.insert(keyspace, operation.key, value),
                None => batch.remove(keyspace, operation.key),
            }
        }
        pass(Point::StateCommitting);
        let unlooked = self
            .unlooked_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        if unlooked + bytes as u64 >= LOOK_EVERY_BYTES {
            self.unlooked_bytes.store(0, Ordering::Relaxed);
            wait_for_flushes(keyspaces);
        }
        {
            let _one_batch = self.committing.lock();
            self.whole_until
                .store(self.database.visible_seqno(), Ordering::Relaxed);
            // Whoever does not see this store sees no later sequence number either.
            fence(Ordering::SeqCst);
            let committed = batch.commit();
            self.whole_until.store(SeqNo::MAX, Ordering::Release);
            committed?;
        }
        self.early_sync.note(bytes as u64);
        pass(Point::StateCommitted);
        Ok(())
    }

    /// After an import that never came to its end: what arrived is kept for the next attempt, if
    /// it can be told how far it goes, and hidden until then. Otherwise the store is emptied.
    pub(crate) fn abandon_import(&self) -> Result<bool, StorageError> {
        let Some(ledger) = self.keyspaces().meta.get(keys::IMPORTING)? else {
            return Ok(false);
        };
        if crate::transfer::can_go_on(&ledger) {
            self.clear_meta()?;
        } else {
            self.clear()?;
        }
        Ok(true)
    }

    /// Removes everything but the mark of an import.
    ///
    /// The large keyspaces are replaced by new ones: the engine's own way of emptying one leaves a
    /// note in its journal, and a restart that reads the note would empty the keyspace again, with
    /// the tables that an import has brought meanwhile. Whoever reads the old ones keeps them.
    pub(crate) fn clear(&self) -> Result<(), StorageError> {
        // A build that is loading puts nothing into what takes the place of this.
        let _nobody_commits = self.commit.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.clear_meta()?;
        let old = self.keyspaces();
        self.database.delete_keyspace(old.records.clone())?;
        self.database.delete_keyspace(old.indexes.clone())?;
        let fresh = open_keyspaces(&self.database, self.write_buffer_bytes)?;
        *self.keyspaces.write() = Arc::new(fresh);
        *self.catalog.write() = Arc::default();
        self.persist()
    }

    /// Removes all of meta but the mark of an import.
    fn clear_meta(&self) -> Result<(), StorageError> {
        const BATCH_KEYS: usize = 1000;
        let view = self.snapshot();
        let meta = &self.keyspaces().meta;
        let mut operations = Vec::new();
        for guard in view.iter(meta) {
            let key = guard.key()?;
            if &*key == keys::IMPORTING {
                continue;
            }
            operations.push(Operation {
                keyspace: Keyspace::Meta,
                key,
                value: None,
            });
            if operations.len() == BATCH_KEYS {
                self.write(std::mem::take(&mut operations))?;
            }
        }
        self.write(operations)?;
        self.persist()
    }

    /// Reads the catalog; returns what was dropped and is not removed yet.
    pub(crate) fn load(&self) -> Result<Vec<Dropped>, StorageError> {
        let view = self.snapshot();
        let meta = &self.keyspaces().meta;
        let (catalog, next_id) = self.read_catalog()?;
        let mut dropped = Vec::new();
        for guard in view.prefix(meta, [keys::DROPPED]) {
            let key = guard.key()?;
            let unknown = || StorageError::damaged("meta", format!("drop mark {key:?}"));
            dropped.push(Dropped::parse(&key).ok_or_else(unknown)?);
        }
        self.clear_builds(&catalog)?;
        self.next_id.store(next_id, Ordering::Relaxed);
        *self.catalog.write() = Arc::new(catalog);
        Ok(dropped)
    }

    /// Removes what builds have put that another process, or another member, was at: it may hold
    /// keys that no document has, and who has been touched is not known any more.
    fn clear_builds(&self, catalog: &Catalog) -> Result<(), StorageError> {
        for collection in catalog.collections() {
            for build in &collection.builds {
                let indexes = build.indexes.iter().map(|index| index.id);
                for id in indexes.chain([build.building.duplicates]) {
                    self.remove_all(Keyspace::Indexes, id)?;
                }
                for index in &build.indexes {
                    index.key_bytes.store(0, Ordering::Relaxed);
                }
            }
            if !collection.builds.is_empty() {
                self.write(vec![Operation {
                    keyspace: Keyspace::Meta,
                    key: keys::meta_key(keys::COUNTS, collection.id).into(),
                    value: Some(persist::encode_counts(collection).into()),
                }])?;
            }
        }
        Ok(())
    }

    /// Removes everything under an id, until everything is thrown away anyhow.
    pub(crate) fn remove_all(&self, keyspace: Keyspace, id: u32) -> Result<(), StorageError> {
        let epoch = self.epoch.load(Ordering::Acquire);
        drop_tables(self.keyspaces().of(keyspace), (id, id))?;
        self.remove_keys(keyspace, id, epoch)
    }

    /// Removes what lies under an id key by key, until everything is thrown away anyhow.
    pub(crate) fn remove_keys(
        &self,
        keyspace: Keyspace,
        id: u32,
        epoch: u64,
    ) -> Result<(), StorageError> {
        let end = keys::end_of_id(id);
        let mut from = Bound::Included(id.to_be_bytes().to_vec());
        loop {
            let view = self.snapshot();
            let keyspaces = self.keyspaces();
            let mut operations = Vec::with_capacity(REMOVAL_KEYS);
            let rest =
                view.range::<Vec<u8>, _>(keyspaces.of(keyspace), (from.clone(), end.clone()));
            for guard in rest.take(REMOVAL_KEYS) {
                operations.push(Operation {
                    keyspace,
                    key: guard.key()?,
                    value: None,
                });
            }
            let Some(last) = operations.last() else {
                return Ok(());
            };
            from = Bound::Excluded(last.key.to_vec());
            if !self.write_in(epoch, operations)? {
                return Ok(());
            }
            pass(Point::CleanupPart);
        }
    }

    /// Waits until everything committed so far is in the journal and on the disk.
    pub(crate) fn sync_journal(&self) -> Result<(), StorageError> {
        Ok(self.database.persist(fjall::PersistMode::SyncData)?)
    }

    /// The catalog as it lies in meta, and the next unused id.
    pub(crate) fn read_catalog(&self) -> Result<(Catalog, u32), StorageError> {
        let view = self.snapshot();
        let meta = &self.keyspaces().meta;
        let mut catalog = Catalog::default();
        for guard in view.prefix(meta, [keys::COLLECTION]) {
            let (key, value) = guard.into_inner()?;
            let id = keys_id(&key)?;
            let collection: Collection = persist::decode(id, &value)?;
            let counts = view.get(meta, keys::meta_key(keys::COUNTS, id))?;
            if let Some(counts) = counts {
                persist::decode_counts(&collection, &counts)?;
            }
            catalog.insert(Arc::new(collection));
        }
        let next_id = match view.get(meta, keys::NEXT_ID)? {
            Some(bytes) => keys_id(&[&[0], &bytes[..]].concat())?,
            None => 1,
        };
        Ok((catalog, next_id))
    }

    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.read().clone()
    }
}

/// Waits while the engine would halt writers. It would do so at the end of a commit, while readers wait
/// for the batch to be whole. An engine that has failed never goes on, and says so when it commits.
fn wait_for_flushes(keyspaces: &Keyspaces) {
    let halts = |keyspace: &fjall::Keyspace| {
        let tree = &keyspace.tree;
        tree.sealed_memtable_count() >= HALT_SEALED || tree.l0_run_count() >= HALT_RUNS
    };
    let began = Instant::now();
    while [&keyspaces.records, &keyspaces.indexes, &keyspaces.meta]
        .into_iter()
        .any(halts)
        && began.elapsed() < HALT_MAX
    {
        thread::sleep(HALT_PAUSE);
    }
}

/// Takes out the tables that hold nothing but what lies under these ids, the last one included.
pub(crate) fn drop_tables(
    keyspace: &fjall::Keyspace,
    (first, last): (u32, u32),
) -> Result<(), StorageError> {
    let bounds = (
        Bound::Included(first.to_be_bytes().to_vec()),
        keys::end_of_id(last),
    );
    let dropped = keyspace.tree.drop_range::<Vec<u8>, _>(bounds);
    dropped.map_err(|error| fjall::Error::from(error).into())
}

fn keys_id(key: &[u8]) -> Result<u32, StorageError> {
    let id = key
        .get(1..)
        .and_then(|id| id.try_into().ok())
        .map(u32::from_be_bytes);
    id.ok_or_else(|| StorageError::damaged("meta", format!("key {key:?} without an id")))
}

fn open_keyspaces(database: &fjall::Database, buffer: u64) -> Result<Keyspaces, StorageError> {
    Ok(Keyspaces {
        records: database.keyspace("records", || {
            // Keys are short beside their documents: each stands for itself, which spares a scan
            // the piecing together and a bound in a block the walk up to it.
            // A point read finds its record by the hash index of the block, unless others share its
            // bucket: then it searches. With 0.75 buckets for a record most share theirs, with four
            // every fifth.
            keyspace_options(buffer, 16 * KIB, true)
                .data_block_restart_interval_policy(RestartIntervalPolicy::all(1))
                .data_block_hash_ratio_policy(HashRatioPolicy::all(4.0))
        })?,
        indexes: database.keyspace("indexes", || keyspace_options(buffer, 8 * KIB, false))?,
        meta: database.keyspace("meta", || keyspace_options(buffer / 2, 4 * KIB, false))?,
        states: LargeKeyspaces::default(),
    })
}

/// `hits`: point reads nearly always find their key, so the last level needs no filter. That is
/// so for records (their ids come from an index), not for index keys (inserts look for duplicates).
///
/// A scan finds and opens each block anew: larger blocks cost it less, and a point read more.
fn keyspace_options(
    write_buffer_bytes: u64,
    block_bytes: u32,
    hits: bool,
) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(write_buffer_bytes)
        .data_block_size_policy(BlockSizePolicy::all(block_bytes))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(0.75))
        .expect_point_read_hits(hits)
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
            BloomConstructionPolicy::BitsPerKey(10.0),
        )))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::Store;
    use crate::snapshot::Snapshot;

    #[test]
    fn a_snapshot_sees_all_of_a_batch_or_nothing_while_tables_are_written() {
        const KEYS: u32 = 4_000;
        const BATCHES: u32 = 60;
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), &StoreOptions::default()).unwrap();
        let engine = store.engine();
        let key = |key: u32| [0, key].map(u32::to_be_bytes).concat();
        let write = |round: u32| {
            let put = |keyspace, key: Vec<u8>| Operation {
                keyspace,
                key: key.into(),
                value: Some(round.to_be_bytes().into()),
            };
            let mut operations = vec![put(Keyspace::Meta, b"round".to_vec())];
            operations.extend((0..KEYS).map(|number| put(Keyspace::Records, key(number))));
            engine.write(operations).unwrap();
        };
        write(0);
        let done = AtomicBool::new(false);
        let working = || !done.load(Ordering::Relaxed);
        let seen = thread::scope(|scope| {
            scope.spawn(|| {
                while working() {
                    engine.keyspaces().meta.rotate_memtable_and_wait().unwrap();
                }
            });
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while working() {
                    let view = Snapshot::of(engine).view;
                    let keyspaces = engine.keyspaces();
                    let value = |keyspace, key: &[u8]| {
                        let found = view.get(keyspaces.of(keyspace), key).unwrap();
                        found.map(|value| u32::from_be_bytes(value[..].try_into().unwrap()))
                    };
                    let first = value(Keyspace::Records, &key(0));
                    let last = value(Keyspace::Records, &key(KEYS - 1));
                    let meta = value(Keyspace::Meta, b"round");
                    assert_eq!((first, meta), (last, last));
                    seen += 1;
                }
                seen
            });
            for round in 1..=BATCHES {
                write(round);
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(seen > 0);
    }
}
