//! Time-series collections: measurements in buckets, and what is read, changed and kept of them.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually, within};
use bson::{Bson, DateTime, Document, doc};
use futures::TryStreamExt;
use mongodb::error::ErrorKind;
use mongodb::options::{
    Acknowledgment, Collation, CollationStrength, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Collection, Database};

const SOON: Duration = Duration::from_secs(30);
/// 2024-03-05T10:00:00Z
const NOON_MS: i64 = 1_709_632_800_000;

const INVALID_OPTIONS: i32 = 72;
const NOT_IMPLEMENTED: i32 = 238;
const COMMAND_NOT_SUPPORTED_ON_VIEW: i32 = 166;

fn at(second: i64) -> DateTime {
    DateTime::from_millis(NOON_MS + second * 1000)
}

fn measurement(id: i32, source: i32) -> Document {
    doc! { "_id": id, "t": at(i64::from(id)), "m": { "k": source }, "x": id }
}

async fn create(test: &Database, name: &str, more: Document) -> Result<Collection<Document>> {
    let series = doc! { "timeField": "t", "metaField": "m", "granularity": "seconds" };
    let mut create = doc! { "create": name, "timeseries": series };
    create.extend(more);
    test.run_command(create).await?;
    Ok(test.collection(name))
}

async fn buckets(test: &Database, name: &str) -> Result<Vec<Document>> {
    let buckets = test.collection::<Document>(&format!("system.buckets.{name}"));
    Ok(buckets.find(doc! {}).await?.try_collect().await?)
}

async fn code_of(database: &Database, command: Document) -> Result<i32> {
    match database.run_command(command.clone()).await {
        Ok(reply) => bail!("{command}: {reply}"),
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            other => bail!("{command}: {other}"),
        },
    }
}

/// The `_id`s of what a filter finds, in order.
async fn ids(collection: &Collection<Document>, filter: Document) -> Result<Vec<i32>> {
    let found = collection.find(filter).sort(doc! { "_id": 1 }).await?;
    let found: Vec<Document> = found.try_collect().await?;
    let ids = found.iter().map(|found| Ok(found.get_i32("_id")?));
    ids.collect()
}

fn count_of(bucket: &Document) -> Result<usize> {
    Ok(bucket.get_document("data")?.get_document("t")?.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measurements_lie_in_buckets_and_outlive_a_crash() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let weather = create(&test, "weather", doc! {}).await?;
    weather
        .insert_many((0..2_500).map(|id| measurement(id, id % 2)))
        .await?;

    let kept = buckets(&test, "weather").await?;
    let counts: Vec<usize> = kept.iter().map(count_of).collect::<Result<_>>()?;
    ensure!(counts.iter().sum::<usize>() == 2_500, "{counts:?}");
    ensure!(
        counts.len() == 4 && counts.iter().all(|count| *count <= 1_000),
        "{counts:?}"
    );
    let first = &kept[0];
    let control = first.get_document("control")?;
    ensure!(control.get_i32("version")? == 1, "{control}");
    ensure!(
        control.get_document("min")?.get_datetime("t")? == &at(0),
        "{control}"
    );
    ensure!(first.get_document("meta")?.contains_key("k"), "{first}");
    let seconds = first.get_object_id("_id")?.timestamp();
    ensure!(seconds == at(0), "{seconds}");

    server.kill();
    server.start().await;
    let test = server.direct().await.database("test");
    let weather = test.collection::<Document>("weather");
    ensure!(weather.count_documents(doc! {}).await? == 2_500);
    let one = weather
        .find_one(doc! { "_id": 77 })
        .await?
        .context("a measurement")?;
    ensure!(
        one == doc! { "t": at(77), "m": { "k": 1 }, "_id": 77, "x": 77 },
        "{one}"
    );

    // Nobody remembers which buckets were open: what comes goes into new ones.
    weather.insert_one(measurement(2_500, 0)).await?;
    weather.insert_one(measurement(2_501, 0)).await?;
    let counts: Vec<usize> = buckets(&test, "weather")
        .await?
        .iter()
        .map(count_of)
        .collect::<Result<_>>()?;
    ensure!(counts.len() == 5 && counts.contains(&2), "{counts:?}");
    let checked = test
        .run_command(doc! { "validate": "system.buckets.weather" })
        .await?;
    ensure!(checked.get_bool("valid")?, "{checked}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_of_times_reads_few_buckets() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let series = create(&test, "series", doc! {}).await?;
    // One measurement each hour, of three sources.
    let hourly = (0..300).map(|id| {
        let time = at(i64::from(id) * 3_600);
        doc! { "_id": id, "t": time, "m": { "k": id % 3 }, "x": id }
    });
    series.insert_many(hourly).await?;
    ensure!(buckets(&test, "series").await?.len() == 300);

    let between = doc! { "t": { "$gte": at(100 * 3_600), "$lt": at(104 * 3_600) } };
    ensure!(ids(&series, between.clone()).await? == [100, 101, 102, 103]);
    let explain = |filter: Document| {
        let find = doc! { "find": "series", "filter": filter };
        test.run_command(doc! { "explain": find, "verbosity": "executionStats" })
    };
    let examined = |explained: &Document| -> Result<i64> {
        let stages = explained.get_array("stages")?;
        let cursor = stages[0].as_document().context("a stage")?;
        let stats = cursor
            .get_document("$cursor")?
            .get_document("executionStats")?;
        match stats.get("totalDocsExamined") {
            Some(Bson::Int32(count)) => Ok(i64::from(*count)),
            Some(Bson::Int64(count)) => Ok(*count),
            _ => bail!("{stats}"),
        }
    };
    let explained = explain(between.clone()).await?;
    ensure!(examined(&explained)? <= 6, "{explained}");
    ensure!(
        explained.to_string().contains("$_internalUnpackBucket"),
        "{explained}"
    );

    // Conditions on metadata are conditions on buckets, which an index of the collection serves.
    let index = doc! { "key": { "m.k": 1, "t": 1 }, "name": "source" };
    test.run_command(doc! { "createIndexes": "series", "indexes": [index] })
        .await?;
    let listed = test.run_command(doc! { "listIndexes": "series" }).await?;
    let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
    let shown = doc! { "v": 2, "key": { "m.k": 1, "t": 1 }, "name": "source" };
    ensure!(*listed == [Bson::from(shown)], "{listed:?}");
    let mut of_source = between;
    of_source.insert("m.k", 1);
    ensure!(ids(&series, of_source.clone()).await? == [100, 103]);
    eventually("the index is used", || async {
        let explained = explain(of_source.clone()).await?;
        let text = explained.to_string();
        ensure!(text.contains("meta.k") && text.contains("IXSCAN"), "{text}");
        ensure!(examined(&explained)? <= 3, "{explained}");
        anyhow::Ok(())
    })
    .await;

    // What reads other collections reads this one, too.
    test.collection::<Document>("plain")
        .insert_one(doc! { "_id": 1, "k": 2 })
        .await?;
    let lookup = doc! { "from": "series", "localField": "k", "foreignField": "m.k", "as": "found" };
    let joined = [
        doc! { "$lookup": lookup },
        doc! { "$project": { "n": { "$size": "$found" } } },
        doc! { "$unionWith": { "coll": "series", "pipeline": [
            { "$match": { "t": at(3_600) } },
            { "$project": { "m": 1 } },
        ] } },
    ];
    let cursor = test
        .collection::<Document>("plain")
        .aggregate(joined)
        .await?;
    let joined: Vec<Document> = cursor.try_collect().await?;
    let expected = [
        doc! { "_id": 1, "n": 100 },
        doc! { "m": { "k": 1 }, "_id": 1 },
    ];
    ensure!(joined == expected, "{joined:?}");
    let distinct = series.distinct("m.k", doc! {}).await?;
    ensure!(distinct.len() == 3, "{distinct:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_keep_the_collation_of_their_collection_when_measurements_go() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let series = create(&test, "series", doc! {}).await?;
    for (id, name) in ["a", "B", "c", "x"].into_iter().enumerate() {
        let id = i32::try_from(id)?;
        let mut measurement = measurement(id, 0);
        measurement.insert("name", name);
        series.insert_one(measurement).await?;
    }
    let any_case = Collation::builder()
        .locale("en")
        .strength(CollationStrength::Secondary);
    let deleted = series
        .delete_many(doc! { "name": "X" })
        .collation(any_case.build());
    ensure!(deleted.await?.deleted_count == 1);
    ensure!(ids(&series, doc! { "name": "B" }).await? == [1]);
    ensure!(ids(&series, doc! { "name": { "$gte": "a" } }).await? == [0, 2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measurements_are_deleted_and_their_metadata_changed() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let series = create(&test, "series", doc! {}).await?;
    series
        .insert_many((0..90).map(|id| measurement(id, id % 3)))
        .await?;

    // By any filter: what is left of a bucket stays.
    let deleted = series
        .delete_many(doc! { "x": { "$gte": 10 }, "m.k": 1 })
        .await?;
    ensure!(deleted.deleted_count == 27, "{deleted:?}");
    ensure!(ids(&series, doc! { "m.k": 1 }).await? == [1, 4, 7]);
    let kept = buckets(&test, "series").await?;
    let control = kept
        .iter()
        .find(|bucket| matches!(bucket.get_document("meta"), Ok(meta) if meta.get("k") == Some(&Bson::Int32(1))))
        .context("the bucket")?
        .get_document("control")?;
    ensure!(control.get_document("max")?.get_i32("x")? == 7, "{control}");
    let deleted = series.delete_many(doc! { "m.k": 2 }).await?;
    ensure!(deleted.deleted_count == 30, "{deleted:?}");
    ensure!(buckets(&test, "series").await?.len() == 2);

    // One of those that meet a filter.
    let one_of = doc! { "x": { "$gte": 30 }, "m.k": 0 };
    let before = ids(&series, doc! { "m.k": 0 }).await?;
    ensure!(series.delete_one(one_of.clone()).await?.deleted_count == 1);
    let after = ids(&series, doc! { "m.k": 0 }).await?;
    let gone: Vec<i32> = before
        .into_iter()
        .filter(|id| !after.contains(id))
        .collect();
    ensure!(matches!(gone[..], [id] if id >= 30), "{gone:?}");
    ensure!(series.delete_one(doc! { "m.k": 0 }).await?.deleted_count == 1);
    ensure!(ids(&series, doc! { "m.k": 0 }).await?.len() == after.len() - 1);
    ensure!(series.delete_one(doc! { "x": -1 }).await?.deleted_count == 0);

    let updated = series
        .update_many(doc! { "m.k": 1 }, doc! { "$set": { "m.name": "one" } })
        .await?;
    ensure!(updated.modified_count == 3, "{updated:?}");
    ensure!(ids(&series, doc! { "m.name": "one" }).await? == [1, 4, 7]);
    // The next ones of a source whose metadata were changed are of another source.
    series.insert_one(measurement(91, 1)).await?;
    ensure!(ids(&series, doc! { "m": { "k": 1 } }).await? == [91]);

    for refused in [
        doc! { "q": { "m.k": 1 }, "u": { "$set": { "x": 1 } }, "multi": true },
        doc! { "q": { "x": 1 }, "u": { "$set": { "m.k": 1 } }, "multi": true },
        doc! { "q": { "m.k": 1 }, "u": { "$set": { "m.k": 1 } } },
        doc! { "q": { "m.k": 1 }, "u": { "m": 1 }, "multi": true },
        doc! { "q": { "m.k": 1 }, "u": { "$set": { "m.k": 1 } }, "multi": true, "upsert": true },
    ] {
        let reply = test
            .run_command(doc! { "update": "series", "updates": [refused.clone()] })
            .await?;
        let errors = reply.get_array("writeErrors")?;
        let code = errors[0]
            .as_document()
            .context("an error")?
            .get_i32("code")?;
        ensure!(code == INVALID_OPTIONS, "{refused}: {reply}");
    }
    let modify = doc! { "findAndModify": "series", "query": {}, "remove": true };
    ensure!(code_of(&test, modify).await? == COMMAND_NOT_SUPPORTED_ON_VIEW);
    let out = doc! { "aggregate": "series", "pipeline": [{ "$out": "series" }], "cursor": {} };
    ensure!(code_of(&test, out).await? == COMMAND_NOT_SUPPORTED_ON_VIEW);

    let coarser = doc! { "collMod": "series", "timeseries": { "granularity": "hours" } };
    test.run_command(coarser).await?;
    let finer = doc! { "collMod": "series", "timeseries": { "granularity": "minutes" } };
    ensure!(code_of(&test, finer).await? == INVALID_OPTIONS);
    ensure!(ids(&series, doc! { "t": { "$gte": at(80) }, "m.k": 0 }).await? == [81, 84, 87]);
    series.drop().await?;
    ensure!(test.list_collection_names().await? == ["system.views"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_goes_when_its_last_measurement_is_over() -> Result<()> {
    let quickly = ["--setParameter", "ttlMonitorSleepSecs=1"];
    let server = Launch::mongod().with(quickly).start().await;
    let test = server.direct().await.database("test");
    let series = create(&test, "series", doc! { "expireAfterSeconds": 3_600 }).await?;
    let now = DateTime::now().timestamp_millis();
    let minutes_ago = |id: i32, source: i32, minutes: i64| {
        let time = DateTime::from_millis(now - minutes * 60_000);
        doc! { "_id": id, "t": time, "m": source }
    };
    // The bucket of the second source holds a measurement that is over, and one that is not.
    series
        .insert_many([
            minutes_ago(1, 1, 200),
            minutes_ago(2, 1, 170),
            minutes_ago(3, 2, 80),
            minutes_ago(4, 2, 40),
            minutes_ago(5, 3, 1),
        ])
        .await?;
    within(SOON, "what is over goes", || async {
        let left = ids(&series, doc! {}).await?;
        ensure!(left == [3, 4, 5], "{left:?}");
        anyhow::Ok(())
    })
    .await;
    let sooner = doc! { "collMod": "series", "expireAfterSeconds": 1_800 };
    test.run_command(sooner).await?;
    within(SOON, "what is over goes", || async {
        let left = ids(&series, doc! {}).await?;
        ensure!(left == [5], "{left:?}");
        anyhow::Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_acknowledged_survives_the_primary() -> Result<()> {
    let mut set = ReplicaSet::start("series", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    let series = create(&test, "series", doc! {}).await?;
    // Writers of the same sources meet in the same buckets.
    let writers = (0..4).map(|writer| {
        let series = series.clone();
        tokio::spawn(async move {
            for round in 0..50 {
                let first = (writer * 50 + round) * 4;
                let some = (first..first + 4).map(|id| measurement(id, id % 2));
                series.insert_many(some).await?;
            }
            anyhow::Ok(())
        })
    });
    let writers: Vec<_> = writers.collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let primary = set.primary().await;
    set.members[primary].kill();
    for writer in writers {
        writer.await??;
    }
    let found = ids(&series, doc! {}).await?;
    ensure!(
        found == (0..800).collect::<Vec<_>>(),
        "{} found",
        found.len()
    );

    set.members[primary].start().await;
    let all = WriteConcern::builder().w(Acknowledgment::Nodes(3)).build();
    series
        .insert_one(measurement(800, 0))
        .write_concern(all)
        .await?;
    let secondary = SelectionCriteria::ReadPreference(ReadPreference::Secondary {
        options: Default::default(),
    });
    let counted = eventually("secondaries have all", || async {
        let counted = series
            .count_documents(doc! {})
            .selection_criteria(secondary.clone())
            .await?;
        ensure!(counted == 801, "{counted}");
        anyhow::Ok(counted)
    })
    .await;
    ensure!(counted == 801);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_router_passes_it_on_and_does_not_shard_it() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let test = client.database("test");
    let series = create(&test, "series", doc! {}).await?;
    series
        .insert_many((0..300).map(|id| measurement(id, id % 3)))
        .await?;
    ensure!(ids(&series, doc! { "t": { "$lt": at(10) }, "m.k": 0 }).await? == [0, 3, 6, 9]);
    ensure!(series.count_documents(doc! {}).await? == 300);
    let listed = test
        .run_command(doc! { "listCollections": 1, "filter": { "type": "timeseries" } })
        .await?;
    let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
    ensure!(listed.len() == 1, "{listed:?}");
    let deleted = series.delete_many(doc! { "x": { "$lt": 100 } }).await?;
    ensure!(deleted.deleted_count == 100, "{deleted:?}");
    let index = doc! { "key": { "m.k": 1 }, "name": "source" };
    test.run_command(doc! { "createIndexes": "series", "indexes": [index] })
        .await?;
    let used = doc! { "aggregate": "series", "pipeline": [{ "$indexStats": {} }], "cursor": {} };
    let used = test.run_command(used).await?;
    let used = used.get_document("cursor")?.get_array("firstBatch")?;
    let index = used[0].as_document().context("an index")?;
    ensure!(index.get_document("key")? == &doc! { "m.k": 1 }, "{index}");
    ensure!(
        index.get_document("spec")?.get_str("name")? == "source",
        "{index}"
    );
    let hide = doc! { "collMod": "series", "index": { "name": "source", "hidden": true } };
    test.run_command(hide).await?;
    test.run_command(doc! { "dropIndexes": "series", "index": "source" })
        .await?;
    let updated = series
        .update_many(doc! { "m.k": 1 }, doc! { "$set": { "m.k": 4 } })
        .await?;
    ensure!(updated.modified_count > 50, "{updated:?}");
    let admin = client.database("admin");
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    let shard = doc! { "shardCollection": "test.series", "key": { "t": 1 } };
    ensure!(code_of(&admin, shard).await? == NOT_IMPLEMENTED);
    series.drop().await?;
    ensure!(test.list_collection_names().await? == ["system.views"]);
    Ok(())
}
