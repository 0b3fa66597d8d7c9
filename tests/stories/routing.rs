//! What a router does with a request that it can't, or must not, carry out at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, eventually};
use bson::{Document, doc};
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

use crate::operating::uuid_of;

/// Much more than what `maxTimeMS` allows below, much less than what a router waits without it.
const SOON: Duration = Duration::from_secs(6);

const MAX_TIME_MS_EXPIRED: i32 = 50;

/// The code of the error that a command ends with, which has to come soon.
async fn refused(database: &Database, command: Document) -> Result<i32> {
    let started = Instant::now();
    let outcome = database.run_command(command.clone()).await;
    let taken = started.elapsed();
    ensure!(taken < SOON, "{command} took {taken:?}: {outcome:?}");
    match outcome {
        Ok(reply) => match reply.get_array("writeErrors") {
            Ok(errors) => Ok(errors[0]
                .as_document()
                .context("an error")?
                .get_i32("code")?),
            Err(_) => bail!("{command}: {reply}"),
        },
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            other => bail!("{command}: {other}"),
        },
    }
}

fn plan(explained: &Document) -> Result<&Document> {
    Ok(explained
        .get_document("queryPlanner")?
        .get_document("winningPlan")?)
}

/// The stage that the only shard of a plan names.
fn stage_on_the_shard(explained: &Document) -> Result<&str> {
    let shard = plan(explained)?.get_array("shards")?[0].as_document();
    let plan = shard
        .context("a shard's plan")?
        .get_document("winningPlan")?;
    Ok(plan.get_str("stage")?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_explained_at_once() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    })
    .await;
    let test = cluster.client().await.database("test");
    let missing = doc! { "explain": { "find": "missing", "filter": { "k": 1 } } };

    let explained = test.run_command(missing.clone()).await?;
    ensure!(
        plan(&explained)?.get_str("stage")? == "EOF",
        "no database: {explained}"
    );

    // Neither the collection nor its shard's knowledge of it is there.
    test.collection::<Document>("other")
        .insert_one(doc! {})
        .await?;
    let started = Instant::now();
    let explained = test.run_command(missing).await?;
    ensure!(started.elapsed() < SOON, "it took {:?}", started.elapsed());
    ensure!(
        stage_on_the_shard(&explained)? == "EOF",
        "no collection: {explained}"
    );

    let pipeline = doc! { "aggregate": "missing", "pipeline": [{ "$match": {} }], "cursor": {} };
    let explained = test.run_command(doc! { "explain": pipeline }).await?;
    ensure!(explained.to_string().contains("EOF"), "{explained}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanations_tell_how_the_work_is_shared() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (test, admin) = (client.database("test"), client.database("admin"));
    for command in [
        doc! { "enableSharding": "test", "primaryShard": "shard0" },
        doc! { "shardCollection": "test.posts", "key": { "k": 1 } },
        doc! { "split": "test.posts", "middle": { "k": 30 } },
        doc! { "moveChunk": "test.posts", "find": { "k": 30 }, "to": "shard1" },
    ] {
        admin.run_command(command).await?;
    }
    let documents = (0..60).map(|k| doc! { "k": k, "x": k % 5 });
    let posts = test.collection::<Document>("posts");
    posts.insert_many(documents.clone()).await?;
    let plain = test.collection::<Document>("plain");
    plain.insert_many(documents).await?;
    let explain = async |inner: Document| {
        let command = doc! { "explain": inner, "verbosity": "executionStats" };
        test.run_command(command).await
    };

    for (inner, stage, figures) in [
        (
            doc! { "find": "posts", "filter": { "k": 3 } },
            "SINGLE_SHARD",
            (1, 1),
        ),
        (
            doc! { "find": "posts", "filter": { "x": 3 } },
            "SHARD_MERGE",
            (12, 60),
        ),
        (
            doc! { "find": "posts", "filter": { "x": 3 }, "sort": { "k": 1 } },
            "SHARD_MERGE_SORT",
            (12, 60),
        ),
        (
            doc! { "find": "plain", "sort": { "k": 1 } },
            "SINGLE_SHARD",
            (60, 60),
        ),
    ] {
        let explained = explain(inner.clone()).await?;
        ensure!(plan(&explained)?.get_str("stage")? == stage, "{explained}");
        let shards = plan(&explained)?.get_array("shards")?;
        for shard in shards.iter().filter_map(|shard| shard.as_document()) {
            ensure!(shard.get_str("explainVersion")? == "1", "{explained}");
            shard.get_document("serverInfo")?.get_str("host")?;
        }
        let stages = explained
            .get_document("executionStats")?
            .get_document("executionStages")?;
        let found = (
            stages.get_i32("nReturned")?,
            stages.get_i32("totalDocsExamined")?,
        );
        ensure!(found == figures, "{explained}");
        stages.get_i64("totalChildMillis")?;
        let command = explained.get_document("command")?;
        ensure!(command.get_str("$db")? == "test", "{explained}");
        ensure!(
            command.get_str("find")? == inner.get_str("find")?,
            "{explained}"
        );
    }

    // Shards are told their parts, and tell of these.
    let grouped = doc! {
        "aggregate": "posts",
        "pipeline": [{ "$match": { "x": { "$gt": 1 } } }, { "$group": { "_id": "$x" } }, { "$sort": { "_id": 1 } }],
    };
    let mut alone = grouped.clone();
    alone.insert("explain", true);
    let mut explained = grouped.clone();
    explained.insert("cursor", doc! {});
    for explained in [explain(explained).await?, test.run_command(alone).await?] {
        ensure!(explained.get_str("mergeType")? == "mongos", "{explained}");
        let division = explained.get_document("splitPipeline")?;
        let names = |part: &str| -> Result<Vec<String>> {
            let stages = division.get_array(part)?.iter();
            let names = stages.filter_map(|stage| stage.as_document()?.keys().next().cloned());
            Ok(names.collect())
        };
        ensure!(names("shardsPart")? == ["$match", "$group"], "{explained}");
        let merger = ["$mergeCursors", "$group", "$sort"];
        ensure!(names("mergerPart")? == merger, "{explained}");
        let shards = explained.get_document("shards")?;
        for shard in ["shard0", "shard1"] {
            let shard = shards.get_document(shard)?;
            shard.get_str("host")?;
            ensure!(shard.get_array("stages")?.len() == 2, "{explained}");
        }
    }
    let one = doc! { "aggregate": "posts", "pipeline": [{ "$match": { "k": 3 } }], "cursor": {} };
    let explained = explain(one).await?;
    ensure!(
        explained.get("splitPipeline") == Some(&bson::Bson::Null),
        "{explained}"
    );
    ensure!(explained.get_document("shards")?.len() == 1, "{explained}");

    for collection in ["posts", "plain"] {
        let explained = explain(doc! {
            "mapReduce": collection, "map": "function() { emit(this.x, 1) }",
            "reduce": "function(key, values) { return values.length }", "out": { "inline": 1 },
        })
        .await?;
        let of_shards = explained.get_document("shards");
        ensure!(of_shards.is_ok() == (collection == "posts"), "{explained}");
        ensure!(explained.to_string().contains("$group"), "{explained}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_router_waits_for_ends_with_max_time() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (test, admin) = (client.database("test"), client.database("admin"));
    admin
        .run_command(doc! { "enableSharding": "test", "primaryShard": "shard0" })
        .await?;
    admin
        .run_command(doc! { "shardCollection": "test.posts", "key": { "k": "hashed" } })
        .await?;
    let posts = test.collection::<Document>("posts");
    posts
        .insert_many((0..1_000).map(|k| doc! { "k": k }))
        .await?;

    // There is no secondary.
    let secondary = doc! { "mode": "secondary" };
    for command in [
        doc! { "find": "posts", "maxTimeMS": 300, "$readPreference": secondary.clone() },
        doc! { "count": "posts", "maxTimeMS": 300, "$readPreference": secondary.clone() },
        doc! { "explain": { "find": "posts" }, "maxTimeMS": 300, "$readPreference": secondary },
    ] {
        ensure!(refused(&test, command).await? == MAX_TIME_MS_EXPIRED);
    }
    let bad = doc! { "find": "posts", "maxTimeMS": -1 };
    ensure!(refused(&test, bad).await? == 2, "BadValue");

    // What one shard sent is closed when the other one is not there.
    let first = test
        .run_command(doc! { "find": "posts", "batchSize": 10, "maxTimeMS": 2_000 })
        .await?;
    let cursor = first.get_document("cursor")?.get_i64("id")?;
    cluster.shards[1].members[0].kill();
    for command in [
        doc! { "find": "posts", "batchSize": 10, "maxTimeMS": 300 },
        doc! { "aggregate": "posts", "pipeline": [{ "$group": { "_id": null, "n": { "$sum": 1 } } }], "cursor": {}, "maxTimeMS": 300 },
        doc! { "distinct": "posts", "key": "k", "maxTimeMS": 300 },
        doc! { "update": "posts", "updates": [{ "q": {}, "u": { "$set": { "n": 1 } }, "multi": true }], "maxTimeMS": 300 },
    ] {
        ensure!(refused(&test, command).await? == MAX_TIME_MS_EXPIRED);
    }
    let more = doc! { "getMore": cursor, "collection": "posts", "batchSize": 10_000 };
    let code = refused(&test, more).await;
    ensure!(
        code.is_err() || code? != MAX_TIME_MS_EXPIRED,
        "a shard that is gone is an error"
    );
    let shard = cluster.shards[0].client().await;
    eventually("no cursor is left open on the other shard", || async {
        let status = shard
            .database("admin")
            .run_command(doc! { "serverStatus": 1 })
            .await?;
        let open = status
            .get_document("metrics")?
            .get_document("cursor")?
            .get_document("open")?;
        let total = open
            .get("total")
            .and_then(|n| n.as_i64().or(n.as_i32().map(i64::from)));
        ensure!(total == Some(0), "{open}");
        Ok(())
    })
    .await;

    // The config servers are asked for what the router does not know yet.
    cluster.config.members[0].kill();
    let unknown = doc! { "find": "unknown", "maxTimeMS": 300 };
    ensure!(refused(&client.database("other"), unknown).await? == MAX_TIME_MS_EXPIRED);
    let begun = doc! { "balancerStatus": 1, "maxTimeMS": 300 };
    ensure!(refused(&admin, begun).await? == MAX_TIME_MS_EXPIRED);
    Ok(())
}

async fn chunks_on(client: &Client, filter: Document) -> Result<u64> {
    let chunks = client.database("config").collection::<Document>("chunks");
    Ok(chunks.count_documents(filter).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_cut_and_moved_as_the_settings_say() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let (test, admin) = (client.database("test"), client.database("admin"));
    let settings = client.database("config").collection::<Document>("settings");
    settings
        .insert_many([
            doc! { "_id": "chunksize", "value": 1 },
            doc! { "_id": "autosplit", "enabled": false },
            doc! { "_id": "balancer", "stopped": true },
        ])
        .await?;
    admin
        .run_command(doc! { "enableSharding": "test", "primaryShard": "shard0" })
        .await?;
    admin
        .run_command(doc! { "shardCollection": "test.posts", "key": { "k": 1 } })
        .await?;
    let posts = test.collection::<Document>("posts");
    let pad = "x".repeat(10_000);
    for batch in 0..8 {
        let documents = (0..100).map(|n| doc! { "k": batch * 100 + n, "pad": &pad });
        posts.insert_many(documents).await?;
    }
    ensure!(
        chunks_on(&client, doc! {}).await? == 1,
        "the operator cuts chunks himself"
    );

    settings
        .update_one(
            doc! { "_id": "autosplit" },
            doc! { "$set": { "enabled": true } },
        )
        .await?;
    eventually("the chunk is cut", || async {
        posts.insert_one(doc! { "k": 400, "pad": &pad }).await?;
        ensure!(chunks_on(&client, doc! {}).await? >= 4);
        Ok(())
    })
    .await;
    let status = admin.run_command(doc! { "balancerStatus": 1 }).await?;
    ensure!(status.get_str("mode")? == "off", "{status}");
    ensure!(
        chunks_on(&client, doc! { "shard": "shard1" }).await? == 0,
        "nothing is to move"
    );

    settings
        .update_one(
            doc! { "_id": "balancer" },
            doc! { "$set": { "stopped": false } },
        )
        .await?;
    eventually("chunks move", || async {
        ensure!(chunks_on(&client, doc! { "shard": "shard1" }).await? > 0);
        Ok(())
    })
    .await;
    Ok(())
}

/// The splits that a load has brought about are under way when the operator moves its last chunk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_moves_that_is_being_cut() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let (test, admin) = (client.database("test"), client.database("admin"));
    let settings = client.database("config").collection::<Document>("settings");
    settings
        .insert_many([
            doc! { "_id": "chunksize", "value": 1 },
            doc! { "_id": "balancer", "stopped": true },
        ])
        .await?;
    admin
        .run_command(doc! { "enableSharding": "test", "primaryShard": "shard0" })
        .await?;
    let pad = "x".repeat(10_000);
    for number in 0..8 {
        let name = format!("posts{number}");
        let ns = format!("test.{name}");
        admin
            .run_command(doc! { "shardCollection": &ns, "key": { "k": 1 } })
            .await?;
        for batch in 0..4 {
            let documents = (0..100).map(|n| doc! { "k": batch * 100 + n, "pad": &pad });
            test.collection(&name).insert_many(documents).await?;
        }
        let last = doc! { "moveChunk": &ns, "find": { "k": 399 }, "to": "shard1" };
        admin.run_command(last).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_home_to_databases_says_what_keeps_it() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin
        .run_command(doc! { "enableSharding": "home", "primaryShard": "shard1" })
        .await?;
    let home = client.database("home");
    home.collection::<Document>("posts")
        .insert_one(doc! {})
        .await?;

    for state in ["started", "ongoing", "ongoing"] {
        let reply = admin.run_command(doc! { "removeShard": "shard1" }).await?;
        ensure!(reply.get_str("state")? == state, "{reply}");
        ensure!(
            reply.get_array("dbsToMove")? == &vec![bson::Bson::from("home")],
            "{reply}"
        );
        let note = reply.get_str("note")?;
        ensure!(note.contains("movePrimary is not supported"), "{note}");
    }
    let moved = admin
        .run_command(doc! { "movePrimary": "home", "to": "shard0" })
        .await;
    ensure!(moved.is_err_and(|error| error.to_string().contains("no such command")));
    home.drop().await?;
    let reply = admin.run_command(doc! { "removeShard": "shard1" }).await?;
    ensure!(reply.get_str("state")? == "completed", "{reply}");
    Ok(())
}

/// The id of a collection, as the router lists it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_for_the_collection_with_its_id() -> Result<()> {
    const MISMATCH: i32 = 361;
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let (test, admin) = (client.database("test"), client.database("admin"));
    admin
        .run_command(doc! { "enableSharding": "test", "primaryShard": "shard0" })
        .await?;
    admin
        .run_command(doc! { "shardCollection": "test.parts", "key": { "k": "hashed" } })
        .await?;
    for collection in ["parts", "whole"] {
        let documents = (0..100).map(|k| doc! { "k": k });
        let collection = test.collection::<Document>(collection);
        collection.insert_many(documents).await?;
    }
    let (parts, whole) = (
        uuid_of(&test, "parts").await?,
        uuid_of(&test, "whole").await?,
    );
    ensure!(parts != whole);
    let commands = |collection: &str| {
        vec![
            doc! { "find": collection },
            doc! { "find": collection, "filter": { "k": 1 } },
            doc! { "aggregate": collection, "pipeline": [{ "$match": { "k": 1 } }], "cursor": {} },
            doc! { "aggregate": collection, "pipeline": [{ "$group": { "_id": 1 } }], "cursor": {} },
            doc! { "insert": collection, "documents": [{ "k": 200 }] },
            doc! { "update": collection, "updates": [{ "q": { "j": 1 }, "u": { "$set": { "j": 2 } } }] },
            doc! { "delete": collection, "deletes": [{ "q": { "k": 200 }, "limit": 0 }] },
            doc! { "createIndexes": collection, "indexes": [{ "key": { "j": 1 }, "name": "j" }] },
            doc! { "dropIndexes": collection, "index": "j" },
            doc! { "collMod": collection, "validationLevel": "strict" },
            doc! { "drop": collection },
        ]
    };
    for (collection, own, other, others) in [
        ("parts", &parts, &whole, "whole"),
        ("whole", &whole, &parts, "parts"),
    ] {
        for mut command in commands(collection) {
            command.insert("collectionUUID", other.clone());
            let code = refused(&test, command.clone()).await?;
            ensure!(code == MISMATCH, "{command}: {code}");
        }
        let update = doc! { "update": collection, "updates": [{ "q": {}, "u": { "$set": { "j": 2 } } }], "collectionUUID": other };
        let reply = test.run_command(update).await?;
        let error = reply.get_array("writeErrors")?[0].as_document();
        let error = error.context("an error")?;
        ensure!(error.get_str("actualCollection")? == others, "{error}");
        ensure!(
            error.get_str("expectedCollection")? == collection,
            "{error}"
        );
        let mut commands = commands(collection);
        // What is dropped last tells nothing of the other one.
        commands.pop();
        for mut command in commands {
            command.insert("collectionUUID", own.clone());
            let reply = test.run_command(command.clone()).await?;
            ensure!(reply.get("writeErrors").is_none(), "{command}: {reply}");
        }
    }
    let rename = |id: &bson::Bson| {
        doc! { "renameCollection": "test.whole", "to": "test.renamed", "collectionUUID": id }
    };
    ensure!(refused(&admin, rename(&parts)).await? == MISMATCH);
    admin.run_command(rename(&whole)).await?;
    ensure!(uuid_of(&test, "renamed").await? == whole);
    for (collection, uuid) in [("parts", parts), ("renamed", whole)] {
        let drop = doc! { "drop": collection, "collectionUUID": uuid.clone() };
        test.run_command(drop).await?;
        let find = doc! { "find": collection, "collectionUUID": uuid };
        ensure!(refused(&test, find).await? == MISMATCH);
    }
    Ok(())
}
