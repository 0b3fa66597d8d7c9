//! What members of a set, shards and config servers ask each other.

use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, Timestamp, doc};

use crate::forge::{Facts, frame};

const NAMESPACE: &str = "fuzz.sharded";

fn binary(bytes: Vec<u8>) -> Bson {
    let subtype = BinarySubtype::Generic;
    Bson::Binary(Binary { subtype, bytes })
}

/// A command for the `admin` database of a member.
pub fn command(random: &mut Random, generator: &mut Generator, facts: &Facts) -> Document {
    match random.below(10) {
        0..=3 => raft(random, generator, facts),
        4 | 5 => of_a_set(random, facts),
        _ => of_a_cluster(random, generator),
    }
}

fn raft(random: &mut Random, generator: &mut Generator, facts: &Facts) -> Document {
    let to = facts.peer(random);
    let frames: Vec<Bson> = (0..random.between(1, 3))
        .map(|_| binary(frame(random, generator, facts, &to)))
        .collect();
    doc! { "_raftMessages": 1, "to": to.id as i64, "messages": frames }
}

fn of_a_set(random: &mut Random, facts: &Facts) -> Document {
    let (one, other) = (facts.peer(random), facts.peer(random));
    match random.below(12) {
        0..=2 => doc! { "replSetHeartbeat": *random.pick(&["fuzzed", "", "other"]),
        "from": one.address, "to": other.address, "configVersion": random.between(-1, 5),
        "term": random.between(-1, 5), "fromPeer": one.id as i64 },
        3 => doc! { "_fetchSnapshot": 1 },
        4 | 5 => doc! { "_fetchSnapshot": 1, "token": random.between(0, 9),
        "part": random.between(-1, 5), "after": binary(vec![1; random.below(20)]),
        "until": binary(vec![255; random.below(20)]) },
        6 => doc! { "_fetchSnapshot": 1, "token": random.between(0, 9), "plan": true },
        7 => doc! { "_fetchSnapshot": 1, "token": random.between(0, 9), "part": 0, "count": 1 },
        8 => doc! { "_appliedProgress": 1, "after": random.between(-1, 1000), "maxTimeMS": 100 },
        9 => {
            doc! { "_awaitWrites": 1, "maxTimeMS": 100, "writeConcern": { "w": 2, "wtimeout": 50 } }
        }
        10 => doc! { "voteCommitIndexBuild": Binary { subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16] }, "hostAndPort": one.address },
        _ => doc! { "appendOplogNote": 1, "data": { "a": 1 }, "maxClusterTime":
        Timestamp { time: u32::MAX, increment: 1 } },
    }
}

fn version(random: &mut Random) -> Bson {
    let time = Timestamp {
        time: random.between(0, 4) as u32,
        increment: random.between(0, 4) as u32,
    };
    Bson::Array(vec![
        Bson::Timestamp(time),
        Bson::ObjectId(ObjectId::from_bytes([1; 12])),
    ])
}

fn of_a_cluster(random: &mut Random, generator: &mut Generator) -> Document {
    let low = doc! { "k": random.between(-5, 5) };
    let high = doc! { "k": random.between(0, 9) };
    let shard = *random.pick(&["shard0", "shard1", "shard9", "config"]);
    let mut command = match random.below(30) {
        0 => doc! { "_shardsvrMoveRange": NAMESPACE, "min": low, "max": high, "toShard": shard },
        1 => doc! { "_shardsvrCreateCollection": NAMESPACE, "key": { "k": 1 } },
        2 => doc! { "_shardsvrDropCollection": "fuzz.other" },
        3 => doc! { "_shardsvrPrepareShardCollection": NAMESPACE, "key": { "k": 1 } },
        4 => doc! { "_shardsvrDescribeCollection": NAMESPACE },
        5 => doc! { "_shardsvrGetStatsForBalancing": 1, "collections": [{ "ns": NAMESPACE }] },
        6 => doc! { "_shardsvrSplitPoints": NAMESPACE, "keyPattern": { "k": 1 }, "min": low,
        "max": high, "maxChunkSizeBytes": 1024 },
        7 => doc! { "_shardsvrAlignIndexes": NAMESPACE, "indexes": [{ "key": { "a": 1 },
        "name": "a_1" }] },
        8 => doc! { "_shardsvrPlanIndexes": NAMESPACE, "command": { "createIndexes": "sharded" } },
        9 => doc! { "_shardsvrMigrationIsOpen": NAMESPACE, "migration": "x" },
        10 => doc! { "_flushRoutingTableCacheUpdates": NAMESPACE, "syncFromConfig": true },
        11 => doc! { "_recvChunkStart": NAMESPACE, "from": "127.0.0.1:1", "min": low, "max": high,
        "shardKeyPattern": { "k": 1 }, "sessionId": "x" },
        12 => doc! { *random.pick(&["_recvChunkStatus", "_recvChunkAbort", "_recvChunkCommit",
        "_recvChunkFinish"]): NAMESPACE, "sessionId": "x" },
        13 => doc! { *random.pick(&["_migrateClone", "_transferMods", "_getNextSessionMods"]):
        NAMESPACE, "sessionId": "x", "after": generator.value(1) },
        14 => doc! { "_configsvrCommitChunkMigration": NAMESPACE, "fromShard": shard,
        "toShard": "shard1", "min": low, "max": high, "version": version(random) },
        15 => doc! { "_configsvrCommitChunkSplit": NAMESPACE, "min": low, "max": high,
        "splitPoints": [{ "k": 3 }], "shard": shard },
        16 => doc! { "_configsvrMoveRange": NAMESPACE, "toShard": shard, "min": low, "max": high },
        17 => doc! { "_configsvrSplitChunk": NAMESPACE, "middle": low },
        18 => doc! { "_configsvrShardCollection": *random.pick(&[NAMESPACE, "fuzz.more"]),
        "key": { "k": *random.pick(&[1, -1]) }, "unique": false },
        19 => doc! { "_configsvrCreateDatabase": *random.pick(&["fuzz", "fuzz2", ""]) },
        20 => doc! { "_configsvrEnsureChunkVersionIsGreaterThan": NAMESPACE,
        "version": version(random) },
        21 => doc! { "_configsvrAddShardToZone": shard, "zone": "z" },
        22 => doc! { "_configsvrUpdateZoneKeyRange": NAMESPACE, "min": low, "max": high,
        "zone": "z" },
        23 => doc! { "_configsvrChangeIndexes": NAMESPACE, "command": { "dropIndexes": "sharded",
        "index": "a_1" } },
        24 => doc! { "_configsvrRenameCollection": "fuzz.x", "to": "fuzz.y" },
        25 => doc! { "_configsvrBalancerStatus": 1 },
        26 => doc! { "_shardMapReduceFinish": "c", "out": { "inline": 1 },
        "reduce": "function(k, v) { return 1; }", "inputs": [] },
        27 => doc! { "_shardMapReduce": "c", "map": "function() { emit(1, 1); }",
        "reduce": "function(k, v) { return 1; }", "query": {} },
        28 => doc! { "split": NAMESPACE, "middle": low },
        _ => doc! { "moveChunk": NAMESPACE, "find": low, "to": shard },
    };
    if random.percent(20) {
        command.insert("shardVersion", version(random));
    }
    command
}
