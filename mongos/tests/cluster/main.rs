//! A router between a client and servers that are kept in memory.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

mod fake;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use banyan_access::control::AccessOptions;
use banyan_mongos::router::{Identity, Router};
use banyan_sharding::ChunkVersion;
use banyan_wire::{
    ClientError, CommandError, ErrorCode, Options, Pool, PoolOptions, ReplicaSet, Server,
};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use tokio_util::sync::{CancellationToken, DropGuard};

use fake::Running;

/// Two shards, `test.posts` sharded by `id`, a router and a client of it.
struct Cluster {
    config: Running,
    a: Running,
    b: Running,
    epoch: ObjectId,
    client: Pool,
    _stop: DropGuard,
}

const POSTS: &str = "test.posts";

fn uuid() -> Binary {
    Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    }
}

fn born() -> Timestamp {
    Timestamp {
        time: 9,
        increment: 1,
    }
}

impl Cluster {
    async fn start() -> Cluster {
        let (config, a, b) = (
            fake::start().await,
            fake::start().await,
            fake::start().await,
        );
        let shard = |id: &str, running: &Running| {
            rawdoc! {"_id": id, "host": running.address.as_str(), "state": 1}
        };
        config
            .fake
            .put("config.shards", [shard("a", &a), shard("b", &b)]);
        let database = rawdoc! {"_id": "test", "primary": "a", "version": {"lastMod": 1}};
        config.fake.put("config.databases", [database]);
        let set = ReplicaSet::parse(&config.address, PoolOptions::default()).unwrap();
        let server = Server::bind(&["localhost"], 0, Options::default())
            .await
            .unwrap();
        let address = server.addresses()[0].to_string();
        let stop = CancellationToken::new();
        let identity = Identity {
            address: address.clone(),
            port: 0,
            argv: Vec::new(),
            settings: rawdoc! {},
            started: SystemTime::now(),
            started_instant: Instant::now(),
            process_id: ObjectId::new(),
            scripting: true,
            stop: stop.clone(),
        };
        let commands = banyan_mongos::commands::COMMANDS.all().len();
        let counters = server.counters();
        let access = AccessOptions::default();
        let router = Router::new(identity, set, &config.address, counters, commands, access);
        tokio::spawn(server.serve(Arc::new(router), stop.clone()));
        let client = Pool::new(&address, PoolOptions::default());
        let epoch = ObjectId::new();
        let cluster = Cluster {
            config,
            a,
            b,
            epoch,
            client,
            _stop: stop.drop_guard(),
        };
        cluster.place(1, &[("a", None, Some(100)), ("b", Some(100), None)]);
        cluster
    }

    /// Says who owns which keys, and has the shards insist on it.
    fn place(&self, major: u32, owners: &[(&str, Option<i32>, Option<i32>)]) {
        let bound = |key: Option<i32>, end: RawBson| match key {
            Some(key) => rawdoc! {"id": key},
            None => rawdoc! {"id": end},
        };
        let lastmod = |minor| Timestamp {
            time: major,
            increment: minor,
        };
        let chunks = owners.iter().zip(0..).map(|((shard, min, max), minor)| {
            rawdoc! {
                "_id": ObjectId::new(),
                "uuid": uuid(),
                "min": bound(*min, RawBson::MinKey),
                "max": bound(*max, RawBson::MaxKey),
                "shard": *shard,
                "lastmod": lastmod(minor),
            }
        });
        self.config.fake.put("config.chunks", chunks);
        let entry = rawdoc! {
            "_id": POSTS,
            "lastmodEpoch": self.epoch,
            "timestamp": born(),
            "uuid": uuid(),
            "key": {"id": 1},
        };
        self.config.fake.put("config.collections", [entry]);
        for (name, shard) in [("a", &self.a), ("b", &self.b)] {
            let own = owners
                .iter()
                .zip(0..)
                .filter(|((owner, ..), _)| *owner == name);
            let newest = own.map(|(_, minor)| minor).max();
            let (major, minor) = newest.map_or((0, 0), |minor| (major, minor));
            let version = ChunkVersion {
                epoch: self.epoch,
                timestamp: born(),
                major,
                minor,
            };
            shard.fake.expect_version(POSTS, version.to_document());
        }
    }

    async fn run(&self, body: RawDocumentBuf) -> RawDocumentBuf {
        self.try_run(body).await.unwrap()
    }

    async fn try_run(&self, body: RawDocumentBuf) -> Result<RawDocumentBuf, CommandError> {
        match self.client.command("test", &body, None).await {
            Ok(reply) => Ok(reply),
            Err(ClientError::Command(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    }

    /// Puts posts with these ids where they belong.
    async fn fill(&self, ids: impl IntoIterator<Item = i32>) {
        let reply = self.run(insert(ids, false)).await;
        assert!(reply.get("writeErrors").unwrap().is_none());
        self.a.fake.take_seen();
        self.b.fake.take_seen();
    }
}

fn insert(ids: impl IntoIterator<Item = i32>, ordered: bool) -> RawDocumentBuf {
    let documents = RawArrayBuf::from_iter(
        ids.into_iter()
            .map(|id| rawdoc! {"_id": id, "id": id, "n": 1}),
    );
    rawdoc! {"insert": "posts", "documents": documents, "ordered": ordered}
}

fn batch(reply: &RawDocument) -> Vec<RawDocumentBuf> {
    let cursor = reply.get_document("cursor").unwrap();
    let batch = cursor
        .get_array("firstBatch")
        .or_else(|_| cursor.get_array("nextBatch"))
        .unwrap();
    batch
        .into_iter()
        .map(|value| value.unwrap().as_document().unwrap().to_owned())
        .collect()
}

fn ids(reply: &RawDocument) -> Vec<i32> {
    batch(reply)
        .iter()
        .map(|document| document.get_i32("id").unwrap())
        .collect()
}

fn cursor_id(reply: &RawDocument) -> i64 {
    reply.get_document("cursor").unwrap().get_i64("id").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_go_to_their_shards_and_come_back_sorted() {
    let cluster = Cluster::start().await;
    cluster.fill((0..200).rev()).await;
    assert_eq!(cluster.a.fake.documents(POSTS).len(), 100);
    assert_eq!(cluster.b.fake.documents(POSTS).len(), 100);
    let sorted = rawdoc! {
        "find": "posts", "sort": {"id": -1}, "skip": 95, "limit": 10,
        "projection": {"n": 1, "_id": 0},
    };
    let reply = cluster.run(sorted).await;
    assert_eq!(batch(&reply), vec![rawdoc! {"n": 1}; 10]);
    let sorted = rawdoc! {"find": "posts", "sort": {"id": 1}, "skip": 95, "limit": 10};
    assert_eq!(
        ids(&cluster.run(sorted).await),
        (95..105).collect::<Vec<_>>()
    );
    cluster.a.fake.take_seen();
    let point = rawdoc! {"find": "posts", "filter": {"id": 150}};
    assert_eq!(ids(&cluster.run(point).await), [150]);
    assert!(
        cluster.a.fake.take_seen().is_empty(),
        "only the owner is asked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_last_over_batches_from_one_shard_and_from_several() {
    let cluster = Cluster::start().await;
    cluster.fill(0..200).await;
    for filter in [rawdoc! {"id": {"$lt": 100}}, rawdoc! {}] {
        let all = if filter.is_empty() { 200 } else { 100 };
        let find = rawdoc! {"find": "posts", "filter": filter, "sort": {"id": 1}, "batchSize": 7};
        let mut reply = cluster.run(find).await;
        let mut found = ids(&reply);
        assert_eq!(found.len(), 7);
        let id = cursor_id(&reply);
        while cursor_id(&reply) != 0 {
            assert_eq!(cursor_id(&reply), id);
            let more = rawdoc! {"getMore": id, "collection": "posts", "batchSize": 50};
            reply = cluster.run(more).await;
            found.extend(ids(&reply));
        }
        assert_eq!(found, (0..all).collect::<Vec<_>>());
        let more = rawdoc! {"getMore": id, "collection": "posts"};
        assert_eq!(
            cluster.try_run(more).await.unwrap_err().code,
            ErrorCode::CursorNotFound
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_cursors_are_killed_on_the_shards() {
    let cluster = Cluster::start().await;
    cluster.fill(0..200).await;
    for filter in [rawdoc! {"id": {"$lt": 100}}, rawdoc! {}] {
        let reply = cluster
            .run(rawdoc! {"find": "posts", "filter": filter, "batchSize": 5})
            .await;
        let id = cursor_id(&reply);
        assert!(cluster.a.fake.open_cursors() > 0);
        let reply = cluster
            .run(rawdoc! {"killCursors": "posts", "cursors": [id, 77i64]})
            .await;
        assert_eq!(
            reply
                .get_array("cursorsKilled")
                .unwrap()
                .get_i64(0)
                .unwrap(),
            id
        );
        assert_eq!(
            reply
                .get_array("cursorsNotFound")
                .unwrap()
                .get_i64(0)
                .unwrap(),
            77
        );
        assert_eq!(
            cluster.a.fake.open_cursors() + cluster.b.fake.open_cursors(),
            0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_errors_keep_their_places_in_the_batch() {
    let cluster = Cluster::start().await;
    cluster.fill([5, 150]).await;
    let reply = cluster.run(insert([1, 150, 2, 5, 160], false)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 3);
    let places = |reply: &RawDocument| -> Vec<i32> {
        let errors = reply.get_array("writeErrors").unwrap();
        let index = |e: bson::RawBsonRef<'_>| e.as_document().unwrap().get_i32("index").unwrap();
        errors
            .into_iter()
            .map(|error| index(error.unwrap()))
            .collect()
    };
    assert_eq!(places(&reply), [1, 3]);
    let reply = cluster.run(insert([10, 11, 170, 150, 12, 171], true)).await;
    assert_eq!(
        reply.get_i32("n").unwrap(),
        3,
        "an ordered batch ends at its first error"
    );
    assert_eq!(places(&reply), [3]);
    assert!(
        cluster
            .a
            .fake
            .documents(POSTS)
            .iter()
            .all(|d| d.get_i32("id").unwrap() != 12)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_route_is_refreshed_unseen() {
    let cluster = Cluster::start().await;
    cluster.fill(0..200).await;
    // The keys from 50 on move from a to b.
    let (stay, leave): (Vec<_>, Vec<_>) = cluster
        .a
        .fake
        .documents(POSTS)
        .into_iter()
        .partition(|document| document.get_i32("id").unwrap() < 50);
    let mut at_b = cluster.b.fake.documents(POSTS);
    at_b.extend(leave);
    cluster.a.fake.put(POSTS, stay);
    cluster.b.fake.put(POSTS, at_b);
    cluster.place(
        2,
        &[
            ("a", None, Some(50)),
            ("b", Some(50), Some(100)),
            ("b", Some(100), None),
        ],
    );
    let find = rawdoc! {"find": "posts", "filter": {"id": 70}};
    assert_eq!(ids(&cluster.run(find).await), [70]);
    cluster.place(3, &[("b", None, Some(50)), ("b", Some(50), None)]);
    cluster.a.fake.put(POSTS, []);
    let reply = cluster.run(insert([1000, 3000, -1], true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 3);
    assert!(cluster.a.fake.documents(POSTS).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_and_deletes_reach_the_shards_they_concern() {
    let cluster = Cluster::start().await;
    cluster.fill(0..200).await;
    let update = |q: RawDocumentBuf, multi: bool| {
        let statement = rawdoc! {"q": q, "u": {"$inc": {"n": 1}}, "multi": multi};
        rawdoc! {"update": "posts", "updates": [statement]}
    };
    let reply = cluster.run(update(rawdoc! {"n": 1}, true)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 200);
    assert_eq!(reply.get_i32("nModified").unwrap(), 200);
    cluster.b.fake.take_seen();
    let reply = cluster.run(update(rawdoc! {"id": 3}, false)).await;
    assert_eq!(reply.get_i32("n").unwrap(), 1);
    assert!(cluster.b.fake.take_seen().is_empty());
    let reply = cluster.run(update(rawdoc! {"_id": 150}, false)).await;
    assert_eq!(
        reply.get_i32("n").unwrap(),
        1,
        "an _id is looked for everywhere"
    );
    let upsert = rawdoc! {
        "q": {"n": 2}, "u": {"$inc": {"n": 1}}, "upsert": true, "multi": true,
    };
    let reply = cluster
        .run(rawdoc! {"update": "posts", "updates": [upsert]})
        .await;
    assert_eq!(write_error_code(&reply), ErrorCode::ShardKeyNotFound.code());
    let deletes = [
        rawdoc! {"q": {"id": {"$gte": 190}}, "limit": 0},
        rawdoc! {"q": {"id": 3}, "limit": 1},
        rawdoc! {"q": {"n": 2}, "limit": 0},
    ];
    let deletes = RawArrayBuf::from_iter(deletes);
    let reply = cluster
        .run(rawdoc! {"delete": "posts", "deletes": deletes})
        .await;
    assert_eq!(reply.get_i32("n").unwrap(), 10 + 1 + 188);
}

fn write_error_code(reply: &RawDocument) -> i32 {
    let errors = reply.get_array("writeErrors").unwrap();
    errors.get_document(0).unwrap().get_i32("code").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_values_and_groups_are_put_together() {
    let cluster = Cluster::start().await;
    cluster.fill(0..200).await;
    let count = |body| async { cluster.run(body).await.get_i32("n").unwrap() };
    assert_eq!(count(rawdoc! {"count": "posts"}).await, 200);
    assert_eq!(
        count(rawdoc! {"count": "posts", "query": {"id": {"$gte": 90}}}).await,
        110
    );
    assert_eq!(
        count(rawdoc! {"count": "posts", "skip": 150, "limit": 100}).await,
        50
    );
    let reply = cluster.run(rawdoc! {"distinct": "posts", "key": "n"}).await;
    assert_eq!(reply.get_array("values").unwrap().into_iter().count(), 1);
    let pipeline = [
        rawdoc! {"$match": {"id": {"$gte": 50}}},
        rawdoc! {"$group": {"_id": {"$mod": ["$id", 3]}, "n": {"$sum": "$n"}}},
        rawdoc! {"$sort": {"_id": 1}},
    ];
    let pipeline = RawArrayBuf::from_iter(pipeline);
    let aggregate = rawdoc! {"aggregate": "posts", "pipeline": pipeline, "cursor": {}};
    let reply = cluster.run(aggregate).await;
    let sums: Vec<_> = batch(&reply)
        .iter()
        .map(|d| d.get_i32("n").unwrap())
        .collect();
    assert_eq!(sums, [50, 50, 50]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_empty_or_comes_into_being() {
    let cluster = Cluster::start().await;
    let run = |database: &'static str, body: RawDocumentBuf| {
        let client = cluster.client.clone();
        async move { client.command(database, &body, None).await.unwrap() }
    };
    let reply = run("fresh", rawdoc! {"find": "things"}).await;
    assert!(batch(&reply).is_empty());
    assert_eq!(
        run("fresh", rawdoc! {"count": "things"})
            .await
            .get_i32("n")
            .unwrap(),
        0
    );
    let insert = rawdoc! {"insert": "things", "documents": [{"_id": 1}]};
    assert_eq!(run("fresh", insert).await.get_i32("n").unwrap(), 1);
    assert_eq!(cluster.a.fake.documents("fresh.things").len(), 1);
    assert_eq!(
        batch(&run("fresh", rawdoc! {"find": "things"}).await).len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_says_what_it_is() {
    let cluster = Cluster::start().await;
    let reply = cluster.run(rawdoc! {"hello": 1}).await;
    assert_eq!(reply.get_str("msg").unwrap(), "isdbgrid");
    assert!(reply.get_bool("isWritablePrimary").unwrap());
    let error = cluster
        .try_run(rawdoc! {"frobnicate": 1})
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::CommandNotFound);
    let error = cluster
        .try_run(rawdoc! {"addShard": "x:1"})
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Unauthorized, "only against admin");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_shard_is_asked_for_a_time_that_another_one_told() {
    let cluster = Cluster::start().await;
    cluster.fill([1, 150]).await;
    let time = Timestamp {
        time: u32::MAX,
        increment: 1,
    };
    let concern = rawdoc! {"afterClusterTime": time};
    let with_concern = |mut body: RawDocumentBuf| {
        body.append(bson::raw::cstr!("readConcern"), concern.clone());
        body
    };
    // Whole to one shard, split over both, and a read of each kind.
    cluster.run(with_concern(insert([2], true))).await;
    cluster.run(with_concern(insert([3, 160], true))).await;
    let found = cluster
        .run(with_concern(rawdoc! {"find": "posts", "filter": {"id": 3}}))
        .await;
    assert_eq!(ids(&found), [3]);
    let found = cluster
        .run(with_concern(rawdoc! {"find": "posts", "sort": {"id": 1}}))
        .await;
    assert_eq!(ids(&found), [1, 2, 3, 150, 160]);
}
