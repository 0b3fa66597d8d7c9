//! What is read of the tables is what the engine reads, whatever lies where.

use std::ops::Bound;
use std::sync::Arc;

use fjall::AbstractTree;
use fjall::config::{BlockSizePolicy, RestartIntervalPolicy};
use lsm_tree::Guard;
use proptest::prelude::*;

use super::{Cursor, Direction, Points, State, States};
use crate::checkpoint::requests::Requests;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, Clone)]
enum Step {
    Put(u16, u8),
    Remove(u16),
    Flush,
    Compact,
    /// Reads later what is there now.
    Keep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        60 => (0..200_u16, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        15 => (0..200_u16).prop_map(Step::Remove),
        4 => Just(Step::Flush),
        1 => Just(Step::Compact),
        2 => Just(Step::Keep),
    ];
    prop::collection::vec(step, 1..400)
}

fn bound() -> impl Strategy<Value = Bound<u16>> {
    prop_oneof![
        (0..210_u16).prop_map(Bound::Included),
        (0..210_u16).prop_map(Bound::Excluded),
        Just(Bound::Unbounded),
    ]
}

/// The engine refuses such ranges.
fn is_empty(bounds: &Bounds) -> bool {
    match bounds {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
        _ => false,
    }
}

/// Keys of several lengths that share beginnings.
fn key(number: u16) -> Vec<u8> {
    let mut key = format!("key {:03}", number / 3).into_bytes();
    key.resize(key.len() + usize::from(number % 3) * 9, b'x');
    key
}

struct Kept {
    view: fjall::Snapshot,
    state: Option<Arc<State>>,
}

struct Peer {
    _directory: tempfile::TempDir,
    database: fjall::Database,
    keyspace: fjall::Keyspace,
    states: States,
    kept: Vec<Kept>,
}

impl Peer {
    fn new(restart_interval: u8) -> Peer {
        // Each flush syncs: that takes no time in memory.
        let memory = std::path::Path::new("/dev/shm");
        let directory = match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let database = fjall::Database::builder(directory.path()).open().unwrap();
        let options = || {
            fjall::KeyspaceCreateOptions::default()
                .data_block_size_policy(BlockSizePolicy::all(256))
                .data_block_restart_interval_policy(RestartIntervalPolicy::all(restart_interval))
        };
        let keyspace = database.keyspace("keys", options).unwrap();
        Peer {
            _directory: directory,
            database,
            keyspace,
            states: States::new(Requests::channel().0),
            kept: Vec::new(),
        }
    }

    fn keep(&mut self) {
        let view = self.database.snapshot();
        let visible = || self.database.visible_seqno();
        let state = self.states.capture(&self.keyspace, view.seqno(), visible);
        let state = state.map(Arc::new);
        self.kept.push(Kept { view, state });
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Put(number, value) => {
                    let value = vec![*value; usize::from(*value)];
                    self.keyspace.insert(key(*number), value).unwrap();
                }
                Step::Remove(number) => self.keyspace.remove(key(*number)).unwrap(),
                Step::Flush => self.keyspace.rotate_memtable_and_wait().unwrap(),
                Step::Compact => self.keyspace.major_compact().unwrap(),
                Step::Keep => self.keep(),
            }
        }
        self.keep();
    }

    fn by_engine(&self, view: &fjall::Snapshot, bounds: &Bounds) -> Pairs {
        if is_empty(bounds) {
            return Vec::new();
        }
        let tree = &self.keyspace.tree;
        let found = tree.range::<Vec<u8>, _>(bounds.clone(), view.seqno(), None);
        let pairs = found.map(|guard| guard.into_inner().unwrap());
        pairs
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect()
    }
}

fn by_cursor(cursor: &mut Cursor) -> Pairs {
    let mut pairs = Vec::new();
    while cursor.advance().unwrap() {
        assert_eq!(cursor.value(), &cursor.kept_value()[..]);
        pairs.push((cursor.key().to_vec(), cursor.value().to_vec()));
    }
    assert!(!cursor.advance().unwrap(), "the end stays the end");
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn cursors_and_points_read_what_the_engine_reads(
        steps in steps(),
        ranges in prop::collection::vec((bound(), bound(), 0..40_u64), 1..30),
        restart_interval in prop_oneof![Just(1_u8), Just(4), Just(16)],
    ) {
        let mut peer = Peer::new(restart_interval);
        peer.run(&steps);
        let mut read = 0;
        for Kept { view, state } in &peer.kept {
            let Some(state) = state else { continue };
            read += 1;
            let direct = |direction| Cursor::new(state.clone(), view.seqno(), direction);
            let mut cursor = direct(Direction::Forward);
            let mut backward = direct(Direction::Backward);
            for (lower, upper, passed) in &ranges {
                let bounds = (lower.map(key), upper.map(key));
                if is_empty(&bounds) {
                    continue;
                }
                let mut expected = peer.by_engine(view, &bounds);
                for cursor in [&mut cursor, &mut backward] {
                    cursor.seek(bounds.clone());
                    prop_assert_eq!(&by_cursor(cursor), &expected);
                    // Back again, over some of them, and on.
                    cursor.seek(bounds.clone());
                    let count = cursor.pass(*passed).unwrap();
                    prop_assert_eq!(count, (*passed).min(expected.len() as u64));
                    let rest = expected.get(count as usize..).unwrap_or_default();
                    prop_assert_eq!(&by_cursor(cursor), rest);
                    expected.reverse();
                }
            }
            let mut points = Points::new(state.clone(), view.seqno());
            let upward = (0..200).step_by(5).chain((0..200).step_by(60)).chain(0..200);
            for number in upward.chain((0..200).rev().step_by(7)) {
                let found = points.get(&key(number)).unwrap();
                let expected = peer.keyspace.tree.get(key(number), view.seqno()).unwrap();
                prop_assert_eq!(found, expected);
            }
        }
        prop_assert!(read > 0, "the newest state is at hand");
    }
}

#[test]
fn a_snapshot_from_before_a_version_does_not_read_that() {
    let peer = Peer::new(16);
    peer.keyspace.insert("a", "1").unwrap();
    let before = peer.database.snapshot();
    peer.keyspace.rotate_memtable_and_wait().unwrap();
    let visible = || peer.database.visible_seqno();
    let capture = |view: &fjall::Snapshot| {
        let state = peer.states.capture(&peer.keyspace, view.seqno(), visible);
        state.is_some()
    };
    let after = peer.database.snapshot();
    assert!(capture(&after));
    assert!(!capture(&before));
    assert!(capture(&after));
}

#[test]
fn what_is_read_much_in_memory_is_to_be_written_to_a_table() {
    let mut peer = Peer::new(16);
    let (requests, queue) = Requests::channel();
    peer.states = States::new(requests);
    for number in 0..2000_u32 {
        peer.keyspace
            .insert(number.to_be_bytes(), vec![7; 1000])
            .unwrap();
    }
    let read = || {
        let view = peer.database.snapshot();
        let visible = || peer.database.visible_seqno();
        let state = peer
            .states
            .capture(&peer.keyspace, view.seqno(), visible)
            .unwrap();
        let mut cursor = Cursor::new(Arc::new(state), view.seqno(), Direction::Forward);
        cursor.seek((Bound::Unbounded, Bound::Unbounded));
        assert_eq!(cursor.pass(u64::MAX).unwrap(), 2000);
    };
    read();
    // A write in between: it may be the first of many.
    peer.keyspace
        .insert(0_u32.to_be_bytes(), "changed")
        .unwrap();
    read();
    assert!(!queue.is_asked());
    read();
    assert!(queue.is_asked());
}
