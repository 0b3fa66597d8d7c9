//! `$queryStats`: which queries count, what is told of them, and to whom.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, eventually};
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

fn asked(argument: Document) -> Document {
    doc! { "aggregate": 1, "cursor": { "batchSize": 1000 }, "pipeline": [
        { "$queryStats": argument },
        { "$match": { "key.queryShape.cmdNs.db": { "$nin": ["admin", "config", "local"] } } },
        { "$sort": { "key.queryShape.command": 1, "key.queryShape": 1 } },
    ] }
}

fn batch(reply: &Document) -> Result<Vec<Document>> {
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    let documents = batch.iter().map(|entry| entry.as_document().cloned());
    documents.collect::<Option<_>>().context("no document")
}

async fn stats(admin: &Database) -> Result<Vec<Document>> {
    batch(&admin.run_command(asked(doc! {})).await?)
}

async fn set(admin: &Database, name: &str, value: impl Into<Bson>) -> Result<()> {
    let mut command = doc! { "setParameter": 1 };
    command.insert(name, value);
    admin.run_command(command).await?;
    Ok(())
}

fn shape(entry: &Document) -> Result<&Document> {
    Ok(entry.get_document("key")?.get_document("queryShape")?)
}

fn figure(entry: &Document, name: &str) -> Result<i64> {
    let metrics = entry.get_document("metrics")?;
    Ok(match metrics.get(name).context("no figure")? {
        Bson::Document(figures) => figures.get_i64("sum")?,
        other => other.as_i64().context("no number")?,
    })
}

async fn fill(test: &Database) -> Result<()> {
    let collection = test.collection::<Document>("c");
    let documents = (0..300).map(|i| doc! { "_id": i, "a": i % 10, "name": "a secret" });
    collection.insert_many(documents).await?;
    Ok(())
}

#[tokio::test]
async fn queries_of_one_shape_are_counted_together_while_somebody_wants_it() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let client = mongod.direct().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    fill(&test).await?;
    let find = |a: i32| doc! { "find": "c", "filter": { "a": a }, "sort": { "name": 1 }, "batchSize": 1000 };
    test.run_command(find(1)).await?;
    ensure!(stats(&admin).await?.is_empty(), "nobody has asked");

    set(&admin, "internalQueryStatsRateLimit", -1).await?;
    for a in 0..5 {
        test.run_command(find(a)).await?;
    }
    test.run_command(doc! { "find": "c", "filter": { "_id": 7 } })
        .await?;
    test.run_command(doc! { "distinct": "c", "key": "a", "query": { "name": "a secret" } })
        .await?;
    let failing = doc! { "find": "c", "filter": { "$expr": { "$divide": [1, "$zero.x"] } }, "max": { "b": 1 } };
    ensure!(test.run_command(failing).await.is_err());
    let grouped = doc! { "aggregate": "c", "cursor": { "batchSize": 4 }, "pipeline": [
        { "$group": { "_id": "$a", "n": { "$sum": 1 } } },
    ] };
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = test.client().start_session().await?;
    let reply = test.run_command(grouped).session(&mut session).await?;
    ensure!(
        stats(&admin).await?.len() == 3,
        "an open cursor does not count yet"
    );
    let id = reply.get_document("cursor")?.get_i64("id")?;
    test.run_command(doc! { "getMore": id, "collection": "c" })
        .session(&mut session)
        .await?;

    let all = stats(&admin).await?;
    ensure!(all.len() == 4, "{all:#?}");
    ensure!(!format!("{all:?}").contains("a secret"));
    let [aggregate, distinct, by_id, find] = &all[..] else {
        anyhow::bail!("{all:#?}");
    };
    ensure!(shape(aggregate)?.get_str("command")? == "aggregate");
    ensure!(figure(aggregate, "execCount")? == 1 && figure(aggregate, "docsReturned")? == 10);
    ensure!(figure(aggregate, "docsExamined")? == 300, "{aggregate:#?}");
    ensure!(shape(distinct)?.get_str("key")? == "a");
    ensure!(figure(by_id, "keysExamined")? == 1, "{by_id:#?}");
    ensure!(shape(find)?.get_document("filter")? == &doc! { "a": { "$eq": "?number" } });
    ensure!(figure(find, "execCount")? == 5 && figure(find, "docsReturned")? == 150);
    ensure!(
        find.get_document("metrics")?.get_document("hasSortStage")?
            == &doc! { "true": 5_i64, "false": 0_i64 }
    );
    ensure!(find.get_document("key")?.get_str("collectionType")? == "collection");
    ensure!(find.get_document("key")?.contains_key("client"));
    ensure!(find.get_str("queryShapeHash")?.len() == 64);

    let explained = test
        .run_command(
            doc! { "explain": { "find": "c", "filter": { "a": 77 }, "sort": { "name": 1 } } },
        )
        .await?;
    ensure!(explained.get_str("queryShapeHash")? == find.get_str("queryShapeHash")?);

    let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
    let figures = status.get_document("metrics")?.get_document("queryStats")?;
    ensure!(figures.get_i64("numEntries")? >= 4, "{figures}");
    ensure!(
        figures.get_i64("queryStatsStoreSizeEstimateBytes")? > 0,
        "{figures}"
    );

    set(&admin, "internalQueryStatsRateLimit", 0).await?;
    test.run_command(doc! { "find": "c", "filter": { "a": 1 }, "sort": { "name": 1 } })
        .await?;
    ensure!(figure(&stats(&admin).await?[3], "execCount")? == 5);
    set(&admin, "internalQueryStatsCacheSize", "0MB").await?;
    ensure!(stats(&admin).await?.is_empty());
    let wrong = doc! { "setParameter": 1, "internalQueryStatsCacheSize": "much" };
    ensure!(code(admin.run_command(wrong).await) == Some(2));
    let asked = doc! { "getParameter": 1, "internalQueryStatsCacheSize": 1, "internalQueryStatsRateLimit": 1 };
    let parameters = admin.run_command(asked).await?;
    ensure!(parameters.get_str("internalQueryStatsCacheSize")? == "0MB");
    ensure!(parameters.get_i32("internalQueryStatsRateLimit")? == 0);
    Ok(())
}

#[tokio::test]
async fn names_are_hashed_for_who_asks_and_what_is_wrong_is_told() -> Result<()> {
    let launch = Launch::mongod().with(["--setParameter", "internalQueryStatsRateLimit=-1"]);
    let mongod = launch.start().await;
    let client = mongod.direct().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    test.run_command(doc! { "find": "c", "filter": { "owner.name": "x" } })
        .await?;
    let key = |subtype| Binary {
        subtype,
        bytes: vec![7; 32],
    };
    let hashed = doc! { "transformIdentifiers": {
        "algorithm": "hmac-sha-256", "hmacKey": key(BinarySubtype::Sensitive),
    } };
    let whole = |argument: Document| {
        doc! {
            "aggregate": 1, "pipeline": [{ "$queryStats": argument }], "cursor": {},
        }
    };
    let entries = batch(&admin.run_command(whole(hashed)).await?)?;
    ensure!(entries.len() == 1, "{entries:#?}");
    let text = format!("{:?}", shape(&entries[0])?);
    ensure!(
        !text.contains("owner") && !text.contains("\"c\"") && !text.contains("\"test\""),
        "{text}"
    );
    ensure!(text.contains("?string") && text.contains("$eq"), "{text}");

    let identifiers = |identifiers: Document| whole(doc! { "transformIdentifiers": identifiers });
    let cases = [
        (whole(doc! { "redactFields": true }), 40415),
        (identifiers(doc! {}), 40414),
        (identifiers(doc! { "algorithm": 1 }), 14),
        (identifiers(doc! { "algorithm": "hmac-sha-1" }), 2),
        (identifiers(doc! { "algorithm": "hmac-sha-256" }), 9),
        (
            identifiers(
                doc! { "algorithm": "hmac-sha-256", "hmacKey": key(BinarySubtype::Generic) },
            ),
            14,
        ),
    ];
    for (command, expected) in cases {
        let found = code(admin.run_command(command.clone()).await);
        ensure!(found == Some(expected), "{command}: {found:?}");
    }
    let elsewhere = whole(doc! {});
    ensure!(code(test.run_command(elsewhere).await) == Some(73));
    let of_collection =
        doc! { "aggregate": "c", "pipeline": [{ "$queryStats": {} }], "cursor": {} };
    ensure!(code(admin.run_command(of_collection).await) == Some(73));
    Ok(())
}

/// A router counts what its clients ask; shards do not count it a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_counts_its_clients_queries() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    admin
        .run_command(doc! { "shardCollection": "test.c", "key": { "_id": "hashed" } })
        .await?;
    fill(&test).await?;
    set(&admin, "internalQueryStatsRateLimit", -1).await?;
    for shard in &cluster.shards {
        set(
            &shard.client().await.database("admin"),
            "internalQueryStatsRateLimit",
            -1,
        )
        .await?;
    }
    let find = doc! { "find": "c", "filter": { "a": 3 }, "sort": { "_id": 1 }, "batchSize": 10 };
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = test.client().start_session().await?;
    let reply = test.run_command(find).session(&mut session).await?;
    ensure!(stats(&admin).await?.is_empty(), "its cursor is open");
    let id = reply.get_document("cursor")?.get_i64("id")?;
    test.run_command(doc! { "getMore": id, "collection": "c" })
        .session(&mut session)
        .await?;
    let all = stats(&admin).await?;
    ensure!(all.len() == 1, "{all:#?}");
    ensure!(figure(&all[0], "docsReturned")? == 30 && figure(&all[0], "execCount")? == 1);
    for shard in &cluster.shards {
        let own = shard.client().await.database("admin");
        ensure!(stats(&own).await?.is_empty());
    }
    // A cursor that is closed has run, too.
    let reply = test
        .run_command(doc! { "find": "c", "filter": { "name": "a secret" }, "batchSize": 2 })
        .await?;
    let id = reply.get_document("cursor")?.get_i64("id")?;
    test.run_command(doc! { "killCursors": "c", "cursors": [id] })
        .await?;
    eventually("it counts", || async {
        let all = stats(&admin).await?;
        ensure!(all.len() == 2, "{all:#?}");
        Ok(())
    })
    .await;
    Ok(())
}
