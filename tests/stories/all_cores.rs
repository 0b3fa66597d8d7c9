//! Large aggregations on all cores come to what they come to on one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::Launch;
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::Database;
use mongodb::error::ErrorKind;

/// More than are read by one thread alone.
const DOCUMENTS: i32 = 24_000;

fn function(body: &str, arguments: impl Into<Bson>) -> Document {
    doc! { "$function": { "body": body, "args": arguments.into(), "lang": "js" } }
}

async fn fill(database: &Database) -> Result<()> {
    let numbers = |n: i32| doc! { "_id": n, "a": (n * 7919) % 500, "b": [n % 7, n % 11] };
    let numbers: Vec<Document> = (0..DOCUMENTS).map(numbers).collect();
    let collection = |name| database.collection::<Document>(name);
    collection("numbers").insert_many(&numbers).await?;
    let others = |n: i32| doc! { "_id": n, "k": n % 300, "next": (n * 7 + 1) % 600 };
    let others: Vec<Document> = (0..600).map(others).collect();
    collection("others").insert_many(&others).await?;
    Ok(())
}

async fn results(database: &Database, pipeline: &[Document]) -> Result<Vec<Document>> {
    let numbers = database.collection::<Document>("numbers");
    let cursor = numbers.aggregate(pipeline.to_vec()).await?;
    Ok(cursor.try_collect().await?)
}

/// A limit is reached in the order of the documents: what is behind it runs on one core.
async fn results_of_one_core(database: &Database, pipeline: &[Document]) -> Result<Vec<Document>> {
    let limit = doc! { "$limit": DOCUMENTS };
    let pipeline: Vec<Document> = std::iter::once(limit)
        .chain(pipeline.iter().cloned())
        .collect();
    ensure!(workers(database, &pipeline).await? == 0, "{pipeline:?}");
    results(database, &pipeline).await
}

/// How many workers `explain` tells of, of the first plan that has any.
async fn workers(database: &Database, pipeline: &[Document]) -> Result<usize> {
    let aggregate = doc! { "aggregate": "numbers", "pipeline": pipeline, "cursor": {} };
    let explain = doc! { "explain": aggregate, "verbosity": "executionStats" };
    let told = database.run_command(explain).await?;
    Ok(find_workers(&Bson::Document(told)).unwrap_or_default())
}

fn find_workers(value: &Bson) -> Option<usize> {
    match value {
        Bson::Document(document) => document.iter().find_map(|(name, value)| match value {
            Bson::Array(workers) if name == "workers" => Some(workers.len()),
            value => find_workers(value),
        }),
        Bson::Array(items) => items.iter().find_map(find_workers),
        _ => None,
    }
}

fn pipelines() -> Vec<Vec<Document>> {
    let join = doc! { "$lookup": {
        "from": "others", "localField": "a", "foreignField": "k", "as": "others",
    } };
    let by_id = doc! { "$lookup": {
        "from": "others", "localField": "a", "foreignField": "_id", "as": "other",
        "pipeline": [{ "$match": { "k": { "$lt": 200 } } }],
    } };
    let walk = doc! { "$graphLookup": {
        "from": "others", "startWith": "$a", "connectFromField": "next", "connectToField": "_id",
        "maxDepth": 1, "as": "walk",
    } };
    let by_size = |of: &str| {
        let ids = doc! { "first": { "$first": "$_id" }, "last": { "$last": "$_id" } };
        let mut group = doc! { "_id": { "$size": of }, "n": { "$sum": 1 } };
        group.extend(ids);
        [doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }]
    };
    let behind = |first: &Document, rest: [Document; 2]| {
        let rest = rest.into_iter();
        std::iter::once(first.clone())
            .chain(rest)
            .collect::<Vec<_>>()
    };
    let remainder = function("function(a) { return a % 5; }", vec!["$a"]);
    let twice = function("function(n) { return n * 2; }", vec!["$_id"]);
    vec![
        behind(&join, by_size("$others")),
        behind(&by_id, by_size("$other")),
        behind(&walk, by_size("$walk")),
        behind(
            &join,
            [
                doc! { "$unwind": "$others" },
                doc! { "$sort": { "others._id": -1, "a": 1 } },
            ],
        ),
        vec![
            doc! { "$unionWith": "others" },
            doc! { "$sort": { "a": 1, "k": 1 } },
        ],
        vec![
            doc! { "$unionWith": { "coll": "others", "pipeline": [{ "$set": { "a": "$k" } }] } },
            doc! { "$group": { "_id": "$a", "ids": { "$push": "$_id" } } },
            doc! { "$sort": { "_id": 1 } },
        ],
        vec![doc! { "$facet": {
            "joined": behind(&join, by_size("$others")),
            "top": [{ "$sort": { "a": -1 } }, { "$limit": 5 }],
            "all": [{ "$count": "n" }],
        } }],
        vec![
            doc! { "$group": { "_id": remainder, "sum": { "$sum": twice.clone() }, "last": { "$last": "$_id" } } },
            doc! { "$sort": { "_id": 1 } },
        ],
        vec![
            doc! { "$set": { "twice": twice.clone() } },
            doc! { "$sort": { "a": 1, "twice": -1 } },
        ],
        vec![doc! { "$project": { "sum": { "$add": ["$a", { "$sum": "$b" }] } } }],
        vec![
            doc! { "$set": { "half": { "$floor": { "$divide": ["$a", 2] } } } },
            doc! { "$match": { "half": { "$lt": 100 } } },
            by_id,
            doc! { "$skip": 15 },
        ],
        vec![
            doc! { "$set": { "twice": twice } },
            doc! { "$match": { "twice": { "$mod": [3, 0] } } },
            doc! { "$unwind": "$b" },
        ],
    ]
}

#[tokio::test]
async fn aggregations_come_to_the_same_on_all_cores_as_on_one() -> Result<()> {
    let server = Launch::mongod().start().await;
    let database = server.direct().await.database("test");
    fill(&database).await?;
    let is_alone = std::thread::available_parallelism()?.get() < 2;
    for pipeline in pipelines() {
        let found = results(&database, &pipeline).await?;
        let expected = results_of_one_core(&database, &pipeline).await?;
        ensure!(!found.is_empty() && found == expected, "{pipeline:?}");
        // A second thread may come too late where others keep the cores busy.
        let mut tries = 0;
        while !is_alone && workers(&database, &pipeline).await? < 2 {
            tries += 1;
            ensure!(tries < 20, "one worker for {pipeline:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_fails_behind_a_limit_is_not_told() -> Result<()> {
    let server = Launch::mongod().start().await;
    let database = server.direct().await.database("test");
    fill(&database).await?;
    let fails_at = 20_000;
    let difference = doc! { "$subtract": ["$_id", fails_at] };
    let failing = vec![
        doc! { "$set": { "x": { "$divide": [1, difference] } } },
        doc! { "$match": { "x": { "$ne": "none" } } },
    ];
    let limited = |limit: i32| {
        let mut pipeline = failing.clone();
        pipeline.push(doc! { "$limit": limit });
        pipeline
    };
    let found = results(&database, &limited(fails_at)).await?;
    let ids = found
        .iter()
        .filter_map(|document| document.get_i32("_id").ok());
    ensure!(ids.eq(0..fails_at), "{}", found.len());
    for pipeline in [limited(fails_at + 1), failing] {
        ensure!(results(&database, &pipeline).await.is_err(), "{pipeline:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_runs_on_all_cores_ends_with_its_time() -> Result<()> {
    let server = Launch::mongod().start().await;
    let database = server.direct().await.database("test");
    fill(&database).await?;
    let endless = function(
        "function(id) { while (id == 20000) {} return id; }",
        vec!["$_id"],
    );
    let joined = doc! { "$lookup": { "from": "numbers", "as": "all", "pipeline": [
        { "$match": { "a": { "$gte": 0 } } },
    ] } };
    let pipelines = [
        vec![doc! { "$group": { "_id": null, "sum": { "$sum": endless.clone() } } }],
        vec![doc! { "$set": { "ends": endless } }],
        vec![
            joined,
            doc! { "$group": { "_id": null, "n": { "$sum": { "$size": "$all" } } } },
        ],
    ];
    for pipeline in pipelines {
        let begun = Instant::now();
        let numbers = database.collection::<Document>("numbers");
        let aggregate = numbers.aggregate(pipeline.clone());
        // All of it in the first batch.
        let aggregate = aggregate.batch_size(DOCUMENTS as u32);
        let ended = aggregate.max_time(Duration::from_millis(700)).await;
        let error = ended.err().context("it ended by itself")?;
        let ErrorKind::Command(error) = error.kind.as_ref() else {
            anyhow::bail!("{error}");
        };
        ensure!(error.code == 50, "{error:?} of {pipeline:?}");
        ensure!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
    }
    // The server goes on, and so do scripts.
    let count = function("function(id) { return id % 2; }", vec!["$_id"]);
    let pipeline = [doc! { "$group": { "_id": count } }];
    ensure!(results(&database, &pipeline).await?.len() == 2);
    Ok(())
}
