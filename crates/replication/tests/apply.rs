//! The log applied entry by entry, and many entries at once: the state has to be the same.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use banyan_consensus::{Committed, Position, StateMachine};
use banyan_replication::clock::{self, Clock};
use banyan_replication::entry::{self, EntryBuilder};
use banyan_replication::incoming::{self, Incoming};
use banyan_replication::latches::{Attempt, Held, Latches};
use banyan_replication::machine::{LogPoint, Machine, Prepared, RangeRemoval, SNAPSHOT_POINT};
use banyan_storage::{
    Batch, CatalogChange, IndexDefinition, KeyRange, Namespace, Part, RecordId, Store, StoreOptions,
};
use bson::{RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

const COLLECTION: u32 = 1;

/// A machine on a directory of its own.
struct Member {
    machine: Machine,
    store: Store,
    _directory: TempDir,
}

impl Member {
    fn new() -> Member {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), &StoreOptions::default()).unwrap();
        let machine = Machine::open(store.clone(), Arc::new(Clock::new())).unwrap();
        Member {
            machine,
            store,
            _directory: directory,
        }
    }

    fn apply(&self, log: &[Vec<u8>], at_once: usize) {
        let mut index = 0;
        for entries in log.chunks(at_once) {
            let committed = entries.iter().map(|data| {
                index += 1;
                Committed::<Prepared> {
                    position: Position { term: 1, index },
                    data: data.clone().into(),
                    prepared: None,
                    membership: None,
                }
            });
            self.machine.apply(committed.collect()).unwrap();
        }
    }

    fn dump(&self) -> Vec<Vec<u8>> {
        let snapshot = self.store.snapshot();
        let parts = Part::ALL.iter().map(|&part| {
            let mut pairs = Vec::new();
            let chunk = snapshot.export(part, None, None, usize::MAX, &mut pairs);
            assert!(chunk.unwrap().next.is_none());
            pairs
        });
        parts.collect()
    }
}

fn definition(id: u32, name: &str, key: RawDocumentBuf) -> IndexDefinition {
    let spec = rawdoc! { "v": 2, "key": key, "name": name };
    IndexDefinition { id, spec }
}

fn seal(entry: &EntryBuilder, clock: &Clock) -> Vec<u8> {
    let mut bytes = entry.clone().encode(clock::wall_ms());
    entry::seal(&mut bytes, clock);
    bytes
}

fn create(clock: &Clock) -> Vec<Vec<u8>> {
    let mut entry = EntryBuilder::new();
    let change = CatalogChange::CreateCollection {
        id: COLLECTION,
        namespace: Namespace::new("db", "things"),
        uuid: [1; 16],
        options: rawdoc! {},
        indexes: vec![definition(2, "_id_", rawdoc! { "_id": 1 })],
    };
    entry.catalog(&change, &rawdoc! {});
    vec![
        seal(&entry, clock),
        index(clock, 3, "tags"),
        index(clock, 4, "n"),
    ]
}

fn index(clock: &Clock, id: u32, field: &str) -> Vec<u8> {
    let mut entry = EntryBuilder::new();
    let mut key = RawDocumentBuf::new();
    key.append(bson::raw::CString::try_from(field).unwrap(), 1);
    let change = CatalogChange::CreateIndex {
        collection: COLLECTION,
        index: definition(id, field, key),
    };
    entry.catalog(&change, &rawdoc! {});
    seal(&entry, clock)
}

/// Inserts, updates and deletes of few records, so that neighbours meet the same ones.
fn busy_log(entries: usize) -> Vec<Vec<u8>> {
    let clock = Clock::new();
    let mut random = StdRng::seed_from_u64(7);
    let mut log = create(&clock);
    let mut records: Vec<Option<RawDocumentBuf>> = vec![None; 40];
    for number in 0..entries {
        let mut entry = EntryBuilder::new();
        for _ in 0..random.random_range(1..30) {
            let at = random.random_range(0..records.len());
            let record = RecordId::number(at as u64 + 1);
            let tags: Vec<i32> = (0..random.random_range(0..4))
                .map(|_| random.random_range(0..9))
                .collect();
            let padding = "x".repeat(random.random_range(0..300));
            let tags = tags.into_iter().collect::<bson::RawArrayBuf>();
            let after =
                rawdoc! { "_id": at as i32, "n": number as i32, "tags": tags, "p": padding };
            match records[at].take() {
                None => {
                    entry.insert(COLLECTION, &record, &after);
                    records[at] = Some(after);
                }
                Some(before) if random.random_bool(0.2) => {
                    entry.delete(COLLECTION, &record, &before);
                }
                Some(before) => {
                    let style = entry::Style::Replacement;
                    entry.update(COLLECTION, &record, &before, &after, &style);
                    records[at] = Some(after);
                }
            }
        }
        log.push(seal(&entry, &clock));
    }
    log
}

#[test]
fn a_snapshot_is_kept_before_its_time_is_told() {
    let member = Member::new();
    let machine = Arc::new(member.machine);
    let seen = Arc::new(Mutex::new(None));
    let (store, told, kept) = (member.store, Arc::downgrade(&machine), seen.clone());
    machine.on_point(Box::new(move |_| {
        let machine = told.upgrade().unwrap();
        let kept_time = machine.time_of(&store.snapshot()).unwrap();
        *kept.lock() = Some((kept_time, machine.operation_time()));
    }));
    let clock = Clock::new();
    let mut entry = EntryBuilder::new();
    entry.noop(&rawdoc! { "msg": SNAPSHOT_POINT });
    let data = seal(&entry, &clock);
    let committed = Committed::<Prepared> {
        position: Position { term: 1, index: 1 },
        data: data.into(),
        prepared: None,
        membership: None,
    };
    machine.apply(vec![committed]).unwrap();
    let (kept_time, told_time) = seen.lock().unwrap();
    assert_eq!(kept_time, machine.operation_time());
    assert!(clock::to_bits(told_time) < clock::to_bits(kept_time));
}

/// Whoever is told that a range goes sees all of it, however many entries are applied at once.
#[test]
fn a_removal_is_told_before_its_first_document_goes() {
    let clock = Clock::new();
    let removal = RangeRemoval {
        collection: COLLECTION,
        min: rawdoc! { "k": 0 },
        max: rawdoc! { "k": 10 },
    };
    let message = rawdoc! {
        "msg": "range removal", "ns": "test.c", "collection": i64::from(COLLECTION),
        "min": removal.min.clone(), "max": removal.max.clone(),
    };
    let document = |k: i32| rawdoc! { "_id": k, "k": k };
    let record = |k: i32| RecordId::number(k as u64 + 1);
    let mut log = create(&clock);
    let (mut inserts, mut notes, mut deletes) = (
        EntryBuilder::new(),
        EntryBuilder::new(),
        EntryBuilder::new(),
    );
    (0..10).for_each(|k| inserts.insert(COLLECTION, &record(k), &document(k)));
    // A note of a client says nothing.
    notes.noop(&rawdoc! { "msg": "range removal" });
    log.extend([&inserts, &notes].map(|entry| seal(entry, &clock)));
    let mut begins = EntryBuilder::new();
    begins.noop(&message);
    (0..10).for_each(|k| deletes.delete(COLLECTION, &record(k), &document(k)));
    log.extend([&begins, &deletes].map(|entry| seal(entry, &clock)));
    for at_once in [1, log.len()] {
        let member = Member::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        let (store, seen) = (member.store.clone(), told.clone());
        member.machine.on_point(Box::new(move |point| {
            let records = store.snapshot().records(COLLECTION, .., false).count();
            seen.lock().push((point.clone(), records));
        }));
        member.apply(&log, at_once);
        let expected = (LogPoint::RangeRemoval(removal.clone()), 10);
        assert_eq!(*told.lock(), [expected], "{at_once} at once");
        let left = member
            .store
            .snapshot()
            .records(COLLECTION, .., false)
            .count();
        assert_eq!(left, 0);
    }
}

#[test]
fn many_entries_at_once_come_to_the_same_as_one_by_one() {
    let log = busy_log(600);
    let bytes: usize = log.iter().map(Vec::len).sum();
    assert!(
        bytes > 1 << 20,
        "{bytes} bytes are not worked out on several threads"
    );
    let one_by_one = Member::new();
    one_by_one.apply(&log, 1);
    for at_once in [7, 100, log.len()] {
        let other = Member::new();
        other.apply(&log, at_once);
        assert_eq!(other.dump(), one_by_one.dump(), "{at_once} at once");
        assert_eq!(
            other.machine.last_applied(),
            one_by_one.machine.last_applied()
        );
    }
    let catalog = one_by_one.store.catalog();
    let collection = catalog.get("db", "things").unwrap();
    assert_eq!(collection.indexes.len(), 3);
    let view = one_by_one.store.snapshot();
    let records = view.records(COLLECTION, .., false).count();
    assert!(records > 10 && records as u64 == collection.documents());
    let keys = |at: usize| {
        let scan = view.scan_index(&collection.indexes[at], KeyRange::all(), false);
        scan.count()
    };
    assert_eq!(keys(0), records);
    assert_eq!(keys(2), records);
}

#[test]
fn an_arbiter_keeps_its_place_and_the_configuration() {
    let clock = Clock::new();
    let mut log = busy_log(20);
    let arbiter = Member::new();
    // It learns late what it is.
    arbiter.apply(&log[..10], 3);
    assert_eq!(arbiter.store.catalog().collections().count(), 1);
    arbiter.machine.set_dataless(true);
    let mut entry = EntryBuilder::new();
    entry.set_config(&rawdoc! { "_id": "set" });
    log.push(seal(&entry, &clock));
    arbiter.apply(&log, 4);
    assert_eq!(arbiter.machine.applied_index(), log.len() as u64);
    assert_eq!(arbiter.store.catalog().collections().count(), 0);
    // What is dropped is removed in the background.
    let deadline = Instant::now() + Duration::from_secs(20);
    let records = || {
        let snapshot = arbiter.store.snapshot();
        snapshot.records(COLLECTION, .., false).count()
    };
    while records() > 0 {
        assert!(Instant::now() < deadline, "{} records stay", records());
        thread::sleep(Duration::from_millis(5));
    }
    let config = arbiter.machine.set_config().unwrap();
    assert_eq!(config.get_str("_id").unwrap(), "set");
}

#[test]
fn a_member_without_indexes_keeps_those_on_id() {
    let log = busy_log(200);
    let id_indexes_only = Member::new();
    id_indexes_only.machine.set_build_indexes(false);
    id_indexes_only.apply(&log, 50);
    // One that learns late what it is comes to the same.
    let late = Member::new();
    late.apply(&log, 50);
    late.machine.set_build_indexes(false);
    let full = Member::new();
    full.apply(&log, 50);
    for member in [&id_indexes_only, &late] {
        let catalog = member.store.catalog();
        let collection = catalog.get("db", "things").unwrap();
        assert_eq!(collection.indexes.len(), 1);
        let whole = full.store.catalog();
        let whole = whole.get("db", "things").unwrap();
        assert_eq!(collection.documents(), whole.documents());
        let keys = member.store.snapshot();
        let keys = keys.scan_index(&collection.indexes[0], KeyRange::all(), false);
        assert_eq!(keys.count() as u64, whole.documents());
    }
}

/// Prints rates. `cargo test -p banyan-node --test apply -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn rate() {
    let clock = Clock::new();
    let mut log = create(&clock);
    let mut record = 0;
    for _ in 0..4000 {
        let mut entry = EntryBuilder::new();
        for _ in 0..25 {
            record += 1;
            let document = rawdoc! {
                "_id": record as i64, "tags": record as i32 % 1000, "text": "x".repeat(200),
            };
            entry.insert(COLLECTION, &RecordId::number(record), &document);
        }
        log.push(seal(&entry, &clock));
    }
    for at_once in [1, 20, 1000] {
        let member = Member::new();
        let started = Instant::now();
        member.apply(&log, at_once);
        let rate = record as f64 / started.elapsed().as_secs_f64();
        println!("{at_once} entries at once: {rate:.0} operations a second");
    }
}

/// Somebody who was let in would decide on a state that lacks what is committed, and what that
/// comes to may still reach the others before this process has ended.
#[test]
fn latches_stay_closed_when_an_entry_cannot_be_applied() {
    let member = Member::new();
    let latches = Arc::new(Latches::default());
    let key = latches.record(COLLECTION, &RecordId::number(1));
    let mut held = Held::none(&latches);
    assert_eq!(held.try_add(key, 0), Attempt::Taken);
    let incoming = Arc::new(Incoming::default());
    let part = incoming::Part {
        collection: COLLECTION,
        first: RecordId::number(1),
        last: RecordId::number(1),
        documents: 1,
        bytes: 100,
        removed: None,
    };
    let entry = Committed {
        position: Position { term: 1, index: 1 },
        data: vec![0xff; 40].into(),
        prepared: Some(Prepared {
            batch: Batch::new(),
            latches: held,
            announced: Some(incoming.announce(vec![part])),
        }),
        membership: None,
    };
    member.machine.apply(vec![entry]).unwrap_err();
    assert_eq!(Held::none(&latches).try_add(key, 0), Attempt::Busy);
    assert_eq!(incoming.on_the_way(COLLECTION).len(), 1);
}
