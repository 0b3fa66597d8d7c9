//! What a router answers of a collection on two shards is what one server answers of the same
//! documents: reads in orders and shapes that the shards' documents do not show, and writes whose filter
//! and update say different things of the shard key.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch};
use bson::{Bson, Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

/// In the order of `n`, documents of both shards take turns.
fn documents() -> impl Iterator<Item = Document> {
    (0..30).map(|id: i32| {
        let letter = ["a", "B", "b", "A"][id as usize % 4];
        let text = "leaf ".repeat(id as usize % 4 + 1);
        doc! {
            "_id": id, "k": id, "n": (id * 7) % 30, "s": letter, "items": [id % 3, id % 5], "at": [id, 0],
            "text": text,
        }
    })
}

async fn load(test: &Database) -> Result<()> {
    let things = test.collection::<Document>("things");
    things.insert_many(documents()).await?;
    let indexes = vec![
        doc! { "key": { "at": "2d" }, "name": "at" },
        doc! { "key": { "text": "text" }, "name": "text" },
    ];
    let command = doc! { "createIndexes": "things", "indexes": indexes };
    test.run_command(command).await?;
    Ok(())
}

async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    for command in [
        doc! { "enableSharding": "test" },
        doc! { "shardCollection": "test.things", "key": { "k": 1 } },
        doc! { "split": "test.things", "middle": { "k": 15 } },
        doc! { "moveChunk": "test.things", "find": { "k": 0 }, "to": "shard1" },
        doc! { "moveChunk": "test.things", "find": { "k": 15 }, "to": "shard0" },
    ] {
        let outcome = admin.run_command(command.clone()).await;
        outcome.with_context(|| command.to_string())?;
    }
    Ok(cluster)
}

/// The first batch, or the number that is left of a count; the code of an error.
async fn outcome(test: &Database, command: Document) -> Result<Bson> {
    match test.run_command(command).await {
        Ok(reply) => Ok(match reply.get_document("cursor") {
            Ok(cursor) => cursor.get_array("firstBatch")?.clone().into(),
            Err(_) => reply.get("n").cloned().unwrap_or(Bson::Null),
        }),
        Err(error) => match *error.kind {
            ErrorKind::Command(ref refused) => Ok(Bson::Int32(refused.code)),
            _ => Err(error.into()),
        },
    }
}

fn reads() -> Vec<Document> {
    let find = |more: Document| {
        let mut find = doc! { "find": "things" };
        find.extend(more);
        find
    };
    let aggregate =
        |stages: Vec<Document>| doc! { "aggregate": "things", "pipeline": stages, "cursor": {} };
    let collation = doc! { "locale": "en", "strength": 2 };
    let near = doc! { "at": { "$near": [9.3, 0] } };
    vec![
        find(
            doc! { "sort": { "n": 1 }, "projection": { "key": { "$meta": "sortKey" }, "_id": 1 } },
        ),
        find(
            doc! { "sort": { "n": -1 }, "projection": { "v": "$$v", "_id": 0 }, "let": { "v": 3 }, "limit": 4 },
        ),
        find(
            doc! { "sort": { "items": -1, "_id": 1 }, "filter": { "items": 2 }, "projection": { "items.$": 1 } },
        ),
        find(
            doc! { "sort": { "s": 1, "_id": -1 }, "collation": collation.clone(), "projection": { "_id": 1 } },
        ),
        find(doc! { "sort": { "n": 1 }, "projection": { "n": 0 }, "skip": 5, "limit": 9 }),
        find(doc! { "filter": near.clone(), "projection": { "_id": 1 }, "limit": 7 }),
        find(
            doc! { "filter": near, "projection": { "_id": 1, "far": { "$meta": "geoNearDistance" } } },
        ),
        find(doc! {
            "filter": { "$text": { "$search": "leaf" } }, "projection": { "_id": 1, "score": { "$meta": "textScore" } },
            "sort": { "score": { "$meta": "textScore" }, "_id": 1 }, "limit": 20,
        }),
        find(doc! { "sort": { "n": 1 }, "limit": "a" }),
        find(doc! { "sort": { "n": 1 }, "singleBatch": 1 }),
        find(doc! { "sort": { "n": 1 }, "needsMerge": true, "bogus": true }),
        aggregate(vec![
            doc! { "$sort": { "n": 1 } },
            doc! { "$project": { "key": { "$meta": "sortKey" } } },
        ]),
        aggregate(vec![doc! { "$currentOp": {} }]),
        doc! { "aggregate": "things", "pipeline": [] },
        doc! { "aggregate": "things", "pipeline": [], "cursor": { "batchSize": -1 } },
        doc! { "aggregate": "things", "pipeline": [], "cursor": { "bogus": 1 } },
        doc! { "count": "things", "limit": 2.5 },
        doc! { "count": "things", "limit": "a" },
        doc! { "count": "things", "skip": -1 },
        doc! { "count": "things", "limit": -7, "skip": 3 },
        doc! { "update": "things", "updates": [{ "q": 5, "u": { "$set": { "a": 1 } }, "multi": true }] },
        doc! { "update": "things", "updates": [{ "q": {}, "u": { "$set": { "a": 1 } }, "multi": true, "bogus": 1 }] },
        doc! { "delete": "things", "deletes": [{ "q": {}, "limit": 0, "bogus": 1 }] },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_answers_of_two_shards_as_one_server_does() -> Result<()> {
    let server = Launch::mongod().start().await;
    let alone = server.direct().await.database("test");
    let cluster = cluster().await?;
    let sharded = cluster.client().await.database("test");
    load(&alone).await?;
    load(&sharded).await?;
    for command in reads() {
        let (expected, found) = (
            outcome(&alone, command.clone()).await?,
            outcome(&sharded, command.clone()).await?,
        );
        ensure!(found == expected, "{command}: {found} is not {expected}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upsert_leaves_nothing_on_a_shard_that_does_not_own_it() -> Result<()> {
    let cluster = cluster().await?;
    let test = cluster.client().await.database("test");
    load(&test).await?;
    // The filter names one shard, and what it makes, without a key, belongs to the other.
    let update = doc! { "q": { "k": 100, "_id": 100 }, "u": {}, "upsert": true };
    let reply = test
        .run_command(doc! { "update": "things", "updates": [update] })
        .await?;
    let error = reply.get_array("writeErrors")?[0]
        .as_document()
        .context("an error")?;
    ensure!(error.get_i32("code")? == 283, "{reply}");
    let insert = doc! { "insert": "things", "documents": [{ "_id": 100, "k": 100 }] };
    ensure!(test.run_command(insert).await?.get_i32("n")? == 1);
    ensure!(
        outcome(&test, doc! { "count": "things", "query": { "_id": 100 } }).await?
            == Bson::Int32(1)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_into_a_sharded_collection_knows_documents_by_their_shard_key() -> Result<()> {
    let cluster = cluster().await?;
    let test = cluster.client().await.database("test");
    load(&test).await?;
    let stages = vec![
        doc! { "$match": { "_id": { "$gte": 10, "$lt": 20 } } },
        doc! { "$project": { "k": 1, "merged": { "$literal": true } } },
        doc! { "$merge": "things" },
    ];
    let merge = doc! { "aggregate": "things", "pipeline": stages, "cursor": {} };
    ensure!(outcome(&test, merge).await? == Bson::Array(Vec::new()));
    let merged = doc! { "count": "things", "query": { "merged": true, "s": { "$exists": true } } };
    ensure!(outcome(&test, merged).await? == Bson::Int32(10));
    // New ones go where they belong.
    let stages = vec![
        doc! { "$match": { "_id": { "$in": [3, 25] } } },
        doc! { "$set": { "_id": { "$add": ["$_id", 100] } } },
        doc! { "$merge": { "into": "things", "whenMatched": "fail" } },
    ];
    let merge = doc! { "aggregate": "things", "pipeline": stages, "cursor": {} };
    ensure!(outcome(&test, merge).await? == Bson::Array(Vec::new()));
    let new = doc! { "find": "things", "filter": { "_id": { "$gt": 99 } }, "projection": { "k": 1 }, "sort": { "k": 1 } };
    let expected = vec![
        doc! { "_id": 103, "k": 3 }.into(),
        doc! { "_id": 125, "k": 25 }.into(),
    ];
    ensure!(outcome(&test, new).await? == Bson::Array(expected));
    Ok(())
}
