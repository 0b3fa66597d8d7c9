//! Dropped data on its way out.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fixture;
mod image;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_storage::{Batch, CatalogChange, Collection, RecordId, Store, StoreOptions};
use bson::{rawdoc, spec::BinarySubtype};
use fixture::{create, fill, open};
use image::crash_image;

const DOCUMENT_BYTES: usize = 10_000;
const HOUR: Duration = Duration::from_secs(3600);

fn open_with(path: &Path, removal_delay: Duration) -> Store {
    let options = StoreOptions {
        write_buffer_bytes: 1 << 20,
        removal_delay,
        ..StoreOptions::default()
    };
    Store::open(path, &options).unwrap()
}

/// Inserts so many documents, 20 in a batch.
fn load(store: &Store, collection: &Arc<Collection>, documents: u64) {
    let bytes = vec![7; DOCUMENT_BYTES];
    for first in (1..=documents).step_by(20) {
        let mut batch = Batch::new();
        for number in first..(first + 20).min(documents + 1) {
            let subtype = BinarySubtype::Generic;
            let bytes = bson::Binary {
                subtype,
                bytes: bytes.clone(),
            };
            let document = rawdoc! { "_id": number as i64, "bytes": bytes };
            let record = RecordId::number(number);
            batch.insert_record(collection, &record, &document);
            for index in &collection.indexes {
                for key in index.pattern.keys(&document).unwrap().keys {
                    batch.put_index_key(collection, index, &key, &record);
                }
            }
        }
        store.commit(batch).unwrap();
    }
}

fn drop_collections<const N: usize>(store: &Store, collections: [Arc<Collection>; N]) -> [u32; N] {
    collections.map(|collection| {
        let mut batch = Batch::new();
        let id = collection.id;
        batch.change_catalog(CatalogChange::DropCollection { id });
        store.commit(batch).unwrap();
        id
    })
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn records(store: &Store, id: u32) -> usize {
    store.snapshot().records(id, .., false).count()
}

#[test]
fn tables_of_dropped_neighbours_go_at_once_and_do_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), HOUR);
    let [kept, one, two] = ["kept", "one", "two"].map(|name| create(&store, name));
    load(&store, &one, 1500);
    load(&store, &two, 1500);
    let disk_bytes = |store: &Store| store.stats().records_disk_bytes;
    wait_for("nothing is written to tables", || {
        // It is looked how much lies in memory when something is written.
        load(&store, &two, 20);
        disk_bytes(&store) > 20_000_000
    });
    // No table has any of it yet, however the engine has merged them.
    load(&store, &kept, 20);
    let dropped = drop_collections(&store, [one, two]);
    wait_for("the tables of what was dropped are still there", || {
        disk_bytes(&store) < 12_000_000
    });
    assert!(
        store.is_cleaning(),
        "the rest is in memory with what is kept"
    );
    store.persist().unwrap();
    let image = crash_image(dir.path());
    drop(store);
    for path in [image.path(), dir.path()] {
        let store = open(path);
        wait_for("dropped data is still there", || !store.is_cleaning());
        assert_eq!(dropped.map(|id| records(&store, id)), [0, 0]);
        assert_eq!(records(&store, kept.id), 20);
    }
}

#[test]
fn what_is_only_in_memory_is_removed_after_the_delay() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        removal_delay: Duration::from_millis(300),
        ..StoreOptions::default()
    };
    let store = Store::open(dir.path(), &options).unwrap();
    let large = create(&store, "large");
    load(&store, &large, 300);
    let large = drop_collections(&store, [large]);
    let [kept, small] = ["kept", "small"].map(|name| create(&store, name));
    wait_for("the large one is still there", || !store.is_cleaning());
    fill(&store, &kept, 0..20);
    fill(&store, &small, 0..20);
    let small = drop_collections(&store, [small]);
    wait_for("the small one is still there", || !store.is_cleaning());
    store.persist().unwrap();
    let image = crash_image(dir.path());
    for store in [store, open(image.path())] {
        wait_for("dropped data is still there", || !store.is_cleaning());
        assert_eq!(records(&store, large[0]), 0);
        assert_eq!(records(&store, small[0]), 0);
        assert_eq!(records(&store, kept.id), 20);
    }
}
