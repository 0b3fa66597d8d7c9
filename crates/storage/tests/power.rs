//! What a power cut leaves of the engine's journal: a mixture of written and lost pages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod image;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use banyan_storage::{Batch, OpenError, Store, StoreOptions};
use image::crash_image;

const PAGE: usize = 4096;

fn open(path: &Path) -> Result<Store, OpenError> {
    Store::open(path, &StoreOptions::default())
}

fn put(store: &Store, key: &str, bytes: usize) {
    let mut batch = Batch::new();
    batch.put_meta(key.as_bytes(), &vec![b'v'; bytes]);
    store.commit(batch).unwrap();
}

fn has(store: &Store, key: &str) -> bool {
    store.snapshot().meta(key.as_bytes()).unwrap().is_some()
}

fn state(dir: &Path, name: &str) -> PathBuf {
    dir.join("state").join(name)
}

fn used(journal: &Path) -> u64 {
    let bytes = fs::read(journal).unwrap();
    let last = bytes.iter().rposition(|&byte| byte != 0);
    last.map_or(0, |last| last as u64 + 1)
}

fn lose(journal: &Path, at: u64, bytes: usize) {
    let file = File::options().write(true).open(journal).unwrap();
    file.write_all_at(&vec![0; bytes], at).unwrap();
}

fn refused(dir: &Path) -> String {
    match open(dir) {
        Err(error @ OpenError::Damaged { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A store with `synced` on the disk and five large values after it; where those begin.
fn store_with_unsynced(dir: &Path) -> (Store, u64) {
    let store = open(dir).unwrap();
    put(&store, "synced", 50_000);
    store.persist().unwrap();
    let synced = used(&state(dir, "0.jnl"));
    for n in 0..5 {
        put(&store, &format!("v{n}"), 100_000);
    }
    (store, synced)
}

#[test]
fn a_hole_past_the_last_sync_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, synced) = store_with_unsynced(dir.path());
    let image = crash_image(dir.path());
    let journal = state(image.path(), "0.jnl");
    lose(&journal, synced + 250_000, PAGE);
    let holed = used(&journal);

    // The engine alone refuses it.
    let mark = state(image.path(), "durable");
    let noted = fs::read(&mark).unwrap();
    fs::remove_file(&mark).unwrap();
    assert!(refused(image.path()).contains("ChecksumMismatch"));
    fs::write(&mark, noted).unwrap();

    let store = open(image.path()).unwrap();
    let found = ["synced", "v0", "v1", "v2", "v3", "v4"].map(|key| has(&store, key));
    assert_eq!(found, [true, true, true, false, false, false]);
    let cut = fs::metadata(state(image.path(), "journal.cut")).unwrap();
    assert_eq!(cut.len(), holed - fs::metadata(&journal).unwrap().len());
    assert!(!state(image.path(), "journal.pending").exists());
    put(&store, "later", 1000);
    store.persist().unwrap();
    drop(store);
    let store = open(image.path()).unwrap();
    assert!(has(&store, "later") && has(&store, "v1") && !has(&store, "v2"));
}

#[test]
fn a_hole_before_the_last_sync_is_refused_and_nothing_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, synced) = store_with_unsynced(dir.path());
    let image = crash_image(dir.path());
    let journal = state(image.path(), "0.jnl");
    lose(&journal, synced - 30_000, PAGE);
    let before = fs::read(&journal).unwrap();
    for _ in 0..2 {
        assert!(refused(image.path()).contains("ChecksumMismatch"));
        assert!(before == fs::read(&journal).unwrap());
    }
    assert!(!state(image.path(), "journal.cut").exists());
}

#[test]
fn lost_pages_are_survived_wherever_they_begin() {
    let dir = tempfile::tempdir().unwrap();
    let (store, synced) = store_with_unsynced(dir.path());
    let cut = crash_image(dir.path());
    let journal = state(cut.path(), "0.jnl");
    let file = File::options().write(true).open(&journal).unwrap();
    file.set_len(used(&journal) + 600_000).unwrap();
    drop(store);
    // In the head of a batch and of its item, between its two lengths, in its key and value.
    for at in [0, 1, 7, 13, 14, 20, 26, 28, 30, 32, 34, 36, 99, 50_000] {
        for bytes in [1, PAGE, 600_000] {
            let image = crash_image(cut.path());
            let journal = state(image.path(), "0.jnl");
            lose(&journal, synced + at, bytes);
            let store = open(image.path()).unwrap_or_else(|error| panic!("{at} {bytes}: {error}"));
            assert!(has(&store, "synced"), "{at} {bytes}");
            put(&store, "later", 1000);
        }
    }
}

#[test]
fn a_journal_that_began_after_the_last_sync_is_cut_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let second = state(dir.path(), "1.jnl");
    let mut written = 0;
    while !second.exists() {
        assert!(written < 150, "no second journal");
        put(&store, &format!("w{written}"), 1_000_000);
        written += 1;
        if written > 60 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let begin = used(&second);
    for n in 0..4 {
        put(&store, &format!("v{n}"), 100_000);
    }
    let image = crash_image(dir.path());
    lose(&state(image.path(), "1.jnl"), begin + 150_000, PAGE);
    let store = open(image.path()).unwrap();
    assert!((0..written).all(|n| has(&store, &format!("w{n}"))));
    assert!(has(&store, "v0") && !has(&store, "v2"));
}

/// A table that was written from memory had its journal synced before: what is missing there was
/// not lost by a power cut, and the position in the table says that it is there.
#[test]
fn a_journal_behind_its_tables_is_refused_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let (store, synced) = store_with_unsynced(dir.path());
    let bytes = || store.stats().write_buffer_bytes;
    for n in 0..9 {
        put(&store, &format!("w{n}"), 1_000_000);
    }
    wait_for("no table is written", || bytes() < 5_000_000);
    let image = crash_image(dir.path());
    lose(&state(image.path(), "0.jnl"), synced + 250_000, PAGE);
    for _ in 0..2 {
        let error = refused(image.path());
        assert!(error.contains("had been synced"), "{error}");
    }
}
