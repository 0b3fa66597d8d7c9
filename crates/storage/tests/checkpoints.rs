//! What a crash leaves of a store, and how the caller's log brings back the rest.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;
mod image;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use banyan_storage::{Batch, Collection, KeyRange, RecordId, Store, StoreOptions};
use bson::{RawDocumentBuf, rawdoc};
use fixture::{create, open};
use image::crash_image;

const POSITION: &[u8] = b"position";

/// An entry of the log: the document with this number becomes another one.
#[derive(Clone)]
struct Entry {
    number: u64,
    before: Option<u32>,
    after: Option<u32>,
}

/// Entries that insert, change and delete documents in turns that never repeat.
fn log(length: usize) -> Vec<Entry> {
    let mut documents: BTreeMap<u64, u32> = BTreeMap::new();
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let entry = |version| {
        let number = 1 + random(400);
        let before = documents.get(&number).copied();
        let after = (before.is_none() || random(3) > 0).then_some(version);
        match after {
            Some(after) => documents.insert(number, after),
            None => documents.remove(&number),
        };
        Entry {
            number,
            before,
            after,
        }
    };
    (1..=length as u32).map(entry).collect()
}

fn document(number: u64, version: u32) -> RawDocumentBuf {
    let filling = "x".repeat(4_000 + 37 * version as usize % 9_000);
    rawdoc! { "_id": number as i64, "a": version as i32 % 7, "version": version as i32, "filling": filling }
}

/// The log's entry at a position, which is its index from 1 on.
fn apply(store: &Store, collection: &Arc<Collection>, log: &[Entry], position: u64) {
    let entry = &log[position as usize - 1];
    let record = RecordId::number(entry.number);
    let document_of = |version: Option<u32>| version.map(|it| document(entry.number, it));
    let (before, after) = (document_of(entry.before), document_of(entry.after));
    let mut batch = Batch::new();
    match (&before, &after) {
        (None, Some(after)) => batch.insert_record(collection, &record, after),
        (Some(before), Some(after)) => batch.replace_record(collection, &record, before, after),
        (Some(before), None) => batch.delete_record(collection, &record, before),
        (None, None) => unreachable!("an entry changes something"),
    }
    for index in &collection.indexes {
        let keys = |document: &RawDocumentBuf| index.pattern.keys(document).unwrap().keys;
        for key in before.iter().flat_map(keys) {
            batch.delete_index_key(collection, index, &key, &record);
        }
        for key in after.iter().flat_map(keys) {
            batch.put_index_key(collection, index, &key, &record);
        }
    }
    batch.put_meta(POSITION, &position.to_be_bytes());
    batch.set_position(position);
    store.commit(batch).unwrap();
}

fn position(store: &Store) -> u64 {
    let found = store.snapshot().meta(POSITION).unwrap();
    found.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
}

/// The store holds what the first so many entries of the log have made.
fn assert_is_at(store: &Store, log: &[Entry], position: u64) {
    let mut expected: BTreeMap<u64, RawDocumentBuf> = BTreeMap::new();
    for entry in &log[..position as usize] {
        match entry.after {
            Some(version) => expected.insert(entry.number, document(entry.number, version)),
            None => expected.remove(&entry.number),
        };
    }
    let catalog = store.catalog();
    let collection = catalog.get("db", "things").unwrap();
    let view = store.snapshot();
    let found: BTreeMap<u64, RawDocumentBuf> = view
        .records(collection.id, .., false)
        .map(|found| found.unwrap())
        .map(|(record, document)| (record.as_number().unwrap(), (*document).to_owned()))
        .collect();
    assert!(found == expected, "other documents at {position}");
    assert_eq!(collection.documents(), expected.len() as u64);
    let bytes = expected.values().map(|it| it.as_bytes().len() as u64);
    assert_eq!(collection.bytes(), bytes.sum::<u64>());
    for index in &collection.indexes {
        let mut keys: Vec<_> = view
            .scan_index(index, KeyRange::all(), false)
            .map(|entry| entry.unwrap())
            .map(|(key, record)| (key.to_vec(), record.as_number().unwrap()))
            .collect();
        let mut wanted = Vec::new();
        for (number, document) in &expected {
            let of_it = index.pattern.keys(document).unwrap().keys;
            wanted.extend(of_it.into_iter().map(|key| (key.bytes.to_vec(), *number)));
        }
        keys.sort();
        wanted.sort();
        assert!(keys == wanted, "other keys in {} at {position}", index.name);
    }
}

/// Small, so that checkpoints are made all the time.
fn open_small(path: &Path) -> Store {
    let options = StoreOptions {
        write_buffer_bytes: 1 << 20,
        ..StoreOptions::default()
    };
    Store::open(path, &options).unwrap()
}

#[test]
fn the_log_brings_back_what_a_crash_takes_whenever_it_comes() {
    const ENTRIES: usize = 3_000;
    const CRASHES: usize = 25;
    let log = log(ENTRIES);
    let dir = tempfile::tempdir().unwrap();
    let store = open_small(dir.path());
    let collection = create(&store, "things");
    store.persist().unwrap();
    let noted = Arc::new(AtomicU64::new(0));
    let note = noted.clone();
    store.keep_behind_log(Box::new(move |position| {
        note.fetch_max(position, Ordering::SeqCst);
        Ok(())
    }));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for position in 1..=ENTRIES as u64 {
                apply(&store, &collection, &log, position);
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            done.store(true, Ordering::SeqCst);
        });
        for _ in 0..CRASHES {
            if done.load(Ordering::SeqCst) {
                break;
            }
            let image = crash_image(dir.path());
            // Tables of the image hold nothing later.
            let noted = noted.load(Ordering::SeqCst);
            let survivor = open_small(image.path());
            let from = position(&survivor);
            assert!(from <= noted, "meta is at {from}, and {noted} was noted");
            let catalog = survivor.catalog();
            let collection = catalog.get("db", "things").unwrap();
            let to = (noted + 100).min(ENTRIES as u64);
            for position in from + 1..=to {
                apply(&survivor, collection, &log, position);
            }
            assert_is_at(&survivor, &log, to);
        }
    });
    store.persist().unwrap();
    assert_eq!(store.durable_position(), ENTRIES as u64);
    drop((store, collection));
    let store = open_small(dir.path());
    assert_eq!(position(&store), ENTRIES as u64);
    assert_is_at(&store, &log, ENTRIES as u64);
}

/// A crash takes what was not made durable, and nothing else of it: a batch is there as a whole or not
/// at all.
#[test]
fn a_crash_goes_back_to_the_last_checkpoint() {
    let log = log(40);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let collection = create(&store, "things");
    for position in 1..=20 {
        apply(&store, &collection, &log, position);
    }
    store.persist().unwrap();
    for position in 21..=40 {
        apply(&store, &collection, &log, position);
    }
    assert_is_at(&store, &log, 40);
    let image = crash_image(dir.path());
    drop((store, collection));
    for path in [image.path(), dir.path()] {
        let store = open(path);
        assert_eq!(position(&store), 20);
        assert_is_at(&store, &log, 20);
    }
}

#[test]
fn nothing_comes_into_tables_before_it_is_in_the_log() {
    let log = log(2_000);
    let dir = tempfile::tempdir().unwrap();
    let store = open_small(dir.path());
    let collection = create(&store, "things");
    store.persist().unwrap();
    apply(&store, &collection, &log, 1);
    store.keep_behind_log(Box::new(|_| Err(io::Error::other("the log is full"))));
    let error = store.persist().unwrap_err();
    assert!(error.to_string().contains("the log is full"), "{error}");
    assert_eq!(store.stats().records_disk_bytes, 0);
    // A checkpoint is due by itself, and cannot be made: memory must not grow for ever.
    let refused = (2..=2_000).find(|&position| {
        let mut batch = Batch::new();
        batch.put_meta(&position.to_string().into_bytes(), &vec![7; 20_000]);
        batch.set_position(position);
        std::thread::sleep(std::time::Duration::from_micros(500));
        store.commit(batch).is_err()
    });
    assert!(refused.is_some(), "everything was taken");
    assert_eq!(store.stats().records_disk_bytes, 0);
    let image = crash_image(dir.path());
    let store = open(image.path());
    assert_eq!(position(&store), 0);
    assert_is_at(&store, &log, 0);
}

/// In format 1 the engine's journal held what was not in tables.
#[test]
fn a_directory_of_the_earlier_format_is_taken_over_with_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("BANYAN"), "banyan data, format 1\n").unwrap();
    {
        let database = fjall::Database::builder(dir.path().join("state"))
            .open()
            .unwrap();
        let keyspace = |name| {
            database
                .keyspace(name, fjall::KeyspaceCreateOptions::default)
                .unwrap()
        };
        let [_, _, meta] = ["records", "indexes", "meta"].map(keyspace);
        meta.insert([b"x", POSITION].concat(), 17_u64.to_be_bytes())
            .unwrap();
    }
    let store = open(dir.path());
    assert_eq!(position(&store), 17);
    drop(store);
    let format = fs::read_to_string(dir.path().join("BANYAN")).unwrap();
    assert_eq!(format, "banyan data, format 2\n");
    let store = open(dir.path());
    assert_eq!(position(&store), 17);
    let mut batch = Batch::new();
    batch.put_meta(POSITION, &18_u64.to_be_bytes());
    store.commit(batch).unwrap();
    store.persist().unwrap();
    drop(store);
    assert_eq!(position(&open(dir.path())), 18);
}
