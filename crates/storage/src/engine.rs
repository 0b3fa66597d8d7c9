//! The engine and what is known of its content: handles, catalog, locks.

use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use banyan_crash::{Point, pass};
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, HashRatioPolicy,
    RestartIntervalPolicy,
};
use fjall::{AbstractTree, KeyspaceCreateOptions, Readable};
use lsm_tree::SeqNo;
use parking_lot::{Mutex, RwLock};

use crate::StorageError;
use crate::catalog::{Catalog, Collection, persist};
use crate::checkpoint::requests::{RequestQueue, Requests};
use crate::cleanup::dropped::Dropped;
use crate::directory::DataDirectory;
use crate::keys;
use crate::keyspaces::{Keyspace, Keyspaces, LargeKeyspaces, Operation};
use crate::newest::Newest;
use crate::tables::States;

const KIB: u32 = 1024;
const MIB: u64 = 1024 * 1024;
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
    /// What the records keyspace gathers in memory before a checkpoint is made; the indexes
    /// keyspace gathers as much, meta half.
    pub write_buffer_bytes: u64,
    /// Threads that flush and compact.
    pub workers: usize,
    /// Whether checkpoints are made when memory fills. Otherwise [`crate::Store::persist`] makes them.
    pub automatic_checkpoints: bool,
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
            automatic_checkpoints: true,
            removal_delay: Duration::ZERO,
        }
    }
}

/// Returns once the log is on the disk up to a position, with the note that tables may hold what it
/// did. Called while nothing is written.
pub type LogBarrier = Box<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// The log that batches come from.
#[derive(Default)]
pub(crate) struct LogAhead {
    /// `None`: there is none yet.
    pub(crate) barrier: Option<LogBarrier>,
    /// How far tables may go.
    pub(crate) noted: u64,
}

pub(crate) struct Engine {
    pub(crate) database: fjall::Database,
    pub(crate) keyspaces: RwLock<Arc<Keyspaces>>,
    /// Grows when everything is thrown away: work that was meant for what was there is void.
    pub(crate) epoch: AtomicU64,
    write_buffer_bytes: u64,
    pub(crate) catalog: RwLock<Arc<Catalog>>,
    /// Held by whoever commits a batch with counts or catalog changes.
    pub(crate) commit: Mutex<()>,
    pub(crate) next_id: AtomicU32,
    /// Held by whoever makes a checkpoint.
    pub(crate) persisting: Mutex<()>,
    /// Held while a batch is put into memory, and while memory is sealed: how far the log has come with
    /// the last batch.
    pub(crate) committing: Mutex<u64>,
    /// What was visible when the batch that is being put into memory began: all of that is whole. The
    /// highest number while there is no such batch.
    pub(crate) whole_until: AtomicU64,
    pub(crate) newest: Mutex<Newest>,
    pub(crate) next_writer: AtomicU64,
    /// Written since it was last looked how much lies in memory.
    pub(crate) unlooked_bytes: AtomicU64,
    /// How far the log had come at the last checkpoint.
    pub(crate) durable_position: AtomicU64,
    /// What was visible then.
    pub(crate) durable_until: AtomicU64,
    pub(crate) requests: Requests,
    pub(crate) log: Mutex<LogAhead>,
    /// No checkpoint can be made any more: batches are refused.
    pub(crate) has_failed: AtomicBool,
    // Dropped last: the lock outlives the engine.
    pub(crate) directory: DataDirectory,
}

impl Engine {
    /// With the queue of the checkpoints that will be asked for.
    pub(crate) fn open(
        directory: DataDirectory,
        options: &StoreOptions,
    ) -> Result<(Engine, RequestQueue), StorageError> {
        // The engine's own journal stays empty.
        let database = fjall::Database::builder(directory.state())
            .cache_size(options.cache_bytes)
            .manual_journal_persist(true)
            .worker_threads(options.workers.max(1))
            .open()?;
        let buffer = options.write_buffer_bytes.max(MIB);
        let (requests, queue) = Requests::channel();
        let keyspaces = open_keyspaces(&database, buffer, &requests)?;
        go_on_numbering(&database, &keyspaces);
        let engine = Engine {
            database,
            keyspaces: RwLock::new(Arc::new(keyspaces)),
            epoch: AtomicU64::new(0),
            write_buffer_bytes: buffer,
            catalog: RwLock::default(),
            commit: Mutex::new(()),
            next_id: AtomicU32::new(1),
            persisting: Mutex::new(()),
            committing: Mutex::default(),
            whole_until: AtomicU64::new(SeqNo::MAX),
            newest: Mutex::default(),
            next_writer: AtomicU64::new(0),
            unlooked_bytes: AtomicU64::new(0),
            durable_position: AtomicU64::new(0),
            durable_until: AtomicU64::new(0),
            requests,
            log: Mutex::default(),
            has_failed: AtomicBool::new(false),
            directory,
        };
        Ok((engine, queue))
    }

    pub(crate) fn keyspaces(&self) -> Arc<Keyspaces> {
        self.keyspaces.read().clone()
    }

    /// What a keyspace gathers in memory before a checkpoint is made.
    pub(crate) fn buffer_bytes(&self, keyspace: Keyspace) -> u64 {
        match keyspace {
            Keyspace::Records | Keyspace::Indexes => self.write_buffer_bytes,
            Keyspace::Meta => self.write_buffer_bytes / 2,
        }
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
        *self.committing.lock() = 0;
        self.log.lock().noted = 0;
        self.clear_meta()?;
        let old = self.keyspaces();
        self.database.delete_keyspace(old.records.clone())?;
        self.database.delete_keyspace(old.indexes.clone())?;
        let fresh = open_keyspaces(&self.database, self.write_buffer_bytes, &self.requests)?;
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

/// Sequence numbers go on behind those of the tables.
fn go_on_numbering(database: &fjall::Database, keyspaces: &Keyspaces) {
    let all = [&keyspaces.records, &keyspaces.indexes, &keyspaces.meta];
    let highest = all.map(|keyspace| keyspace.tree.get_highest_seqno());
    if let Some(highest) = highest.into_iter().flatten().max() {
        database.supervisor.seqno.fetch_max(highest + 1);
        database.supervisor.snapshot_tracker.publish(highest);
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

fn open_keyspaces(
    database: &fjall::Database,
    buffer: u64,
    requests: &Requests,
) -> Result<Keyspaces, StorageError> {
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
        states: LargeKeyspaces {
            records: States::new(requests.clone()),
            indexes: States::new(requests.clone()),
        },
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
