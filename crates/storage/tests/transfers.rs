//! A store carried to another member.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fixture;
mod image;

use banyan_storage::transfer::checksum;
use banyan_storage::{
    ImportScope, Importer, KeyRange, Part, SliceEnd, Snapshot, StorageError, Store,
};
use fixture::{create, fill, open};
use image::crash_image;

#[test]
fn a_transfer_carries_everything_and_survives_its_own_interruption() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = open(from.path());
    let collection = create(&source, "things");
    fill(&source, &collection, 0..500);
    let target = open(to.path());
    let old = create(&target, "old");
    fill(&target, &old, 0..5);
    drop(old);

    let snapshot = source.snapshot();
    fill(&source, &collection, 500..600); // not part of the snapshot
    let cut = chunk_of(&snapshot, Part::Records, None, None, 4096)
        .1
        .unwrap();
    let indexes_cut = chunk_of(&snapshot, Part::Indexes, None, None, 4096)
        .1
        .unwrap();

    // The second half of the records never arrives: the process ends.
    let importer = Importer::begin(&target, b"there", ImportScope::Everything).unwrap();
    let end = SliceEnd::Key(cut.clone());
    let first = chunks_of(&snapshot, Part::Records, None, Some(&cut));
    assert!(first.len() > 1);
    write(&importer, Part::Records, 0, b"", &end, first.clone()).unwrap();
    assert!(
        write(
            &importer,
            Part::Records,
            1,
            b"",
            &SliceEnd::Part,
            vec![vec![9, 0, 0, 0, 1]]
        )
        .is_err()
    );
    drop(importer);
    let interrupted = crash_image(to.path());
    drop(target);
    let target = open(interrupted.path());
    assert!(target.import_was_interrupted());
    assert_eq!(target.catalog().collections().count(), 0);
    assert!(target.snapshot().meta(b"last").unwrap().is_none());

    let importer = Importer::resume(&target, ImportScope::Everything)
        .unwrap()
        .unwrap();
    assert_eq!(importer.source(), b"there");
    assert_eq!(importer.frontier(Part::Records).as_deref(), Some(&cut[..]));
    assert_eq!(importer.frontier(Part::Indexes).as_deref(), Some(&b""[..]));
    let rest = chunks_of(&snapshot, Part::Records, Some(&cut), None);
    // What comes in a second time is refused.
    let again = Importer::resume(&target, ImportScope::Everything)
        .unwrap()
        .unwrap();
    assert!(write(&again, Part::Records, 0, &cut, &SliceEnd::Part, first).is_err());
    drop(again);
    // The later slice is written first and waits for the earlier one.
    std::thread::scope(|scope| {
        let (importer, snapshot, cut) = (&importer, &snapshot, &indexes_cut);
        scope.spawn(move || {
            let pairs = chunks_of(snapshot, Part::Indexes, Some(cut), None);
            write(importer, Part::Indexes, 1, cut, &SliceEnd::Part, pairs).unwrap();
        });
        let pairs = chunks_of(snapshot, Part::Indexes, None, Some(cut));
        write(
            importer,
            Part::Indexes,
            0,
            b"",
            &SliceEnd::Key(cut.clone()),
            pairs,
        )
        .unwrap();
    });
    write(&importer, Part::Records, 0, &cut, &SliceEnd::Part, rest).unwrap();
    assert_eq!(importer.frontier(Part::Records), None);
    for pairs in chunks_of(&snapshot, Part::Meta, None, None) {
        importer.write_meta(&pairs).unwrap();
    }
    assert_eq!(importer.compare().unwrap(), []);
    importer.finish().unwrap();
    // What follows an import goes through memory; a crash must keep both apart.
    let copy = target.catalog().get("db", "things").unwrap().clone();
    fill(&target, &copy, 500..510);
    target.persist().unwrap();
    let crashed = crash_image(interrupted.path());
    drop((target, copy));
    for directory in [crashed.path(), interrupted.path()] {
        let target = open(directory);
        assert!(!target.import_was_interrupted());
        let catalog = target.catalog();
        assert!(catalog.get("db", "old").is_none());
        let copy = catalog.get("db", "things").unwrap();
        assert_eq!(copy.documents(), 510);
        let view = target.snapshot();
        assert_eq!(view.records(copy.id, .., false).count(), 510);
        for index in &copy.indexes {
            assert_eq!(view.scan_index(index, KeyRange::all(), false).count(), 510);
        }
        assert_eq!(
            &*view.meta(b"last").unwrap().unwrap(),
            509_i32.to_be_bytes()
        );
    }
}

#[test]
fn records_are_cut_into_pieces_of_about_the_same_size() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (name, count) in [("small", 10), ("large", 1000), ("other", 20)] {
        let collection = create(&store, name);
        fill(&store, &collection, 0..count);
    }
    let snapshot = store.snapshot();
    let whole = chunks_of(&snapshot, Part::Records, None, None).concat();
    let cuts = snapshot.cuts(Part::Records, 2000).unwrap();
    assert!(cuts.is_sorted() && cuts.len() > 8, "{cuts:?}");
    let (mut after, mut pieces) = (None, Vec::new());
    for cut in cuts.iter().map(Some).chain([None]) {
        let cut = cut.map(|cut| &cut[..]);
        pieces.push(chunks_of(&snapshot, Part::Records, after, cut).concat());
        after = cut;
    }
    assert_eq!(pieces.concat(), whole);
    assert!(pieces.iter().all(|piece| piece.len() < 6000));
    assert!(
        snapshot
            .export_bytes(Part::Records)
            .abs_diff(whole.len() as u64)
            < 100
    );
    assert_eq!(
        store_without_records().cuts(Part::Records, 1).unwrap(),
        Vec::<Vec<u8>>::new()
    );
}

fn store_without_records() -> Snapshot {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).snapshot()
}

#[test]
fn an_import_that_is_given_up_leaves_nothing() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = open(from.path());
    let collection = create(&source, "things");
    fill(&source, &collection, 0..50);
    let target = open(to.path());
    let importer = Importer::begin(&target, b"there", ImportScope::Everything).unwrap();
    let records = chunks_of(&source.snapshot(), Part::Records, None, None);
    write(&importer, Part::Records, 0, b"", &SliceEnd::Part, records).unwrap();
    drop((importer, target));

    let target = open(to.path());
    assert!(target.import_was_interrupted());
    let kept = target.snapshot().records(collection.id, .., false).count();
    assert_eq!(kept, 50, "kept for the next attempt");
    Importer::give_up(&target).unwrap();
    let left = |store: &Store| store.snapshot().records(collection.id, .., false).count();
    assert_eq!(left(&target), 0);
    assert!(
        Importer::resume(&target, ImportScope::Everything)
            .unwrap()
            .is_none()
    );
    // Without an import it touches nothing.
    let own = create(&target, "own");
    fill(&target, &own, 0..5);
    Importer::give_up(&target).unwrap();
    target.persist().unwrap();
    drop(target);
    let target = open(to.path());
    assert!(!target.import_was_interrupted());
    assert_eq!(target.catalog().get("db", "own").unwrap().documents(), 5);
}

#[test]
fn an_import_that_lacks_something_is_noticed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = open(from.path());
    let collection = create(&source, "things");
    fill(&source, &collection, 0..500);
    let snapshot = source.snapshot();
    let target = open(to.path());
    let importer = Importer::begin(&target, b"", ImportScope::Everything).unwrap();
    let mut records = chunks_of(&snapshot, Part::Records, None, None);
    records.remove(1);
    write(&importer, Part::Records, 0, b"", &SliceEnd::Part, records).unwrap();
    let mut indexes = chunks_of(&snapshot, Part::Indexes, None, None);
    indexes.remove(1);
    write(&importer, Part::Indexes, 0, b"", &SliceEnd::Part, indexes).unwrap();
    for pairs in chunks_of(&snapshot, Part::Meta, None, None) {
        importer.write_meta(&pairs).unwrap();
    }
    let found = importer.compare().unwrap();
    assert!(
        found.iter().any(|one| one.part == Part::Records),
        "{found:?}"
    );
    assert!(
        found.iter().any(|one| one.part == Part::Indexes),
        "{found:?}"
    );
    let records = found.iter().find(|one| one.part == Part::Records).unwrap();
    assert_eq!(
        snapshot.count(Part::Records, records.id).unwrap(),
        records.expected
    );
    drop(importer);
    drop(target);
    assert!(open(to.path()).import_was_interrupted());
}

#[test]
fn a_member_may_take_less_than_everything() {
    let from = tempfile::tempdir().unwrap();
    let source = open(from.path());
    let collection = create(&source, "things");
    fill(&source, &collection, 0..50);
    let snapshot = source.snapshot();
    let import = |scope| {
        let to = tempfile::tempdir().unwrap();
        let target = open(to.path());
        let importer = Importer::begin(&target, b"", scope).unwrap();
        if scope == ImportScope::IdIndexes {
            let id_index = collection.indexes[0].id.to_be_bytes();
            let end = (collection.indexes[0].id + 1).to_be_bytes();
            let records = chunks_of(&snapshot, Part::Records, None, None);
            write(&importer, Part::Records, 0, b"", &SliceEnd::Part, records).unwrap();
            let keys = chunks_of(&snapshot, Part::Indexes, Some(&id_index), Some(&end));
            write(&importer, Part::Indexes, 0, b"", &SliceEnd::Part, keys).unwrap();
        }
        for pairs in chunks_of(&snapshot, Part::Meta, None, None) {
            importer.write_meta(&pairs).unwrap();
        }
        assert_eq!(importer.compare().unwrap(), []);
        importer.finish().unwrap();
        (target, to)
    };
    assert!(collection.indexes.len() > 1);
    let (id_indexes_only, _dir) = import(ImportScope::IdIndexes);
    let copy = id_indexes_only
        .catalog()
        .get("db", "things")
        .unwrap()
        .clone();
    assert_eq!(copy.indexes.len(), 1);
    assert_eq!(copy.documents(), 50);
    let (empty, _dir) = import(ImportScope::MetaKeys(&[b"last"]));
    assert_eq!(empty.catalog().collections().count(), 0);
    assert!(empty.snapshot().meta(b"last").unwrap().is_some());
}

fn chunk_of(
    snapshot: &Snapshot,
    part: Part,
    after: Option<&[u8]>,
    until: Option<&[u8]>,
    bytes: usize,
) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut pairs = b"what was there".to_vec();
    let chunk = snapshot
        .export(part, after, until, bytes, &mut pairs)
        .unwrap();
    let pairs = pairs.split_off(b"what was there".len());
    assert_eq!(chunk.checksum, checksum(&pairs));
    (pairs, chunk.next)
}

fn chunks_of(
    snapshot: &Snapshot,
    part: Part,
    after: Option<&[u8]>,
    until: Option<&[u8]>,
) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let mut after = after.map(<[u8]>::to_vec);
    loop {
        let (pairs, next) = chunk_of(snapshot, part, after.as_deref(), until, 1000);
        chunks.push(pairs);
        match next {
            Some(next) => after = Some(next),
            None => return chunks,
        }
    }
}

fn write(
    importer: &Importer,
    part: Part,
    number: usize,
    after: &[u8],
    end: &SliceEnd,
    chunks: Vec<Vec<u8>>,
) -> Result<(), StorageError> {
    importer.write_slice(part, number, after, end, chunks.into_iter().map(Ok))
}
