//! Capped collections: what inserts remove, who follows them, how they are made of others. What is
//! expected here a `mongod` 6.0 has answered; `tests/diff/cases/capped.txt` has more of that.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::error::ErrorKind;
use mongodb::options::{CursorType, ReadPreference, SelectionCriteria};
use mongodb::{Client, Collection, Database};

use crate::opcodes::{OP_GET_MORE, OP_QUERY, RawClient, bytes, text, word};

mod followers;

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

async fn make(test: &Database, name: &str, limits: Document) -> Result<Collection<Document>> {
    let mut create = doc! { "create": name, "capped": true };
    create.extend(limits);
    test.run_command(create).await?;
    Ok(test.collection(name))
}

async fn ids(collection: &Collection<Document>, natural: i32) -> Result<Vec<i32>> {
    let found = collection.find(doc! {}).sort(doc! { "$natural": natural });
    let found: Vec<Document> = found.await?.try_collect().await?;
    found
        .iter()
        .map(|found| Ok(found.get_i32("_id")?))
        .collect()
}

fn numbered(numbers: impl IntoIterator<Item = i32>) -> Vec<Document> {
    let numbers = numbers.into_iter();
    numbers.map(|n| doc! { "_id": n, "by": n % 7 }).collect()
}

/// What is there agrees with its indexes; how many documents there are.
async fn validate(test: &Database, name: &str) -> Result<i64> {
    let found = test
        .run_command(doc! { "validate": name, "full": true })
        .await?;
    ensure!(found.get_bool("valid")?, "{found}");
    Ok(found.get_i32("nrecords")?.into())
}

/// The newest documents stay, in the order of their insertion, also after a crash; indexes and
/// counts follow.
#[tokio::test]
async fn the_newest_documents_stay() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let log = make(&test, "log", doc! { "size": 1 << 20, "max": 100 }).await?;
    let by = mongodb::IndexModel::builder()
        .keys(doc! { "by": 1 })
        .build();
    log.create_index(by).await?;
    log.insert_many(numbered(0..40)).await?;
    for n in 40..60 {
        log.insert_one(doc! { "_id": n, "by": n % 7 }).await?;
    }
    // One command that brings more than there may be.
    log.insert_many(numbered(60..1000)).await?;
    let newest: Vec<i32> = (900..1000).collect();
    ensure!(ids(&log, 1).await? == newest);
    ensure!(ids(&log, -1).await? == newest.iter().rev().copied().collect::<Vec<_>>());
    // What went may come again, in the command that it goes by, too.
    log.insert_many(numbered((0..150).chain([900, 901])))
        .await?;
    log.insert_many(numbered([900 + 2, 5])).await?;
    let present: Vec<i32> = (54..150).chain([900, 901, 902, 5]).collect();
    ensure!(ids(&log, 1).await? == present, "{:?}", ids(&log, 1).await?);
    let again = log.insert_one(doc! { "_id": 149 }).await;
    ensure!(again.is_err_and(|error| error.to_string().contains("E11000")));
    let upsert = log.update_one(doc! { "_id": 7 }, doc! { "$set": { "by": 3 } });
    upsert.upsert(true).await?;
    ensure!(log.count_documents(doc! {}).await? == 100);
    let by_index = log
        .find(doc! { "by": 3 })
        .hint(mongodb::options::Hint::Keys(doc! { "by": 1 }));
    let by_index: Vec<Document> = by_index.await?.try_collect().await?;
    let by_scan = log
        .find(doc! { "by": 3 })
        .hint(mongodb::options::Hint::Keys(doc! { "$natural": 1 }));
    let by_scan: Vec<Document> = by_scan.await?.try_collect().await?;
    ensure!(by_index.len() == by_scan.len() && !by_scan.is_empty());
    ensure!(validate(&test, "log").await? == 100);
    // Documents may grow, and may be taken out in the middle: the next insert sees to the rest.
    log.delete_many(doc! { "by": 3 }).await?;
    let there = log.count_documents(doc! {}).await?;
    log.insert_one(doc! { "_id": 2000, "by": 0 }).await?;
    ensure!(log.count_documents(doc! {}).await? == there + 1);
    let before = ids(&log, 1).await?;
    server.kill();
    server.start().await;
    let test = server.direct().await.database("test");
    let log: Collection<Document> = test.collection("log");
    ensure!(ids(&log, 1).await? == before);
    log.insert_many(numbered(3000..3100)).await?;
    ensure!(ids(&log, 1).await? == (3000..3100).collect::<Vec<_>>());
    ensure!(validate(&test, "log").await? == 100);
    Ok(())
}

/// By the sum of their sizes, with documents of all sizes; and limits that change.
#[tokio::test]
async fn sizes_are_kept() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let log = make(&test, "log", doc! { "size": 5_000 }).await?;
    for n in 0..300 {
        let text = "x".repeat((n * 37) % 900);
        log.insert_one(doc! { "_id": n as i32, "text": text })
            .await?;
        let stats = test.run_command(doc! { "collStats": "log" }).await?;
        let (size, limit) = (stats.get_i32("size")?, stats.get_i32("maxSize")?);
        ensure!(size <= limit && limit == 5_120, "{stats}");
        if n > 50 {
            ensure!(size > limit - 950, "no more than needed goes: {stats}");
        }
    }
    // One that is larger than all that there may be stays alone.
    log.insert_one(doc! { "_id": 1000, "text": "x".repeat(9_000) })
        .await?;
    ensure!(ids(&log, 1).await? == [1000]);
    log.insert_one(doc! { "_id": 1001 }).await?;
    ensure!(ids(&log, 1).await? == [1001]);

    // Nothing goes by the change itself; the next insert takes away what there is too much, in
    // several entries where that is much.
    let big = make(&test, "big", doc! { "size": 64 << 20 }).await?;
    for from in (0..12_000).step_by(4_000) {
        big.insert_many(numbered(from..from + 4_000)).await?;
    }
    test.run_command(doc! { "collMod": "big", "cappedMax": 10 })
        .await?;
    ensure!(big.count_documents(doc! {}).await? == 12_000);
    big.insert_one(doc! { "_id": -1, "by": 0 }).await?;
    ensure!(ids(&big, 1).await? == (11_991..12_000).chain([-1]).collect::<Vec<_>>());
    test.run_command(doc! { "collMod": "big", "cappedSize": 300, "cappedMax": 0 })
        .await?;
    big.insert_many(numbered(0..50)).await?;
    let stats = test.run_command(doc! { "collStats": "big" }).await?;
    ensure!(
        stats.get_i32("size")? <= 512 && stats.get_i32("max")? == i32::MAX,
        "{stats}"
    );
    ensure!(ids(&big, 1).await?.ends_with(&[47, 48, 49]));
    validate(&test, "big").await?;
    Ok(())
}

/// Several write, several change and delete: the end is what it is to be, and consistent.
#[tokio::test]
async fn many_write_at_once() -> Result<()> {
    const WRITERS: i32 = 6;
    const EACH: i32 = 150;
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let log = make(&test, "log", doc! { "size": 1 << 20, "max": 40 }).await?;
    let by = mongodb::IndexModel::builder().keys(doc! { "n": 1 }).build();
    log.create_index(by).await?;
    let writers = (0..WRITERS).map(|writer| {
        let log = log.clone();
        tokio::spawn(async move {
            for n in 0..EACH {
                log.insert_one(doc! { "writer": writer, "n": n }).await?;
                if writer == 0 {
                    let change = doc! { "$set": { "text": "x".repeat(n as usize) } };
                    log.update_many(doc! { "n": { "$lt": n } }, change).await?;
                }
                if writer == 1 && n % 10 == 0 {
                    log.delete_one(doc! {}).await?;
                }
            }
            anyhow::Ok(())
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await??;
    }
    for n in 0..40 {
        log.insert_one(doc! { "writer": -1, "n": n }).await?;
    }
    let found: Vec<Document> = log.find(doc! {}).await?.try_collect().await?;
    let numbers: Vec<i32> = found.iter().filter_map(|d| d.get_i32("n").ok()).collect();
    ensure!(numbers == (0..40).collect::<Vec<_>>(), "{numbers:?}");
    ensure!(validate(&test, "log").await? == 40);
    Ok(())
}

async fn listed(test: &Database, name: &str) -> Result<Document> {
    let list = test.run_command(doc! { "listCollections": 1, "filter": { "name": name } });
    let list = list.await?;
    let first = list.get_document("cursor")?.get_array("firstBatch")?;
    let first = first.first().and_then(Bson::as_document);
    Ok(first
        .context("the collection")?
        .get_document("options")?
        .clone())
}

async fn index_names(collection: &Collection<Document>) -> Result<Vec<String>> {
    Ok(collection.list_index_names().await?)
}

/// `convertToCapped` and `cloneCollectionAsCapped`: of much more than fits into an entry.
#[tokio::test]
async fn other_collections_are_made_capped() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let plain: Collection<Document> = test.collection("plain");
    let text = "x".repeat(1_000);
    let documents = (0..5_000).map(|n| doc! { "_id": n, "by": n % 7, "text": &text });
    plain.insert_many(documents).await?;
    let by = mongodb::IndexModel::builder()
        .keys(doc! { "by": 1 })
        .build();
    plain.create_index(by).await?;
    let clone = |to: &str, size: i32| {
        test.run_command(
            doc! { "cloneCollectionAsCapped": "plain", "toCollection": to, "size": size },
        )
    };
    clone("all", 64 << 20).await?;
    let all: Collection<Document> = test.collection("all");
    ensure!(ids(&all, 1).await? == (0..5_000).collect::<Vec<_>>());
    clone("some", 2_000_000).await?;
    let some: Collection<Document> = test.collection("some");
    let kept = ids(&some, 1).await?;
    ensure!(kept.len() < 2_000 && kept.len() > 1_900 && kept.last() == Some(&4_999));
    ensure!(kept.is_sorted());
    ensure!(listed(&test, "some").await? == doc! { "capped": true, "size": 2_000_128 });
    ensure!(index_names(&some).await? == ["_id_"]);
    ensure!(code(clone("some", 100).await) == Some(48));
    ensure!(code(clone("a$b", 100).await) == Some(73));
    ensure!(plain.count_documents(doc! {}).await? == 5_000);

    // Who writes meanwhile is not lost: it comes before, or after.
    let writer = {
        let plain = plain.clone();
        tokio::spawn(async move {
            for n in 10_000..10_200 {
                plain.insert_one(doc! { "_id": n }).await?;
            }
            anyhow::Ok(())
        })
    };
    test.run_command(doc! { "convertToCapped": "plain", "size": 64 << 20 })
        .await?;
    writer.await??;
    let there = ids(&plain, 1).await?;
    ensure!(there == (0..5_000).chain(10_000..10_200).collect::<Vec<_>>());
    ensure!(index_names(&plain).await? == ["_id_"]);
    test.run_command(doc! { "convertToCapped": "plain", "size": 100 })
        .await?;
    ensure!(listed(&test, "plain").await? == doc! { "capped": true, "size": 256 });
    plain.insert_many(numbered(0..30)).await?;
    ensure!(ids(&plain, 1).await?.ends_with(&[28, 29]));
    validate(&test, "plain").await?;
    let names = test.list_collection_names().await?;
    ensure!(
        names.iter().all(|name| !name.starts_with("tmp")),
        "{names:?}"
    );
    for (of, expected) in [("none", 26), ("", 73)] {
        let convert = doc! { "convertToCapped": of, "size": 100 };
        ensure!(
            code(test.run_command(convert).await) == Some(expected),
            "{of}"
        );
    }
    let shaped =
        doc! { "create": "clustered", "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    test.run_command(shaped).await?;
    let convert = doc! { "convertToCapped": "clustered", "size": 100 };
    ensure!(code(test.run_command(convert).await) == Some(238));
    Ok(())
}

/// A cursor on what was overwritten ends, whether it was to stay or not. One on an index goes on.
#[tokio::test]
async fn a_lost_position_is_told() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let log = make(&test, "log", doc! { "size": 4096, "max": 5 }).await?;
    let renew = |from: i32| {
        let log = log.clone();
        async move { log.insert_many(numbered(from..from + 10)).await.map(drop) }
    };
    renew(0).await?;
    // A cursor belongs to its session, and the driver may take another for each command.
    let session = tokio::sync::Mutex::new(test.client().start_session().await?);
    let run = async |command: Document| {
        let mut session = session.lock().await;
        test.run_command(command).session(&mut *session).await
    };
    let open = async |find: Document| {
        let reply = run(find).await?;
        anyhow::Ok(reply.get_document("cursor")?.get_i64("id")?)
    };
    let more = async |id: i64, limit: Option<i32>| {
        let mut more = doc! { "getMore": id, "collection": "log" };
        if let Some(limit) = limit {
            more.insert("maxTimeMS", limit);
        }
        run(more).await
    };
    for (round, find) in [
        doc! { "find": "log", "tailable": true },
        doc! { "find": "log", "tailable": true, "batchSize": 2 },
    ]
    .into_iter()
    .enumerate()
    {
        let id = open(find).await?;
        renew(100 * (round as i32 + 1)).await?;
        ensure!(code(more(id, None).await) == Some(136), "round {round}");
        ensure!(code(more(id, None).await) == Some(43), "round {round}");
    }
    // One that has rested goes on in a later state: only from what is still there.
    for (round, sort) in [1, -1].into_iter().enumerate() {
        let find = doc! { "find": "log", "batchSize": 2, "sort": { "$natural": sort } };
        let (lost, whole) = (open(find.clone()).await?, 2_000 + 100 * round as i32);
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        renew(whole).await?;
        ensure!(code(more(lost, None).await) == Some(136), "{sort}");
    }
    let by_id = doc! { "find": "log", "batchSize": 2, "sort": { "_id": 1 } };
    let by_id = open(by_id).await?;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    renew(5_000).await?;
    let rest = more(by_id, None).await?;
    ensure!(rest.get_document("cursor")?.get_array("nextBatch")?.len() == 5);

    // While it waits: it is told once something has come.
    let id = open(doc! { "find": "log", "tailable": true, "awaitData": true }).await?;
    let began = Instant::now();
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        log.delete_many(doc! {}).await?;
        log.insert_one(doc! { "_id": 1 }).await
    };
    let (told, _) = tokio::join!(more(id, Some(20_000)).into_future(), meanwhile);
    ensure!(code(told) == Some(136) && began.elapsed() < Duration::from_secs(15));
    // The last one of all was deleted: what comes is not what came behind it.
    let id = open(doc! { "find": "log", "tailable": true }).await?;
    log.delete_one(doc! { "_id": 1 }).await?;
    ensure!(code(more(id, None).await) == Some(136));

    // A limit that is used up is no end either.
    renew(7_000).await?;
    let id = open(doc! { "find": "log", "tailable": true, "limit": 5 }).await?;
    ensure!(id != 0);
    let none = more(id, None).await?;
    ensure!(none.get_document("cursor")?.get_i64("id")? == id, "{none}");
    let refused = more(id, Some(100)).await;
    ensure!(code(refused) == Some(2), "it does not wait");
    let id = open(doc! { "find": "log", "tailable": true, "awaitData": true }).await?;
    let began = Instant::now();
    more(id, Some(0)).await?;
    ensure!(
        began.elapsed() < Duration::from_millis(900),
        "it was asked not to wait"
    );
    // Another name is another collection.
    let id = open(doc! { "find": "log", "tailable": true, "awaitData": true }).await?;
    let admin = server.direct().await.database("admin");
    let rename = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let rename = doc! { "renameCollection": "test.log", "to": "test.other" };
        admin.run_command(rename).await
    };
    let (told, renamed) = tokio::join!(more(id, Some(20_000)).into_future(), rename);
    renamed?;
    ensure!(matches!(code(told), Some(175 | 237 | 43)));
    Ok(())
}

const QUERY_TAILABLE: i32 = 1 << 1;
const QUERY_AWAIT_DATA: i32 = 1 << 5;

/// As a driver of 2012 follows a collection.
#[tokio::test]
async fn a_driver_of_2012_follows() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let log = make(&test, "log", doc! { "size": 4096 }).await?;
    log.insert_many(numbered(0..3)).await?;
    let follow = tokio::task::spawn_blocking({
        let mut raw = RawClient::connect(&server)?;
        move || {
            let flags = word(QUERY_TAILABLE | QUERY_AWAIT_DATA);
            let parts = [flags, text("test.log"), word(0), word(0), bytes(&doc! {})];
            let sent = raw.send(OP_QUERY, &parts)?;
            let first = raw.reply(sent)?;
            ensure!(first.documents.len() == 3 && first.cursor != 0);
            let deadline = Instant::now() + Duration::from_secs(30);
            loop {
                let id = first.cursor.to_le_bytes().to_vec();
                let sent = raw.send(OP_GET_MORE, &[word(0), text("test.log"), word(0), id])?;
                let next = raw.reply(sent)?;
                ensure!(next.cursor == first.cursor, "it lives on");
                if let Some(found) = next.documents.first() {
                    return Ok(found.get_i32("_id")?);
                }
                ensure!(Instant::now() < deadline);
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    log.insert_one(doc! { "_id": 77 }).await?;
    ensure!(follow.await?? == 77);
    Ok(())
}

/// The digest of the collection on each member, once they are level.
async fn members_agree(set: &ReplicaSet, name: &str) -> Result<()> {
    let digests = async || {
        let mut digests = Vec::new();
        for member in &set.members {
            let test = member.direct().await.database("test");
            let on_member = SelectionCriteria::ReadPreference(ReadPreference::Nearest {
                options: Default::default(),
            });
            let hash = test.run_command(doc! { "dbHash": 1 });
            let hash = hash.selection_criteria(on_member).await?;
            ensure!(
                hash.get_array("capped")?.contains(&Bson::from(name)),
                "{hash}"
            );
            let digest = hash.get_document("collections")?.get_str(name)?;
            digests.push(digest.to_owned());
        }
        ensure!(
            digests.windows(2).all(|two| two[0] == two[1]),
            "{digests:?}"
        );
        Ok(())
    };
    eventually("members agree", digests).await;
    Ok(())
}

/// Members remove the same, whoever leads. A cursor on a secondary sees everything in one order, and
/// the log and change streams tell what went.
#[tokio::test]
async fn members_remove_the_same() -> Result<()> {
    const WRITERS: i32 = 4;
    const EACH: i32 = 60;
    let mut set = ReplicaSet::start("capped", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    let log = make(&test, "log", doc! { "size": 1 << 20, "max": 400 }).await?;
    log.insert_one(doc! { "_id": "first" }).await?;
    let primary = set.primary().await;
    let secondary = (primary + 1) % 3;
    let follower = set.members[secondary].direct().await.database("test");
    let on_secondary = SelectionCriteria::ReadPreference(ReadPreference::SecondaryPreferred {
        options: Default::default(),
    });
    let follower: Collection<Document> = follower.collection("log");
    let there = async || {
        let found = follower.find_one(doc! { "_id": "first" });
        let found = found.selection_criteria(on_secondary.clone()).await?;
        found.context("the first document")
    };
    eventually("the secondary has the collection", there).await;
    let mut tail = follower
        .find(doc! { "writer": { "$gte": 0 } })
        .selection_criteria(on_secondary.clone())
        .cursor_type(CursorType::TailableAwait)
        .await?;
    let mut events = log.watch().await?;
    let writers = (0..WRITERS).map(|writer| {
        let log = log.clone();
        tokio::spawn(async move {
            for n in 0..EACH {
                log.insert_one(doc! { "writer": writer, "n": n }).await?;
            }
            anyhow::Ok(())
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut seen = Vec::new();
    let follow = async {
        while (seen.len() as i32) < WRITERS * EACH {
            seen.push(tail.try_next().await?.context("it lives on")?);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(90), follow).await??;
    for writer in writers {
        writer.await??;
    }
    for writer in 0..WRITERS {
        let of_writer = seen
            .iter()
            .filter(|d| d.get_i32("writer").ok() == Some(writer));
        let numbers: Vec<_> = of_writer.filter_map(|d| d.get_i32("n").ok()).collect();
        ensure!(numbers == (0..EACH).collect::<Vec<_>>(), "{numbers:?}");
    }
    let mut changes = Vec::new();
    while changes.len() < (WRITERS * EACH) as usize {
        let event = events.try_next().await?.context("an event")?;
        changes.push(event.operation_type);
    }
    drop(events);

    // There is no reading as of a certain time, as in MongoDB.
    for find in [
        doc! { "find": "log" },
        doc! { "aggregate": "log", "pipeline": [], "cursor": {} },
    ] {
        let mut find = find;
        find.insert("readConcern", doc! { "level": "snapshot" });
        ensure!(code(test.run_command(find).await) == Some(246));
    }

    // Much goes at once, and in the log behind what it goes for.
    let mut events = test.collection::<Document>("small").watch().await?;
    let small = make(&test, "small", doc! { "size": 4096, "max": 2 }).await?;
    small.insert_many(numbered(0..4)).await?;
    let mut told = Vec::new();
    while told.len() < 6 {
        let event = events.try_next().await?.context("an event")?;
        let key = event.document_key.context("a key")?.get_i32("_id")?;
        told.push((format!("{:?}", event.operation_type), key));
    }
    let expected = [
        ("Insert", 0),
        ("Insert", 1),
        ("Insert", 2),
        ("Delete", 0),
        ("Insert", 3),
        ("Delete", 1),
    ];
    let expected: Vec<_> = expected.map(|(kind, key)| (kind.to_owned(), key)).into();
    ensure!(told == expected, "{told:?}");
    let oplog = client.database("local").collection::<Document>("oplog.rs");
    let entries = oplog
        .find(doc! { "ns": "test.small" })
        .sort(doc! { "$natural": 1 });
    let entries: Vec<Document> = entries.await?.try_collect().await?;
    let kinds: Vec<_> = entries
        .iter()
        .filter_map(|e| e.get_str("op").ok())
        .collect();
    ensure!(kinds == ["i", "i", "i", "d", "i", "d"], "{kinds:?}");

    // The primary goes while much is written. Every acknowledged document is there in its place, as
    // far as it is among the newest.
    let big = make(&test, "big", doc! { "size": 1 << 20, "max": 100 }).await?;
    let writer = {
        let big = big.clone();
        tokio::spawn(async move {
            for from in (0..4_000).step_by(20) {
                big.insert_many(numbered(from..from + 20)).await?;
            }
            anyhow::Ok(())
        })
    };
    tokio::time::sleep(Duration::from_millis(400)).await;
    let primary = set.primary().await;
    set.members[primary].kill();
    writer.await??;
    ensure!(ids(&big, 1).await? == (3_900..4_000).collect::<Vec<_>>());
    set.members[primary].start().await;
    set.settled().await;
    members_agree(&set, "big").await?;
    members_agree(&set, "log").await?;
    members_agree(&set, "small").await?;
    for member in &set.members {
        let test = member.direct().await.database("test");
        let there = async || {
            let found = test.run_command(doc! { "validate": "big" });
            let found = found.selection_criteria(on_secondary.clone()).await?;
            ensure!(
                found.get_bool("valid")? && found.get_i32("nrecords")? == 100,
                "{found}"
            );
            Ok(())
        };
        eventually("a member is valid", there).await;
    }
    Ok(())
}

async fn through_router(client: &Client) -> Result<()> {
    let (admin, test) = (client.database("admin"), client.database("test"));
    let log = make(&test, "log", doc! { "size": 1000, "max": 5 }).await?;
    log.insert_many(numbered(0..8)).await?;
    ensure!(ids(&log, 1).await? == [3, 4, 5, 6, 7]);
    let stats = test.run_command(doc! { "collStats": "log" }).await?;
    ensure!(stats.get_bool("capped")?, "{stats}");
    ensure!(
        stats.get_i32("max")? == 5 && stats.get_i32("maxSize")? == 1024,
        "{stats}"
    );
    test.run_command(doc! { "collMod": "log", "cappedMax": 3 })
        .await?;
    let mut tail = log
        .find(doc! {})
        .cursor_type(CursorType::TailableAwait)
        .await?;
    for _ in 0..5 {
        tail.try_next().await?.context("a document")?;
    }
    let (next, inserted) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(30), tail.try_next()),
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            log.insert_one(doc! { "_id": 8 }).await
        }
    );
    inserted?;
    ensure!(next??.context("a document")?.get_i32("_id")? == 8);
    ensure!(ids(&log, 1).await? == [6, 7, 8]);
    let clone = doc! { "cloneCollectionAsCapped": "log", "toCollection": "copy", "size": 100 };
    test.run_command(clone).await?;
    ensure!(ids(&test.collection("copy"), 1).await? == [6, 7, 8]);
    test.collection("plain")
        .insert_many(numbered(0..20))
        .await?;
    test.run_command(doc! { "convertToCapped": "plain", "size": 100 })
        .await?;
    ensure!(
        ids(&test.collection("plain"), 1)
            .await?
            .ends_with(&[18, 19])
    );
    let shard = |ns: &str| admin.run_command(doc! { "shardCollection": ns, "key": { "_id": 1 } });
    ensure!(code(shard("test.log").await) == Some(72));
    shard("test.sharded").await?;
    for command in [
        doc! { "convertToCapped": "sharded", "size": 100 },
        doc! { "cloneCollectionAsCapped": "sharded", "toCollection": "x", "size": 100 },
        doc! { "cloneCollectionAsCapped": "log", "toCollection": "sharded", "size": 100 },
    ] {
        ensure!(code(test.run_command(command).await) == Some(20));
    }
    let tailed = doc! { "find": "sharded", "tailable": true };
    ensure!(code(test.run_command(tailed).await) == Some(2));
    Ok(())
}

#[tokio::test]
async fn a_router_passes_on_what_capped_collections_do() -> Result<()> {
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start(shape).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    through_router(&client).await
}
