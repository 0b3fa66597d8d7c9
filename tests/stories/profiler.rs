//! The profiler: what is kept of which operations, for how long, and who is not disturbed by it. What
//! documents look like, `tests/diff/cases/profiler.txt` compares with a `mongod` 6.0.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::Database;
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, CursorType, ReadPreference, SelectionCriteria};

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

async fn kept(database: &Database, filter: Document) -> Result<Vec<Document>> {
    let profile = database.collection("system.profile");
    Ok(profile.find(filter).await?.try_collect().await?)
}

/// Every kind of operation is kept with what it has done, and the client that has sent it.
#[tokio::test]
async fn each_operation_is_kept() -> Result<()> {
    let server = Launch::mongod().start().await;
    let mut options = ClientOptions::parse(server.uri()).await?;
    options.app_name = Some("till".to_owned());
    options.direct_connection = Some(true);
    let client = mongodb::Client::with_options(options)?;
    let shop = client.database("shop");
    let items = shop.collection::<Document>("items");
    shop.run_command(doc! { "profile": 2 }).await?;
    let many: Vec<_> = (0..50).map(|n| doc! { "_id": n, "n": n % 5 }).collect();
    items.insert_many(many).await?;
    let found = items.find(doc! { "n": { "$gte": 1 } }).batch_size(30);
    let found: Vec<Document> = found.await?.try_collect().await?;
    ensure!(found.len() == 40, "{}", found.len());
    items
        .update_many(doc! { "n": 1 }, doc! { "$set": { "seen": true } })
        .await?;
    items.delete_one(doc! { "_id": 7 }).await?;
    let bad = shop.run_command(doc! { "find": "items", "filter": { "$bad": 1 } });
    ensure!(code(bad.await) == Some(2));
    shop.run_command(doc! { "ping": 1 }).await?;
    shop.run_command(doc! { "profile": 0 }).await?;

    let all = kept(&shop, doc! { "ns": "shop.items" }).await?;
    let words: Vec<&str> = all.iter().flat_map(|one| one.get_str("op")).collect();
    let expected = ["insert", "query", "getmore", "update", "remove", "query"];
    ensure!(words == expected, "{words:?}");
    for one in &all {
        ensure!(one.get_str("appName")? == "till", "{one}");
        ensure!(one.get_str("client")? == "127.0.0.1", "{one}");
        ensure!(one.get_str("user")?.is_empty(), "{one}");
        ensure!(one.get_array("allUsers")?.is_empty(), "{one}");
        one.get_datetime("ts")?;
        one.get_i32("millis")?;
    }
    let [insert, query, getmore, update, remove, failed] = &all[..] else {
        anyhow::bail!("{all:#?}");
    };
    ensure!(insert.get_i32("ninserted")? == 50, "{insert}");
    ensure!(insert.get_document("command")?.get("documents").is_none());
    ensure!(query.get_i32("nreturned")? == 30, "{query}");
    ensure!(query.get_str("planSummary")? == "COLLSCAN", "{query}");
    let stages = query.get_document("execStats")?;
    ensure!(stages.get_str("stage")? == "COLLSCAN", "{query}");
    ensure!(query.get_i64("cursorid")? == getmore.get_i64("cursorid")?);
    let origin = getmore.get_document("originatingCommand")?;
    ensure!(origin.get_str("find")? == "items", "{getmore}");
    ensure!(getmore.get_i32("nreturned")? == 10, "{getmore}");
    ensure!(getmore.get_bool("cursorExhausted")?, "{getmore}");
    let examined = query.get_i32("docsExamined")? + getmore.get_i32("docsExamined")?;
    ensure!(examined == 50, "{examined}");
    ensure!(update.get_i32("nMatched")? == 10, "{update}");
    ensure!(update.get_i32("nModified")? == 10, "{update}");
    ensure!(
        update.get_document("command")?.get_bool("multi")?,
        "{update}"
    );
    ensure!(remove.get_i32("ndeleted")? == 1, "{remove}");
    ensure!(remove.get_str("planSummary")? == "IDHACK", "{remove}");
    ensure!(failed.get_i32("errCode")? == 2, "{failed}");
    ensure!(failed.get_str("errName")? == "BadValue", "{failed}");
    let pings = kept(&shop, doc! { "command.ping": 1 }).await?;
    ensure!(pings.is_empty(), "{pings:?}");
    // Another database has none of it.
    let other = client.database("other");
    ensure!(other.list_collection_names().await?.is_empty());
    Ok(())
}

/// At level 1 what is slow is kept, or what a filter lets pass; the log goes by the same.
#[tokio::test]
async fn what_is_not_asked_for_is_left_out() -> Result<()> {
    let server = Launch::mongod().start().await;
    let shop = server.direct().await.database("shop");
    let items = shop.collection::<Document>("items");
    items.insert_one(doc! { "_id": 1 }).await?;
    let look = || async { items.find_one(doc! { "n": 1 }).await };

    shop.run_command(doc! { "profile": 1, "slowms": 100_000 })
        .await?;
    look().await?;
    ensure!(kept(&shop, doc! { "op": "query" }).await?.is_empty());
    shop.run_command(doc! { "profile": 1, "slowms": 0 }).await?;
    look().await?;
    let filter = doc! { "op": "query", "ns": "shop.items" };
    ensure!(kept(&shop, filter.clone()).await?.len() == 1);
    shop.run_command(doc! { "profile": 1, "sampleRate": 0.0 })
        .await?;
    look().await?;
    ensure!(kept(&shop, filter.clone()).await?.len() == 1);

    let only = doc! { "op": "query", "nreturned": 0, "ns": "shop.items" };
    shop.run_command(doc! { "profile": 1, "slowms": 100_000, "filter": only })
        .await?;
    look().await?;
    items.find_one(doc! { "_id": 1 }).await?;
    ensure!(kept(&shop, filter.clone()).await?.len() == 2);
    let was = shop.run_command(doc! { "profile": 0, "filter": "unset" });
    ensure!(was.await?.get_i32("was")? == 1);
    look().await?;
    ensure!(kept(&shop, filter).await?.len() == 2);
    let lines = server
        .log()
        .lines()
        .filter(|line| {
            line.contains("\"type\":\"query\"") && line.contains("\"ns\":\"shop.items\"")
        })
        .count();
    ensure!(lines == 2, "{lines} lines");
    Ok(())
}

/// The collection is capped, outlives the process, and goes while nobody profiles.
#[tokio::test]
async fn the_collection_is_bounded_and_stays() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let shop = server.direct().await.database("shop");
    shop.run_command(doc! { "create": "system.profile", "capped": true, "size": 20_000 })
        .await?;
    shop.run_command(doc! { "profile": 2 }).await?;
    let items = shop.collection::<Document>("items");
    for n in 0..100 {
        items.insert_one(doc! { "_id": n }).await?;
    }
    ensure!(code(shop.run_command(doc! { "drop": "system.profile" }).await) == Some(20));
    let refused = shop.run_command(doc! { "insert": "system.profile", "documents": [{ "a": 1 }] });
    ensure!(code(refused.await) == Some(73));
    shop.run_command(doc! { "profile": 0 }).await?;
    let stats = shop
        .run_command(doc! { "collStats": "system.profile" })
        .await?;
    let (size, count) = (stats.get_i64("size")?, stats.get_i64("count")?);
    ensure!(size <= 20_224 && size > 15_000, "{stats}");
    ensure!(count > 10 && count < 100, "{stats}");
    ensure!(stats.get_bool("capped")?, "{stats}");
    let listed = shop.list_collections().await?;
    let listed: Vec<_> = listed.try_collect().await?;
    let own = listed.iter().find(|one| one.name == "system.profile");
    ensure!(own.is_some_and(|one| one.options.capped == Some(true)));

    // What was added is in the file after a while; a crash takes no more than that.
    let before = kept(&shop, doc! {}).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.kill();
    server.start().await;
    let shop = server.direct().await.database("shop");
    let after = kept(&shop, doc! {}).await?;
    ensure!(before == after, "{} and {}", before.len(), after.len());
    let level = shop.run_command(doc! { "profile": -1 }).await?;
    ensure!(level.get_i32("was")? == 0, "{level}");
    let newest = shop.collection::<Document>("system.profile");
    let newest = newest.find_one(doc! {}).sort(doc! { "$natural": -1 });
    ensure!(newest.await?.as_ref() == before.last());

    shop.run_command(doc! { "drop": "system.profile" }).await?;
    ensure!(kept(&shop, doc! {}).await?.is_empty());
    ensure!(
        !shop
            .list_collection_names()
            .await?
            .contains(&"system.profile".to_owned())
    );
    // A dropped database takes its level along.
    shop.run_command(doc! { "profile": 2 }).await?;
    shop.drop().await?;
    let level = shop.run_command(doc! { "profile": -1 }).await?;
    ensure!(level.get_i32("was")? == 0, "{level}");
    Ok(())
}

/// Tools follow the collection.
#[tokio::test]
async fn who_follows_is_told_at_once() -> Result<()> {
    let server = Launch::mongod().start().await;
    let shop = server.direct().await.database("shop");
    shop.run_command(doc! { "profile": 2 }).await?;
    let items = shop.collection::<Document>("items");
    items.insert_one(doc! { "_id": 0 }).await?;
    let profile = shop.collection::<Document>("system.profile");
    let mut following = profile
        .find(doc! { "op": "insert" })
        .cursor_type(CursorType::TailableAwait)
        .max_await_time(Duration::from_secs(20))
        .await?;
    let first = following.try_next().await?.context("the first")?;
    ensure!(first.get_str("op")? == "insert", "{first}");
    let waiting = tokio::spawn(async move {
        let next = following.try_next().await;
        (next, Instant::now())
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    items.insert_one(doc! { "_id": 1 }).await?;
    let inserted = Instant::now();
    let (next, at) = waiting.await?;
    let next = next?.context("another")?;
    ensure!(next.get_str("op")? == "insert", "{next}");
    let late = at.saturating_duration_since(inserted);
    ensure!(late < Duration::from_secs(5), "{late:?}");
    Ok(())
}

/// Each member has its own, and nothing of it is replicated.
#[tokio::test]
async fn members_keep_their_own() -> Result<()> {
    let set = ReplicaSet::start("profiled", 3, &[]).await;
    let primary = set.primary().await;
    let own = set.members[primary].direct().await.database("shop");
    own.run_command(doc! { "profile": 2 }).await?;
    own.collection("items")
        .insert_one(doc! { "_id": 1 })
        .await?;
    ensure!(!kept(&own, doc! { "op": "insert" }).await?.is_empty());
    let other = set.members[(primary + 1) % 3]
        .direct()
        .await
        .database("shop");
    let level = other.run_command(doc! { "profile": -1 }).await?;
    ensure!(level.get_i32("was")? == 0, "{level}");
    let secondary =
        SelectionCriteria::ReadPreference(ReadPreference::SecondaryPreferred { options: None });
    let read = || async {
        let read = doc! { "find": "system.profile", "filter": { "op": "query" } };
        let read = other
            .run_command(read)
            .selection_criteria(secondary.clone());
        Ok::<_, anyhow::Error>(
            read.await?
                .get_document("cursor")?
                .get_array("firstBatch")?
                .clone(),
        )
    };
    ensure!(read().await?.is_empty());
    other.run_command(doc! { "profile": 2 }).await?;
    eventually("the document is there", || async {
        let find = doc! { "find": "items" };
        let find = other
            .run_command(find)
            .selection_criteria(secondary.clone());
        let found = find.await?;
        let found = found.get_document("cursor")?.get_array("firstBatch")?.len();
        ensure!(found == 1, "{found}");
        Ok(())
    })
    .await;
    ensure!(!read().await?.is_empty());
    let inserts = doc! { "count": "system.profile", "query": { "op": "insert" } };
    let inserts = other
        .run_command(inserts)
        .selection_criteria(secondary.clone());
    ensure!(inserts.await?.get_i32("n")? == 0);
    let hashes = own.run_command(doc! { "dbHash": 1 }).await?;
    ensure!(!hashes.to_string().contains("system.profile"), "{hashes}");
    Ok(())
}

/// A router profiles nothing itself, and shows what the shard of a database has kept.
#[tokio::test]
async fn a_router_refuses_to_profile() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let shop = cluster.client().await.database("shop");
    ensure!(code(shop.run_command(doc! { "profile": 1 }).await) == Some(2));
    let level = shop.run_command(doc! { "profile": -1 }).await?;
    ensure!(level.get("was") == Some(&Bson::Int32(0)), "{level}");
    Ok(())
}
