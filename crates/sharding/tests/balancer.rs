//! Rounds of the balancer, played to the end on paper.

// A broken expectation is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use banyan_sharding::balancer::{plan, zone_splits};
use banyan_sharding::{
    ClusterPicture, CollectionPicture, MoveReason, RoutingTable, ShardPicture, Zone, Zones, commit,
    split,
};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawBson, RawDocumentBuf, Timestamp, rawdoc};

fn table(cuts: i32, owner: impl Fn(i32) -> String) -> RoutingTable {
    let bound = |n: i32| match n {
        n if n < 0 => RawBson::MinKey,
        n if n >= cuts => RawBson::MaxKey,
        n => RawBson::Int32(n),
    };
    let chunks: Vec<RawDocumentBuf> = (0..=cuts)
        .map(|n| {
            let mut id = [0; 12];
            id[..4].copy_from_slice(&n.to_be_bytes());
            rawdoc! {
                "_id": ObjectId::from_bytes(id),
                "min": { "id": bound(n - 1) },
                "max": { "id": bound(n) },
                "shard": owner(n),
                "lastmod": Timestamp { time: 1, increment: n as u32 },
            }
        })
        .collect();
    let collection = rawdoc! {
        "_id": "test.posts",
        "lastmodEpoch": ObjectId::from_bytes([7; 12]),
        "timestamp": Timestamp { time: 100, increment: 1 },
        "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: vec![5; 16] },
        "key": { "id": 1 },
    };
    RoutingTable::build(&collection, chunks.iter().map(|chunk| &**chunk)).unwrap()
}

fn shards(count: usize) -> Vec<ShardPicture> {
    (0..count)
        .map(|n| ShardPicture {
            id: format!("shard{n}").into(),
            draining: false,
            zones: BTreeSet::new(),
        })
        .collect()
}

fn picture(shards: Vec<ShardPicture>, table: RoutingTable) -> ClusterPicture {
    let collection = CollectionPicture {
        table: Arc::new(table),
        zones: Zones::default(),
        bytes: BTreeMap::new(),
        balanced: true,
    };
    ClusterPicture {
        shards,
        collections: vec![collection],
    }
}

/// Runs one round and carries its moves out. The number of moves.
fn round(picture: &mut ClusterPicture) -> usize {
    let moves = plan(picture, &BTreeSet::new());
    let mut seen = BTreeSet::new();
    for step in &moves {
        assert!(
            seen.insert(step.from.clone()) && seen.insert(step.to.clone()),
            "{moves:?}"
        );
        let collection = &mut picture.collections[0];
        let at = Timestamp {
            time: 1,
            increment: 1,
        };
        let done = commit::move_range(
            &collection.table,
            &step.from,
            &step.to,
            commit::Expected::default(),
            &step.range,
            at,
            &mut ObjectId::new,
        )
        .unwrap();
        collection.table = Arc::new(collection.table.with_chunks(done.changed).unwrap());
    }
    moves.len()
}

fn settle(picture: &mut ClusterPicture) -> usize {
    let mut total = 0;
    loop {
        match round(picture) {
            0 => return total,
            moves => total += moves,
        }
        assert!(total < 1000, "the balancer never rests");
    }
}

fn counts(picture: &ClusterPicture) -> Vec<usize> {
    let table = &picture.collections[0].table;
    picture
        .shards
        .iter()
        .map(|shard| table.chunks_of(&shard.id).count())
        .collect()
}

#[test]
fn chunks_spread_evenly_and_then_rest() {
    for (count, chunks) in [(2, 3), (2, 20), (3, 50), (4, 7)] {
        let mut picture = picture(shards(count), table(chunks, |_| "shard0".into()));
        settle(&mut picture);
        let counts = counts(&picture);
        let most = counts.iter().max().unwrap();
        let least = counts.iter().min().unwrap();
        assert!(most - least < 3, "{counts:?}");
    }
}

#[test]
fn disjoint_pairs_move_at_once() {
    let owner = |n: i32| {
        if n < 20 {
            "shard0".into()
        } else {
            "shard1".to_owned()
        }
    };
    let picture = picture(shards(4), table(39, owner));
    assert_eq!(plan(&picture, &BTreeSet::new()).len(), 2);
    let busy = BTreeSet::from(["shard0".into()]);
    assert_eq!(plan(&picture, &busy).len(), 1);
}

#[test]
fn bytes_count_for_more_than_chunks() {
    // As after a load in key order: many small chunks here, a few large ones there.
    let owner = |n: i32| {
        if n < 12 {
            "shard0".into()
        } else {
            "shard1".to_owned()
        }
    };
    let mut picture = picture(shards(2), table(15, owner));
    picture.collections[0].bytes =
        BTreeMap::from([("shard0".into(), 1_000_000), ("shard1".into(), 8_000_000)]);
    let moves = plan(&picture, &BTreeSet::new());
    assert_eq!((&*moves[0].from, &*moves[0].to), ("shard1", "shard0"));
}

#[test]
fn a_growing_collection_leaves_a_third_on_each_of_two_shards() {
    // 24 MB come in in key order, 100 kB at a time; chunks split at their limit; one round of
    // the balancer runs for every half megabyte.
    let mut picture = picture(shards(2), table(0, |_| "shard0".into()));
    let mut sizes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut next_cut = 0;
    let size_of = |picture: &ClusterPicture, sizes: &BTreeMap<Vec<u8>, u64>, shard: &str| {
        let chunks = picture.collections[0].table.chunks_of(shard);
        chunks
            .map(|chunk| sizes.get(chunk.range.min.encoded()).copied().unwrap_or(0))
            .sum::<u64>()
    };
    for step in 0..240 {
        let table = picture.collections[0].table.clone();
        let last = table.chunks().last().unwrap();
        let size = sizes.entry(last.range.min.encoded().to_vec()).or_default();
        *size += 100_000;
        if *size > split::chunk_bytes_limit(table.chunks().len(), split::CHUNK_BYTES_MAX_DEFAULT) {
            let half = *size / 2;
            *size -= half;
            let key = table.pattern().key_of(&rawdoc! { "id": next_cut }).unwrap();
            next_cut += 1;
            let mut new_id = ObjectId::new;
            let range = &last.range;
            let points = [key.clone()];
            let done =
                commit::split(&table, &last.shard, None, range, &points, &mut new_id).unwrap();
            sizes.insert(key.encoded().to_vec(), half);
            let table = table.with_chunks(done.changed).unwrap();
            picture.collections[0].table = Arc::new(table);
        }
        if step % 5 == 0 {
            for shard in ["shard0", "shard1"] {
                let bytes = size_of(&picture, &sizes, shard);
                picture.collections[0].bytes.insert(shard.into(), bytes);
            }
            round(&mut picture);
        }
    }
    let held: Vec<u64> = ["shard0", "shard1"]
        .map(|shard| size_of(&picture, &sizes, shard))
        .into();
    assert!(held.iter().all(|bytes| *bytes >= 8_000_000), "{held:?}");
}

#[test]
fn a_draining_shard_is_emptied_even_without_balancing() {
    let mut picture = picture(shards(3), table(20, |n| format!("shard{}", n % 3)));
    picture.shards[1].draining = true;
    picture.collections[0].balanced = false;
    settle(&mut picture);
    assert_eq!(counts(&picture)[1], 0);
}

#[test]
fn chunks_go_to_the_shards_of_their_zone() {
    let mut picture = picture(shards(3), table(20, |_| "shard0".into()));
    picture.shards[2].zones.insert("cold".into());
    let pattern = picture.collections[0].table.pattern().clone();
    let zone = rawdoc! { "min": { "id": 5 }, "max": { "id": 9.5 }, "tag": "cold" };
    let zone = Zone::parse(&pattern, &zone).unwrap();
    picture.collections[0].zones = Zones::new([zone]).unwrap();
    // 9.5 cuts a chunk; it belongs to no zone until it is split.
    let splits = zone_splits(&picture);
    assert_eq!(splits.len(), 1);
    assert_eq!(splits[0].points.len(), 1);
    let first = plan(&picture, &BTreeSet::new());
    assert_eq!(first[0].reason, MoveReason::Zone);
    assert_eq!(&*first[0].to, "shard2");
    settle(&mut picture);
    let table = &picture.collections[0].table;
    for id in [5, 6, 7, 8] {
        let chunk = table.find_document(&rawdoc! { "id": id }).unwrap();
        assert_eq!(&*chunk.shard, "shard2");
    }
}

#[test]
fn jumbo_chunks_and_unbalanced_collections_stay() {
    let mut picture = picture(shards(2), table(20, |_| "shard0".into()));
    picture.collections[0].balanced = false;
    assert!(plan(&picture, &BTreeSet::new()).is_empty());
}
