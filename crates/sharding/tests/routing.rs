//! Routing tables against plain arithmetic: whatever chunks there are and whatever is asked, a
//! key has one owner, and no shard that could hold a match is left out.

// A broken expectation is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use banyan_sharding::{
    Chunk, ChunkRange, RoutingTable, ShardKeyPattern, ValueRange, commit, split,
};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawBson, RawBsonRef, RawDocumentBuf, Timestamp, rawdoc};
use proptest::prelude::*;

fn collection(key: RawDocumentBuf) -> RawDocumentBuf {
    rawdoc! {
        "_id": "test.posts",
        "lastmodEpoch": ObjectId::from_bytes([7; 12]),
        "timestamp": Timestamp { time: 100, increment: 1 },
        "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: vec![5; 16] },
        "key": key,
        "unique": false,
    }
}

fn chunk(n: u8, min: RawBson, max: RawBson, shard: &str, lastmod: (u32, u32)) -> RawDocumentBuf {
    rawdoc! {
        "_id": ObjectId::from_bytes([n; 12]),
        "min": { "id": min },
        "max": { "id": max },
        "shard": shard,
        "lastmod": Timestamp { time: lastmod.0, increment: lastmod.1 },
    }
}

/// Chunks cut at the given numbers, handed out in turn.
fn table(cuts: &[i32], shards: &[u8]) -> RoutingTable {
    let mut bounds = vec![RawBson::MinKey];
    bounds.extend(cuts.iter().map(|cut| RawBson::Int32(*cut)));
    bounds.push(RawBson::MaxKey);
    let chunks: Vec<RawDocumentBuf> = bounds
        .windows(2)
        .enumerate()
        .map(|(i, pair)| {
            let shard = format!("shard{}", shards[i % shards.len()]);
            chunk(
                i as u8,
                pair[0].clone(),
                pair[1].clone(),
                &shard,
                (1, i as u32),
            )
        })
        .collect();
    let collection = collection(rawdoc! { "id": 1 });
    RoutingTable::build(&collection, chunks.iter().map(|chunk| &**chunk)).unwrap()
}

fn owner(table: &RoutingTable, id: impl Into<RawBson>) -> String {
    let document = rawdoc! { "_id": 1, "id": id.into() };
    table.find_document(&document).unwrap().shard.to_string()
}

#[test]
fn a_key_lies_in_the_chunk_that_starts_at_or_below_it() {
    let table = table(&[10, 20], &[0, 1, 2]);
    assert_eq!(owner(&table, 9), "shard0");
    assert_eq!(owner(&table, 10), "shard1");
    assert_eq!(owner(&table, 10.0), "shard1");
    assert_eq!(owner(&table, 19i64), "shard1");
    assert_eq!(owner(&table, 20), "shard2");
    assert_eq!(owner(&table, "a string sorts after numbers"), "shard2");
    assert_eq!(owner(&table, RawBson::Null), "shard0");
    assert_eq!(owner(&table, RawBson::MinKey), "shard0");
    assert_eq!(owner(&table, RawBson::MaxKey), "shard2");
}

fn values<'a>(
    lower: RawBsonRef<'a>,
    lower_inclusive: bool,
    upper: RawBsonRef<'a>,
    upper_inclusive: bool,
) -> ValueRange<'a> {
    ValueRange {
        lower,
        lower_inclusive,
        upper,
        upper_inclusive,
    }
}

#[test]
fn a_compound_key_is_narrowed_by_its_prefix() {
    let pattern = ShardKeyPattern::parse(&rawdoc! { "a": 1, "b": 1 }).unwrap();
    let ranges = pattern.ranges(|path| {
        Some(vec![match path.head() {
            "a" => values(RawBsonRef::Int32(5), true, RawBsonRef::Int32(5), true),
            _ => values(RawBsonRef::Int32(3), false, RawBsonRef::MaxKey, true),
        }])
    });
    let key = |a: i32, b: i32| pattern.key_of(&rawdoc! { "a": a, "b": b }).unwrap();
    let holds = |a, b| {
        let key = key(a, b);
        ranges.0.iter().any(|range| {
            range.start.as_slice() <= key.encoded()
                && range.end.as_deref().is_none_or(|end| key.encoded() < end)
        })
    };
    assert!(holds(5, 4) && holds(5, 1000));
    assert!(!holds(5, 3) && !holds(4, 4) && !holds(6, 4));
}

#[test]
fn a_hashed_key_is_found_by_equality_only() {
    let pattern = ShardKeyPattern::parse(&rawdoc! { "id": "hashed" }).unwrap();
    let by_document = pattern.key_of(&rawdoc! { "id": 42 }).unwrap();
    let by_value = pattern.key_of_values(|_| Some(RawBsonRef::Int32(42)));
    assert_eq!(by_document, by_value.unwrap());
    assert!(matches!(
        by_document.values().next(),
        Some(RawBson::Int64(_))
    ));
    assert!(
        pattern
            .ranges(|_| Some(vec![values(
                RawBsonRef::Int32(1),
                false,
                RawBsonRef::MaxKey,
                true
            )]))
            .is_everything()
    );
    let number = RawBsonRef::Int32(42);
    let ranges = pattern.ranges(|_| Some(vec![values(number, true, number, true)]));
    assert_eq!(ranges.0.len(), 1);
    let points = split::hashed_split_points(&pattern, 4);
    let hashes: Vec<RawBson> = points.iter().flat_map(|point| point.values()).collect();
    assert_eq!(
        hashes,
        [-4611686018427387902i64, 0, 4611686018427387902].map(RawBson::Int64)
    );
}

#[test]
fn arrays_and_bad_patterns_are_refused() {
    let pattern = ShardKeyPattern::parse(&rawdoc! { "a.b": 1 }).unwrap();
    assert!(pattern.key_of(&rawdoc! { "a": { "b": [1] } }).is_err());
    assert!(pattern.key_of(&rawdoc! { "a": [{ "b": 1 }] }).is_err());
    assert!(pattern.key_of(&rawdoc! { "a": { "b": 1 } }).is_ok());
    for bad in [
        rawdoc! {},
        rawdoc! { "a": -1 },
        rawdoc! { "a": "2d" },
        rawdoc! { "a": "hashed", "b": "hashed" },
        rawdoc! { "a..b": 1 },
        rawdoc! { "$a": 1 },
    ] {
        assert!(ShardKeyPattern::parse(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn gaps_and_missing_ends_are_refused() {
    let collection = collection(rawdoc! { "id": 1 });
    let min = || RawBson::MinKey;
    let max = || RawBson::MaxKey;
    let cases = [
        vec![],
        vec![chunk(1, min(), 5.into(), "a", (1, 0))],
        vec![chunk(1, 5.into(), max(), "a", (1, 0))],
        vec![
            chunk(1, min(), 5.into(), "a", (1, 0)),
            chunk(2, 6.into(), max(), "a", (1, 1)),
        ],
    ];
    for chunks in cases {
        let chunks = chunks.iter().map(|chunk| &**chunk);
        assert!(RoutingTable::build(&collection, chunks).is_err());
    }
}

#[test]
fn a_refresh_takes_only_what_changed() {
    let table = table(&[10], &[0, 1]);
    let collection = collection(rawdoc! { "id": 1 });
    let changed = [
        chunk(9, 15.into(), RawBson::MaxKey, "shard1", (2, 1)),
        chunk(1, 10.into(), 15.into(), "shard0", (2, 0)),
    ];
    let newer = table
        .refreshed(&collection, changed.iter().map(|chunk| &**chunk))
        .unwrap();
    assert_eq!(newer.chunks().len(), 3);
    assert_eq!(newer.version().order(), (2, 1));
    assert_eq!(owner(&newer, 12), "shard0");
    assert_eq!(owner(&newer, 15), "shard1");
    assert_eq!(newer.shard_version("shard0").order(), (2, 0));
    assert_eq!(newer.shard_version("nobody").order(), (0, 0));
    // Seen in part only, the change leaves a hole and is refused.
    let part = changed.iter().skip(1).map(|chunk| &**chunk);
    assert!(table.refreshed(&collection, part).is_err());
}

#[test]
fn chunk_documents_read_back() {
    let table = table(&[10], &[0, 1]);
    let first = &table.chunks()[0];
    let document = first.to_document("test.posts", table.uuid());
    assert_eq!(document.get_str("ns").unwrap(), "test.posts");
    let back = Chunk::parse(table.pattern(), &document).unwrap();
    assert_eq!(back, **first);
}

fn ids() -> impl FnMut() -> ObjectId {
    let mut next = 100u8;
    move || {
        next += 1;
        ObjectId::from_bytes([next; 12])
    }
}

#[test]
fn a_move_of_a_part_leaves_the_rest_and_a_repeat_is_known() {
    let table = table(&[10, 20], &[0, 1, 0]);
    let pattern = table.pattern();
    let range = ChunkRange::parse(pattern, &rawdoc! { "id": 12 }, &rawdoc! { "id": 15 }).unwrap();
    let at = Timestamp {
        time: 200,
        increment: 1,
    };
    let run = |table: &RoutingTable| {
        let expected = commit::Expected::default();
        commit::move_range(table, "shard1", "shard0", expected, &range, at, &mut ids())
    };
    let done = run(&table).unwrap();
    let after = table.with_chunks(done.changed).unwrap();
    assert_eq!(owner(&after, 13), "shard0");
    assert_eq!(owner(&after, 11), "shard1");
    assert_eq!(owner(&after, 15), "shard1");
    assert_eq!(after.version().major, 2);
    assert_eq!(after.shard_version("shard1").major, 2);
    assert_eq!(run(&after).unwrap_err(), commit::CommitError::AlreadyDone);
}

#[test]
fn a_fenced_commit_comes_too_late() {
    let table = table(&[10], &[0, 1]);
    let chunk = table.chunks()[0].clone();
    let fenced = commit::fence(&table, &chunk.range, chunk.lastmod).unwrap();
    let after = table.with_chunks(vec![fenced]).unwrap();
    let expected = commit::Expected {
        epoch: None,
        lastmod: Some(chunk.lastmod),
    };
    let at = Timestamp {
        time: 200,
        increment: 1,
    };
    let late = commit::move_range(
        &after,
        "shard0",
        "shard1",
        expected,
        &chunk.range,
        at,
        &mut ids(),
    );
    assert!(matches!(late, Err(commit::CommitError::ChunkChanged(_))));
}

#[test]
fn split_points_never_repeat_or_touch_the_bounds() {
    let pattern = ShardKeyPattern::parse(&rawdoc! { "id": 1 }).unwrap();
    let range = ChunkRange::everything(&pattern);
    let key = |id: i32| pattern.key_of(&rawdoc! { "id": id }).unwrap();
    let keys: Vec<_> = [1, 1, 1, 1, 1, 1, 2].map(key).into();
    assert_eq!(split::split_points(&range, &keys, 2), [key(1)]);
    let from_one = ChunkRange::new(key(1), pattern.max_key()).unwrap();
    assert_eq!(split::split_points(&from_one, &keys, 2), [key(2)]);
    let same: Vec<_> = [1; 8].map(key).into();
    assert!(split::split_points(&from_one, &same, 2).is_empty());
    let many: Vec<_> = (1..=100).map(key).collect();
    assert_eq!(
        split::split_points(&from_one, &many, 4),
        [key(26), key(51), key(76)]
    );
}

proptest! {
    #[test]
    fn ownership_matches_arithmetic(
        cuts in proptest::collection::btree_set(-50i32..50, 0..12),
        shards in proptest::collection::vec(0u8..4, 1..6),
        low in -60i32..60,
        width in 0i32..40,
    ) {
        let cuts: Vec<i32> = cuts.into_iter().collect();
        let table = table(&cuts, &shards);
        let expected = |id: i32| {
            let chunk = cuts.iter().filter(|cut| **cut <= id).count();
            format!("shard{}", shards[chunk % shards.len()])
        };
        let mut wanted: BTreeMap<String, ()> = BTreeMap::new();
        for id in low..low + width {
            prop_assert_eq!(owner(&table, id), expected(id));
            wanted.insert(expected(id), ());
        }
        let reached = table.shards_to_ask(&table.pattern().ranges(|_| {
            Some(vec![values(RawBsonRef::Int32(low), true, RawBsonRef::Int32(low + width), false)])
        }));
        for shard in wanted.keys() {
            prop_assert!(reached.iter().any(|found| **found == **shard));
        }
    }

    #[test]
    fn splits_and_moves_keep_the_cover(
        steps in proptest::collection::vec((any::<bool>(), -50i32..50, 0u8..3), 1..40),
    ) {
        let mut table = table(&[0], &[0, 1]);
        let mut new_id = ids();
        for (is_split, id, to) in steps {
            let key = table.pattern().key_of(&rawdoc! { "id": id }).unwrap();
            let chunk = table.find(&key).clone();
            let before = table.version();
            let changed = if is_split {
                commit::split(&table, &chunk.shard, None, &chunk.range, &[key], &mut new_id)
                    .map(|done| done.changed)
            } else {
                let at = Timestamp { time: 300, increment: 1 };
                let to = format!("shard{to}");
                let expected = commit::Expected { epoch: None, lastmod: Some(chunk.lastmod) };
                commit::move_range(
                    &table, &chunk.shard, &to, expected, &chunk.range, at, &mut new_id,
                ).map(|done| done.changed)
            };
            let Ok(changed) = changed else { continue };
            let donor_major = changed.iter().map(|c: &Arc<Chunk>| c.lastmod).max().unwrap();
            table = table.with_chunks(changed).unwrap();
            prop_assert!(before.order() < table.version().order());
            prop_assert_eq!(donor_major, table.version().lastmod());
        }
    }
}
