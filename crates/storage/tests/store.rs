//! A store across reopenings, crashes and drops.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fixture;
mod image;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_storage::{
    Batch, CatalogChange, Collection, IndexDefinition, KeyRange, Namespace, OpenError, RecordId,
    Store, StoreOptions,
};
use bson::{RawDocumentBuf, rawdoc};
use fixture::{create, fill, open};
use image::crash_image;

fn id(number: u64) -> RecordId {
    RecordId::number(number)
}

fn create_clustered(store: &Store, name: &str, indexes: &[RawDocumentBuf]) -> Arc<Collection> {
    let definition = |spec: &RawDocumentBuf| IndexDefinition {
        id: store.allocate_id(),
        spec: spec.clone(),
    };
    let namespace = Namespace::new("db", name);
    let mut batch = Batch::new();
    batch.change_catalog(CatalogChange::CreateCollection {
        id: store.allocate_id(),
        namespace: namespace.clone(),
        uuid: [1; 16],
        options: rawdoc! { "clusteredIndex": {
            "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true,
        } },
        indexes: indexes.iter().map(definition).collect(),
    });
    store.commit(batch).unwrap();
    store.catalog().find(&namespace).unwrap().clone()
}

fn wait_until_clean(store: &Store) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.is_cleaning() {
        assert!(Instant::now() < deadline, "dropped data is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn records_and_keys_are_found_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    fill(&store, &collection, 0..100);
    store.persist().unwrap();
    drop((store, collection));

    let store = open(dir.path());
    let catalog = store.catalog();
    let collection = catalog.get("db", "things").unwrap();
    assert_eq!(collection.documents(), 100);
    assert!(collection.index("a_1").unwrap().key_bytes() > 0);
    let view = store.snapshot();
    let forward: Vec<u64> = view
        .records(collection.id, .., false)
        .map(|found| found.unwrap().0.as_number().unwrap())
        .collect();
    assert_eq!(forward, (1..=100).collect::<Vec<_>>());
    let backward: Vec<u64> = view
        .records(collection.id, id(10)..=id(12), true)
        .map(|found| found.unwrap().0.as_number().unwrap())
        .collect();
    assert_eq!(backward, [12, 11, 10]);
    let id_index = collection.id_index().unwrap();
    let key = id_index
        .pattern
        .keys(&rawdoc! { "_id": 42.0 })
        .unwrap()
        .keys
        .remove(0);
    let record = view.unique_lookup(id_index, &key).unwrap().unwrap();
    let document = view.record(collection.id, &record).unwrap().unwrap();
    assert_eq!(document.get_i32("_id").unwrap(), 42);
    let by_a = collection.index("a_1").unwrap();
    let key = by_a
        .pattern
        .keys(&rawdoc! { "a": 3 })
        .unwrap()
        .keys
        .remove(0);
    let range = KeyRange {
        lower: std::ops::Bound::Included(key.bytes.clone()),
        upper: std::ops::Bound::Included(key.bytes),
    };
    assert_eq!(view.scan_index(by_a, range, false).count(), 10);
    fill(&store, collection, 100..101);
    assert_eq!(
        store.snapshot().last_record_id(collection.id).unwrap(),
        Some(id(101))
    );
}

/// Documents with these `_id`s in a clustered collection with an index on `a`, which is the same in
/// all.
fn fill_clustered(store: &Store, collection: &Arc<Collection>, ids: &[i32]) {
    let index = collection.clustered_index.as_ref().unwrap();
    let mut batch = Batch::new();
    for n in ids {
        let document = rawdoc! { "_id": *n, "a": 1 };
        let record = RecordId::bytes(&index.pattern.keys(&document).unwrap().keys[0]);
        batch.insert_record(collection, &record, &document);
        let by_a = &collection.indexes[0];
        let key = &by_a.pattern.keys(&document).unwrap().keys[0];
        batch.put_index_key(collection, by_a, key, &record);
    }
    store.commit(batch).unwrap();
}

#[test]
fn a_clustered_collection_is_its_own_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let by_a = rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };
    let collection = create_clustered(&store, "things", &[by_a]);
    fill_clustered(&store, &collection, &[40, -7, 300, 0, 70_000, 12]);
    store.persist().unwrap();
    drop((store, collection));

    let store = open(dir.path());
    let collection = store.catalog().get("db", "things").unwrap().clone();
    fill_clustered(&store, &collection, &[41]);
    let view = store.snapshot();
    let index = collection.id_index().unwrap();
    assert!(index.is_clustered() && !index.is_id());
    let id_of = |record: &RecordId| {
        let document = view.record(collection.id, record).unwrap().unwrap();
        document.get_i32("_id").unwrap()
    };
    let sorted = [-7, 0, 12, 40, 41, 300, 70_000];
    let records: Vec<RecordId> = view
        .records(collection.id, .., false)
        .map(|found| found.unwrap().0)
        .collect();
    assert_eq!(records.iter().map(id_of).collect::<Vec<_>>(), sorted);
    assert!(records.is_sorted());
    let key_of = |n: i32| index.pattern.keys(&rawdoc! { "_id": n }).unwrap().keys[0].clone();
    for (n, record) in sorted.iter().zip(&records) {
        let found = view.unique_lookup(index, &key_of(*n)).unwrap();
        assert_eq!(found.as_ref(), Some(record));
    }
    assert_eq!(view.unique_lookup(index, &key_of(13)).unwrap(), None);
    let range = KeyRange {
        lower: std::ops::Bound::Excluded(key_of(0).bytes),
        upper: std::ops::Bound::Included(key_of(300).bytes),
    };
    let ids = |scan: banyan_storage::IndexScan| -> Vec<i32> {
        let entries = scan.map(|entry| entry.unwrap());
        entries
            .map(|(key, record)| {
                assert_eq!(RecordId::bytes(&key), record);
                id_of(&record)
            })
            .collect()
    };
    assert_eq!(
        ids(view.scan_index(index, range.clone(), false)),
        [12, 40, 41, 300]
    );
    assert_eq!(
        ids(view.scan_index(index, range.clone(), true)),
        [300, 41, 40, 12]
    );
    let last = (&*key_of(40), &records[3]);
    assert_eq!(
        ids(view.scan_index_after(index, &range, false, last)),
        [41, 300]
    );
    assert_eq!(ids(view.scan_index_after(index, &range, true, last)), [12]);
    // Entries of one key come in the order of the records.
    let by_a = collection.index("a_1").unwrap();
    let entries = view.scan_index(by_a, KeyRange::all(), false);
    let entries: Vec<RecordId> = entries.map(|entry| entry.unwrap().1).collect();
    assert_eq!(entries, records);
    assert!(
        view.has_index_key(
            by_a,
            &by_a.pattern.keys(&rawdoc! { "a": 1 }).unwrap().keys[0],
            &records[2]
        )
        .unwrap()
    );
}

#[test]
fn a_crash_leaves_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    for batch in 0..200 {
        fill(&store, &collection, batch * 10..batch * 10 + 10);
        if batch == 100 {
            store.persist().unwrap();
        }
    }
    let image = crash_image(dir.path());
    let survivor = open(image.path());
    let catalog = survivor.catalog();
    let collection = catalog.get("db", "things").unwrap();
    let view = survivor.snapshot();
    let records = view.records(collection.id, .., false).count() as u64;
    assert!(records >= 1010, "what was persisted is there: {records}");
    assert_eq!(records % 10, 0, "batches are whole");
    assert_eq!(
        collection.documents(),
        records,
        "the counts are those of the records"
    );
    let last = view.meta(b"last").unwrap().unwrap();
    assert_eq!(
        u64::from(u32::from_be_bytes(last[..].try_into().unwrap())),
        records - 1
    );
    for index in &collection.indexes {
        assert_eq!(
            view.scan_index(index, KeyRange::all(), false).count() as u64,
            records
        );
    }
}

#[test]
fn dropped_data_goes_once_nobody_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (kept, dropped) = (create(&store, "kept"), create(&store, "dropped"));
    fill(&store, &kept, 0..1200);
    fill(&store, &dropped, 0..1200);
    let mut batch = Batch::new();
    batch.change_catalog(CatalogChange::DropCollection { id: dropped.id });
    batch.change_catalog(CatalogChange::DropIndex {
        collection: kept.id,
        index: kept.index("a_1").unwrap().id,
    });
    store.commit(batch).unwrap();
    assert!(store.catalog().get("db", "dropped").is_none());
    // This test still holds both.
    assert_eq!(
        store.snapshot().records(dropped.id, .., false).count(),
        1200
    );
    store.persist().unwrap();
    let image = crash_image(dir.path());
    let (kept_id, dropped_id) = (kept.id, dropped.id);
    let dropped_indexes = [kept.indexes[1].clone(), dropped.indexes[0].clone()];
    drop((kept, dropped));
    let definitions = dropped_indexes.map(|index| index.definition());
    for store in [store, open(image.path())] {
        wait_until_clean(&store);
        let view = store.snapshot();
        assert_eq!(view.records(dropped_id, .., false).count(), 0);
        assert_eq!(view.records(kept_id, .., false).count(), 1200);
        for definition in &definitions {
            let index = banyan_storage::Index::parse(definition, Default::default()).unwrap();
            assert_eq!(view.scan_index(&index, KeyRange::all(), false).count(), 0);
        }
        assert!(
            store.allocate_id() > dropped_id,
            "ids are not given out again"
        );
    }
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    fill(&store, &collection, 0..10);
    let before = store.snapshot();
    let mut batch = Batch::new();
    let document = before.record(collection.id, &id(1)).unwrap().unwrap();
    batch.delete_record(&collection, &id(1), &document);
    batch.replace_record(
        &collection,
        &id(2),
        &document,
        &rawdoc! { "_id": 1, "a": "changed" },
    );
    store.commit(batch).unwrap();
    assert_eq!(before.records(collection.id, .., false).count(), 10);
    assert_eq!(
        before
            .record(collection.id, &id(2))
            .unwrap()
            .unwrap()
            .get_i32("a")
            .unwrap(),
        1
    );
    let after = store.snapshot();
    assert_eq!(after.records(collection.id, .., false).count(), 9);
    assert_eq!(
        after
            .record(collection.id, &id(2))
            .unwrap()
            .unwrap()
            .get_str("a")
            .unwrap(),
        "changed"
    );
    assert_eq!(collection.documents(), 9);
}

#[test]
fn the_last_write_of_a_key_in_a_batch_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut first = Batch::new();
    first.put_meta(b"k", b"1");
    first.delete_meta(b"k");
    let mut second = Batch::new();
    second.put_meta(b"k", b"2");
    first.append(second);
    store.commit(first).unwrap();
    store.persist().unwrap();
    assert_eq!(&*store.snapshot().meta(b"k").unwrap().unwrap(), b"2");
    let mut third = Batch::new();
    third.put_meta(b"k", b"3");
    third.delete_meta(b"k");
    store.commit(third).unwrap();
    assert!(store.snapshot().meta(b"k").unwrap().is_none());
    store.persist().unwrap();
    drop(store);
    assert!(open(dir.path()).snapshot().meta(b"k").unwrap().is_none());
}

#[test]
fn directories_that_cannot_be_used_are_left_alone() {
    let options = StoreOptions::default();
    let dir = tempfile::tempdir().unwrap();
    let error = Store::open(&dir.path().join("nowhere"), &options)
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    let file = dir.path().join("file.log");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file, &options).err().unwrap();
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error}");

    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("WiredTiger"), "WiredTiger 11.2").unwrap();
    let error = Store::open(foreign.path(), &options).err().unwrap();
    assert!(error.to_string().contains("WiredTiger"), "{error}");
    assert_eq!(
        fs::read_dir(foreign.path()).unwrap().count(),
        1,
        "nothing was added"
    );

    // The file from above does not make the directory a foreign one.
    let store = open(dir.path());
    let error = Store::open(dir.path(), &options).err().unwrap();
    let OpenError::Locked { pid, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*pid, Some(std::process::id()));
    drop(store);

    let format = dir.path().join("BANYAN");
    let good = fs::read(&format).unwrap();
    fs::write(&format, "banyan data, format 99\n").unwrap();
    let error = Store::open(dir.path(), &options).err().unwrap();
    assert!(
        matches!(error, OpenError::FormatVersion { found: 99, .. }),
        "{error}"
    );
    fs::write(&format, [0xff, 0xfe, 0]).unwrap();
    let error = Store::open(dir.path(), &options).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    fs::write(&format, good).unwrap();
    open(dir.path());
}

#[test]
fn a_damaged_engine_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    fill(&store, &collection, 0..10);
    store.persist().unwrap();
    drop((store, collection));
    let mut damaged = 0;
    for entry in fs::read_dir(dir.path().join("state").join("keyspaces")).unwrap() {
        for file in fs::read_dir(entry.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                fs::write(&path, b"garbage").unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let error = Store::open(dir.path(), &StoreOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

/// A document `{_id: 1.0, a: NumberLong(7)}`: what the index returns is what was put.
#[test]
fn type_bits_come_back_with_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    types_come_back(&store, &create(&store, "things"), &id(1));
    let clustered = create_clustered(
        &store,
        "clustered",
        &[
            rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" },
            rawdoc! { "v": 2, "key": { "a": -1 }, "name": "a_-1", "unique": true },
        ],
    );
    for record in [&b"\x12"[..], &[7; 500]] {
        types_come_back(&store, &clustered, &RecordId::bytes(record));
    }
}

fn types_come_back(store: &Store, collection: &Arc<Collection>, record: &RecordId) {
    let put = |document: RawDocumentBuf, retypes: bool| {
        let mut batch = Batch::new();
        for index in &collection.indexes {
            let key = index.pattern.keys(&document).unwrap().keys.remove(0);
            match retypes {
                true => batch.retype_index_key(index, &key, record),
                false => batch.put_index_key(collection, index, &key, record),
            }
        }
        store.commit(batch).unwrap();
        let view = store.snapshot();
        for index in &collection.indexes {
            let key = index.pattern.keys(&document).unwrap().keys.remove(0);
            assert!(view.has_index_key(index, &key, record).unwrap());
            let found: Vec<_> = view.scan_index(index, KeyRange::all(), false).collect();
            let [Ok((entry, found))] = found.as_slice() else {
                panic!("another entry of {}", index.name);
            };
            assert_eq!(found, record);
            assert_eq!((&**entry, entry.types()), (&*key.bytes, &*key.types));
            let mut other = key.clone();
            other.types = [9].into();
            assert!(!view.has_index_key(index, &other, record).unwrap());
        }
        collection.index("a_1").unwrap().key_bytes()
    };
    let bytes = put(rawdoc! { "_id": 1.0, "a": 7_i64 }, false);
    assert_eq!(put(rawdoc! { "_id": 1_i64, "a": 7 }, true), bytes);
    let mut batch = Batch::new();
    for index in &collection.indexes {
        let keys = index.pattern.keys(&rawdoc! { "_id": 1, "a": 7 }).unwrap();
        batch.delete_index_key(collection, index, &keys.keys[0], record);
    }
    store.commit(batch).unwrap();
}

#[test]
fn a_list_of_tables_that_is_not_as_it_was_written_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    fill(&store, &collection, 0..100);
    store.persist().unwrap();
    drop((store, collection));
    let keyspaces = fs::read_dir(dir.path().join("state/keyspaces")).unwrap();
    let mut lists = 0;
    for keyspace in keyspaces {
        let keyspace = keyspace.unwrap().path();
        let current = fs::read(keyspace.join("current")).unwrap();
        let version = u64::from_le_bytes(current[..8].try_into().unwrap());
        let list = keyspace.join(format!("v{version}"));
        let whole = fs::read(&list).unwrap();
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 1 << (at % 8);
            fs::write(&list, altered).unwrap();
            let error = Store::open(dir.path(), &StoreOptions::default())
                .err()
                .unwrap();
            assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        }
        fs::write(&list, whole).unwrap();
        lists += 1;
    }
    assert!(lists > 0);
    drop(open(dir.path()));
}

#[test]
fn a_keyspace_without_its_list_of_tables_is_damage_if_it_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    fill(&store, &collection, 0..100);
    store.persist().unwrap();
    drop((store, collection));
    let keyspaces = dir.path().join("state/keyspaces");

    // As a removal leaves it that a crash has cut short: its successors are there.
    let removed = keyspaces.join("99");
    fs::create_dir_all(removed.join("tables")).unwrap();
    fs::write(removed.join("tables/1"), "a table").unwrap();
    drop(open(dir.path()));
    assert!(!removed.exists());

    fs::create_dir_all(keyspaces.join("1/tables")).unwrap();
    fs::write(keyspaces.join("1/tables/1"), "a table").unwrap();
    fs::remove_file(keyspaces.join("1/current")).unwrap();
    let options = StoreOptions::default();
    let error = Store::open(dir.path(), &options).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}
