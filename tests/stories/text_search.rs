//! Searches in text: what is found and in which order, while documents change, after a restart, and
//! by a router from several shards.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch};
use bson::{Bson, Document, doc};
use mongodb::Database;

/// What a command with a small first batch comes to in the end.
async fn found(test: &Database, mut command: Document) -> Result<Vec<Document>> {
    match command.contains_key("aggregate") {
        true => command.insert("cursor", doc! { "batchSize": 2 }),
        false => command.insert("batchSize", 2),
    };
    let collection = command.values().next().cloned().context("no command")?;
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = test.client().start_session().await?;
    let mut reply = test.run_command(command).session(&mut session).await?;
    let mut found = Vec::new();
    loop {
        let cursor = reply.get_document("cursor")?;
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))?;
        found.extend(batch.iter().filter_map(|item| item.as_document().cloned()));
        let id = cursor.get_i64("id")?;
        if id == 0 {
            return Ok(found);
        }
        let next = doc! { "getMore": id, "collection": collection.clone(), "batchSize": 3 };
        reply = test.run_command(next).session(&mut session).await?;
    }
}

fn ids(found: &[Document]) -> Vec<i32> {
    let ids = found.iter().map(|document| document.get_i32("_id"));
    ids.filter_map(Result::ok).collect()
}

fn code(outcome: mongodb::error::Result<Document>) -> Option<i32> {
    match *outcome.err()?.kind {
        mongodb::error::ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

async fn load(test: &Database) -> Result<()> {
    let documents = [
        doc! { "_id": 1, "title": "Coffee and cakes", "body": "tea", "x": 1 },
        doc! { "_id": 2, "title": "coffee shop", "x": 2 },
        doc! { "_id": 3, "title": "Café shop shop", "x": 1 },
        doc! { "_id": 4, "title": ["tea time", "shop"], "x": 3 },
        doc! { "_id": 5, "body": "tea", "x": 2 },
        doc! { "_id": 6, "title": "Häuser", "language": "german", "x": 2 },
        doc! { "_id": 7, "title": "nothing of the kind", "x": 2 },
    ];
    test.collection("things").insert_many(documents).await?;
    let index = doc! {
        "key": { "title": "text", "body": "text" }, "name": "text", "weights": { "body": 3 },
    };
    test.run_command(doc! { "createIndexes": "things", "indexes": [index] })
        .await?;
    Ok(())
}

fn search(text: &str) -> Document {
    doc! { "$text": { "$search": text } }
}

fn score() -> Document {
    doc! { "$meta": "textScore" }
}

async fn ask(test: &Database) -> Result<()> {
    let best = doc! {
        "find": "things", "filter": search("coffee tea shop"),
        "projection": { "score": score() }, "sort": { "score": score() },
    };
    let best = found(test, best).await?;
    ensure!(ids(&best) == [1, 5, 4, 2, 3], "{best:?}");
    let scores: Vec<f64> = best
        .iter()
        .flat_map(|found| found.get_f64("score"))
        .collect();
    let first = 3.3000000000000003 + 0.75;
    ensure!(
        scores == [first, 3.3000000000000003, 1.85, 1.5, 1.25],
        "{scores:?}"
    );
    // A score that only the order needs is not shown, however the documents are shaped.
    for projection in [doc! {}, doc! { "x": 1 }, doc! { "title": 0 }] {
        let named = projection.contains_key("x");
        let find = doc! {
            "find": "things", "filter": search("coffee tea shop"), "projection": projection,
            "sort": { "score": score() }, "skip": 1, "limit": 3,
        };
        let shown = found(test, find).await?;
        ensure!(ids(&shown) == [5, 4, 2], "{shown:?}");
        ensure!(!shown.iter().any(|shown| shown.contains_key("$textScore")));
        ensure!(!named || shown[0] == doc! { "_id": 5, "x": 2 });
    }
    for (text, expected) in [
        ("shop -coffee", vec![3, 4]),
        ("\"coffee shop\"", vec![2]),
        ("cafe", vec![3]),
        ("the", vec![]),
    ] {
        let find = doc! { "find": "things", "filter": search(text), "sort": { "_id": 1 } };
        ensure!(ids(&found(test, find).await?) == expected, "{text}");
    }
    let german = doc! { "$text": { "$search": "Haus", "$language": "de" } };
    let find = doc! { "find": "things", "filter": german };
    ensure!(ids(&found(test, find).await?) == [6]);

    let counted = doc! { "count": "things", "query": search("tea shop") };
    ensure!(test.run_command(counted).await?.get_i32("n")? == 5);
    let pipeline = vec![
        doc! { "$match": search("coffee tea shop") },
        doc! { "$sort": { "score": score(), "_id": 1 } },
        doc! { "$limit": 3 },
        doc! { "$project": { "x": 1, "score": score() } },
    ];
    let aggregate = doc! { "aggregate": "things", "pipeline": pipeline };
    let best = found(test, aggregate).await?;
    ensure!(
        best[1] == doc! { "_id": 5, "x": 2, "score": 3.3000000000000003 },
        "{best:?}"
    );
    ensure!(best.len() == 3);
    let pipeline = vec![
        doc! { "$match": search("tea") },
        doc! { "$group": { "_id": null, "best": { "$max": score() }, "n": { "$sum": 1 } } },
    ];
    let aggregate = doc! { "aggregate": "things", "pipeline": pipeline };
    let group = doc! { "_id": Bson::Null, "best": 3.3000000000000003, "n": 3 };
    ensure!(found(test, aggregate).await? == [group]);
    let pipeline = vec![doc! { "$limit": 1 }, doc! { "$match": search("tea") }];
    let aggregate = doc! { "aggregate": "things", "pipeline": pipeline, "cursor": {} };
    ensure!(code(test.run_command(aggregate).await) == Some(17313));
    Ok(())
}

#[tokio::test]
async fn a_search_finds_what_fits_best() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    test.create_collection("things").await?;
    let early = doc! { "find": "things", "filter": search("tea") };
    ensure!(code(test.run_command(early).await) == Some(27));
    load(&test).await?;
    ask(&test).await?;
    inside(&test).await?;
    server.kill();
    server.start().await;
    let test = server.direct().await.database("test");
    ask(&test).await
}

#[tokio::test]
async fn an_index_follows_its_documents() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    load(&test).await?;
    let things = test.collection::<Document>("things");
    let renamed = doc! { "$set": { "title": "a hut" } };
    things.update_many(search("shop"), renamed).await?;
    let find = |text| doc! { "find": "things", "filter": search(text), "sort": { "_id": 1 } };
    ensure!(found(&test, find("shop")).await?.is_empty());
    ensure!(ids(&found(&test, find("huts")).await?) == [2, 3, 4]);
    things.delete_many(search("tea")).await?;
    ensure!(ids(&found(&test, find("huts tea")).await?) == [2, 3, 4]);
    let strange = doc! { "_id": 9, "title": "x", "language": "klingon" };
    ensure!(things.insert_one(strange).await.is_err());
    let second = doc! { "key": { "x": 1, "other": "text" }, "name": "second" };
    let create = doc! { "createIndexes": "things", "indexes": [second] };
    ensure!(code(test.run_command(create).await) == Some(67));
    let list = test.run_command(doc! { "listIndexes": "things" }).await?;
    let list = list.get_document("cursor")?.get_array("firstBatch")?;
    let shown = list
        .last()
        .and_then(Bson::as_document)
        .context("no index")?;
    let expected = doc! {
        "v": 2, "key": { "_fts": "text", "_ftsx": 1 }, "name": "text",
        "weights": { "body": 3, "title": 1 }, "default_language": "english",
        "language_override": "language", "textIndexVersion": 3,
    };
    ensure!(*shown == expected, "{shown}");
    let validated = test.run_command(doc! { "validate": "things" }).await?;
    ensure!(validated.get_bool("valid")?, "{validated}");
    Ok(())
}

#[tokio::test]
async fn a_plan_is_shown_in_mongodbs_words() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    load(&test).await?;
    let stages = async |find: Document| -> Result<Vec<String>> {
        let explained = test.run_command(doc! { "explain": find }).await?;
        let planner = explained.get_document("queryPlanner")?;
        let mut stage = Some(planner.get_document("winningPlan")?);
        let mut stages = Vec::new();
        while let Some(shown) = stage {
            stages.push(shown.get_str("stage")?.to_owned());
            let first = shown
                .get_array("inputStages")
                .ok()
                .and_then(|all| all.first());
            let only = shown.get_document("inputStage").ok();
            stage = only.or(first.and_then(Bson::as_document));
        }
        Ok(stages)
    };
    let find = doc! { "find": "things", "filter": search("tea") };
    ensure!(stages(find).await? == ["TEXT_MATCH", "FETCH", "IXSCAN"]);
    let mut filter = search("tea shop");
    filter.insert("x", 1);
    let mut find = doc! { "find": "things", "filter": filter };
    ensure!(stages(find.clone()).await? == ["FETCH", "TEXT_MATCH", "FETCH", "OR", "IXSCAN"]);
    find.insert("sort", doc! { "score": score() });
    ensure!(stages(find).await? == ["SORT", "FETCH", "TEXT_MATCH", "TEXT_OR", "IXSCAN"]);
    Ok(())
}

/// Searches in the pipelines of stages that read the collection as another one, and by scripts.
async fn inside(test: &Database) -> Result<()> {
    test.collection("askers")
        .insert_many([doc! { "_id": 1, "x": 1 }, doc! { "_id": 2, "x": 3 }])
        .await?;
    let best = vec![
        doc! { "$match": search("coffee tea shop") },
        doc! { "$sort": { "score": score(), "_id": 1 } },
        doc! { "$project": { "x": 1, "score": score() } },
    ];
    let whole = found(
        test,
        doc! { "aggregate": "things", "pipeline": best.clone() },
    )
    .await?;
    ensure!(ids(&whole) == [1, 5, 4, 2, 3], "{whole:?}");
    let mut correlated = best.clone();
    let own = doc! { "$expr": { "$eq": ["$x", "$$x"] } };
    correlated.insert(1, doc! { "$match": own });
    let lookup = doc! {
        "from": "things", "let": { "x": "$x" }, "pipeline": correlated, "as": "found",
    };
    let pipeline = vec![doc! { "$lookup": lookup }, doc! { "$sort": { "_id": 1 } }];
    let joined = found(test, doc! { "aggregate": "askers", "pipeline": pipeline }).await?;
    ensure!(ids(&joined) == [1, 2], "{joined:?}");
    for (asker, x) in joined.iter().zip([1, 3]) {
        let expected: Vec<Bson> = whole
            .iter()
            .filter(|found| found.get_i32("x").is_ok_and(|own| own == x))
            .map(|found| Bson::Document(found.clone()))
            .collect();
        ensure!(asker.get_array("found")? == &expected, "{asker}");
    }
    let union = doc! { "$unionWith": { "coll": "things", "pipeline": best } };
    let pipeline = vec![doc! { "$match": { "_id": 0 } }, union];
    let united = found(test, doc! { "aggregate": "askers", "pipeline": pipeline }).await?;
    ensure!(united == whole, "{united:?}");
    // Whose scores nobody asks for bring none.
    let plain = doc! { "$unionWith": {
        "coll": "things", "pipeline": [{ "$match": search("tea") }, { "$sort": { "_id": 1 } }],
    } };
    let pipeline = vec![doc! { "$match": { "_id": 0 } }, plain];
    let plain = found(test, doc! { "aggregate": "askers", "pipeline": pipeline }).await?;
    ensure!(ids(&plain) == [1, 4, 5], "{plain:?}");
    ensure!(
        !plain.iter().any(|one| one.contains_key("$textScore")),
        "{plain:?}"
    );
    let without = doc! { "$unionWith": {
        "coll": "askers", "pipeline": [{ "$match": search("tea") }],
    } };
    let without = doc! { "aggregate": "things", "pipeline": [without], "cursor": {} };
    ensure!(code(test.run_command(without).await) == Some(27));

    let job = doc! {
        "mapReduce": "things", "query": search("tea shop"), "out": { "inline": 1 },
        "map": "function() { emit(this.x, 1); }",
        "reduce": "function(key, values) { return Array.sum(values); }",
    };
    let reply = test.run_command(job).await?;
    let results = reply.get_array("results")?.iter();
    let counted: f64 = results
        .filter_map(|one| one.as_document()?.get_f64("value").ok())
        .sum();
    ensure!(counted == 5.0, "{reply}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_merges_by_score() -> Result<()> {
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
        doc! { "split": "test.things", "middle": { "_id": 4 } },
        doc! { "moveChunk": "test.things", "find": { "_id": 0 }, "to": "shard1" },
        doc! { "moveChunk": "test.things", "find": { "_id": 4 }, "to": "shard0" },
    ] {
        let outcome = admin.run_command(command.clone()).await;
        outcome.with_context(|| command.to_string())?;
    }
    load(&test).await?;
    ask(&test).await?;
    inside(&test).await
}
