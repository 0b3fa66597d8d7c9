//! Keys of indexes in place of documents (`returnKey`): in the order of a sort that they say nothing
//! of, from one server and from several shards.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch};
use bson::{Bson, Document, doc};
use mongodb::Database;

/// What a `find` with a small first batch comes to in the end.
async fn found(test: &Database, mut find: Document) -> Result<Vec<Bson>> {
    find.insert("batchSize", 3);
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = test.client().start_session().await?;
    let reply = test.run_command(find.clone()).session(&mut session);
    let mut reply = reply.await?;
    let mut found = Vec::new();
    loop {
        let cursor = reply.get_document("cursor")?;
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))?;
        found.extend(batch.iter().cloned());
        let id = cursor.get_i64("id")?;
        if id == 0 {
            return Ok(found);
        }
        let next = doc! { "getMore": id, "collection": find.get_str("find")?, "batchSize": 4 };
        reply = test.run_command(next).session(&mut session).await?;
    }
}

/// Documents whose order by `n` is neither that of `k` nor of `_id`.
fn documents() -> impl Iterator<Item = Document> {
    (0..30).map(|id| doc! { "_id": id, "k": id % 10, "n": (id * 7) % 30, "more": "x".repeat(9) })
}

async fn load(test: &Database) -> Result<()> {
    let things = test.collection::<Document>("things");
    things.insert_many(documents()).await?;
    let indexes = vec![doc! { "key": { "k": 1, "_id": -1 }, "name": "k_id" }];
    let command = doc! { "createIndexes": "things", "indexes": indexes };
    test.run_command(command).await?;
    Ok(())
}

/// Those that the index on `k` and `_id` has of some documents, sorted by `n`.
fn expected(matches: impl Fn(i32) -> bool, descending: bool) -> Vec<Bson> {
    let mut documents: Vec<Document> = documents().collect();
    let number = |document: &Document, field: &str| document.get_i32(field).unwrap();
    documents.retain(|document| matches(number(document, "k")));
    documents.sort_by_key(|document| number(document, "n"));
    if descending {
        documents.reverse();
    }
    let key =
        |document: &Document| doc! { "k": number(document, "k"), "_id": number(document, "_id") };
    documents
        .iter()
        .map(|document| key(document).into())
        .collect()
}

async fn ask(test: &Database) -> Result<()> {
    let find = doc! { "find": "things", "returnKey": true, "hint": "k_id" };
    let sorted = |sort: Document| {
        let mut sorted = find.clone();
        sorted.insert("sort", sort);
        sorted
    };
    let all = expected(|_| true, false);
    ensure!(found(test, sorted(doc! { "n": 1 })).await? == all);
    // What is projected, and ids of records, are not in the keys.
    let mut projected = sorted(doc! { "n": -1 });
    projected.insert("filter", doc! { "k": { "$gte": 4 } });
    projected.insert("projection", doc! { "n": 1 });
    projected.insert("showRecordId", true);
    let some = expected(|k| k >= 4, true);
    ensure!(found(test, projected.clone()).await? == some);
    projected.insert("skip", 4);
    projected.insert("limit", 7);
    ensure!(found(test, projected).await? == some[4..11]);
    // In the index's own order, by fields that the keys have.
    let mut own = sorted(doc! { "k": 1, "_id": -1 });
    own.insert("filter", doc! { "k": { "$in": [3, 4] } });
    let expected: Vec<Bson> = [(3, 23), (3, 13), (3, 3), (4, 24), (4, 14), (4, 4)]
        .map(|(k, id)| doc! { "k": k, "_id": id }.into())
        .into();
    ensure!(found(test, own).await? == expected);
    // No index has found these.
    let scan = doc! { "find": "things", "returnKey": true, "filter": { "n": { "$lt": 5 } } };
    let mut sorted_scan = scan.clone();
    sorted_scan.insert("sort", doc! { "n": 1 });
    for scan in [scan, sorted_scan] {
        ensure!(found(test, scan).await? == vec![Bson::Document(doc! {}); 5]);
    }
    Ok(())
}

#[tokio::test]
async fn keys_come_in_place_of_documents() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    load(&test).await?;
    ask(&test).await?;

    let stages = async |find: Document| -> Result<Vec<String>> {
        let explained = test.run_command(doc! { "explain": find }).await?;
        let planner = explained.get_document("queryPlanner")?;
        let mut stage = Some(planner.get_document("winningPlan")?);
        let mut stages = Vec::new();
        while let Some(shown) = stage {
            stages.push(shown.get_str("stage")?.to_owned());
            stage = shown.get_document("inputStage").ok();
        }
        Ok(stages)
    };
    let find = doc! { "find": "things", "returnKey": true };
    let with = |more: Document| {
        let mut find = find.clone();
        find.extend(more);
        find
    };
    ensure!(stages(find.clone()).await? == ["RETURN_KEY", "COLLSCAN"]);
    ensure!(stages(with(doc! { "filter": { "_id": 1 } })).await? == ["RETURN_KEY", "IDHACK"]);
    // Nothing of the documents is needed, also where a projection asks for it.
    let covered = doc! { "filter": { "k": 1 }, "projection": { "n": 1 }, "limit": 2 };
    ensure!(stages(with(covered)).await? == ["LIMIT", "RETURN_KEY", "IXSCAN"]);
    let sorted = doc! { "filter": { "k": 1 }, "sort": { "n": 1 } };
    ensure!(stages(with(sorted)).await? == ["RETURN_KEY", "SORT", "FETCH", "IXSCAN"]);
    let sorted = doc! { "filter": { "k": { "$gt": 1 } }, "sort": { "_id": 1 }, "hint": "k_id" };
    ensure!(stages(with(sorted)).await? == ["RETURN_KEY", "SORT", "IXSCAN"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_merges_keys_by_what_their_documents_are_sorted_by() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    for command in [
        doc! { "enableSharding": "test" },
        doc! { "shardCollection": "test.things", "key": { "_id": 1 } },
        doc! { "split": "test.things", "middle": { "_id": 15 } },
        doc! { "moveChunk": "test.things", "find": { "_id": 0 }, "to": "shard1" },
        doc! { "moveChunk": "test.things", "find": { "_id": 15 }, "to": "shard0" },
    ] {
        let outcome = admin.run_command(command.clone()).await;
        outcome.with_context(|| command.to_string())?;
    }
    load(&test).await?;
    ask(&test).await
}
