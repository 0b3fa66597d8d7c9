//! Settings of queries: what an operator says of all queries of a shape, in sets and in clusters.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

const REJECTED: i32 = 403;

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

fn find(a: i32, b: i32) -> Document {
    doc! { "find": "c", "filter": { "a": a, "b": { "$lt": b } } }
}

fn of_shape(mut query: Document) -> Document {
    query.insert("$db", "test");
    query
}

fn set(query: impl Into<Bson>, settings: Document) -> Document {
    doc! { "setQuerySettings": query.into(), "settings": settings }
}

fn hints(allowed: Vec<Bson>) -> Document {
    doc! { "indexHints": [{ "ns": { "db": "test", "coll": "c" }, "allowedIndexes": allowed }] }
}

async fn known(admin: &Database) -> Result<Vec<Document>> {
    let shown = doc! { "aggregate": 1, "cursor": {}, "pipeline": [
        { "$querySettings": { "showDebugQueryShape": true } }, { "$sort": { "queryShapeHash": 1 } },
    ] };
    let reply = admin.run_command(shown).await?;
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    let documents = batch.iter().map(|entry| entry.as_document().cloned());
    documents.collect::<Option<_>>().context("no document")
}

async fn fill(client: &Client) -> Result<Database> {
    let test = client.database("test");
    let collection = test.collection::<Document>("c");
    let documents = (0..1_000).map(|i| doc! { "_id": i, "a": i % 10, "b": i % 100, "c": i / 100 });
    collection.insert_many(documents).await?;
    for keys in [doc! { "a": 1 }, doc! { "b": 1 }] {
        let index = mongodb::IndexModel::builder().keys(keys).build();
        collection.create_index(index).await?;
    }
    Ok(test)
}

/// What a query is found by, and the whole explanation.
async fn found_by(test: &Database, query: Document) -> Result<(String, Document)> {
    let explain = doc! { "explain": query, "verbosity": "queryPlanner" };
    let reply = test.run_command(explain).await?;
    let winning = reply
        .get_document("queryPlanner")?
        .get_document("winningPlan")?;
    let mut stage = winning;
    while let Ok(inner) = stage.get_document("inputStage") {
        stage = inner;
    }
    let name = stage
        .get_str("indexName")
        .or_else(|_| stage.get_str("stage"))?;
    Ok((name.to_owned(), reply.clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_keeps_to_what_was_said_of_a_shape() -> Result<()> {
    let mut set_of_two = ReplicaSet::start("settled", 2, &[]).await;
    let client = set_of_two.client().await;
    let (admin, test) = (client.database("admin"), fill(&client).await?);
    ensure!(found_by(&test, find(1, 1)).await?.0 == "b_1");
    let reply = admin
        .run_command(set(of_shape(find(7, 7)), hints(vec!["a_1".into()])))
        .await?;
    let hash = reply.get_str("queryShapeHash")?.to_owned();
    let (name, explained) = found_by(&test, find(1, 1)).await?;
    ensure!(name == "a_1", "{explained}");
    ensure!(explained.get_str("queryShapeHash")? == hash);
    let shown = explained
        .get_document("queryPlanner")?
        .get_document("querySettings")?;
    ensure!(shown == reply.get_document("settings")?, "{shown}");
    // A hint says less than they do, and another shape has nothing to do with them.
    let mut hinted = find(1, 1);
    hinted.insert("hint", "b_1");
    ensure!(found_by(&test, hinted).await?.0 == "a_1");
    let mut sorted = find(1, 1);
    sorted.insert("sort", doc! { "_id": 1 });
    ensure!(found_by(&test, sorted).await?.0 == "b_1");
    let scan = set(hash.as_str(), hints(vec![doc! { "$natural": 1 }.into()]));
    admin.run_command(scan).await?;
    ensure!(found_by(&test, find(1, 1)).await?.0 == "COLLSCAN");
    admin
        .run_command(set(hash.as_str(), hints(vec!["gone".into()])))
        .await?;
    ensure!(found_by(&test, find(1, 1)).await?.0 == "b_1");

    // What is added is merged.
    let reply = admin
        .run_command(set(
            hash.as_str(),
            doc! { "reject": true, "comment": "too slow" },
        ))
        .await?;
    ensure!(
        reply.get_document("settings")?.contains_key("indexHints"),
        "{reply}"
    );
    ensure!(reply.get_document("representativeQuery")?.get_str("find")? == "c");
    ensure!(code(test.run_command(find(5, 5)).await) == Some(REJECTED));
    let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
    let commands = status.get_document("metrics")?.get_document("commands")?;
    let counts = commands.get_document("find")?;
    ensure!(
        counts.get_i64("rejected")? == 1 && counts.get_i64("failed")? == 0,
        "{counts}"
    );
    // Nobody is taken for a router here.
    let mut routed = find(5, 5);
    routed.insert("databaseVersion", doc! {});
    routed.insert("querySettings", doc! { "reject": false });
    ensure!(code(test.run_command(routed).await) == Some(REJECTED));
    test.run_command(doc! { "explain": find(5, 5) }).await?;
    test.run_command(doc! { "find": "c", "filter": { "a": 5 } })
        .await?;
    let all = known(&admin).await?;
    ensure!(
        all.len() == 1 && all[0].get_str("queryShapeHash")? == hash,
        "{all:#?}"
    );
    let shape = all[0].get_document("debugQueryShape")?;
    ensure!(shape.get_str("command")? == "find", "{shape}");

    // Every member knows, also after a restart.
    for member in &set_of_two.members {
        let own = member.direct().await;
        eventually("the member refuses it", || async {
            let found = code(own.database("test").run_command(find(1, 1)).await);
            ensure!(found == Some(REJECTED), "{found:?}");
            Ok(())
        })
        .await;
    }
    let primary = set_of_two.primary().await;
    set_of_two.members[primary].kill();
    set_of_two.members[primary].start().await;
    eventually("it is still refused", || async {
        let found = code(test.run_command(find(2, 3)).await);
        ensure!(found == Some(REJECTED), "{found:?}");
        Ok(())
    })
    .await;
    eventually("it is taken back", || async {
        let remove = doc! { "removeQuerySettings": of_shape(find(0, 0)) };
        let found = code(admin.run_command(remove).await);
        ensure!(matches!(found, None | Some(7_746_701)), "{found:?}");
        ensure!(known(&admin).await?.is_empty());
        Ok(())
    })
    .await;
    test.run_command(find(5, 5)).await?;
    let remove = doc! { "removeQuerySettings": hash };
    ensure!(code(admin.run_command(remove).await) == Some(7_746_701));
    Ok(())
}

#[tokio::test]
async fn aggregations_and_distinct_have_settings_and_joined_collections_have_hints() -> Result<()> {
    let set_of_one = ReplicaSet::start("joined", 1, &[]).await;
    let client = set_of_one.client().await;
    let (admin, test) = (client.database("admin"), fill(&client).await?);
    let distinct = |b: i32| doc! { "distinct": "c", "key": "a", "query": { "b": b } };
    let pipeline = |n: i32| {
        doc! { "aggregate": "c", "cursor": {}, "pipeline": [
            { "$match": { "a": n, "b": { "$lt": n } } }, { "$count": "n" },
        ] }
    };
    for (query, other) in [(distinct(1), distinct(2)), (pipeline(1), pipeline(2))] {
        admin
            .run_command(set(of_shape(query), doc! { "reject": true }))
            .await?;
        ensure!(code(test.run_command(other).await) == Some(REJECTED));
    }
    // How many values there are is no matter, that they are in an array is.
    let any = |values: Vec<i32>| doc! { "find": "c", "filter": { "a": { "$in": values } } };
    admin
        .run_command(set(of_shape(any(vec![1, 2])), doc! { "reject": true }))
        .await?;
    ensure!(code(test.run_command(any(vec![5])).await) == Some(REJECTED));
    test.run_command(doc! { "find": "c", "filter": { "a": 5 } })
        .await?;

    // By which index documents are joined shows in the order in which they come.
    let keys = doc! { "b": 1, "c": -1 };
    let index = mongodb::IndexModel::builder().keys(keys).build();
    test.collection::<Document>("c").create_index(index).await?;
    test.run_command(doc! { "insert": "d", "documents": [{ "x": 3 }] })
        .await?;
    let lookup = doc! { "aggregate": "d", "cursor": {}, "pipeline": [
        { "$lookup": { "from": "c", "localField": "x", "foreignField": "b", "as": "found" } },
    ] };
    let first_found = || async {
        let reply = test.run_command(lookup.clone()).await?;
        let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
        let first = batch.first().and_then(Bson::as_document).context("one")?;
        let found = first.get_array("found")?;
        ensure!(found.len() == 10, "{found:?}");
        Ok(found[0]
            .as_document()
            .context("a document")?
            .get_i32("_id")?)
    };
    for (allowed, first) in [
        (Bson::from("b_1_c_-1"), 903),
        (doc! { "b": 1 }.into(), 3),
        (doc! { "b": 1, "c": -1 }.into(), 903),
        (doc! { "$natural": 1 }.into(), 3),
    ] {
        admin
            .run_command(set(of_shape(lookup.clone()), hints(vec![allowed.clone()])))
            .await?;
        let found = first_found().await?;
        ensure!(found == first, "{allowed}: {found}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_settings_is_told() -> Result<()> {
    let set_of_one = ReplicaSet::start("checked", 1, &[]).await;
    let client = set_of_one.client().await;
    let admin = client.database("admin");
    let query = || of_shape(find(1, 1));
    let fine = || hints(vec!["a_1".into()]);
    let cases = [
        (set(find(1, 1), fine()), 40414),
        (set(doc! { "find": "c", "$db": "" }, fine()), 73),
        (set(doc! { "count": "c", "$db": "test" }, fine()), 7_746_402),
        (set("", fine()), 16),
        (set("tooshort", fine()), 2),
        (set("ZZ".repeat(32), fine()), 2),
        (set(1, fine()), 14),
        (doc! { "setQuerySettings": query() }, 40414),
        (set(query(), doc! {}), 7_746_604),
        (set(query(), doc! { "reject": false }), 7_746_604),
        (set(query(), hints(vec![])), 7_746_604),
        (set(query(), doc! { "queryFramework": "x" }), 2),
        (
            set(
                query(),
                doc! { "indexHints": [{ "allowedIndexes": ["a"] }] },
            ),
            40414,
        ),
        (
            set(
                query(),
                doc! { "indexHints": [{ "ns": { "db": "d" }, "allowedIndexes": ["a"] }] },
            ),
            8_727_501,
        ),
        (
            set(
                doc! { "find": "c", "filter": { "_id": 1 }, "$db": "test" },
                fine(),
            ),
            7_746_606,
        ),
        (set(doc! { "find": "c", "$db": "local" }, fine()), 8_584_900),
        (
            set(doc! { "find": "system.views", "$db": "test" }, fine()),
            8_584_901,
        ),
        (
            set(
                doc! { "aggregate": "c", "pipeline": [{ "$collStats": {} }], "$db": "test" },
                doc! { "reject": true },
            ),
            8_705_200,
        ),
        (doc! { "removeQuerySettings": query() }, 7_746_701),
        (
            doc! { "setClusterParameter": { "querySettings": { "settingsArray": [] } } },
            20,
        ),
    ];
    for (command, expected) in cases {
        let found = code(admin.run_command(command.clone()).await);
        ensure!(found == Some(expected), "{command}: {found:?}");
    }
    let elsewhere = doc! { "aggregate": 1, "pipeline": [{ "$querySettings": {} }], "cursor": {} };
    ensure!(code(client.database("test").run_command(elsewhere).await) == Some(73));

    let alone = Launch::mongod().start().await;
    let admin = alone.direct().await.database("admin");
    ensure!(code(admin.run_command(set(query(), fine())).await) == Some(20));
    ensure!(
        code(
            admin
                .run_command(doc! { "removeQuerySettings": query() })
                .await
        ) == Some(20)
    );
    Ok(())
}

/// The config servers keep settings, routers look for those of their clients' queries, and shards do
/// what they are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_has_settings() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    admin
        .run_command(doc! { "shardCollection": "test.c", "key": { "_id": "hashed" } })
        .await?;
    let test = fill(&client).await?;
    admin
        .run_command(set(of_shape(find(1, 1)), hints(vec!["a_1".into()])))
        .await?;
    let mut sorted = find(2, 9);
    sorted.insert("limit", 3);
    for (query, index) in [(find(2, 9), "a_1"), (sorted, "b_1")] {
        let reply = test.run_command(doc! { "explain": query }).await?;
        let told = format!("{reply:?}");
        let found = reply
            .get_document("queryPlanner")?
            .get_document("winningPlan")?;
        for shard in found.get_array("shards")? {
            let shard = format!("{shard}");
            ensure!(
                shard.contains(&format!("\"indexName\": \"{index}\"")),
                "{shard}"
            );
        }
        ensure!(reply.get_str("queryShapeHash")?.len() == 64, "{told}");
    }
    admin
        .run_command(set(of_shape(find(1, 1)), doc! { "reject": true }))
        .await?;
    ensure!(code(test.run_command(find(3, 3)).await) == Some(REJECTED));
    // Nobody gives a query settings of its own.
    let mut told = find(3, 3);
    told.insert("querySettings", doc! { "reject": false });
    ensure!(code(test.run_command(told).await) == Some(REJECTED));
    ensure!(known(&admin).await?.len() == 1);
    for shard in &cluster.shards {
        let own = shard.client().await.database("admin");
        let direct = set(of_shape(find(1, 1)), doc! { "reject": true });
        ensure!(code(own.run_command(direct).await) == Some(238));
    }
    cluster.router.kill();
    cluster.router.start().await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    eventually("a new router knows", || async {
        let found = code(test.run_command(find(3, 3)).await);
        ensure!(found == Some(REJECTED), "{found:?}");
        Ok(())
    })
    .await;
    admin
        .run_command(doc! { "removeQuerySettings": of_shape(find(1, 1)) })
        .await?;
    test.run_command(find(3, 3)).await?;
    Ok(())
}
