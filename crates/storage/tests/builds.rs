//! Index builds with writes in between: whatever happens while a build loads its keys, in the end the
//! index holds exactly the keys of the documents.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use banyan_document::key::{Key, Keys};
use banyan_storage::build::{LoadEnd, LoadHost, LoadProgress};
use banyan_storage::{
    Batch, BuildAddress, CatalogChange, Collection, Index, IndexBuild, IndexBuildDefinition,
    IndexDefinition, KeyRange, Namespace, RecordId, Store, StoreOptions, Violation,
};
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;

const COLLECTION: u32 = 1;
const ADDRESS: BuildAddress = BuildAddress {
    collection: COLLECTION,
    build: [9; 16],
};

/// Documents, and a store that is to hold them.
struct World {
    store: Store,
    documents: BTreeMap<u64, RawDocumentBuf>,
    next: u64,
    seed: u64,
    /// How many values `a` can have.
    values: u64,
    arrays: bool,
    clustered: bool,
}

impl World {
    fn new(path: &std::path::Path, values: u64, arrays: bool) -> World {
        World::of(path, values, arrays, false)
    }

    fn of(path: &std::path::Path, values: u64, arrays: bool, clustered: bool) -> World {
        let store = Store::open(path, &StoreOptions::default()).unwrap();
        let mut batch = Batch::new();
        batch.change_catalog(CatalogChange::CreateCollection {
            id: COLLECTION,
            namespace: Namespace::new("db", "things"),
            uuid: [1; 16],
            options: match clustered {
                false => rawdoc! {},
                true => rawdoc! { "clusteredIndex": {
                    "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true,
                } },
            },
            indexes: match clustered {
                false => vec![definition(2, rawdoc! { "_id": 1 }, false)],
                true => Vec::new(),
            },
        });
        store.commit(batch).unwrap();
        World {
            store,
            documents: BTreeMap::new(),
            next: 1,
            seed: 11,
            values,
            arrays,
            clustered,
        }
    }

    /// The record of the document with so high a number. In a clustered collection the later ones
    /// come between the earlier ones.
    fn id(&self, number: u64) -> RecordId {
        match self.clustered {
            false => RecordId::number(number),
            true => RecordId::bytes(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) % below
    }

    fn collection(&self) -> Arc<Collection> {
        self.store.catalog().by_id(COLLECTION).unwrap().clone()
    }

    fn build(&self) -> Arc<IndexBuild> {
        self.collection().build(&ADDRESS.build).unwrap().clone()
    }

    fn document(&mut self, record: u64) -> RawDocumentBuf {
        let a = self.random(self.values) as i64;
        if self.arrays && self.random(3) == 0 {
            // A key with type bits; equal to the other item, it is the same key.
            let other = self.random(self.values) as f64;
            return rawdoc! { "_id": record as i64, "a": [a, other] };
        }
        rawdoc! { "_id": record as i64, "a": a }
    }

    /// One batch of random inserts, updates and deletes.
    fn write(&mut self, count: u64) {
        let collection = self.collection();
        let mut batch = Batch::new();
        for _ in 0..count {
            let known = self.random(self.next);
            match self.documents.get(&known).cloned() {
                Some(before) if self.random(2) == 0 => {
                    let record = self.id(known);
                    batch.delete_record(&collection, &record, &before);
                    change(&mut batch, &collection, &record, Some(&before), None);
                    self.documents.remove(&known);
                }
                Some(before) => {
                    let after = self.document(known);
                    let record = self.id(known);
                    batch.replace_record(&collection, &record, &before, &after);
                    change(
                        &mut batch,
                        &collection,
                        &record,
                        Some(&before),
                        Some(&after),
                    );
                    self.documents.insert(known, after);
                }
                None => {
                    let number = self.next;
                    self.next += 1;
                    let (record, after) = (self.id(number), self.document(number));
                    batch.insert_record(&collection, &record, &after);
                    change(&mut batch, &collection, &record, None, Some(&after));
                    self.documents.insert(number, after);
                }
            }
        }
        self.store.commit(batch).unwrap();
    }

    /// Deletes all but one of the documents that share a value, or all whose keys cannot be made.
    fn mend(&mut self) {
        let collection = self.collection();
        let mut seen = std::collections::HashSet::new();
        for (number, document) in self.documents.clone() {
            let record = self.id(number);
            let index = &collection.builds[0].indexes[0];
            let keys = keys_of(index, &document);
            let twice = |key: &Key| seen.contains(&key.bytes);
            if keys.as_ref().is_none_or(|keys| keys.iter().any(twice)) {
                let mut batch = Batch::new();
                batch.delete_record(&collection, &record, &document);
                change(&mut batch, &collection, &record, Some(&document), None);
                self.store.commit(batch).unwrap();
                self.documents.remove(&number);
            } else {
                seen.extend(keys.unwrap_or_default().into_iter().map(|key| key.bytes));
            }
        }
    }

    fn start(&self, unique: bool) {
        let mut batch = Batch::new();
        batch.change_catalog(CatalogChange::StartIndexBuild {
            collection: COLLECTION,
            build: IndexBuildDefinition {
                id: ADDRESS.build,
                duplicates: 4,
                indexes: vec![definition(3, rawdoc! { "a": 1 }, unique)],
                options: rawdoc! {},
            },
        });
        self.store.commit(batch).unwrap();
    }

    fn commit(&self) {
        let mut batch = Batch::new();
        batch.change_catalog(CatalogChange::CommitIndexBuild {
            collection: COLLECTION,
            build: ADDRESS.build,
        });
        self.store.commit(batch).unwrap();
    }

    /// The ready index holds the keys of the documents, and counts them.
    fn check(&self) {
        let collection = self.collection();
        assert!(collection.builds.is_empty());
        let index = collection.index("i").expect("the index is ready");
        let mut expected = Vec::new();
        for (number, document) in &self.documents {
            let keys = keys_of(index, document).unwrap();
            expected.extend(keys.into_iter().map(|key| (key, self.id(*number))));
        }
        // Of equal keys the one of the lower record comes first, whatever its type bits.
        expected.sort_by_key(|(key, record): &(Key, RecordId)| (key.bytes.clone(), record.clone()));
        let scan = self.store.snapshot();
        let scan = scan.scan_index(index, KeyRange::all(), false);
        let found: Vec<_> = scan
            .map(|entry| {
                let (key, record) = entry.unwrap();
                let (bytes, types) = (key.to_vec(), key.types().into());
                (Key { bytes, types }, record)
            })
            .collect();
        assert_eq!(found, expected);
        // Ids of bytes count, with their length.
        let id_bytes = usize::from(self.clustered && !index.unique) * 10;
        let bytes: usize = expected.iter().map(|(key, _)| key.len() + id_bytes).sum();
        assert_eq!(index.key_bytes(), bytes as u64);
        assert_eq!(index.is_multikey(), self.arrays);
    }
}

fn definition(id: u32, key: RawDocumentBuf, unique: bool) -> IndexDefinition {
    let name = if id == 2 { "_id_" } else { "i" };
    let spec = rawdoc! { "v": 2, "key": key, "name": name, "unique": unique };
    IndexDefinition { id, spec }
}

/// Values of a multiple of 50 have no keys in an index that is being built.
fn keys_of(index: &Index, document: &RawDocument) -> Option<Vec<Key>> {
    if document.get_i64("a").is_ok_and(|a| a % 50 == 49) {
        return None;
    }
    Some(index.kind.keys(document).unwrap().keys)
}

fn change(
    batch: &mut Batch,
    collection: &Arc<Collection>,
    record: &RecordId,
    before: Option<&RawDocument>,
    after: Option<&RawDocument>,
) {
    for index in collection.building_indexes() {
        let old = before.and_then(|before| keys_of(index, before));
        let new = after.map_or(Some(Vec::new()), |after| keys_of(index, after));
        if let Some(after) = after {
            let arrays = index.kind.keys(after).unwrap().arrays;
            batch.note_arrays(collection.id, index, &arrays);
        }
        batch.write_building(collection.id, index, record, old.unwrap_or_default(), new);
    }
}

/// Writes whenever the load lets others have their turn, and ends it after so many turns.
struct Meanwhile<'a> {
    world: Mutex<RefCell<&'a mut World>>,
    turns: Mutex<usize>,
    commits: bool,
}

impl LoadHost for Meanwhile<'_> {
    fn workers(&self) -> usize {
        3
    }

    fn part_entries(&self) -> u64 {
        600
    }

    fn keys(&self, index: &Index, document: &RawDocument) -> Option<Keys> {
        keys_of(index, document)?;
        index.kind.keys(document).ok()
    }

    fn goes_on(&self, _: LoadProgress) -> bool {
        let world = self.world.lock();
        let mut world = world.borrow_mut();
        world.write(7);
        let mut turns = self.turns.lock();
        *turns = turns.saturating_sub(1);
        if *turns == 3 && self.commits {
            // No duplicates and nothing that has no keys from here on.
            world.mend();
            world.values = 1;
            world.commit();
        }
        *turns > 0
    }
}

fn load(world: &mut World, turns: usize) -> LoadEnd {
    let store = world.store.clone();
    let build = world.build();
    let host = Meanwhile {
        world: Mutex::new(RefCell::new(world)),
        turns: Mutex::new(turns),
        commits: false,
    };
    store.load_build(ADDRESS, &build, &host).unwrap()
}

#[test]
fn writes_while_keys_are_loaded_are_neither_lost_nor_taken_back() {
    for clustered in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut world = World::of(directory.path(), 40, true, clustered);
        for _ in 0..100 {
            world.write(100);
        }
        world.start(false);
        world.write(50);
        // Also if it has to begin again, wherever it was.
        let mut stops = 0;
        while load(&mut world, 5 + 6 * stops) == LoadEnd::Stopped {
            stops += 1;
        }
        assert!(stops > 3, "{stops} stops");
        world.write(50);
        assert!(world.build().is_loaded());
        assert!(world.collection().index("i").is_none(), "not committed yet");
        world.commit();
        world.check();
    }
}

#[test]
fn a_load_that_a_restart_interrupts_begins_again_over_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path(), 40, true);
    for _ in 0..60 {
        world.write(100);
    }
    world.start(false);
    let mut stops = 0;
    while load(&mut world, 3 + 5 * stops) == LoadEnd::Stopped {
        stops += 1;
        let World {
            documents,
            next,
            seed,
            values,
            arrays,
            clustered,
            store,
        } = world;
        store.persist().unwrap();
        drop(store);
        let store = Store::open(directory.path(), &StoreOptions::default()).unwrap();
        world = World {
            store,
            documents,
            next,
            seed,
            values,
            arrays,
            clustered,
        };
        world.write(30);
    }
    assert_eq!(load(&mut world, usize::MAX), LoadEnd::Complete);
    world.commit();
    world.check();
}

#[test]
fn records_that_share_a_unique_key_for_a_while_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path(), 3000, false);
    for _ in 0..50 {
        world.write(100);
    }
    world.start(true);
    assert_eq!(load(&mut world, usize::MAX), LoadEnd::Complete);
    let violation = |world: &World| world.build().violation(&world.store.snapshot()).unwrap();
    let found = violation(&world);
    assert!(
        matches!(found, Some(Violation::Unindexable { .. })),
        "{found:?}"
    );
    // Without those that have no keys, duplicates are left.
    let unindexable: Vec<u64> = world
        .documents
        .iter()
        .filter(|(_, document)| document.get_i64("a").unwrap() % 50 == 49)
        .map(|(record, _)| *record)
        .collect();
    let collection = world.collection();
    for number in unindexable {
        let document = world.documents.remove(&number).unwrap();
        let mut batch = Batch::new();
        let record = world.id(number);
        batch.delete_record(&collection, &record, &document);
        change(&mut batch, &collection, &record, Some(&document), None);
        world.store.commit(batch).unwrap();
    }
    let Some(Violation::Duplicate { key, record, .. }) = violation(&world) else {
        panic!("no duplicate is found");
    };
    let index = world.build().indexes[0].clone();
    let number = record.as_number().unwrap();
    let keys = keys_of(&index, &world.documents[&number]).unwrap();
    assert_eq!(keys[0].bytes, key);
    world.mend();
    assert!(violation(&world).is_none());
    world.commit();
    world.check();
}

#[test]
fn a_commit_that_comes_while_keys_are_loaded_counts_once_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path(), 40, false);
    for _ in 0..100 {
        world.write(100);
    }
    world.start(false);
    let store = world.store.clone();
    let build = world.build();
    let host = Meanwhile {
        world: Mutex::new(RefCell::new(&mut world)),
        turns: Mutex::new(4),
        commits: true,
    };
    // It is stopped some turns after the commit, as by a restart.
    let ended = store.load_build(ADDRESS, &build, &host).unwrap();
    assert_eq!(ended, LoadEnd::Stopped);
    assert!(world.build().is_committed);
    assert!(world.collection().index("i").is_none());
    assert_eq!(load(&mut world, usize::MAX), LoadEnd::Complete);
    world.check();
}

#[test]
fn a_committed_index_is_changed_and_dropped_where_it_is_still_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path(), 40, false);
    for _ in 0..30 {
        world.write(100);
    }
    let mut batch = Batch::new();
    let mut other = definition(5, rawdoc! { "a": -1 }, false);
    other.spec = rawdoc! { "v": 2, "key": { "a": -1 }, "name": "other" };
    batch.change_catalog(CatalogChange::StartIndexBuild {
        collection: COLLECTION,
        build: IndexBuildDefinition {
            id: ADDRESS.build,
            duplicates: 4,
            indexes: vec![other, definition(3, rawdoc! { "a": 1 }, false)],
            options: rawdoc! {},
        },
    });
    world.store.commit(batch).unwrap();
    assert_eq!(load(&mut world, 4), LoadEnd::Stopped);
    world.commit();
    let mut hidden = definition(3, rawdoc! { "a": 1 }, false);
    hidden.spec.append(bson::cstr!("hidden"), true);
    let mut batch = Batch::new();
    batch.change_catalog(CatalogChange::DropIndex {
        collection: COLLECTION,
        index: 5,
    });
    batch.change_catalog(CatalogChange::SetIndexSpec {
        collection: COLLECTION,
        index: hidden,
    });
    // The load that goes on knows of both indexes.
    let begun = world.build();
    world.store.commit(batch).unwrap();
    let store = world.store.clone();
    let host = Meanwhile {
        world: Mutex::new(RefCell::new(&mut world)),
        turns: Mutex::new(usize::MAX),
        commits: false,
    };
    let ended = store.load_build(ADDRESS, &begun, &host).unwrap();
    assert_eq!(ended, LoadEnd::Complete);
    world.check();
    let collection = world.collection();
    assert!(collection.index("other").is_none());
    assert!(collection.index("i").unwrap().hidden);
}

#[test]
fn a_build_ends_with_its_last_index() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path(), 40, false);
    world.write(100);
    world.start(false);
    world.commit();
    let build = world.build();
    let mut batch = Batch::new();
    batch.change_catalog(CatalogChange::DropIndex {
        collection: COLLECTION,
        index: 3,
    });
    world.store.commit(batch).unwrap();
    assert!(world.collection().builds.is_empty());
    let store = world.store.clone();
    let host = Meanwhile {
        world: Mutex::new(RefCell::new(&mut world)),
        turns: Mutex::new(usize::MAX),
        commits: false,
    };
    let ended = store.load_build(ADDRESS, &build, &host).unwrap();
    assert_eq!(ended, LoadEnd::Stopped);
    assert!(world.collection().index("i").is_none());
}

#[test]
fn an_aborted_build_ends_its_load_and_leaves_no_keys() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path(), 40, false);
    for _ in 0..50 {
        world.write(100);
    }
    world.start(false);
    let build = world.build();
    let mut batch = Batch::new();
    batch.change_catalog(CatalogChange::AbortIndexBuild {
        collection: COLLECTION,
        build: ADDRESS.build,
    });
    world.store.commit(batch).unwrap();
    let store = world.store.clone();
    let host = Meanwhile {
        world: Mutex::new(RefCell::new(&mut world)),
        turns: Mutex::new(usize::MAX),
        commits: false,
    };
    let ended = store.load_build(ADDRESS, &build, &host).unwrap();
    assert_eq!(ended, LoadEnd::Stopped);
    let index = build.indexes[0].clone();
    drop(build);
    let scan = store.snapshot();
    assert_eq!(scan.scan_index(&index, KeyRange::all(), false).count(), 0);
}
