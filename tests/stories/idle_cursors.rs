//! Cursors that lie idle: they keep a position, not a state.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};

use banyan_tests::{Launch, within};

const DOCUMENTS: i32 = 1000;

async fn fill(test: &Database) -> Result<()> {
    let documents = (0..DOCUMENTS).map(|i| doc! { "_id": i, "a": i / 2, "tags": [i, -i - 1] });
    let collection = test.collection::<Document>("c");
    collection.insert_many(documents).await?;
    for keys in [doc! { "a": 1 }, doc! { "tags": 1 }] {
        let index = mongodb::IndexModel::builder().keys(keys).build();
        collection.create_index(index).await?;
    }
    Ok(())
}

/// The `_id`s of a reply's batch, and the cursor's id.
fn batch(reply: &Document) -> Result<(Vec<i32>, i64)> {
    let cursor = reply.get_document("cursor")?;
    let documents = cursor
        .get_array("firstBatch")
        .or_else(|_| cursor.get_array("nextBatch"))?;
    let ids = documents.iter().map(|document| {
        let document = document.as_document().context("no document")?;
        Ok(document.get_i32("_id")?)
    });
    Ok((ids.collect::<Result<_>>()?, cursor.get_i64("id")?))
}

async fn holding(test: &Database) -> Result<i64> {
    let status = test.run_command(doc! { "serverStatus": 1 }).await?;
    let metrics = status.get_document("metrics")?;
    let open = metrics.get_document("cursor")?.get_document("open")?;
    Ok(open.get_i64("holdingSnapshots")?)
}

/// Waits until the idle cursors have let their snapshots go.
async fn rested(test: &Database) {
    within(Duration::from_secs(20), "the cursors rest", || async {
        let holding = holding(test).await?;
        ensure!(holding == 0, "{holding} hold a snapshot");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_idle_cursor_goes_on_where_it_was_and_holds_no_state() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    fill(&test).await?;
    let finds = [
        doc! { "find": "c" },
        doc! { "find": "c", "sort": { "$natural": -1 } },
        doc! { "find": "c", "sort": { "a": 1 } },
        doc! { "find": "c", "sort": { "a": -1 } },
        doc! { "find": "c", "hint": { "_id": 1 } },
        doc! { "find": "c", "filter": { "_id": { "$gte": 0 } }, "sort": { "_id": -1 } },
        // Each document twice in the index, and once in the result.
        doc! { "find": "c", "hint": { "tags": 1 } },
        doc! { "find": "c", "filter": { "$or": [{ "a": { "$gte": 0 } }, { "tags": 5 }] } },
        doc! { "aggregate": "c", "pipeline": [{ "$match": { "a": { "$gte": 0 } } }] },
        doc! { "aggregate": "c", "pipeline": [
            { "$lookup": { "from": "c", "localField": "_id", "foreignField": "_id", "as": "x" } },
            { "$match": { "x._id": { "$exists": true } } },
        ] },
    ];
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = test.client().start_session().await?;
    let mut cursors = Vec::new();
    for mut find in finds.clone() {
        if find.contains_key("find") {
            find.insert("batchSize", 101);
        } else {
            find.insert("cursor", doc! { "batchSize": 101 });
        }
        let reply = test.run_command(find).session(&mut session).await?;
        cursors.push(batch(&reply)?);
    }
    ensure!(holding(&test).await? > 0, "nothing to let go");
    rested(&test).await;
    let collection = test.collection::<Document>("c");
    for round in 0..3 {
        let written = doc! { "$set": { "round": round } };
        collection.update_many(doc! {}, written).await?;
    }
    for (find, (mut seen, id)) in finds.iter().zip(cursors) {
        let more = doc! { "getMore": id, "collection": "c", "batchSize": 100 };
        let reply = test.run_command(more.clone()).session(&mut session);
        let (next, id) = batch(&reply.await?)?;
        seen.extend(next);
        rested(&test).await;
        let mut more = more;
        more.insert("getMore", id);
        more.remove("batchSize");
        let reply = test.run_command(more).session(&mut session).await?;
        let (next, id) = batch(&reply)?;
        ensure!(id == 0, "{find}: there is more");
        seen.extend(next);
        // Nothing twice, nothing left out.
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        ensure!(
            count == seen.len() && count == DOCUMENTS as usize,
            "{find}: {count}"
        );
    }
    Ok(())
}

/// A cursor sees what has become of the documents that it has not read yet, and ends when what it
/// reads is gone.
#[tokio::test]
async fn an_idle_cursor_sees_later_states_and_dropped_collections() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    fill(&test).await?;
    let mut session = test.client().start_session().await?;
    let mut run = async |command| test.run_command(command).session(&mut session).await;
    let find = |hint: Document| doc! { "find": "c", "hint": hint, "batchSize": 10 };
    let (_, by_id) = batch(&run(find(doc! { "_id": 1 })).await?)?;
    let (_, by_a) = batch(&run(find(doc! { "a": 1 })).await?)?;
    let (_, scan) = batch(&run(find(doc! { "$natural": 1 })).await?)?;
    rested(&test).await;
    let collection = test.collection::<Document>("c");
    collection
        .delete_many(doc! { "_id": { "$gte": 500 } })
        .await?;
    collection
        .insert_one(doc! { "_id": 2000, "a": 7000 })
        .await?;
    let more = |id: i64| doc! { "getMore": id, "collection": "c" };
    let (rest, _) = batch(&run(more(by_id)).await?)?;
    let expected: Vec<i32> = (10..500).chain([2000]).collect();
    ensure!(rest == expected, "{rest:?}");
    let code = |result: mongodb::error::Result<Document>| match result.map_err(|error| *error.kind)
    {
        Err(mongodb::error::ErrorKind::Command(error)) => error.code,
        other => panic!("{other:?}"),
    };
    collection.drop_index("a_1").await?;
    ensure!(code(run(more(by_a)).await) == 175);
    collection.drop().await?;
    ensure!(code(run(more(scan)).await) == 175);
    Ok(())
}

/// Several plans were tried for these cursors; those that lost hold nothing either.
#[tokio::test]
async fn an_idle_cursor_of_a_plan_that_won_a_trial_holds_no_state() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    let collection = test.collection::<Document>("c");
    // So many that the scan of the collection is tried as well.
    let documents = (0..3_000).map(|i| doc! { "_id": i, "a": i % 3, "b": i % 2 });
    collection.insert_many(documents).await?;
    for keys in [doc! { "a": 1 }, doc! { "b": 1 }] {
        let index = mongodb::IndexModel::builder().keys(keys).build();
        collection.create_index(index).await?;
    }
    let find = doc! {
        "find": "c", "filter": { "a": 1, "b": { "$gte": 0 } }, "batchSize": 10,
    };
    let stats = doc! {
        "aggregate": "c", "pipeline": [{ "$planCacheStats": {} }], "cursor": {},
    };
    let is_active = || async {
        let reply = test.run_command(stats.clone()).await?;
        let entries = reply.get_document("cursor")?.get_array("firstBatch")?;
        let entry = entries.first().and_then(|entry| entry.as_document());
        Ok::<_, anyhow::Error>(entry.context("no entry")?.get_bool("isActive")?)
    };
    let mut session = test.client().start_session().await?;
    // The third plan comes from the plan cache.
    let mut cursors = Vec::new();
    for round in 0..3 {
        ensure!(round == 0 || is_active().await? == (round == 2), "{round}");
        let reply = test.run_command(find.clone()).session(&mut session);
        cursors.push(batch(&reply.await?)?);
    }
    rested(&test).await;
    for (mut seen, id) in cursors {
        let more = doc! { "getMore": id, "collection": "c" };
        let reply = test.run_command(more).session(&mut session).await?;
        seen.extend(batch(&reply)?.0);
        seen.sort_unstable();
        seen.dedup();
        ensure!(seen.len() == 1_000, "{}", seen.len());
    }
    Ok(())
}

/// What `$currentOp` lists of a kind.
async fn listed(admin: &Database, kind: &str) -> Result<Vec<Document>> {
    let stages = [
        doc! { "$currentOp": { "idleCursors": true, "allUsers": true } },
        doc! { "$match": { "type": kind } },
    ];
    Ok(admin.aggregate(stages).await?.try_collect().await?)
}

#[tokio::test]
async fn idle_cursors_and_who_runs_what_are_listed() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let mut options = ClientOptions::parse(mongod.uri()).await?;
    options.app_name = Some("till".to_owned());
    let client = Client::with_options(options)?;
    let (admin, test) = (client.database("admin"), client.database("test"));
    fill(&test).await?;
    let find = doc! { "find": "c", "filter": { "a": { "$gte": 0 } }, "batchSize": 2 };
    let reply = test.run_command(find.clone()).await?;
    let (ids, id) = batch(&reply)?;
    ensure!(ids == [0, 1]);
    let one = async || {
        let mut all = listed(&admin, "idleCursor").await?;
        ensure!(all.len() == 1, "{all:?}");
        Ok::<_, anyhow::Error>(all.remove(0))
    };
    let idle = one().await?;
    ensure!(idle.get_str("ns")? == "test.c", "{idle}");
    ensure!(idle.get_str("planSummary")?.starts_with("IXSCAN"), "{idle}");
    let session = idle.get_document("lsid")?;
    ensure!(session.contains_key("id") && session.contains_key("uid"));
    let cursor = idle.get_document("cursor")?;
    let given = |cursor: &Document| {
        let number = |name| cursor.get_i64(name);
        Ok::<_, anyhow::Error>((number("nDocsReturned")?, number("nBatchesReturned")?))
    };
    ensure!(cursor.get_i64("cursorId")? == id && given(cursor)? == (2, 1));
    ensure!(!cursor.get_bool("tailable")? && !cursor.get_bool("noCursorTimeout")?);
    let origin = cursor.get_document("originatingCommand")?;
    ensure!(origin.get("filter") == find.get("filter"), "{origin}");
    let opened = cursor.get_datetime("createdDate")?;

    let more = doc! { "getMore": id, "collection": "c", "batchSize": 3 };
    ensure!(batch(&test.run_command(more).await?)?.0 == [2, 3, 4]);
    within(Duration::from_secs(20), "it is idle again", || async {
        let idle = one().await?;
        let cursor = idle.get_document("cursor")?;
        ensure!(given(cursor)? == (5, 2), "{idle}");
        ensure!(cursor.get_datetime("lastAccessDate")? >= opened, "{idle}");
        Ok(())
    })
    .await;

    let running = listed(&admin, "op").await?;
    let own = running.iter().find(|one| {
        let command = one.get_document("command");
        command.is_ok_and(|command| command.contains_key("aggregate"))
    });
    let own = own.context("the question itself is listed")?;
    ensure!(own.get_str("appName")? == "till", "{own}");
    let driver = own.get_document("clientMetadata")?.get_document("driver")?;
    ensure!(driver.get_str("name")?.contains("rust"), "{driver}");
    let port = format!(":{}", mongod.port);
    ensure!(own.get_str("host")?.ends_with(&port) && own.contains_key("lsid"));
    test.run_command(doc! { "killCursors": "c", "cursors": [id] })
        .await?;
    ensure!(listed(&admin, "idleCursor").await?.is_empty());

    // Of a large command only the beginning is kept.
    let large =
        doc! { "find": "c", "filter": { "a": { "$ne": "x".repeat(1 << 20) } }, "batchSize": 2 };
    test.run_command(large).await?;
    let idle = one().await?;
    let cursor = idle.get_document("cursor")?;
    let origin = cursor.get_document("originatingCommand")?;
    let kept = origin.get_str("$truncated").map(str::len);
    ensure!(kept.as_ref().is_ok_and(|kept| *kept < 100_000), "{kept:?}");
    Ok(())
}

#[tokio::test]
async fn idle_connections_are_listed_when_asked_for() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let mut options = ClientOptions::parse(mongod.uri()).await?;
    options.app_name = Some("till".to_owned());
    // One that asks for nothing from now on.
    let resting = Client::with_options(options.clone())?;
    resting
        .database("test")
        .run_command(doc! { "ping": 1 })
        .await?;
    options.app_name = Some("office".to_owned());
    let admin = Client::with_options(options)?.database("admin");
    let of_till = |all: Vec<Document>| -> Vec<Document> {
        let is_till = |one: &Document| one.get_str("appName").is_ok_and(|name| name == "till");
        all.into_iter().filter(is_till).collect()
    };
    for (asked, expected) in [(true, true), (false, false)] {
        let stages = [doc! { "$currentOp": { "idleConnections": asked, "allUsers": true } }];
        let all: Vec<Document> = admin.aggregate(stages).await?.try_collect().await?;
        let found = of_till(all);
        ensure!(
            found
                .iter()
                .any(|one| matches!(one.get_bool("active"), Ok(false)))
                == expected
        );
        for idle in found
            .iter()
            .filter(|one| matches!(one.get_bool("active"), Ok(false)))
        {
            ensure!(
                idle.get_str("type")? == "op" && !idle.contains_key("opid"),
                "{idle}"
            );
            ensure!(idle.get_str("desc")? == format!("conn{}", idle.get_i64("connectionId")?));
            ensure!(
                idle.contains_key("client") && idle.contains_key("clientMetadata"),
                "{idle}"
            );
        }
        let reply = admin
            .run_command(doc! { "currentOp": 1, "$all": asked })
            .await?;
        let listed = reply.get_array("inprog")?.iter();
        let listed = listed.filter_map(|one| one.as_document().cloned());
        let found = of_till(listed.collect());
        ensure!(
            found
                .iter()
                .any(|one| matches!(one.get_bool("active"), Ok(false)))
                == expected
        );
    }
    Ok(())
}
