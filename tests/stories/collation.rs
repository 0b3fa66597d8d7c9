//! Collations across processes: what a restart keeps, and what several shards answer as one.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch};
use bson::{Bson, Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

/// Letter case does not count.
fn any_case() -> Document {
    doc! { "locale": "en", "strength": 2 }
}

async fn code_of(database: &Database, command: Document) -> Result<i32> {
    match database.run_command(command.clone()).await {
        Ok(reply) => anyhow::bail!("{command}: {reply}"),
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            other => anyhow::bail!("{command}: {other}"),
        },
    }
}

/// The first batch of a command.
async fn batch(database: &Database, command: Document) -> Result<Vec<Document>> {
    let reply = database.run_command(command).await?;
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    let documents = batch.iter().map(|item| item.as_document().cloned());
    documents.collect::<Option<_>>().context("documents")
}

fn names(documents: &[Document]) -> Vec<&str> {
    let names = documents.iter();
    names
        .filter_map(|found| found.get_str("name").ok())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_keeps_its_collation_over_a_restart() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    test.run_command(doc! { "create": "people", "collation": any_case() })
        .await?;
    let indexes = doc! { "key": { "name": 1 }, "name": "name", "unique": true };
    test.run_command(doc! { "createIndexes": "people", "indexes": [indexes] })
        .await?;
    let people = test.collection::<Document>("people");
    people
        .insert_many([
            doc! { "_id": "A", "name": "ada" },
            doc! { "_id": "B", "name": "Bob" },
        ])
        .await?;
    server.kill();
    server.start().await;

    let test = server.direct().await.database("test");
    let people = test.collection::<Document>("people");
    let twice = people.insert_one(doc! { "_id": "C", "name": "ADA" }).await;
    ensure!(twice.is_err(), "the unique index takes ADA beside ada");
    ensure!(people.insert_one(doc! { "_id": "a" }).await.is_err());
    let found = batch(
        &test,
        doc! { "find": "people", "filter": { "name": "BOB" } },
    )
    .await?;
    ensure!(names(&found) == ["Bob"], "{found:?}");
    let query = doc! { "find": "people", "filter": { "name": "BOB" } };
    let explained = test.run_command(doc! { "explain": query }).await?;
    let planner = explained.get_document("queryPlanner")?;
    ensure!(planner.get_document("collation")?.get_str("locale")? == "en");
    let scan = planner
        .get_document("winningPlan")?
        .get_document("inputStage")?;
    ensure!(scan.get_str("stage")? == "IXSCAN", "{explained}");
    let listed = batch(&test, doc! { "listCollections": 1 }).await?;
    let options = listed
        .first()
        .context("a collection")?
        .get_document("options")?;
    ensure!(options.get_document("collation")?.get_i32("strength")? == 2);
    Ok(())
}

/// Two shards, half of the keys on each.
async fn sharded_people(admin: &Database, test: &Database) -> Result<()> {
    test.run_command(doc! { "create": "people", "collation": any_case() })
        .await?;
    let shard = doc! { "shardCollection": "test.people", "key": { "k": 1 } };
    ensure!(code_of(admin, shard.clone()).await? == 2);
    let mut other = shard.clone();
    other.insert("collation", any_case());
    ensure!(code_of(admin, other).await? == 2);
    let mut simple = shard;
    simple.insert("collation", doc! { "locale": "simple" });
    admin.run_command(simple).await?;
    for command in [
        doc! { "split": "test.people", "middle": { "k": "a" } },
        doc! { "moveChunk": "test.people", "find": { "k": "a" }, "to": "shard1" },
        doc! { "moveChunk": "test.people", "find": { "k": "A" }, "to": "shard0" },
    ] {
        admin.run_command(command).await?;
    }
    // Capitals are on one shard, small letters on the other.
    let people = test.collection::<Document>("people");
    let documents = ["B", "d", "A", "c", "b", "E", "a"];
    people
        .insert_many(documents.iter().enumerate().map(|(n, name)| {
            doc! { "_id": n as i32, "k": *name, "name": *name, "n": n as i32 }
        }))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_answer_as_one_under_a_collation() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    sharded_people(&admin, &test).await?;

    // A string of the shard key may lie on either shard.
    let both = doc! { "find": "people", "filter": { "k": "B" }, "sort": { "n": 1 } };
    ensure!(names(&batch(&test, both.clone()).await?) == ["B", "b"]);
    let mut one = both;
    one.insert("collation", doc! { "locale": "simple" });
    ensure!(names(&batch(&test, one).await?) == ["B"]);
    // The merge sorts as the shards do.
    let sorted = doc! { "find": "people", "sort": { "name": 1, "n": 1 } };
    let found = batch(&test, sorted).await?;
    ensure!(
        names(&found) == ["A", "a", "B", "b", "c", "d", "E"],
        "{found:?}"
    );
    let capitals = doc! { "locale": "en", "caseFirst": "upper" };
    let sorted = doc! { "find": "people", "sort": { "name": -1 }, "collation": capitals };
    let found = batch(&test, sorted).await?;
    ensure!(
        names(&found) == ["E", "d", "c", "b", "B", "a", "A"],
        "{found:?}"
    );

    let count = doc! { "count": "people", "query": { "name": "B" } };
    ensure!(test.run_command(count).await?.get_i32("n")? == 2);
    let distinct = test
        .run_command(doc! { "distinct": "people", "key": "name" })
        .await?;
    ensure!(distinct.get_array("values")?.len() == 5, "{distinct}");
    let grouped = doc! {
        "aggregate": "people",
        "pipeline": [
            { "$group": { "_id": "$name", "n": { "$sum": 1 } } },
            { "$match": { "n": 2 } },
            { "$sort": { "_id": 1 } },
            { "$project": { "name": { "$toLower": "$_id" } } },
        ],
        "cursor": {},
    };
    let found = batch(&test, grouped).await?;
    ensure!(names(&found) == ["a", "b"], "{found:?}");

    let statement = doc! { "q": { "k": "B" }, "u": { "$set": { "hit": true } }, "multi": true };
    let update = doc! { "update": "people", "updates": [statement] };
    ensure!(test.run_command(update).await?.get_i32("n")? == 2);
    let reduced = doc! {
        "mapReduce": "people",
        "map": Bson::JavaScriptCode("function() { emit(this.name, 1); }".into()),
        "reduce": Bson::JavaScriptCode("(key, values) => Array.sum(values)".into()),
        "out": { "inline": 1 },
    };
    let reduced = test.run_command(reduced).await?;
    let results = reduced.get_array("results")?;
    let values = results.iter().filter_map(Bson::as_document);
    let mut values: Vec<f64> = values.filter_map(|r| r.get_f64("value").ok()).collect();
    values.sort_by(f64::total_cmp);
    ensure!(values == [1.0, 1.0, 1.0, 2.0, 2.0], "{reduced}");
    let statement = doc! { "q": { "name": "b" }, "limit": 0 };
    let delete = doc! { "delete": "people", "deletes": [statement] };
    ensure!(test.run_command(delete).await?.get_i32("n")? == 2);
    Ok(())
}
