//! How the log is read, kept, cut and checked.

#![allow(clippy::unwrap_used)]

mod harness;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use banyan_consensus::{Change, Error, Group, ProposeOptions, SyncMode};
use bytes::Bytes;
use futures::executor::block_on;
use harness::{Cluster, FATAL, Journal, options, propose, wait};

const SYNCED: SyncMode = SyncMode::EveryEntry;
const MEGABYTE: usize = 1 << 20;

fn journal(cluster: &Cluster) -> Arc<Journal> {
    Arc::new(Journal {
        peers: cluster.peers.clone(),
        ..Journal::default()
    })
}

/// A group of one with a small log.
fn small(cluster: &Cluster) -> Group<Journal> {
    let group = cluster.start_with(1, SYNCED, journal(cluster), 3 * MEGABYTE as u64);
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    group
}

fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_millis()
}

fn write_megabytes(group: &Group<Journal>, count: usize) {
    for _ in 0..count {
        let text = format!("{}:{}", now_ms(), "x".repeat(MEGABYTE));
        propose(group, &text).unwrap();
    }
}

#[test]
fn reading_the_log_does_not_wait_for_writing_it() {
    let cluster = Cluster::new();
    let group = small(&cluster);
    propose(&group, "first").unwrap();
    let journal = cluster.journal(1);
    let gate = journal.gate.lock();
    let pending = group.propose(b"second".to_vec(), 1, ProposeOptions::default());
    // It hangs in the seal, under the lock of whoever writes.
    std::thread::sleep(Duration::from_millis(100));
    let entries = group.entries(1, 1 << 20).unwrap();
    assert_eq!(entries.last().unwrap().1, Bytes::from_static(b"first"));
    assert_eq!(group.first_index(), 1);
    drop(gate);
    block_on(pending).unwrap();
    let entries = group.entries(1, 1 << 20).unwrap();
    assert_eq!(entries.last().unwrap().1, Bytes::from_static(b"second"));
    // At least one, and no more than fits.
    write_megabytes(&group, 2);
    let last = group.status().last_index;
    assert_eq!(group.entries(last - 1, 10).unwrap().len(), 1);
    assert_eq!(group.entries(last - 1, 3 << 20).unwrap().len(), 2);
    assert_eq!(group.entries(last + 1, 10).unwrap().len(), 0);
}

#[test]
fn a_hold_keeps_the_log_within_the_bound() {
    let cluster = Cluster::new();
    let group = small(&cluster);
    write_megabytes(&group, 1);
    let hold = group.hold_log(3);
    write_megabytes(&group, 6);
    std::thread::sleep(Duration::from_millis(2500));
    assert!(group.first_index() <= 3, "{}", group.first_index());
    assert!(group.status().log_bytes > 6 * MEGABYTE as u64);
    hold.move_to(5);
    wait("the first part to go", || group.first_index() > 3);
    assert!(group.first_index() <= 5, "{}", group.first_index());
    // Four times the log's size is as far as anybody's needs go.
    write_megabytes(&group, 9);
    wait("the bound to count", || group.first_index() > 5);
    drop(hold);
    write_megabytes(&group, 1);
    wait("the rest to go", || {
        group.status().log_bytes < 5 * MEGABYTE as u64
    });
    wait("its age", || group.status().oldest_ms.is_some());
    let oldest = group.status().oldest_ms.unwrap();
    assert!(
        (0..60_000).contains(&(now_ms() as i64 - oldest)),
        "{oldest}"
    );
}

#[test]
fn the_log_is_kept_for_as_long_as_it_should() {
    let cluster = Cluster::new();
    let group = small(&cluster);
    group.set_log_limits(MEGABYTE as u64, Duration::from_secs(3600));
    propose(&group, &format!("{}:old", now_ms() - 7_200_000)).unwrap();
    let old = group.status().last_index;
    write_megabytes(&group, 6);
    wait("what is old enough to go", || group.first_index() > old);
    assert_eq!(group.first_index(), old + 1);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(group.first_index(), old + 1);
    group.set_log_limits(MEGABYTE as u64, Duration::ZERO);
    wait("the rest to go", || group.first_index() > old + 3);
    group.set_log_limits(100 * MEGABYTE as u64, Duration::ZERO);
    let first = group.first_index();
    write_megabytes(&group, 8);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(group.first_index(), first);
}

fn log_files(cluster: &Cluster, id: u64) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(cluster.path(id)).unwrap();
    let mut files: Vec<PathBuf> = paths
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "raftlog"))
        .collect();
    files.sort();
    files
}

/// Flips a bit in the middle of the entry that holds `text`.
fn damage(cluster: &Cluster, id: u64, text: &str) {
    for file in log_files(cluster, id) {
        let mut bytes = std::fs::read(&file).unwrap();
        let found = bytes
            .windows(text.len())
            .position(|window| window == text.as_bytes());
        if let Some(at) = found {
            bytes[at + text.len() / 2] ^= 4;
            std::fs::write(&file, &bytes).unwrap();
            return;
        }
    }
    panic!("{text} is in no file of the log");
}

#[test]
fn damage_in_applied_entries_is_named_and_gets_nobody_into_trouble() {
    let cluster = Cluster::new();
    let kept = journal(&cluster);
    let group = cluster.start_with(1, SYNCED, kept.clone(), 64 << 20);
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    let mut at = 0;
    for number in 0..50 {
        at = propose(&group, &format!("this is number {number}."))
            .unwrap()
            .index;
    }
    let broken = at - 20;
    drop(group);
    cluster.kill(1);
    damage(&cluster, 1, "this is number 29.");

    let group = cluster.start_with(1, SYNCED, kept, 64 << 20);
    wait("leader", || group.leader_term() != 0);
    wait("the damage to be seen", || group.status().damage.is_some());
    let named = format!("entry {broken}");
    let found = group.status().damage.unwrap();
    assert!(found.contains(&named), "{found} should name {named}");
    let Err(Error::Damaged(what)) = group.entries(broken, 1 << 20) else {
        panic!("a damaged entry was read");
    };
    assert!(what.contains(&named), "{what}");
    assert_eq!(group.entries(broken + 1, 1 << 20).unwrap().len(), 21);

    // Who needs the damaged entries gets what came of them.
    let _newcomer = cluster.start(2, SYNCED);
    let address = "host2".to_owned();
    block_on(group.change_membership(Change::AddLearner { id: 2, address })).unwrap();
    wait("the newcomer", || cluster.entries(2) == cluster.entries(1));
    propose(&group, "more").unwrap();
    wait("more", || cluster.entries(2) == cluster.entries(1));
    assert!(!FATAL.load(Ordering::SeqCst));
}

#[test]
fn damage_in_entries_that_are_still_needed_stops_the_start() {
    let cluster = Cluster::new();
    let group = cluster.start(1, SYNCED);
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    let mut at = 0;
    for number in 0..50 {
        at = propose(&group, &format!("this is number {number}."))
            .unwrap()
            .index;
    }
    drop(group);
    cluster.kill(1);
    damage(&cluster, 1, "this is number 29.");
    // The state is gone with the process: all of the log is needed.
    let outcome = cluster.open(options(1, SYNCED), journal(&cluster));
    let Err(Error::Open(what)) = outcome.map(|_| ()) else {
        panic!("a damaged log was opened");
    };
    assert!(what.contains(&format!("entry {}", at - 20)), "{what}");
}
