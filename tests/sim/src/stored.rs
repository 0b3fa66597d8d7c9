//! The node's own state machine over a real store: entries as commands make them, effects worked
//! out and applied by the code that ships, and after a crash a store that lost what lay in memory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_consensus::simulated;
use banyan_consensus::{
    ApplyError, Committed, LogBarrier, PeerId, Position, SnapshotMeta, StateMachine,
};
use banyan_replication::clock::{self, Clock};
use banyan_replication::entry::{EntryBuilder, Header, Style};
use banyan_replication::latches::{self, Held, Latches};
use banyan_replication::machine::{Machine, Prepared, effects};
use banyan_replication::sessions::{
    SessionId, SessionRecord, SessionStamp, Statement, StatementOutcome,
};
use banyan_storage::transfer::{ImportScope, Importer, Part, SliceEnd};
use banyan_storage::{
    Batch, CatalogChange, Collection, IndexDefinition, KeyRange, Namespace, RecordId, Snapshot,
    StorageError, Store, StoreOptions,
};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::life::Life;
use crate::random::{Random, mix};
use crate::state::{Attempt, Op, State, Surroundings};

/// States are compared at every such index: all of a state is read for it.
const COMPARED_EVERY: u64 = 5;
/// At one of so many positions, records and indexes come into tables, and meta does not.
const TABLES_AHEAD_EVERY: u64 = 16;
const COUNTERS: u64 = 3;
const CHUNK_BYTES: usize = 16 << 10;

pub struct Stored {
    id: PeerId,
    home: PathBuf,
    lives: u64,
    around: Arc<Surroundings<StoredMachine>>,
}

pub struct StoredMachine {
    id: PeerId,
    life: Arc<Life>,
    around: Arc<Surroundings<StoredMachine>>,
    store: Store,
    inner: Machine,
    latches: Arc<Latches>,
    /// The position that the state was last compared at.
    compared: AtomicU64,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn wall_ms() -> i64 {
    simulated::wall_ms().unwrap_or_else(clock::wall_ms)
}

fn namespace() -> Namespace {
    Namespace::new("sim", "writes")
}

fn session(op: Op) -> SessionId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&op.client.to_le_bytes());
    SessionId::shared(id)
}

/// The record of a document: in a clustered collection its `_id`, otherwise a number.
fn record_of(
    collection: &Collection,
    document: &RawDocument,
    number: impl FnOnce() -> Result<u64, String>,
) -> Result<RecordId, String> {
    let Some(index) = &collection.clustered_index else {
        return number().map(RecordId::number);
    };
    let keys = effects::keys_of(index, document).map_err(text)?.keys;
    let key = keys.first().ok_or("no key for _id")?;
    Ok(RecordId::bytes(key))
}

/// What a write does, beside its mark in the session.
struct Change<'a> {
    entry: EntryBuilder,
    batch: Batch,
    collection: &'a Arc<Collection>,
}

impl Change<'_> {
    fn insert(&mut self, record: &RecordId, document: &RawDocument) -> Result<(), String> {
        self.entry.insert(self.collection.id, record, document);
        effects::insert(&mut self.batch, self.collection, record, document).map_err(text)
    }

    fn update(
        &mut self,
        record: &RecordId,
        before: &RawDocument,
        after: &RawDocument,
    ) -> Result<(), String> {
        let style = Style::Replacement;
        self.entry
            .update(self.collection.id, record, before, after, &style);
        effects::update(&mut self.batch, self.collection, record, before, after).map_err(text)
    }

    fn delete(&mut self, record: &RecordId, before: &RawDocument) -> Result<(), String> {
        self.entry.delete(self.collection.id, record, before);
        effects::delete(&mut self.batch, self.collection, record, before).map_err(text)
    }
}

impl StoredMachine {
    fn collection(&self) -> Option<Arc<Collection>> {
        self.store.catalog().find(&namespace()).cloned()
    }

    /// The entry that makes the collection.
    fn creation(&self, held: Held) -> Attempt<Prepared> {
        let mut entry = EntryBuilder::new();
        let index = |spec: RawDocumentBuf| IndexDefinition {
            id: self.store.allocate_id(),
            spec,
        };
        let mut indexes = vec![
            index(rawdoc! { "v": 2, "key": { "tags": 1 }, "name": "tags_1" }),
            index(rawdoc! { "v": 2, "key": { "n": 1, "_id": -1 }, "name": "n_1__id_-1" }),
        ];
        let mut options = RawDocumentBuf::new();
        let on_id = rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true };
        match self.around.clustered {
            true => options.append(cstr!("clusteredIndex"), on_id),
            false => indexes.insert(0, index(on_id)),
        }
        let id = self.store.allocate_id();
        entry.catalog(
            &CatalogChange::CreateCollection {
                id,
                namespace: namespace(),
                uuid: [id as u8; 16],
                options,
                indexes,
            },
            &RawDocumentBuf::new(),
        );
        let prepared = Prepared {
            batch: Batch::new(),
            latches: held,
            announced: None,
        };
        Attempt::First(entry.encode(wall_ms()), prepared)
    }

    fn try_write(&self, op: Op) -> Result<Attempt<Prepared>, String> {
        let mut held = Held::none(&self.latches);
        let Some(collection) = self.collection() else {
            return Ok(
                match held.try_add(self.latches.record(0, &RecordId::number(0)), 0)
                    != latches::Attempt::Busy
                {
                    true => self.creation(held),
                    false => Attempt::Busy,
                },
            );
        };
        let counter = (op.client % COUNTERS + 1) as i64;
        let counter_record = record_of(&collection, &rawdoc! { "_id": counter }, || {
            Ok(counter as u64)
        })?;
        let keys = [
            self.latches.session(&session(op)),
            self.latches.record(collection.id, &counter_record),
        ];
        let mut keys = keys.iter();
        if keys.any(|&key| held.try_add(key, 0) == latches::Attempt::Busy) {
            return Ok(Attempt::Busy);
        }
        let snapshot = self.store.snapshot();
        let known = SessionRecord::load(&snapshot, &session(op)).map_err(text)?;
        if known.is_some_and(|known| known.txn_number >= op.number as i64) {
            return Ok(Attempt::Done);
        }
        let mut change = Change {
            entry: EntryBuilder::new(),
            batch: Batch::new(),
            collection: &collection,
        };
        self.fill(&mut change, &snapshot, op, (counter, &counter_record))?;
        change.entry.session = Some(SessionStamp {
            session: session(op),
            txn_number: op.number as i64,
            statements: vec![Statement::new(0, StatementOutcome::Insert)],
        });
        // Some effects are worked out by the proposer, and some by everybody.
        let batch = match mix(op.client, op.number).is_multiple_of(3) {
            true => Batch::new(),
            false => change.batch,
        };
        let prepared = Prepared {
            batch,
            latches: held,
            announced: None,
        };
        Ok(Attempt::Propose(change.entry.encode(wall_ms()), prepared))
    }

    /// A document for the write, one that counts, and one that goes again with the next write.
    fn fill(
        &self,
        change: &mut Change<'_>,
        snapshot: &Snapshot,
        op: Op,
        (counter, counter_record): (i64, &RecordId),
    ) -> Result<(), String> {
        let collection = change.collection;
        let (client, number) = (op.client as i64, op.number as i64);
        let mut random = Random::new(mix(op.client, op.number));
        let padding: String = (0..random.below(self.around.padding / 8 + 1))
            .map(|_| char::from(b'a' + random.below(26) as u8))
            .collect();
        let tag = random.below(7) as i64;
        match snapshot
            .record(collection.id, counter_record)
            .map_err(text)?
        {
            None => {
                let first = rawdoc! { "_id": counter, "n": 1_i64, "tags": [client] };
                change.insert(counter_record, &first)?;
            }
            Some(before) => {
                let n = before.get_i64("n").map_err(text)? + 1;
                let after = rawdoc! { "_id": counter, "n": n, "tags": [client, number % 5] };
                change.update(counter_record, &before, &after)?;
            }
        }
        let next = || -> Result<u64, String> {
            let last = || -> Result<_, StorageError> {
                let last = snapshot.last_record_id(collection.id)?;
                let counters = RecordId::number(COUNTERS);
                Ok(Some(last.unwrap_or(counters.clone()).max(counters)))
            };
            collection.reserve_records(1, last).map_err(text)
        };
        let document = rawdoc! {
            "_id": format!("{client}-{number}"), "client": client, "number": number,
            "tags": [tag, tag + 1], "n": 0_i64, "padding": padding,
        };
        change.insert(&record_of(collection, &document, next)?, &document)?;
        let scratch = rawdoc! { "_id": format!("scratch {client}"), "n": number, "tags": [] };
        let id_index = collection.id_index().ok_or("no index on _id")?;
        let keys = effects::keys_of(id_index, &scratch).map_err(text)?;
        let key = keys.keys.first().ok_or("no key for _id")?;
        match snapshot.unique_lookup(id_index, key).map_err(text)? {
            None => change.insert(&record_of(collection, &scratch, next)?, &scratch)?,
            Some(record) => {
                let before = snapshot.record(collection.id, &record).map_err(text)?;
                let before = before.ok_or("an index key without a record")?;
                change.delete(&record, &before)?;
            }
        }
        Ok(())
    }

    /// All that is there, and whether indexes and records agree.
    fn examine(&self) -> Result<u64, String> {
        let snapshot = self.store.snapshot();
        let mut digest = 0;
        let mut add = |bytes: &[u8]| {
            for chunk in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                digest = mix(digest, u64::from_le_bytes(word));
            }
            digest = mix(digest, bytes.len() as u64);
        };
        for found in snapshot.scan_meta(b"s") {
            let (key, value) = found.map_err(text)?;
            add(&key);
            add(value.as_ref());
        }
        let catalog = self.store.catalog();
        for collection in catalog.collections() {
            let (mut records, mut bytes, mut keys_found) = (0, 0, 0);
            for found in snapshot.records(collection.id, .., false) {
                let (record, document) = found.map_err(text)?;
                records += 1;
                bytes += document.as_bytes().len() as u64;
                add(record.to_string().as_bytes());
                add(document.as_bytes());
                for index in &collection.indexes {
                    for key in &effects::keys_of(index, &document).map_err(text)?.keys {
                        keys_found += 1;
                        if !snapshot.has_index_key(index, key, &record).map_err(text)? {
                            return Err(format!("record {record} is not in {}", index.name));
                        }
                    }
                }
            }
            let mut keys = 0;
            for index in &collection.indexes {
                for found in snapshot.scan_index(index, KeyRange::all(), false) {
                    found.map_err(text)?;
                    keys += 1;
                }
            }
            if keys != keys_found {
                return Err(format!(
                    "{keys} index keys for {keys_found} keys of records"
                ));
            }
            if (collection.documents(), collection.bytes()) != (records, bytes) {
                return Err(format!(
                    "{} documents of {} bytes are counted where {records} of {bytes} are",
                    collection.documents(),
                    collection.bytes()
                ));
            }
        }
        Ok(digest)
    }

    fn compare(&self, position: Position) -> Result<(), String> {
        let digest = self.examine()?;
        self.around.truth.lock().state(self.id, position, digest);
        Ok(())
    }

    /// Copies the state of another member, as its snapshot is carried over the network.
    fn copy(&self, from: &StoredMachine, meta: &SnapshotMeta) -> Result<(), String> {
        if from.inner.applied() < meta.position {
            return Err("the leader's state is too old".to_owned());
        }
        let snapshot = from.store.snapshot();
        let importer =
            Importer::begin(&self.store, b"simulation", ImportScope::Everything).map_err(text)?;
        for part in Part::SLICED {
            let mut after: Option<Vec<u8>> = None;
            let mut over = false;
            let chunks = std::iter::from_fn(|| {
                if over {
                    return None;
                }
                if !self.life.lives_on() {
                    over = true;
                    return Some(Err(StorageError::Transfer("it died over it".to_owned())));
                }
                let mut pairs = Vec::new();
                match snapshot.export(part, after.as_deref(), None, CHUNK_BYTES, &mut pairs) {
                    Ok(chunk) => {
                        over = chunk.next.is_none();
                        after = chunk.next;
                        Some(Ok(pairs))
                    }
                    Err(error) => Some(Err(error)),
                }
            });
            let written = importer.write_slice(part, 0, &[], &SliceEnd::Part, chunks);
            written.map_err(text)?;
        }
        if !self.life.lives_on() {
            return Err("it died over it".to_owned());
        }
        let mut pairs = Vec::new();
        snapshot
            .export(Part::Meta, None, None, usize::MAX, &mut pairs)
            .map_err(text)?;
        importer.write_meta(&pairs).map_err(text)?;
        let divergences = importer.compare().map_err(text)?;
        if !divergences.is_empty() {
            self.around
                .truth
                .lock()
                .violated(|| format!("a snapshot arrived otherwise: {divergences:?}"));
        }
        if !self.life.lives_on() {
            return Err("it died over it".to_owned());
        }
        importer.finish().map_err(text)
    }
}

impl StateMachine for StoredMachine {
    type Prepared = Prepared;

    fn applied(&self) -> Position {
        self.inner.applied()
    }

    fn seal(&self, data: &mut [u8]) {
        self.inner.seal(data);
    }

    fn apply(&self, entries: Vec<Committed<Prepared>>) -> Result<(), ApplyError> {
        if !self.life.lives_on() {
            return Ok(());
        }
        {
            let mut truth = self.around.truth.lock();
            let mut before = self.inner.applied();
            for entry in &entries {
                if entry.position.index != before.index + 1 {
                    truth.violated(|| {
                        format!(
                            "member {} applies {:?} after {before:?}",
                            self.id, entry.position
                        )
                    });
                }
                before = entry.position;
                if let Some(header) = Header::read(&entry.data) {
                    truth.time(entry.position.index, header.first_time, header.time());
                }
            }
        }
        self.inner.apply(entries)?;
        let position = self.inner.applied();
        if position.index.is_multiple_of(COMPARED_EVERY)
            && self.compared.swap(position.index, Ordering::Relaxed) != position.index
        {
            self.compare(position).map_err(ApplyError)?;
        }
        // It may die in the middle of a checkpoint.
        if mix(self.id, position.index).is_multiple_of(TABLES_AHEAD_EVERY) {
            let written = self.store.write_tables_ahead();
            written.or_else(|error| match self.life.is_dead() {
                true => Ok(()),
                false => Err(ApplyError(error.to_string())),
            })?;
        }
        Ok(())
    }

    fn written_ms(&self, data: &[u8]) -> Option<i64> {
        self.inner.written_ms(data)
    }

    fn keep_behind_log(&self, barrier: LogBarrier) {
        let life = self.life.clone();
        self.inner.keep_behind_log(Box::new(move |index| {
            barrier(index)?;
            match life.is_dead() {
                true => Err(io::Error::other("it died over it")),
                false => Ok(()),
            }
        }));
    }

    fn durable(&self) -> u64 {
        self.inner.durable()
    }

    fn make_durable(&self) -> io::Result<u64> {
        if !self.life.lives_on() {
            return Ok(self.inner.durable());
        }
        let made = self.inner.make_durable();
        made.or_else(|error| match self.life.is_dead() {
            true => Ok(self.inner.durable()),
            false => Err(error),
        })
    }

    fn install_snapshot(&self, meta: SnapshotMeta) -> Result<(), ApplyError> {
        self.inner.install_snapshot(meta)
    }
}

impl State for Stored {
    type Machine = StoredMachine;

    fn blank(id: PeerId, home: &Path, around: &Arc<Surroundings<StoredMachine>>) -> Stored {
        Stored {
            id,
            home: home.to_owned(),
            lives: 0,
            around: around.clone(),
        }
    }

    fn start(&mut self, life: &Arc<Life>) -> Result<Arc<StoredMachine>, String> {
        let dir = self.dir();
        std::fs::create_dir_all(&dir).map_err(text)?;
        let options = StoreOptions {
            cache_bytes: 1 << 20,
            write_buffer_bytes: 1 << 20,
            workers: 1,
            // They would come whenever another thread gets to it.
            automatic_checkpoints: false,
            ..StoreOptions::default()
        };
        let store = Store::open(&dir, &options).map_err(text)?;
        let clock = Arc::new(Clock::new());
        // Clocks differ, by up to an hour.
        let ahead = mix(self.id, self.lives) % 3600;
        clock.observe(clock::from_bits((Clock::wall_seconds() + ahead) << 32));
        let machine = Arc::new(StoredMachine {
            id: self.id,
            life: life.clone(),
            around: self.around.clone(),
            inner: Machine::open(store.clone(), clock).map_err(text)?,
            store,
            latches: Arc::default(),
            compared: AtomicU64::new(0),
        });
        let own = Arc::downgrade(&machine);
        machine
            .inner
            .fetch_snapshots_from(Box::new(move |meta, _scope| {
                let machine = own.upgrade().ok_or("the member is gone")?;
                let source = machine.around.reach(machine.id, meta.leader);
                let source = source.ok_or("the leader cannot be reached")?;
                machine.copy(&source, meta)
            }));
        Ok(machine)
    }

    fn crash(&mut self, machine: Arc<StoredMachine>, _random: &mut Random) -> Result<(), String> {
        self.lives += 1;
        // What lies in memory goes with it; what is in tables was synced.
        let machine = Arc::into_inner(machine).ok_or("a dead member is still held")?;
        drop(machine);
        Ok(())
    }

    fn write(machine: &Arc<StoredMachine>, op: Op) -> Attempt<Prepared> {
        machine.try_write(op).unwrap_or_else(|error| {
            machine
                .around
                .truth
                .lock()
                .violated(|| format!("member {} cannot write: {error}", machine.id));
            Attempt::Busy
        })
    }

    fn digest(
        machine: &StoredMachine,
        thoroughly: bool,
    ) -> Result<(Position, Option<u64>), String> {
        let position = machine.inner.applied();
        let digest = match thoroughly {
            true => Some(machine.examine()?),
            false => None,
        };
        Ok((position, digest))
    }

    fn counts(machine: &StoredMachine) -> Result<BTreeMap<Op, u64>, String> {
        let mut counts = BTreeMap::new();
        let mut total = 0;
        let Some(collection) = machine.collection() else {
            return Ok(counts);
        };
        for found in machine.store.snapshot().records(collection.id, .., false) {
            let (_, document) = found.map_err(text)?;
            // The documents that count have numbers, all others strings.
            if document.get_i64("_id").is_ok() {
                total += document.get_i64("n").map_err(text)? as u64;
            }
            if let (Ok(client), Ok(number)) =
                (document.get_i64("client"), document.get_i64("number"))
            {
                let op = Op {
                    client: client as u64,
                    number: number as u64,
                };
                *counts.entry(op).or_insert(0) += 1;
            }
        }
        match counts.values().sum::<u64>() {
            sum if sum == total => Ok(counts),
            sum => Err(format!("{total} writes are counted where {sum} are")),
        }
    }
}

impl Stored {
    fn dir(&self) -> PathBuf {
        self.home.join("data")
    }
}
