//! The state machine: committed entries become storage batches.
//!
//! The position of the last applied entry lies in meta beside what the entries did, in the same
//! batch. An entry that was applied before a crash and whose position was lost is applied again,
//! to the same effect.

mod counts;
mod remembering;
mod watched;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::time::Instant;

use banyan_consensus::{ApplyError, Committed, Position, SnapshotMeta, StateMachine};
use banyan_crash::{Point, pass};
use banyan_storage::{
    Batch, CatalogChange, CollectionId, ImportScope, Importer, Index, IndexDefinition, Snapshot,
    StorageError, Store,
};
use bson::{DateTime, RawDocumentBuf, Timestamp};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

pub use counts::ApplyCounts;
use counts::Counters;

use super::ahead;
use super::base::Base;
use super::effects::{self, EffectError};
use super::entry::{self, Entry, Header, Operation, Tally};
use super::latches::Held;
use super::names::{Name, Names};
use super::op_observer::{Change, OpObserver};
use super::sessions::{LatestNumbers, SessionId, SessionRecord, meta_key};
use crate::clock::{self, Clock};
use watched::Watched;

/// Keys of the state's own place in meta.
const APPLIED: &[u8] = b"applied";
const CONFIGURATION: &[u8] = b"configuration";

/// What a proposer hands over with its entry: the batch, and what keeps others away until the
/// batch is in.
pub struct Prepared {
    pub batch: Batch,
    pub latches: Held,
}

/// The last applied entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    pub position: Position,
    /// As [`clock::to_bits`].
    pub time: u64,
    pub wall_ms: i64,
}

impl Applied {
    pub(super) fn encode(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&self.position.term.to_le_bytes());
        out[8..16].copy_from_slice(&self.position.index.to_le_bytes());
        out[16..24].copy_from_slice(&self.time.to_le_bytes());
        out[24..].copy_from_slice(&self.wall_ms.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Applied> {
        let (term, rest) = bytes.split_first_chunk()?;
        let (index, rest) = rest.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let (wall_ms, _) = rest.split_first_chunk()?;
        let position = Position {
            term: u64::from_le_bytes(*term),
            index: u64::from_le_bytes(*index),
        };
        let (time, wall_ms) = (u64::from_le_bytes(*time), i64::from_le_bytes(*wall_ms));
        Some(Applied {
            position,
            time,
            wall_ms,
        })
    }
}

/// Told when the state is exactly as of a [`SNAPSHOT_POINT`].
pub type PointListener = Box<dyn Fn() + Send + Sync>;
/// Fetches the leader's state into the store.
pub type SnapshotSource =
    Box<dyn Fn(&SnapshotMeta, ImportScope) -> Result<(), String> + Send + Sync>;
type ConfigListener = Box<dyn Fn() + Send + Sync>;

pub struct Machine {
    store: Store,
    clock: Arc<Clock>,
    applied: Mutex<Applied>,
    index: AtomicU64,
    time: AtomicU64,
    time_watch: watch::Sender<u64>,
    durable: AtomicU64,
    names: RwLock<Names>,
    log_begins: AtomicU64,
    installs: AtomicU64,
    base: Base,
    /// When old sessions were last looked for, by the entries' clock.
    swept_ms: AtomicI64,
    /// The store keeps, out of sight, what came of a snapshot before the process ended.
    has_leftovers: AtomicBool,
    /// An arbiter: keeps the log's position and the set's configuration, and no data.
    dataless: AtomicBool,
    /// Keeps no indexes but those on `_id`.
    lean: AtomicBool,
    counters: Counters,
    pub(super) latest_numbers: LatestNumbers,
    configuration: RwLock<Option<RawDocumentBuf>>,
    op_observer: RwLock<Option<OpObserver>>,
    watched: RwLock<Option<Watched>>,
    on_point: RwLock<Option<PointListener>>,
    on_config: RwLock<Option<ConfigListener>>,
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
            durable: AtomicU64::new(0),
            names: RwLock::default(),
            log_begins: AtomicU64::new(0),
            installs: AtomicU64::new(0),
            base: Base::default(),
            swept_ms: AtomicI64::new(0),
            dataless: AtomicBool::new(false),
            lean: AtomicBool::new(false),
            counters: Counters::default(),
            latest_numbers: LatestNumbers::default(),
            configuration: RwLock::default(),
            op_observer: RwLock::default(),
            watched: RwLock::default(),
            on_point: RwLock::default(),
            on_config: RwLock::default(),
            snapshots: RwLock::default(),
        };
        machine.load()?;
        // What is read back at the start need not be on disk, only in the engine's journal.
        machine.store.persist()?;
        machine
            .durable
            .store(machine.applied_index(), Ordering::Release);
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

    pub fn on_point(&self, listener: PointListener) {
        *self.on_point.write() = Some(listener);
    }

    pub fn observe(&self, observer: OpObserver) {
        *self.op_observer.write() = Some(observer);
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
        if self.lean.swap(!build, Ordering::AcqRel) != build || build {
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
        }
        self.tidy(batch, "indexes that this member is not to have");
    }

    pub fn is_dataless(&self) -> bool {
        self.dataless.load(Ordering::Acquire)
    }

    pub fn is_lean(&self) -> bool {
        self.lean.load(Ordering::Acquire)
    }

    fn tidy(&self, batch: Batch, what: &str) {
        if batch.is_empty() {
            return;
        }
        tracing::info!(what, "removing");
        if let Err(error) = self.store.commit(batch) {
            tracing::error!(%error, what, "cannot be removed");
        }
    }

    fn import_scope(&self) -> ImportScope {
        if self.dataless.load(Ordering::Acquire) {
            ImportScope::MetaKeys(&[APPLIED, CONFIGURATION])
        } else if self.lean.load(Ordering::Acquire) {
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

    fn take(&self, entries: Vec<Committed<Prepared>>) -> Result<(), EffectError> {
        let before = self.last_applied();
        let mut applying = Applying {
            machine: self,
            batch: Batch::new(),
            applied: before,
            sessions: HashMap::new(),
            done: Vec::new(),
            watched: self.watched_collection(),
            telling: None,
        };
        let started = Instant::now();
        let mut operations = 0;
        let mut tally = Tally::default();
        let mut entries = entries.into_iter().peekable();
        let mut run = Vec::new();
        while let Some(entry) = entries.next() {
            if entry.prepared.is_none() {
                operations +=
                    Header::read(&entry.data).map_or(0, |header| header.operations.into());
                if !entry.data.is_empty() && entry.position.index > before.position.index {
                    tally += Entry::decode(&entry.data)?.tally()?;
                }
            }
            if applying.can_wait(&entry)? {
                run.push(entry);
                if entries.peek().is_some() {
                    continue;
                }
                applying.run(std::mem::take(&mut run))?;
            } else {
                applying.run(std::mem::take(&mut run))?;
                applying.entry(entry)?;
            }
        }
        applying.forget_sessions()?;
        applying.commit()?;
        // Entries of others, as MongoDB counts them.
        if operations > 0 {
            self.counters.note(operations, tally, started.elapsed());
        }
        Ok(())
    }

    fn notify(&self, data: &[u8]) -> Result<(), EffectError> {
        let observer = self.op_observer.read();
        let Some(observer) = &*observer else {
            return Ok(());
        };
        let catalog = self.store.catalog();
        for operation in Entry::decode(data)?.operations() {
            let operation = operation?;
            let (id, change) = match &operation {
                Operation::Insert {
                    collection,
                    document,
                    ..
                } => (*collection, Change::Insert { document }),
                Operation::Update {
                    collection,
                    before,
                    after,
                    ..
                } => (*collection, Change::Update { before, after }),
                Operation::Delete {
                    collection, before, ..
                } => (*collection, Change::Delete { before }),
                Operation::Catalog(..)
                | Operation::DropDatabase { .. }
                | Operation::SetConfig { .. }
                | Operation::Noop { .. } => continue,
            };
            if let Some(collection) = catalog.by_id(id) {
                observer(&collection.namespace, change);
            }
        }
        Ok(())
    }
}

/// Entries on their way into one batch.
struct Applying<'a> {
    machine: &'a Machine,
    batch: Batch,
    /// As of the last entry that is in the batch.
    applied: Applied,
    sessions: HashMap<SessionId, SessionRecord>,
    /// Of our own proposals: what listeners are told, and what is let go of, after the commit.
    done: Vec<(Bytes, Prepared)>,
    /// The collection whose changes somebody is told of at once.
    watched: Option<CollectionId>,
    /// The entry, the last in the batch, that changes it.
    telling: Option<Bytes>,
}

impl Applying<'_> {
    /// Whether an entry has to be worked out and does not change what others are worked out
    /// against.
    fn can_wait(&self, committed: &Committed<Prepared>) -> Result<bool, EffectError> {
        let is_worked_out = committed
            .prepared
            .as_ref()
            .is_some_and(|prepared| !prepared.batch.is_empty());
        if is_worked_out
            || committed.data.is_empty()
            || committed.position.index <= self.applied.position.index
            || self.machine.dataless.load(Ordering::Acquire)
        {
            return Ok(false);
        }
        let entry = Entry::decode(&committed.data)?;
        Ok(!changes_definitions(&entry)? && !is_snapshot_point(&entry) && !self.is_watched(&entry))
    }

    /// Entries that can be worked out at once.
    fn run(&mut self, entries: Vec<Committed<Prepared>>) -> Result<(), EffectError> {
        if entries.is_empty() {
            return Ok(());
        }
        let data: Vec<&[u8]> = entries.iter().map(|entry| &entry.data[..]).collect();
        let worked_out = ahead::work_out(&self.machine.store.catalog(), &data)?;
        self.batch.append(worked_out);
        for committed in entries {
            let entry = Entry::decode(&committed.data)?;
            self.applied = Applied {
                position: committed.position,
                time: entry.header.time(),
                wall_ms: entry.wall_ms(),
            };
            self.sessions(&entry)?;
            let prepared = committed.prepared.map(|prepared| (Bytes::new(), prepared));
            self.done.extend(prepared);
        }
        Ok(())
    }

    /// What an arbiter does with an entry.
    fn witness(&mut self, entry: &Entry<'_>, next: Applied) -> Result<(), EffectError> {
        let mut configured = false;
        for operation in entry.operations() {
            if let Operation::SetConfig { document } = operation? {
                self.batch.put_meta(CONFIGURATION, document.as_bytes());
                configured = true;
            }
        }
        self.applied = next;
        if configured {
            self.commit()?;
            self.machine.configuration_changed()?;
        }
        Ok(())
    }

    fn entry(&mut self, committed: Committed<Prepared>) -> Result<(), EffectError> {
        // The log may begin before the state's position.
        if committed.position.index <= self.applied.position.index {
            return Ok(());
        }
        if committed.data.is_empty() {
            self.applied.position = committed.position;
            return Ok(());
        }
        let entry = Entry::decode(&committed.data)?;
        let next = Applied {
            position: committed.position,
            time: entry.header.time(),
            wall_ms: entry.wall_ms(),
        };
        let is_worked_out = committed
            .prepared
            .as_ref()
            .is_some_and(|p| !p.batch.is_empty());
        if self.machine.dataless.load(Ordering::Acquire) {
            return self.witness(&entry, next);
        }
        if !is_worked_out && changes_definitions(&entry)? {
            // What follows is worked out against the catalog as this leaves it, and an index is
            // built from the records as they are.
            self.commit()?;
            self.definitions(&entry, next.position.index)?;
            self.applied = next;
            self.commit()?;
            self.watched = self.machine.watched_collection();
            if entry
                .operations()
                .any(|operation| matches!(operation, Ok(Operation::SetConfig { .. })))
            {
                self.machine.configuration_changed()?;
            }
            return Ok(());
        }
        if is_snapshot_point(&entry) {
            self.applied = next;
            let prepared = committed.prepared.map(|prepared| (Bytes::new(), prepared));
            self.done.extend(prepared);
            self.commit()?;
            if let Some(listener) = &*self.machine.on_point.read() {
                listener();
            }
            return Ok(());
        }
        if self.is_watched(&entry) {
            return self.watched_entry(&entry, next, committed.prepared, &committed.data);
        }
        self.applied = next;
        if let Some(mut prepared) = committed.prepared {
            self.batch.append(std::mem::take(&mut prepared.batch));
            self.done.push((committed.data.clone(), prepared));
        }
        self.sessions(&entry)
    }

    fn definitions(&mut self, entry: &Entry<'_>, index: u64) -> Result<(), EffectError> {
        let lean = self.machine.lean.load(Ordering::Acquire);
        for operation in entry.operations() {
            match operation? {
                Operation::Catalog(CatalogChange::CreateIndex { index, .. }, _)
                    if lean && !names_id_index(&index) => {}
                Operation::Catalog(
                    CatalogChange::CreateIndex {
                        collection, index, ..
                    },
                    _,
                ) => {
                    let multikey = self.build(collection, &index)?;
                    let change = CatalogChange::CreateIndex {
                        collection,
                        index,
                        multikey,
                    };
                    self.batch.change_catalog(change);
                }
                Operation::Catalog(mut change, _) => {
                    if let CatalogChange::CreateCollection { indexes, .. } = &mut change
                        && lean
                    {
                        indexes.retain(names_id_index);
                    }
                    let mut names = self.machine.names.write();
                    names.note(&mut self.batch, index, &change);
                    let log_begins = self.machine.log_begins.load(Ordering::Relaxed);
                    names.forget_before(&mut self.batch, log_begins);
                    drop(names);
                    self.batch.change_catalog(change);
                }
                Operation::SetConfig { document } => {
                    self.batch.put_meta(CONFIGURATION, document.as_bytes());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the keys of all records into a new index; whether it is multikey. Until the index is
    /// in the catalog nobody looks at them.
    fn build(
        &mut self,
        collection: CollectionId,
        definition: &IndexDefinition,
    ) -> Result<bool, EffectError> {
        let store = &self.machine.store;
        let catalog = store.catalog();
        let Some(collection) = catalog.by_id(collection) else {
            return Ok(false);
        };
        let index = Arc::new(Index::parse(definition, false)?);
        let mut multikey = false;
        let (mut written_bytes, mut counted_bytes, mut batch_bytes) = (0, 0, 0);
        for found in store.snapshot().records(collection.id, .., false) {
            let (record, document) = found?;
            let keys = effects::keys_of(&index, &document)?;
            multikey |= keys.multikey;
            for key in &keys.keys {
                self.batch.put_index_key(collection, &index, key, record);
                written_bytes += key.len();
            }
            batch_bytes += keys
                .keys
                .iter()
                .map(|key| key.len() + BUILD_KEY_BYTES)
                .sum::<usize>();
            if batch_bytes >= BUILD_BATCH_BYTES {
                self.commit()?;
                pass(Point::IndexPart);
                counted_bytes = written_bytes;
                batch_bytes = 0;
            }
        }
        // The batch that makes the index counts its own keys.
        self.batch
            .count_index_keys(collection.id, &index, counted_bytes);
        Ok(multikey)
    }

    fn commit(&mut self) -> Result<(), EffectError> {
        for (session, record) in &self.sessions {
            self.batch.put_meta(&meta_key(session), &record.encode());
        }
        self.batch.put_meta(APPLIED, &self.applied.encode());
        self.machine.store.commit(std::mem::take(&mut self.batch))?;
        // Before latches open: whoever holds a session's latch finds its number here or its record.
        self.machine.latest_numbers.note(self.sessions.iter());
        self.sessions.clear();
        if let Some(data) = self.telling.take() {
            self.machine.tell_of(&data)?;
        }
        *self.machine.applied.lock() = self.applied;
        self.machine.publish(self.applied);
        for (data, prepared) in self.done.drain(..) {
            if !data.is_empty() {
                self.machine.notify(&data)?;
            }
            drop(prepared);
        }
        Ok(())
    }
}

/// Keys of about this length together go into one batch while an index is built.
const BUILD_BATCH_BYTES: usize = 4 << 20;
/// What a key takes in a batch besides its own bytes.
const BUILD_KEY_BYTES: usize = 64;

fn names_id_index(definition: &IndexDefinition) -> bool {
    definition
        .spec
        .get_str("name")
        .is_ok_and(|name| name == "_id_")
}

/// What the no-op entry says that asks every member to keep a snapshot of the state as of its time.
pub const SNAPSHOT_POINT: &str = "snapshot point";

fn is_snapshot_point(entry: &Entry<'_>) -> bool {
    match entry.operations().next() {
        Some(Ok(Operation::Noop { document })) => document
            .get_str("msg")
            .is_ok_and(|what| what == SNAPSHOT_POINT),
        _ => false,
    }
}

fn changes_definitions(entry: &Entry<'_>) -> Result<bool, EffectError> {
    // Operations on definitions and on documents do not share an entry.
    let first = entry.operations().next().transpose()?;
    Ok(matches!(
        first,
        Some(Operation::Catalog(..) | Operation::DropDatabase { .. } | Operation::SetConfig { .. })
    ))
}

impl Machine {
    fn configuration_changed(&self) -> Result<(), EffectError> {
        let stored = self.store.snapshot().meta(CONFIGURATION)?;
        let document = stored.and_then(|bytes| RawDocumentBuf::from_bytes(bytes.to_vec()).ok());
        *self.configuration.write() = document;
        if let Some(listener) = &*self.on_config.read() {
            listener();
        }
        Ok(())
    }
}

impl StateMachine for Machine {
    type Prepared = Prepared;

    fn applied(&self) -> Position {
        self.applied.lock().position
    }

    fn seal(&self, data: &mut [u8]) {
        entry::seal(data, &self.clock);
    }

    fn written_ms(&self, data: &[u8]) -> Option<i64> {
        entry::Header::read(data).map(|header| header.wall_ms)
    }

    fn apply(&self, entries: Vec<Committed<Prepared>>) -> Result<(), ApplyError> {
        self.remove_leftovers()
            .map_err(|error| ApplyError(format!("cannot remove half a snapshot: {error}")))?;
        self.take(entries)
            .map_err(|error| ApplyError(format!("cannot apply the log: {error}")))
    }

    fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn make_durable(&self) -> io::Result<u64> {
        let applied = self.applied_index();
        self.store.persist().map_err(io::Error::other)?;
        self.durable.fetch_max(applied, Ordering::AcqRel);
        Ok(applied)
    }

    fn install_snapshot(&self, meta: SnapshotMeta) -> Result<(), ApplyError> {
        let fetched = match &*self.snapshots.read() {
            Some(fetch) => fetch(&meta, self.import_scope()),
            None => Err("nobody to fetch a snapshot from".to_owned()),
        };
        self.load().map_err(|error| ApplyError(error.to_string()))?;
        self.installs.fetch_add(1, Ordering::AcqRel);
        self.durable.store(0, Ordering::Release);
        fetched.map_err(ApplyError)?;
        self.has_leftovers.store(false, Ordering::Release);
        let mut batch = Batch::new();
        self.base.set(&mut batch, self.last_applied());
        self.store
            .commit(batch)
            .map_err(|error| ApplyError(error.to_string()))?;
        self.make_durable()
            .map_err(|error| ApplyError(error.to_string()))?;
        self.tell_of_all();
        if let Some(listener) = &*self.on_config.read() {
            listener();
        }
        Ok(())
    }
}
