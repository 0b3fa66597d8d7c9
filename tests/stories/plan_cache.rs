//! The plan cache and index filters, as who operates a server sees them.

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, doc};
use mongodb::Database;

use banyan_tests::{Cluster, ClusterShape, Launch};

async fn fill(test: &Database) -> Result<()> {
    let collection = test.collection::<Document>("c");
    let documents = (0..3_000).map(|i| doc! { "_id": i, "a": i % 10, "b": i % 100, "c": 1 });
    collection.insert_many(documents).await?;
    for keys in [doc! { "a": 1 }, doc! { "b": 1 }] {
        let index = mongodb::IndexModel::builder().keys(keys).build();
        collection.create_index(index).await?;
    }
    Ok(())
}

async fn stats(test: &Database) -> Result<Vec<Document>> {
    let pipeline = doc! {
        "aggregate": "c", "pipeline": [{ "$planCacheStats": {} }], "cursor": {},
    };
    let reply = test.run_command(pipeline).await?;
    let entries = reply.get_document("cursor")?.get_array("firstBatch")?;
    let documents = entries.iter().map(|entry| entry.as_document().cloned());
    documents.collect::<Option<_>>().context("no document")
}

/// How many documents are found, and by what.
async fn find(test: &Database, filter: Document) -> Result<(i32, String, Document)> {
    let find = doc! { "find": "c", "filter": filter.clone(), "batchSize": 1_000 };
    let reply = test.run_command(find.clone()).await?;
    let found = reply.get_document("cursor")?.get_array("firstBatch")?.len();
    let explain = doc! { "explain": find, "verbosity": "queryPlanner" };
    let reply = test.run_command(explain).await?;
    let planner = reply.get_document("queryPlanner")?.clone();
    let winning = planner.get_document("winningPlan")?;
    let scan = winning.get_document("inputStage").unwrap_or(winning);
    let name = scan
        .get_str("indexName")
        .or_else(|_| scan.get_str("stage"))?;
    Ok((found as i32, name.to_owned(), planner))
}

#[tokio::test]
async fn a_plan_that_won_twice_is_kept_until_the_indexes_change() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    fill(&test).await?;
    ensure!(stats(&test).await?.is_empty());
    for round in 0..3 {
        let (found, index, planner) = find(&test, doc! { "a": round, "b": round }).await?;
        ensure!((found, index.as_str()) == (30, "b_1"), "{found} {index}");
        let entries = stats(&test).await?;
        ensure!(entries.len() == 1, "{entries:?}");
        let entry = &entries[0];
        ensure!(entry.get_bool("isActive")? == (round > 0), "{entry}");
        for hash in ["queryHash", "planCacheKey"] {
            ensure!(entry.get_str(hash)? == planner.get_str(hash)?, "{hash}");
        }
        ensure!(
            entry
                .get_document("createdFromQuery")?
                .contains_key("query")
        );
        ensure!(entry.get_array("creationExecStats")?.len() >= 2, "{entry}");
    }
    let distinct = doc! { "distinct": "c", "key": "c", "query": { "a": 1, "b": { "$lt": 5 } } };
    test.run_command(distinct).await?;
    ensure!(stats(&test).await?.len() == 2);
    let clear = doc! { "planCacheClear": "c", "query": { "a": "any", "b": "value" } };
    test.run_command(clear).await?;
    ensure!(stats(&test).await?.len() == 1);
    test.collection::<Document>("c").drop_index("a_1").await?;
    ensure!(stats(&test).await?.is_empty());
    // One index is left: there is nothing to choose, and nothing to keep, but the scan.
    let (found, index, _) = find(&test, doc! { "a": 1, "b": 1 }).await?;
    ensure!((found, index.as_str()) == (30, "b_1"));
    Ok(())
}

#[tokio::test]
async fn an_index_filter_rules_the_plans_of_its_shape() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    fill(&test).await?;
    let set = doc! {
        "planCacheSetFilter": "c", "query": { "a": 1, "b": 1 }, "indexes": ["a_1", { "c": 1 }],
    };
    test.run_command(set).await?;
    let (found, index, planner) = find(&test, doc! { "a": 7, "b": 7 }).await?;
    ensure!((found, index.as_str()) == (30, "a_1"), "{found} {index}");
    ensure!(planner.get_bool("indexFilterSet")?);
    // Another shape has no filter.
    let (_, index, planner) = find(&test, doc! { "a": 7, "b": { "$lt": 1 } }).await?;
    ensure!(index == "b_1" && !planner.get_bool("indexFilterSet")?);
    let listed = test
        .run_command(doc! { "planCacheListFilters": "c" })
        .await?;
    let expected = doc! {
        "query": { "a": 1, "b": 1 }, "sort": {}, "projection": {}, "indexes": [{ "c": 1 }, "a_1"],
    };
    ensure!(*listed.get_array("filters")? == [Bson::Document(expected)]);
    test.run_command(doc! { "planCacheClearFilters": "c" })
        .await?;
    let (_, index, planner) = find(&test, doc! { "a": 7, "b": 7 }).await?;
    ensure!(index == "b_1" && !planner.get_bool("indexFilterSet")?);
    Ok(())
}

#[tokio::test]
async fn a_router_asks_every_shard_for_its_plans() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let test = client.database("test");
    fill(&test).await?;
    for _ in 0..2 {
        let reply = test
            .run_command(doc! { "find": "c", "filter": { "a": 1, "b": 1 } })
            .await?;
        ensure!(
            !reply
                .get_document("cursor")?
                .get_array("firstBatch")?
                .is_empty()
        );
    }
    ensure!(stats(&test).await?.len() == 1);
    let set = doc! { "planCacheSetFilter": "c", "query": { "a": 1 }, "indexes": ["a_1"] };
    test.run_command(set).await?;
    let listed = test
        .run_command(doc! { "planCacheListFilters": "c" })
        .await?;
    ensure!(listed.get_array("filters")?.len() == 1, "{listed}");
    test.run_command(doc! { "planCacheClear": "c" }).await?;
    ensure!(stats(&test).await?.is_empty());
    Ok(())
}
