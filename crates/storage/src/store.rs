//! The open data directory.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use banyan_crash::{Point, pass};
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, HashRatioPolicy,
    RestartIntervalPolicy,
};
use fjall::{CompressionType, KeyspaceCreateOptions, Readable};
use parking_lot::{Mutex, RwLock};

use crate::batch::{Batch, Keyspace, Operation};
use crate::build;
use crate::catalog::{Catalog, Collection, persist};
use crate::cleanup::Cleaner;
use crate::directory::DataDirectory;
use crate::journal;
use crate::keys;
use crate::snapshot::Snapshot;
use crate::{CatalogChange, OpenError, StorageError};

const KIB: u32 = 1024;
const MIB: u64 = 1024 * 1024;

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
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            cache_bytes: 64 * MIB,
            write_buffer_bytes: 16 * MIB,
            workers: 1,
        }
    }
}

/// What the engine uses, for `dbStats` and `serverStatus`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    pub disk_bytes: u64,
    pub records_disk_bytes: u64,
    pub indexes_disk_bytes: u64,
    pub cache_bytes: u64,
    pub cache_bytes_max: u64,
    pub write_buffer_bytes: u64,
    pub active_compactions: u64,
}

/// Records, indexes and catalog of one data directory. Clones share it; the directory is
/// unlocked when the last clone and the last snapshot are gone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    // Dropped first: it joins the cleaning thread, which uses the engine.
    cleaner: Cleaner,
    engine: Arc<Engine>,
    import_was_interrupted: bool,
}

pub(crate) struct Engine {
    pub(crate) database: fjall::Database,
    keyspaces: RwLock<Arc<Keyspaces>>,
    /// Grows when everything is thrown away: work that was meant for what was there is void.
    pub(crate) epoch: AtomicU64,
    write_buffer_bytes: u64,
    catalog: RwLock<Arc<Catalog>>,
    /// Held by whoever commits a batch with counts or catalog changes.
    commit: Mutex<()>,
    next_id: AtomicU32,
    persisting: Mutex<()>,
    // Dropped last: the lock outlives the engine.
    directory: DataDirectory,
}

/// The engine's handles. An import replaces those of the two large ones.
pub(crate) struct Keyspaces {
    pub(crate) records: fjall::Keyspace,
    pub(crate) indexes: fjall::Keyspace,
    pub(crate) meta: fjall::Keyspace,
}

impl Keyspaces {
    pub(crate) fn of(&self, keyspace: Keyspace) -> &fjall::Keyspace {
        match keyspace {
            Keyspace::Records => &self.records,
            Keyspace::Indexes => &self.indexes,
            Keyspace::Meta => &self.meta,
        }
    }
}

impl Store {
    /// Opens the data directory at `path`, which must exist, and makes it one if it is empty.
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Store, OpenError> {
        let directory = DataDirectory::open(path)?;
        let damaged = |reason: String| OpenError::Damaged {
            path: path.to_owned(),
            reason,
        };
        // The engine asserts what it expects of its own files.
        let opened = panic::catch_unwind(AssertUnwindSafe(|| open_engine(directory, options)));
        let engine = match opened {
            Ok(Ok(engine)) => Arc::new(engine),
            Ok(Err(StorageError::Engine(fjall::Error::Io(source)))) if is_resource(&source) => {
                return Err(OpenError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
            Ok(Err(error)) => return Err(damaged(error.to_string())),
            Err(panic) => return Err(damaged(panic_text(panic.as_ref()))),
        };
        let import_was_interrupted = engine
            .abandon_import()
            .map_err(|error| damaged(error.to_string()))?;
        let dropped = engine.load().map_err(|error| damaged(error.to_string()))?;
        let cleaner = Cleaner::start(engine.clone(), dropped).map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Store {
            shared: Arc::new(Shared {
                cleaner,
                engine,
                import_was_interrupted,
            }),
        })
    }

    pub fn path(&self) -> &Path {
        self.shared.engine.directory.path()
    }

    /// Whether the process ended in the middle of an import the last time. The store shows nothing
    /// then, and the import has to be resumed or started again.
    pub fn import_was_interrupted(&self) -> bool {
        self.shared.import_was_interrupted
    }

    pub fn snapshot(&self) -> Snapshot {
        self.shared.engine.snapshot()
    }

    /// The catalog as the last committed batch left it.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.shared.engine.catalog()
    }

    /// An id for a new collection or index, never given out before.
    pub fn allocate_id(&self) -> u32 {
        self.shared.engine.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a batch visible, all of it at once. Not yet durable: see [`Store::persist`].
    pub fn commit(&self, batch: Batch) -> Result<(), StorageError> {
        self.shared.engine.commit(batch, &self.shared.cleaner)
    }

    /// Commits what `make` makes of the catalog as it is, which nobody changes meanwhile. False if it
    /// makes nothing.
    pub(crate) fn commit_with(
        &self,
        make: impl FnOnce(&Catalog) -> Result<Option<Batch>, StorageError>,
    ) -> Result<bool, StorageError> {
        let engine = &self.shared.engine;
        let _one_at_a_time = engine.commit.lock();
        let Some(batch) = make(&engine.catalog())? else {
            return Ok(false);
        };
        engine.commit_locked(batch, &self.shared.cleaner)?;
        Ok(true)
    }

    /// Waits until everything committed so far survives a power cut.
    pub fn persist(&self) -> Result<(), StorageError> {
        pass(Point::StatePersisting);
        self.shared.engine.persist()?;
        pass(Point::StatePersisted);
        Ok(())
    }

    pub fn stats(&self) -> Stats {
        let engine = &self.shared.engine;
        let database = &engine.database;
        let keyspaces = engine.keyspaces();
        Stats {
            disk_bytes: database.disk_space().unwrap_or_default(),
            records_disk_bytes: keyspaces.records.disk_space(),
            indexes_disk_bytes: keyspaces.indexes.disk_space(),
            cache_bytes: database.cache_size(),
            cache_bytes_max: database.cache_capacity(),
            write_buffer_bytes: database.write_buffer_size(),
            active_compactions: database.active_compactions() as u64,
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    pub(crate) fn clean(&self, dropped: Vec<crate::cleanup::Dropped>) {
        self.shared.cleaner.remove(dropped);
    }

    /// Whether data of dropped collections or indexes is still to be removed.
    pub fn is_cleaning(&self) -> bool {
        self.shared.cleaner.is_busy()
    }
}

impl Engine {
    pub(crate) fn keyspaces(&self) -> Arc<Keyspaces> {
        self.keyspaces.read().clone()
    }

    pub(crate) fn snapshot(self: &Arc<Engine>) -> Snapshot {
        Snapshot {
            view: self.database.snapshot(),
            keyspaces: self.keyspaces(),
            overlay: None,
            engine: self.clone(),
        }
    }

    /// Waits until everything committed so far is on the disk, and known to be.
    fn persist(&self) -> Result<(), StorageError> {
        let _one_at_a_time = self.persisting.lock();
        let meta = self.keyspaces().meta.clone();
        journal::persist(&self.directory.state(), &self.database, &meta)
    }

    fn commit(&self, batch: Batch, cleaner: &Cleaner) -> Result<(), StorageError> {
        if batch.changes.is_empty()
            && batch.tallies.is_empty()
            && batch.index_tallies.is_empty()
            && batch.arrays.is_empty()
            && batch.build_writes.is_empty()
        {
            return self.write(batch.operations);
        }
        let _one_at_a_time = self.commit.lock();
        self.commit_locked(batch, cleaner)
    }

    fn commit_locked(&self, mut batch: Batch, cleaner: &Cleaner) -> Result<(), StorageError> {
        if !batch.build_writes.is_empty() {
            let view = self.database.snapshot();
            build::writes::resolve(&mut batch, &view, &self.keyspaces().indexes)?;
        }
        let mut dropped = Vec::new();
        let changed = if batch.changes.is_empty() {
            None
        } else {
            let mut catalog = Catalog::clone(&self.catalog.read());
            self.change_catalog(&mut catalog, &mut batch, &mut dropped)?;
            Some(Arc::new(catalog))
        };
        let catalog = match &changed {
            Some(catalog) => catalog.clone(),
            None => self.catalog.read().clone(),
        };
        write_arrays(&catalog, &mut batch);
        write_counts(&catalog, &mut batch);
        if changed.is_some() {
            pass(Point::CatalogChanging);
        }
        self.write(std::mem::take(&mut batch.operations))?;
        if let Some(changed) = changed {
            pass(Point::CatalogChanged);
            *self.catalog.write() = changed;
        }
        if !dropped.is_empty() {
            cleaner.remove(dropped);
        }
        Ok(())
    }

    /// Applies the batch's changes to `catalog` and adds what they write.
    fn change_catalog(
        &self,
        catalog: &mut Catalog,
        batch: &mut Batch,
        dropped: &mut Vec<crate::cleanup::Dropped>,
    ) -> Result<(), StorageError> {
        use crate::cleanup::Dropped;
        let mut highest_id = 0;
        for change in std::mem::take(&mut batch.changes) {
            highest_id = highest_id.max(change.highest_id());
            let id = change.collection();
            let before = catalog.by_id(id).cloned();
            let after = change.apply(before.as_deref())?;
            let gone = match (&change, &before) {
                (CatalogChange::DropCollection { .. }, Some(before)) => Dropped::collection(before),
                (CatalogChange::DropIndex { index, .. }, Some(before)) => {
                    Dropped::index_of(before, *index)
                }
                (CatalogChange::AbortIndexBuild { build, .. }, Some(before)) => {
                    before.build(build).map(Dropped::build).unwrap_or_default()
                }
                _ => Vec::new(),
            };
            for dropped in &gone {
                batch.write_meta(&dropped.meta_key(), Some(&[]));
            }
            dropped.extend(gone);
            let key = keys::meta_key(keys::COLLECTION, id);
            match after {
                Some(after) => {
                    batch.write_meta(&key, Some(persist::encode(&after).as_bytes()));
                    catalog.insert(Arc::new(after));
                }
                None => {
                    batch.write_meta(&key, None);
                    batch.write_meta(&keys::meta_key(keys::COUNTS, id), None);
                    catalog.remove(id);
                }
            }
        }
        let next = self
            .next_id
            .fetch_max(highest_id + 1, Ordering::Relaxed)
            .max(highest_id + 1);
        batch.write_meta(keys::NEXT_ID, Some(&next.to_be_bytes()));
        Ok(())
    }

    /// Hands the writes to the engine.
    pub(crate) fn write(&self, operations: Vec<Operation>) -> Result<(), StorageError> {
        let database = self.database.clone();
        let keyspaces = self.keyspaces.read();
        let mut batch = fjall::OwnedWriteBatch::with_capacity(database, operations.len());
        for operation in operations {
            let keyspace = keyspaces.of(operation.keyspace);
            match operation.value {
                Some(value) => batch.insert(keyspace, operation.key, value),
                None => batch.remove(keyspace, operation.key),
            }
        }
        pass(Point::StateCommitting);
        batch.commit()?;
        pass(Point::StateCommitted);
        Ok(())
    }

    /// After an import that never came to its end: what arrived is kept for the next attempt, if
    /// it can be told how far it goes, and hidden until then. Otherwise the store is emptied.
    fn abandon_import(&self) -> Result<bool, StorageError> {
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
        let view = self.database.snapshot();
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
    pub(crate) fn load(&self) -> Result<Vec<crate::cleanup::Dropped>, StorageError> {
        let view = self.database.snapshot();
        let meta = &self.keyspaces().meta;
        let (catalog, next_id) = self.read_catalog()?;
        let mut dropped = Vec::new();
        for guard in view.prefix(meta, [keys::DROPPED]) {
            let key = guard.key()?;
            let unknown = || StorageError::damaged("meta", format!("drop mark {key:?}"));
            dropped.push(crate::cleanup::Dropped::parse(&key).ok_or_else(unknown)?);
        }
        self.next_id.store(next_id, Ordering::Relaxed);
        *self.catalog.write() = Arc::new(catalog);
        Ok(dropped)
    }

    /// The catalog as it lies in meta, and the next unused id.
    pub(crate) fn read_catalog(&self) -> Result<(Catalog, u32), StorageError> {
        let view = self.database.snapshot();
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

fn keys_id(key: &[u8]) -> Result<u32, StorageError> {
    let id = key
        .get(1..)
        .and_then(|id| id.try_into().ok())
        .map(u32::from_be_bytes);
    id.ok_or_else(|| StorageError::damaged("meta", format!("key {key:?} without an id")))
}

fn write_arrays(catalog: &Catalog, batch: &mut Batch) {
    for noted in std::mem::take(&mut batch.arrays) {
        noted.index.add_arrays(&noted.paths);
        let Some(collection) = catalog.by_id(noted.collection) else {
            continue;
        };
        if let Some(current) = collection.written_by_id(noted.index.id) {
            current.add_arrays(&noted.paths);
        }
        let entry = persist::encode(collection);
        batch.write_meta(
            &keys::meta_key(keys::COLLECTION, noted.collection),
            Some(entry.as_bytes()),
        );
    }
}

/// Adds the differences up and writes the sums. Only called with the commit lock held.
fn write_counts(catalog: &Catalog, batch: &mut Batch) {
    let mut touched = Vec::with_capacity(1);
    for tally in std::mem::take(&mut batch.tallies) {
        let Some(collection) = catalog.by_id(tally.collection.id) else {
            continue;
        };
        let counters = &collection.counters;
        counters
            .documents
            .fetch_add(tally.documents, Ordering::Relaxed);
        counters.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
        if tally.last_record != 0 {
            counters
                .next_record
                .fetch_max(tally.last_record + 1, Ordering::Relaxed);
        }
        touched.push(collection.id);
    }
    for tally in std::mem::take(&mut batch.index_tallies) {
        let collection = catalog.by_id(tally.collection);
        let Some(index) = collection.and_then(|known| known.written_by_id(tally.index.id)) else {
            continue;
        };
        index
            .key_bytes
            .fetch_add(tally.key_bytes, Ordering::Relaxed);
        if tally.key_bytes != 0 && !touched.contains(&tally.collection) {
            touched.push(tally.collection);
        }
    }
    for id in touched {
        let Some(collection) = catalog.by_id(id) else {
            continue;
        };
        let counts = persist::encode_counts(collection);
        batch.write_meta(&keys::meta_key(keys::COUNTS, id), Some(&counts));
    }
}

fn open_engine(directory: DataDirectory, options: &StoreOptions) -> Result<Engine, StorageError> {
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
        directory,
    })
}

fn open_keyspaces(database: &fjall::Database, buffer: u64) -> Result<Keyspaces, StorageError> {
    Ok(Keyspaces {
        records: database.keyspace("records", || {
            // Keys are short beside their documents: each stands for itself, which spares a scan
            // the piecing together and a bound in a block the walk up to it.
            keyspace_options(buffer, 16 * KIB, true)
                .data_block_restart_interval_policy(RestartIntervalPolicy::all(1))
        })?,
        indexes: database.keyspace("indexes", || keyspace_options(buffer, 8 * KIB, false))?,
        meta: database.keyspace("meta", || keyspace_options(buffer / 2, 4 * KIB, false))?,
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

/// Errors that say nothing about the data: no space, no descriptors, no permission.
fn is_resource(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::StorageFull
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::OutOfMemory
            | ErrorKind::QuotaExceeded
    ) || error.raw_os_error() == Some(24) // EMFILE
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the storage engine panicked".to_owned())
}
