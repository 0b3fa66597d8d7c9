//! The state machine: committed entries become storage batches.
//!
//! The position of the last applied entry lies in meta beside what the entries did, in the same
//! batch. After a crash the store is as of its last checkpoint, and records and index keys may be of
//! later: entries are applied again, to the same effect.

mod ahead;
mod applied;
mod applying;
mod base;
mod counts;
pub mod effects;
pub mod names;
mod points;
mod prepared;
mod session_records;
mod session_sweeps;
mod state_machine;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use banyan_consensus::SnapshotMeta;
use banyan_storage::{
    Batch, CatalogChange, CollectionId, ImportScope, Importer, Namespace, Snapshot, StorageError,
    Store,
};
use bson::{DateTime, RawDocumentBuf, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::clock::{self, Clock};
use crate::op_observer::OpObserver;
use crate::sessions::LatestNumbers;

pub use applied::Applied;
use base::Base;
pub use counts::ApplyCounts;
use counts::Counters;
use names::{Name, Names};
pub use points::{LogPoint, PointListener, RangeRemoval, SNAPSHOT_POINT};
pub use prepared::Prepared;
use session_sweeps::SessionSweeps;
use watched::{WatchListener, Watched};

/// Keys of the state's own place in meta.
const APPLIED: &[u8] = b"applied";
const CONFIGURATION: &[u8] = b"configuration";

/// Fetches the leader's state into the store.
pub type SnapshotSource =
    Box<dyn Fn(&SnapshotMeta, ImportScope) -> Result<(), String> + Send + Sync>;
/// Told when collections or indexes may have changed.
pub type DefinitionsListener = Box<dyn Fn() + Send + Sync>;
type ConfigListener = Box<dyn Fn() + Send + Sync>;

pub struct Machine {
    store: Store,
    clock: Arc<Clock>,
    applied: Mutex<Applied>,
    index: AtomicU64,
    time: AtomicU64,
    time_watch: watch::Sender<u64>,
    names: RwLock<Names>,
    log_begins: AtomicU64,
    installs: AtomicU64,
    base: Base,
    session_sweeps: Mutex<SessionSweeps>,
    /// The store keeps, hidden, what was fetched of a snapshot before the process ended.
    has_leftovers: AtomicBool,
    /// An arbiter: keeps the log's position and the set's configuration, and no data.
    dataless: AtomicBool,
    /// Keeps no indexes but those on `_id`.
    id_indexes_only: AtomicBool,
    counters: Counters,
    pub(crate) latest_numbers: LatestNumbers,
    configuration: RwLock<Option<RawDocumentBuf>>,
    op_observer: RwLock<Option<OpObserver>>,
    watched: RwLock<Vec<Watched>>,
    on_point: RwLock<Option<PointListener>>,
    on_config: RwLock<Option<ConfigListener>>,
    on_definitions: RwLock<Option<DefinitionsListener>>,
    /// Counts what `on_definitions` is told.
    definitions: watch::Sender<u64>,
    snapshots: RwLock<Option<SnapshotSource>>,
}

impl Machine {
    pub fn open(store: Store, clock: Arc<Clock>) -> Result<Machine, StorageError> {
        let machine = Machine {
            has_leftovers: AtomicBool::new(store.import_was_interrupted()),
            store,
            clock,
            applied: Mutex::default(),
            index: AtomicU64::new(0),
            time: AtomicU64::new(0),
            time_watch: watch::Sender::new(0),
            names: RwLock::default(),
            log_begins: AtomicU64::new(0),
            installs: AtomicU64::new(0),
            base: Base::default(),
            session_sweeps: Mutex::default(),
            dataless: AtomicBool::new(false),
            id_indexes_only: AtomicBool::new(false),
            counters: Counters::default(),
            latest_numbers: LatestNumbers::default(),
            configuration: RwLock::default(),
            op_observer: RwLock::default(),
            watched: RwLock::default(),
            on_point: RwLock::default(),
            on_config: RwLock::default(),
            on_definitions: RwLock::default(),
            definitions: watch::Sender::new(0),
            snapshots: RwLock::default(),
        };
        machine.load()?;
        // What was found is on the disk, and is known to be from here on.
        machine.store.persist()?;
        Ok(machine)
    }

    fn load(&self) -> Result<(), StorageError> {
        let snapshot = self.store.snapshot();
        let applied = match snapshot.meta(APPLIED)? {
            None => Applied::default(),
            Some(bytes) => Applied::decode(&bytes).ok_or_else(|| StorageError::Damaged {
                place: "the applied position".to_owned(),
                reason: format!("{} bytes instead of 32", bytes.len()),
            })?,
        };
        let configuration = snapshot.meta(CONFIGURATION)?.map(|bytes| bytes.to_vec());
        let configuration = configuration.map(RawDocumentBuf::from_bytes).transpose();
        *self.configuration.write() = configuration.map_err(|error| StorageError::Damaged {
            place: "the replica set's configuration".to_owned(),
            reason: error.to_string(),
        })?;
        *self.names.write() = Names::load(&snapshot)?;
        self.base.load(&snapshot)?;
        self.latest_numbers.forget();
        *self.applied.lock() = applied;
        self.store.set_position(applied.position.index);
        self.publish(applied);
        Ok(())
    }

    fn publish(&self, applied: Applied) {
        self.clock.observe(clock::from_bits(applied.time));
        self.index.store(applied.position.index, Ordering::Release);
        self.time.store(applied.time, Ordering::SeqCst);
        // Against the fence in `applied_watch`: either we see the new receiver or it the new time.
        fence(Ordering::SeqCst);
        if self.time_watch.receiver_count() > 0 {
            self.tell(applied.time);
        }
    }

    fn tell(&self, time: u64) {
        self.time_watch.send_if_modified(|told| {
            let later = *told < time;
            *told = time.max(*told);
            later
        });
    }

    /// The time of the last applied operation (as [`clock::to_bits`]), and every change of it. What
    /// it shows is applied: a snapshot taken then has it.
    pub fn applied_watch(&self) -> watch::Receiver<u64> {
        let receiver = self.time_watch.subscribe();
        fence(Ordering::SeqCst);
        self.tell(self.time.load(Ordering::SeqCst));
        receiver
    }

    /// What a collection was called when the entry at `index` was applied.
    pub fn name_at(&self, collection: CollectionId, index: u64) -> Option<Arc<Name>> {
        self.names.read().at(collection, index).cloned()
    }

    /// How many times a snapshot has taken the place of the state. What was read of the log before
    /// need not be of the same history.
    pub fn installs(&self) -> u64 {
        self.installs.load(Ordering::Acquire)
    }

    /// What was applied last before the log, if a snapshot lies before a log that begins here.
    pub fn before_log(&self, first_index: u64) -> Option<Applied> {
        self.base.of_log(first_index)
    }

    /// What the collection with this UUID was called when the entry at `index` was applied, if that
    /// entry has not made it so.
    pub fn settled_name(&self, uuid: &[u8; 16], index: u64) -> Option<Arc<Name>> {
        self.names.read().settled(uuid, index).cloned()
    }

    /// The log holds nothing before this index any more.
    pub fn log_begins_at(&self, index: u64) {
        self.log_begins.fetch_max(index, Ordering::Relaxed);
    }

    pub fn applied_index(&self) -> u64 {
        self.index.load(Ordering::Acquire)
    }

    pub fn last_applied(&self) -> Applied {
        *self.applied.lock()
    }

    /// The time of the last applied operation.
    pub fn operation_time(&self) -> Timestamp {
        clock::from_bits(self.time.load(Ordering::Acquire))
    }

    /// The time of the last operation that a snapshot sees.
    pub fn time_of(&self, snapshot: &Snapshot) -> Result<Timestamp, StorageError> {
        let applied = snapshot.meta(APPLIED)?;
        let applied = applied.and_then(|bytes| Applied::decode(&bytes));
        Ok(clock::from_bits(applied.unwrap_or_default().time))
    }

    /// When the last applied entry was proposed.
    pub fn last_wall(&self) -> DateTime {
        DateTime::from_millis(self.applied.lock().wall_ms)
    }

    /// The replica set's configuration, as of the last applied entry.
    pub fn set_config(&self) -> Option<RawDocumentBuf> {
        self.configuration.read().clone()
    }

    /// Called at every [`LogPoint`], on every member.
    pub fn on_point(&self, listener: PointListener) {
        *self.on_point.write() = Some(listener);
    }

    /// Called whenever collections or indexes may have changed.
    pub fn on_definitions(&self, listener: DefinitionsListener) {
        *self.on_definitions.write() = Some(listener);
    }

    fn tell_of_point(&self, point: &LogPoint) {
        if let Some(listener) = &*self.on_point.read() {
            listener(point);
        }
    }

    /// Changes whenever collections or indexes may have changed.
    pub fn definitions_watch(&self) -> watch::Receiver<u64> {
        self.definitions.subscribe()
    }

    /// To be called where they have changed, in the log's order or by a build of this member alone.
    pub fn tell_of_definitions(&self) {
        self.definitions.send_modify(|count| *count += 1);
        if let Some(listener) = &*self.on_definitions.read() {
            listener();
        }
    }

    pub fn observe(&self, observer: OpObserver) {
        *self.op_observer.write() = Some(observer);
    }

    /// Has `listener` told of every change of a collection, whoever proposed it, before anything
    /// that comes later in the log can be read. It must not block.
    pub fn watch_collection(&self, namespace: Namespace, listener: WatchListener) {
        self.watched.write().push(Watched {
            namespace,
            listener,
        });
    }

    /// The watched collections that exist, each with its watcher's place.
    fn watched_collections(&self) -> Vec<(CollectionId, usize)> {
        let watched = self.watched.read();
        if watched.is_empty() {
            return Vec::new();
        }
        let catalog = self.store.catalog();
        let ids = watched.iter().enumerate();
        ids.filter_map(|(place, watched)| Some((catalog.find(&watched.namespace)?.id, place)))
            .collect()
    }

    /// Tells the watchers of collections that were there `before` and are not any more.
    fn tell_of_lost(&self, before: &[(CollectionId, usize)], now: &[(CollectionId, usize)]) {
        let watched = self.watched.read();
        for known in before.iter().filter(|known| !now.contains(known)) {
            if let Some(watched) = watched.get(known.1) {
                watched.tell_of_all();
            }
        }
    }

    pub fn on_config(&self, listener: ConfigListener) {
        *self.on_config.write() = Some(listener);
    }

    /// An arbiter keeps nothing but the set's configuration and its place in the log. What an
    /// arbiter has applied before it learned that it is one goes.
    pub fn set_dataless(&self, dataless: bool) {
        if self.dataless.swap(dataless, Ordering::AcqRel) == dataless || !dataless {
            return;
        }
        let mut batch = Batch::new();
        for collection in self.store.catalog().collections() {
            batch.change_catalog(CatalogChange::DropCollection { id: collection.id });
        }
        self.tidy(batch, "an arbiter's data");
    }

    /// A member that builds no indexes keeps those on `_id` alone.
    pub fn set_build_indexes(&self, build: bool) {
        if self.id_indexes_only.swap(!build, Ordering::AcqRel) != build || build {
            return;
        }
        let mut batch = Batch::new();
        for collection in self.store.catalog().collections() {
            for index in collection.indexes.iter().filter(|index| !index.is_id()) {
                batch.change_catalog(CatalogChange::DropIndex {
                    collection: collection.id,
                    index: index.id,
                });
            }
            for build in &collection.builds {
                batch.change_catalog(CatalogChange::AbortIndexBuild {
                    collection: collection.id,
                    build: build.id,
                });
            }
        }
        self.tidy(batch, "indexes that this member is not to have");
    }

    pub fn is_dataless(&self) -> bool {
        self.dataless.load(Ordering::Acquire)
    }

    pub fn is_lean(&self) -> bool {
        self.id_indexes_only.load(Ordering::Acquire)
    }

    fn tidy(&self, batch: Batch, what: &str) {
        if batch.is_empty() {
            return;
        }
        tracing::info!(what, "removing");
        if let Err(error) = self.store.commit(batch) {
            tracing::error!(%error, what, "cannot be removed");
        }
        self.tell_of_definitions();
    }

    fn import_scope(&self) -> ImportScope {
        if self.dataless.load(Ordering::Acquire) {
            ImportScope::MetaKeys(&[APPLIED, CONFIGURATION])
        } else if self.id_indexes_only.load(Ordering::Acquire) {
            ImportScope::IdIndexes
        } else {
            ImportScope::Everything
        }
    }

    /// What was applied since the start.
    pub fn apply_counts(&self) -> ApplyCounts {
        self.counters.counts()
    }

    pub fn fetch_snapshots_from(&self, source: SnapshotSource) {
        *self.snapshots.write() = Some(source);
    }

    /// The log begins at its first entry and builds the state alone, from nothing. Otherwise the
    /// next snapshot would come first, and go on with what is left of this one.
    fn remove_leftovers(&self) -> Result<(), StorageError> {
        if self.has_leftovers.load(Ordering::Acquire) {
            Importer::give_up(&self.store)?;
            self.has_leftovers.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn configuration_changed(&self) -> Result<(), StorageError> {
        let stored = self.store.snapshot().meta(CONFIGURATION)?;
        let document = stored.and_then(|bytes| RawDocumentBuf::from_bytes(bytes.to_vec()).ok());
        *self.configuration.write() = document;
        // A start finds it in the store before it has applied the log.
        self.store.checkpoint_soon();
        if let Some(listener) = &*self.on_config.read() {
            listener();
        }
        Ok(())
    }
}
