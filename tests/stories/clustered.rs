//! Clustered collections: documents that lie in the order of their `_id`s.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually, within};
use bson::{Bson, DateTime, Document, doc};
use futures::TryStreamExt;
use mongodb::error::ErrorKind;
use mongodb::{Client, Collection, Database};

const SOON: Duration = Duration::from_secs(30);

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

fn on_id() -> Document {
    doc! { "key": { "_id": 1 }, "unique": true }
}

async fn create(test: &Database, name: &str, more: Document) -> Result<Collection<Document>> {
    let mut create = doc! { "create": name, "clusteredIndex": on_id() };
    create.extend(more);
    test.run_command(create).await?;
    Ok(test.collection(name))
}

async fn ids(collection: &Collection<Document>, filter: Document, sort: i32) -> Result<Vec<Bson>> {
    let found = collection.find(filter).sort(doc! { "_id": sort }).await?;
    let found: Vec<Document> = found.try_collect().await?;
    let ids = found.iter().filter_map(|found| found.get("_id").cloned());
    Ok(ids.collect())
}

async fn winning_plan(test: &Database, find: Document) -> Result<Document> {
    let explained = test.run_command(doc! { "explain": find }).await?;
    let planner = explained.get_document("queryPlanner")?;
    Ok(planner.get_document("winningPlan")?.clone())
}

async fn options(test: &Database, name: &str) -> Result<Document> {
    let listed = test.run_command(doc! { "listCollections": 1, "filter": { "name": name } });
    let listed = listed.await?;
    let cursor = listed.get_document("cursor")?;
    let first = cursor.get_array("firstBatch")?.first();
    let first = first
        .and_then(Bson::as_document)
        .context("the collection")?;
    ensure!(!first.contains_key("idIndex"), "{first}");
    Ok(first.get_document("options")?.clone())
}

/// What is there agrees with its indexes; how many documents there are.
async fn validate(test: &Database, name: &str) -> Result<i64> {
    let found = test.run_command(doc! { "validate": name }).await?;
    ensure!(found.get_bool("valid")?, "{found}");
    Ok(found.get_i32("nrecords")?.into())
}

/// A few documents in no order, found in that of their `_id`s, and again after a crash.
#[tokio::test]
async fn documents_lie_in_the_order_of_their_ids() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let things = create(&test, "things", doc! {}).await?;
    let numbers = [50, 3, 100, 7, 42, 8, 20, 1, 99, 2];
    let documents = numbers.map(|n| doc! { "_id": n, "x": n % 3, "big": n * 10 });
    things.insert_many(documents).await?;
    let by_x = mongodb::IndexModel::builder().keys(doc! { "x": 1 }).build();
    things.create_index(by_x).await?;
    let late = [doc! { "_id": "s", "x": 1 }, doc! { "_id": 2.5, "x": 1 }];
    things.insert_many(late).await?;
    things
        .update_one(doc! { "_id": 42 }, doc! { "$set": { "x": 7 } })
        .await?;
    things.delete_one(doc! { "_id": 8 }).await?;

    let check = async |things: &Collection<Document>, test: &Database| -> Result<()> {
        let all = vec![
            1.into(),
            2.into(),
            2.5.into(),
            3.into(),
            7.into(),
            20.into(),
            42.into(),
            50.into(),
            99.into(),
            100.into(),
            Bson::from("s"),
        ];
        let natural: Vec<Document> = things.find(doc! {}).await?.try_collect().await?;
        let natural: Vec<Bson> = natural
            .iter()
            .filter_map(|d| d.get("_id").cloned())
            .collect();
        ensure!(natural == all, "{natural:?}");
        let backward = ids(things, doc! {}, -1).await?;
        ensure!(backward.iter().rev().eq(&all), "{backward:?}");
        let some = ids(things, doc! { "_id": { "$gt": 2, "$lte": 42 } }, 1).await?;
        ensure!(some == all[2..7], "{some:?}");
        let listed = ids(things, doc! { "_id": { "$in": [99, 7, "s", 8] } }, 1).await?;
        ensure!(
            listed == [Bson::from(7), 99.into(), "s".into()],
            "{listed:?}"
        );
        let either = doc! { "$or": [{ "_id": 1 }, { "x": 7 }] };
        ensure!(ids(things, either, 1).await? == [Bson::from(1), 42.into()]);
        let by_x = ids(things, doc! { "x": 1 }, 1).await?;
        let ones = [Bson::from(1), 2.5.into(), 7.into(), 100.into(), "s".into()];
        ensure!(by_x == ones, "{by_x:?}");
        ensure!(things.find_one(doc! { "_id": 8 }).await?.is_none());
        ensure!(
            things
                .count_documents(doc! { "_id": { "$lt": 20 } })
                .await?
                == 5
        );
        ensure!(validate(test, "things").await? == 11);
        Ok(())
    };
    check(&things, &test).await?;
    let twice = things.insert_one(doc! { "_id": 3.0 }).await;
    let ErrorKind::Write(mongodb::error::WriteFailure::WriteError(error)) =
        *twice.err().context("3 is there")?.kind
    else {
        anyhow::bail!("another error");
    };
    ensure!(error.code == 11000, "{error:?}");
    ensure!(
        error
            .message
            .starts_with("E11000 duplicate key error collection: test.things dup key: {"),
        "{error:?}"
    );
    let large = doc! { "_id": "x".repeat(10_000) };
    ensure!(things.insert_one(large).await.is_err());

    server.kill();
    server.start().await;
    let test = server.direct().await.database("test");
    check(&test.collection("things"), &test).await?;
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn plans_read_a_part_of_a_clustered_collection() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let clustered = doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "name": "k" } };
    let things = create(&test, "things", clustered).await?;
    let documents = (0..50).map(|n| doc! { "_id": n, "x": n % 3 });
    things.insert_many(documents).await?;

    let find = |filter: Document, more: Document| {
        let mut find = doc! { "find": "things", "filter": filter };
        find.extend(more);
        find
    };
    let over_three = doc! { "_id": { "$gt": 3 } };
    let plan = winning_plan(&test, find(over_three.clone(), doc! {})).await?;
    let expected = doc! {
        "stage": "CLUSTERED_IXSCAN", "filter": { "_id": { "$gt": 3 } }, "direction": "forward",
        "minRecord": 3, "maxRecord": f64::INFINITY,
    };
    ensure!(plan == expected, "{plan}");
    let plan = winning_plan(&test, find(doc! { "_id": 3 }, doc! {})).await?;
    let expected = doc! {
        "stage": "CLUSTERED_IXSCAN", "filter": { "_id": { "$eq": 3 } }, "direction": "forward",
        "minRecord": 3, "maxRecord": 3,
    };
    ensure!(plan == expected, "{plan}");
    // No order but that of the records has to be made.
    let last_first = doc! { "sort": { "_id": -1 } };
    let plan = winning_plan(&test, find(doc! {}, last_first.clone())).await?;
    ensure!(
        plan == doc! { "stage": "COLLSCAN", "direction": "backward" },
        "{plan}"
    );
    let plan = winning_plan(&test, find(over_three.clone(), last_first)).await?;
    ensure!(plan.get_str("stage")? == "CLUSTERED_IXSCAN", "{plan}");
    ensure!(plan.get_str("direction")? == "backward", "{plan}");
    for hint in [Bson::from("k"), doc! { "_id": 1 }.into()] {
        let plan = winning_plan(&test, find(doc! { "x": 1 }, doc! { "hint": hint })).await?;
        ensure!(plan.get_str("stage")? == "COLLSCAN", "{plan}");
    }
    let unknown = find(doc! {}, doc! { "hint": "_id_" });
    ensure!(code(test.run_command(unknown).await) == Some(2));
    let between = doc! { "hint": "k", "min": { "_id": 3 }, "max": { "_id": 6 } };
    let plan = winning_plan(&test, find(doc! {}, between.clone())).await?;
    ensure!(
        plan.get_i32("minRecord")? == 3 && plan.get_i32("maxRecord")? == 6,
        "{plan}"
    );
    let found = test.run_command(find(doc! {}, between)).await?;
    let found = found.get_document("cursor")?.get_array("firstBatch")?.len();
    ensure!(found == 3, "{found}");

    // No more is read than the bounds allow.
    let part = find(doc! { "_id": { "$gte": 10, "$lt": 15 } }, doc! {});
    let explained = test.run_command(doc! { "explain": part }).await?;
    let statistics = explained.get_document("executionStats")?;
    ensure!(
        statistics.get_i32("totalDocsExamined")? == 5,
        "{statistics}"
    );
    let shown = find(doc! { "_id": 3 }, doc! { "showRecordId": true });
    let shown = test.run_command(shown).await?;
    let first = shown
        .get_document("cursor")?
        .get_array("firstBatch")?
        .first();
    let id = first
        .and_then(Bson::as_document)
        .and_then(|d| d.get("$recordId"));
    ensure!(matches!(id, Some(Bson::Binary(_))), "{id:?}");
    Ok(())
}

#[tokio::test]
async fn definitions_of_clustered_collections() -> Result<()> {
    let server = Launch::mongod().start().await;
    let client = server.direct().await;
    let test = client.database("test");
    let refused = [
        (doc! { "clusteredIndex": true }, 5979703),
        (doc! { "clusteredIndex": {} }, 40414),
        (
            doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": false } },
            5979700,
        ),
        (
            doc! { "clusteredIndex": { "key": { "a": 1 }, "unique": true } },
            197,
        ),
        (
            doc! { "clusteredIndex": { "key": { "_id": -1 }, "unique": true } },
            197,
        ),
        (
            doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "v": 1 } },
            5979704,
        ),
        (
            doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "x": 1 } },
            40415,
        ),
        (doc! { "clusteredIndex": "x" }, 14),
        (
            doc! { "clusteredIndex": on_id(), "capped": true, "size": 1000 },
            6127800,
        ),
        (doc! { "clusteredIndex": on_id(), "viewOn": "a" }, 6026500),
        (
            doc! { "clusteredIndex": on_id(), "autoIndexId": false },
            6026501,
        ),
        (
            doc! { "clusteredIndex": on_id(), "expireAfterSeconds": -1 },
            72,
        ),
        (
            doc! { "clusteredIndex": on_id(), "expireAfterSeconds": 1_i64 << 40 },
            72,
        ),
        (doc! { "expireAfterSeconds": 10 }, 72),
    ];
    for (options, expected) in refused {
        let mut create = doc! { "create": "refused" };
        create.extend(options.clone());
        let refused = code(test.run_command(create).await);
        ensure!(refused == Some(expected), "{options}: {refused:?}");
    }
    let named = doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "name": "mine" } };
    let things = create(&test, "things", named).await?;
    things
        .insert_many((0..5).map(|n| doc! { "_id": n, "x": n }))
        .await?;
    let kept = doc! { "v": 2, "key": { "_id": 1 }, "name": "mine", "unique": true };
    let shown = options(&test, "things").await?;
    ensure!(shown == doc! { "clusteredIndex": kept.clone() }, "{shown}");
    let listed = test.run_command(doc! { "listIndexes": "things" }).await?;
    let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
    let mut index = kept;
    index.insert("clustered", true);
    ensure!(*listed == [Bson::from(index)], "{listed:?}");
    let statistics = test.run_command(doc! { "collStats": "things" }).await?;
    ensure!(statistics.get_i32("nindexes")? == 0, "{statistics}");

    let create_index = |key: Document, name: &str, clustered: Option<bool>| {
        let mut spec = doc! { "key": key, "name": name };
        if let Some(clustered) = clustered {
            spec.extend(doc! { "unique": true, "clustered": clustered });
        }
        doc! { "createIndexes": "things", "indexes": [spec] }
    };
    for known in [
        create_index(doc! { "_id": 1 }, "_id_", None),
        create_index(doc! { "_id": 1 }, "other", None),
        create_index(doc! { "_id": 1 }, "mine", Some(true)),
    ] {
        let reply = test.run_command(known).await?;
        ensure!(reply.get_i32("numIndexesAfter")? == 0, "{reply}");
    }
    for (index, expected) in [
        (create_index(doc! { "x": 1 }, "mine", None), 6100906),
        (create_index(doc! { "x": 1 }, "x", Some(true)), 6243700),
        (create_index(doc! { "x": 1 }, "x", Some(false)), 6492800),
        (
            doc! { "createIndexes": "none", "indexes": [
                { "key": { "_id": 1 }, "name": "_id_", "unique": true, "clustered": true },
            ] },
            6100900,
        ),
        (doc! { "dropIndexes": "things", "index": "mine" }, 5979800),
        (
            doc! { "dropIndexes": "things", "index": { "_id": 1 } },
            5979800,
        ),
        (doc! { "dropIndexes": "things", "index": ["mine"] }, 5979800),
        (doc! { "dropIndexes": "things", "index": "_id_" }, 27),
        (
            doc! { "collMod": "things", "index": { "name": "mine", "hidden": true } },
            6011800,
        ),
        (doc! { "collMod": "things", "expireAfterSeconds": "x" }, 72),
        (doc! { "collMod": "things", "expireAfterSeconds": true }, 14),
    ] {
        let refused = code(test.run_command(index.clone()).await);
        ensure!(refused == Some(expected), "{index}: {refused:?}");
    }
    test.run_command(create_index(doc! { "x": 1 }, "x", None))
        .await?;
    test.run_command(doc! { "dropIndexes": "things", "index": "*" })
        .await?;

    // Another name and another content leave the order as it is.
    let rename = doc! { "renameCollection": "test.things", "to": "test.renamed" };
    client.database("admin").run_command(rename).await?;
    let renamed = test.collection::<Document>("renamed");
    renamed.insert_one(doc! { "_id": -1 }).await?;
    let first = renamed.find_one(doc! {}).await?.context("a document")?;
    ensure!(first.get_i32("_id")? == -1);
    let replacing = [
        doc! { "$match": { "_id": { "$gt": 2 } } },
        doc! { "$out": "renamed" },
    ];
    renamed.aggregate(replacing).await?;
    ensure!(
        options(&test, "renamed")
            .await?
            .contains_key("clusteredIndex")
    );
    ensure!(ids(&renamed, doc! {}, 1).await? == [Bson::from(3), 4.into()]);
    ensure!(validate(&test, "renamed").await? == 2);
    Ok(())
}

#[tokio::test]
async fn documents_go_when_the_date_in_their_id_is_past() -> Result<()> {
    let server = Launch::mongod()
        .with(["--setParameter", "ttlMonitorSleepSecs=1"])
        .start()
        .await;
    let test = server.direct().await.database("test");
    let things = create(&test, "things", doc! { "expireAfterSeconds": 3600_i64 }).await?;
    let ago =
        |hours: i64| DateTime::from_millis(DateTime::now().timestamp_millis() - hours * 3_600_000);
    let documents = [
        doc! { "_id": ago(2) },
        doc! { "_id": ago(0) },
        doc! { "_id": ago(-1) },
        doc! { "_id": 7 },
        doc! { "_id": "2001-01-01" },
    ];
    things.insert_many(documents).await?;
    within(SOON, "the one of two hours ago goes", || async {
        let left = things.count_documents(doc! {}).await?;
        ensure!(left == 4, "{left}");
        Ok(())
    })
    .await;
    test.run_command(doc! { "collMod": "things", "expireAfterSeconds": "off" })
        .await?;
    ensure!(
        !options(&test, "things")
            .await?
            .contains_key("expireAfterSeconds")
    );
    let sooner = doc! { "collMod": "things", "expireAfterSeconds": 0 };
    test.run_command(sooner).await?;
    within(SOON, "the one of now goes", || async {
        let left = things.count_documents(doc! {}).await?;
        ensure!(left == 3, "{left}");
        Ok(())
    })
    .await;
    let plain = doc! { "create": "plain" };
    test.run_command(plain).await?;
    let refused = doc! { "collMod": "plain", "expireAfterSeconds": 1 };
    ensure!(code(test.run_command(refused).await) == Some(72));
    Ok(())
}

/// The digest of a member's data, once it has applied a write that all of them wait for.
async fn digest(client: &Client) -> Result<String> {
    let hash = client
        .database("test")
        .run_command(doc! { "dbHash": 1 })
        .await?;
    Ok(hash.get_str("md5")?.to_owned())
}

#[tokio::test]
async fn a_set_keeps_a_clustered_collection() -> Result<()> {
    let mut set = ReplicaSet::start("clustered", 3, &["--oplogSize", "3"]).await;
    let client = set.client().await;
    let test = client.database("test");
    let things = create(&test, "things", doc! {}).await?;
    let thing =
        |n: i32| doc! { "_id": format!("{:x}", n.wrapping_mul(-1_640_531_535)), "n": n % 7 };
    things.insert_many((0..300).map(thing)).await?;
    let by_n = mongodb::IndexModel::builder().keys(doc! { "n": 1 }).build();
    things.create_index(by_n).await?;

    // One dies and misses what happens, and one is given everything anew.
    let primary = set.primary().await;
    set.members[primary].kill();
    for n in 300..400 {
        eventually("a write by the new primary", || async {
            match things.insert_one(thing(n)).await {
                Err(error) if !error.to_string().contains("E11000") => {
                    Err(anyhow::Error::from(error))
                }
                _ => Ok(()),
            }
        })
        .await;
    }
    things.delete_many(doc! { "n": 3 }).await?;
    things
        .update_many(doc! { "n": 4 }, doc! { "$inc": { "n": 100 } })
        .await?;
    let path = set.members[primary].data_directory().to_owned();
    std::fs::remove_dir_all(&path)?;
    std::fs::create_dir_all(&path)?;
    set.members[primary].start().await;
    eventually("all members hold the same", || async {
        let mut digests = Vec::new();
        for member in &set.members {
            let direct = member.direct().await;
            digests.push(digest(&direct).await?);
        }
        ensure!(
            digests.iter().all(|digest| *digest == digests[0]),
            "{digests:?}"
        );
        Ok(())
    })
    .await;
    let left = 400 - (0..400).filter(|n| n % 7 == 3).count() as i64;
    for member in &set.members {
        let direct = member.direct().await.database("test");
        ensure!(validate(&direct, "things").await? == left);
        options(&direct, "things").await?;
    }
    let changed = things.count_documents(doc! { "n": 104 }).await?;
    ensure!(changed == (0..400).filter(|n| n % 7 == 4).count() as u64);
    let sorted = ids(&things, doc! {}, 1).await?;
    ensure!(sorted.is_sorted_by_key(|id| id.as_str().unwrap_or_default().to_owned()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clustered_collection_is_sharded_and_moved() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    let test = client.database("test");
    let things = create(&test, "things", doc! {}).await?;
    things
        .insert_many((0..200).map(|n| doc! { "_id": n, "x": n % 5 }))
        .await?;
    let key = doc! { "shardCollection": "test.things", "key": { "_id": 1 } };
    admin.run_command(key).await?;
    admin
        .run_command(doc! { "split": "test.things", "middle": { "_id": 100 } })
        .await?;
    let config = client
        .database("config")
        .collection::<Document>("databases");
    let home = config
        .find_one(doc! { "_id": "test" })
        .await?
        .context("the database")?;
    let home = usize::from(home.get_str("primary")? == "shard1");
    let to = format!("shard{}", 1 - home);
    let move_chunk = doc! { "moveChunk": "test.things", "find": { "_id": 100 }, "to": &to };
    admin.run_command(move_chunk).await?;
    things.insert_one(doc! { "_id": 150.5, "x": 0 }).await?;
    for (at, expected) in [(home, 100), (1 - home, 101)] {
        let direct = cluster.shards[at].client().await.database("test");
        within(SOON, "each has its part alone", || async {
            let there = validate(&direct, "things").await?;
            ensure!(there == expected, "{there}");
            Ok(())
        })
        .await;
        ensure!(
            options(&direct, "things")
                .await?
                .contains_key("clusteredIndex")
        );
    }
    let all = ids(&things, doc! {}, -1).await?;
    ensure!(all.len() == 201 && all[0] == Bson::from(199) && all[200] == Bson::from(0));
    ensure!(
        things
            .count_documents(doc! { "_id": { "$gte": 90, "$lt": 110 } })
            .await?
            == 20
    );
    let twice = things.insert_one(doc! { "_id": 150.5 }).await;
    ensure!(twice.is_err());
    Ok(())
}
