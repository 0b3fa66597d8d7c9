//! What does not fit into memory: on a server, and on shards and their router.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

const SORT: &str = "internalQueryMaxBlockingSortMemoryUsageBytes";
const GROUP: &str = "internalDocumentSourceGroupMaxMemoryBytes";
const DOCUMENTS: i32 = 3000;

async fn fill(database: &Database) -> Result<()> {
    let document = |n: i32| {
        let k = (n * 7919) % DOCUMENTS;
        doc! { "_id": n, "k": k, "g": k % 1000, "text": "word ".repeat(20) }
    };
    let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
    let collection = database.collection::<Document>("c");
    collection.insert_many(documents).await?;
    Ok(())
}

async fn set(client: &Client, name: &str, value: impl Into<Bson>) -> Result<()> {
    let mut command = doc! { "setParameter": 1 };
    command.insert(name, value);
    client.database("admin").run_command(command).await?;
    let mut command = doc! { "getParameter": 1 };
    command.insert(name, 1);
    let found = client.database("admin").run_command(command).await?;
    ensure!(found.contains_key(name), "{found}");
    Ok(())
}

/// Pipelines that hold everything, each with a stage behind that says whether it is right.
fn pipelines(joins: bool) -> Vec<Vec<Document>> {
    let order = doc! { "$setWindowFields": {
        "sortBy": { "k": 1 }, "output": { "at": { "$documentNumber": {} } },
    } };
    let mut pipelines = vec![
        vec![
            doc! { "$sort": { "k": 1 } },
            doc! { "$project": { "k": 1 } },
        ],
        vec![
            doc! { "$group": { "_id": "$g", "n": { "$sum": 1 }, "ids": { "$push": "$_id" } } },
            doc! { "$sort": { "_id": 1 } },
        ],
        vec![
            order,
            doc! { "$project": { "at": 1 } },
            doc! { "$sort": { "at": 1 } },
        ],
    ];
    if joins {
        let lookup = doc! { "$lookup": {
            "from": "c", "localField": "g", "foreignField": "k", "as": "found",
        } };
        let count = doc! { "$group": { "_id": { "$size": "$found" }, "n": { "$sum": 1 } } };
        pipelines.push(vec![lookup, count]);
    }
    pipelines
}

async fn results(database: &Database, pipeline: &[Document]) -> Result<Vec<Document>> {
    let collection = database.collection::<Document>("c");
    Ok(collection
        .aggregate(pipeline.to_vec())
        .await?
        .try_collect()
        .await?)
}

async fn all(database: &Database, joins: bool) -> Result<Vec<Vec<Document>>> {
    let mut all = Vec::new();
    for pipeline in pipelines(joins) {
        let mut found = results(database, &pipeline).await?;
        // The order of what `$push` gathers is that of the shards' answers.
        for document in &mut found {
            if let Ok(ids) = document.get_array_mut("ids") {
                ids.sort_by_key(Bson::as_i32);
            }
        }
        all.push(found);
    }
    Ok(all)
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

/// Nothing was left where a server spills to.
fn is_clean(server: &Process) -> Result<()> {
    let scratch = server.data_directory().join("_tmp");
    let left = std::fs::read_dir(&scratch)
        .context("it was spilled to")?
        .count();
    ensure!(left == 0, "{left} files in {}", scratch.display());
    Ok(())
}

async fn number(client: &Client, path: &[&str]) -> Result<i64> {
    let admin = client.database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
    let mut at = status.get_document("metrics")?.get_document("query")?;
    let (last, above) = path.split_last().context("a path")?;
    for name in above {
        at = at.get_document(name)?;
    }
    Ok(at.get_i64(last)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_goes_on_on_disk() -> Result<()> {
    let server = Launch::mongod().start().await;
    let client = server.direct().await;
    let test = client.database("test");
    fill(&test).await?;
    let expected = all(&test, true).await?;
    ensure!(number(&client, &["sort", "spillToDisk"]).await? == 0);
    set(&client, SORT, 50_000).await?;
    set(&client, GROUP, 50_000).await?;
    let lookup = "internalDocumentSourceLookupCacheSizeBytes";
    set(&client, lookup, 50_000).await?;
    ensure!(all(&test, true).await? == expected);
    ensure!(number(&client, &["sort", "spillToDisk"]).await? > 0);
    ensure!(number(&client, &["group", "spills"]).await? > 0);
    is_clean(&server)?;

    let find = doc! { "find": "c", "sort": { "k": 1 }, "projection": { "_id": 1 } };
    let explain = doc! { "explain": find.clone(), "verbosity": "executionStats" };
    let explained = test.run_command(explain).await?;
    let stages = explained.get_document("executionStats")?;
    let stage = stages.get_document("executionStages")?;
    let sort = stage.get_document("inputStage")?;
    ensure!(sort.get_str("stage")? == "SORT", "{explained}");
    ensure!(
        sort.get_bool("usedDisk")? && sort.get_i64("spills")? > 1,
        "{sort}"
    );
    ensure!(sort.get_i32("memLimit")? == 50_000, "{sort}");

    let group = doc! { "$group": { "_id": "$k", "n": { "$push": "$text" } } };
    let aggregate = doc! { "aggregate": "c", "pipeline": [group], "cursor": {} };
    let explain = doc! { "explain": aggregate.clone(), "verbosity": "executionStats" };
    let explained = test.run_command(explain).await?;
    let stages = explained.get_array("stages")?;
    let group = stages
        .get(1)
        .and_then(Bson::as_document)
        .context("a group")?;
    ensure!(
        group.get_bool("usedDisk")? && group.get_i64("spills")? > 1,
        "{group}"
    );
    ensure!(
        group.get_i64("nReturned")? == i64::from(DOCUMENTS),
        "{group}"
    );

    // Who must not use the disk is told so, also by default.
    let refused = |command: &Document| {
        let mut command = command.clone();
        command.insert("allowDiskUse", false);
        command
    };
    ensure!(code_of(&test, refused(&find)).await? == 292);
    ensure!(code_of(&test, refused(&aggregate)).await? == 292);
    set(&client, "allowDiskUseByDefault", false).await?;
    ensure!(code_of(&test, find.clone()).await? == 292);
    let mut allowed = find;
    allowed.insert("allowDiskUse", true);
    test.run_command(allowed).await?;
    set(&client, "allowDiskUseByDefault", true).await?;

    // What is ended on the way leaves nothing behind.
    let mut late = aggregate;
    late.insert("maxTimeMS", 1);
    set(&client, GROUP, 300).await?;
    ensure!(code_of(&test, late).await? == 50);
    is_clean(&server)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_and_their_router_go_on_on_disk() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    let shard = doc! { "shardCollection": "test.c", "key": { "_id": "hashed" } };
    admin.run_command(shard).await?;
    fill(&test).await?;
    let expected = all(&test, false).await?;
    for name in [SORT, GROUP] {
        set(&client, name, 50_000).await?;
        for shard in &cluster.shards {
            for member in &shard.members {
                set(&member.direct().await, name, 50_000).await?;
            }
        }
    }
    ensure!(all(&test, false).await? == expected);
    for shard in &cluster.shards {
        for member in &shard.members {
            is_clean(member)?;
        }
    }
    let group = doc! { "$group": { "_id": "$k", "n": { "$push": "$text" } } };
    let refused = doc! {
        "aggregate": "c", "pipeline": [group], "cursor": {}, "allowDiskUse": false,
    };
    ensure!(code_of(&test, refused).await? == 292);
    Ok(())
}
