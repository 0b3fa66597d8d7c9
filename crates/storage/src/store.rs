//! The open data directory.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use banyan_crash::{Point, pass};

use crate::batch::Batch;
use crate::batch::WriterId;
use crate::catalog::Catalog;
use crate::checkpoint::Checkpointer;
use crate::cleanup::Cleaner;
use crate::cleanup::dropped::Dropped;
use crate::directory::DataDirectory;
use crate::engine::{Engine, LogBarrier, StoreOptions};
use crate::snapshot::Snapshot;
use crate::{OpenError, StorageError};

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
    // Dropped before the engine as well.
    _checkpointer: Option<Checkpointer>,
    engine: Arc<Engine>,
    import_was_interrupted: bool,
}

impl Store {
    /// Opens the data directory at `path`, which must exist, and makes it one if it is empty.
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Store, OpenError> {
        let directory = DataDirectory::open(path)?;
        let damaged = |reason: String| OpenError::Damaged {
            path: path.to_owned(),
            reason,
        };
        let unreadable = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(keyspace) = directory.headless_keyspace().map_err(unreadable)? {
            let keyspace = keyspace.display();
            return Err(damaged(format!("{keyspace} has no file `current`")));
        }
        if let Some(version) = directory.altered_version().map_err(unreadable)? {
            let version = version.display();
            return Err(damaged(format!("{version} is not as it was written")));
        }
        // The engine asserts what it expects of its own files.
        let opened = panic::catch_unwind(AssertUnwindSafe(|| Engine::open(directory, options)));
        let (engine, requests) = match opened {
            Ok(Ok((engine, requests))) => (Arc::new(engine), requests),
            Ok(Err(StorageError::Engine(fjall::Error::Io(source)))) if is_resource(&source) => {
                return Err(OpenError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
            Ok(Err(error)) => return Err(damaged(error.to_string())),
            Err(panic) => return Err(damaged(panic_text(panic.as_ref()))),
        };
        engine
            .upgrade()
            .map_err(|error| damaged(error.to_string()))?;
        let import_was_interrupted = engine
            .abandon_import()
            .map_err(|error| damaged(error.to_string()))?;
        let dropped = engine.load().map_err(|error| damaged(error.to_string()))?;
        let checkpointer = match options.automatic_checkpoints {
            true => Some(Checkpointer::start(&engine, requests).map_err(unreadable)?),
            false => None,
        };
        let cleaner = Cleaner::start(engine.clone(), dropped, options.removal_delay);
        let cleaner = cleaner.map_err(unreadable)?;
        Ok(Store {
            shared: Arc::new(Shared {
                cleaner,
                _checkpointer: checkpointer,
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
        Snapshot::of(&self.shared.engine)
    }

    /// Whether nothing has been committed since the snapshot was taken, and the store not been emptied.
    pub fn is_current(&self, snapshot: &Snapshot) -> bool {
        let engine = &self.shared.engine;
        Arc::ptr_eq(&snapshot.keyspaces, &engine.keyspaces())
            && snapshot.view.seqno() == engine.database.visible_seqno()
    }

    /// The same but for what this writer has committed.
    pub fn is_current_to(&self, snapshot: &Snapshot, writer: WriterId) -> bool {
        let engine = &self.shared.engine;
        Arc::ptr_eq(&snapshot.keyspaces, &engine.keyspaces())
            && engine.is_current_to(&snapshot.view, writer)
    }

    /// One that has written nothing yet.
    pub fn new_writer(&self) -> WriterId {
        WriterId(
            self.shared
                .engine
                .next_writer
                .fetch_add(1, Ordering::Relaxed),
        )
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

    /// From now on nothing comes into tables before the log is on the disk up to there.
    pub fn keep_behind_log(&self, barrier: LogBarrier) {
        self.shared.engine.log.lock().barrier = Some(barrier);
    }

    /// How far the log has come with what is there, where no batch has said it: the caller has read it.
    pub fn set_position(&self, position: u64) {
        *self.shared.engine.committing.lock() = position;
    }

    /// How far the log had come at the last checkpoint: the store does not need it up to there.
    pub fn durable_position(&self) -> u64 {
        self.shared.engine.durable_position.load(Ordering::Acquire)
    }

    /// Waits until everything committed so far survives a power cut.
    pub fn persist(&self) -> Result<(), StorageError> {
        pass(Point::StatePersisting);
        self.shared.engine.persist()?;
        pass(Point::StatePersisted);
        Ok(())
    }

    /// Has what was committed so far made durable soon, without waiting for it.
    pub fn checkpoint_soon(&self) {
        self.shared.engine.requests.checkpoint();
    }

    /// Does a part of a checkpoint: what records and indexes hold in memory is in tables when this
    /// returns, and what meta holds is not. For tests, which end in the middle of one.
    #[doc(hidden)]
    pub fn write_tables_ahead(&self) -> Result<(), StorageError> {
        self.shared.engine.write_tables_ahead()
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
            write_buffer_bytes: engine.memory_bytes(&keyspaces),
            active_compactions: database.active_compactions() as u64,
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    pub(crate) fn clean(&self, dropped: Vec<Dropped>) {
        self.shared.cleaner.remove(dropped);
    }

    /// Whether data of dropped collections or indexes is still to be removed.
    pub fn is_cleaning(&self) -> bool {
        self.shared.cleaner.is_busy()
    }
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
