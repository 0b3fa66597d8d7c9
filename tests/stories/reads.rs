//! Reads on one `mongod`: cursors and their ends, the choice of an index, the limits of time, and
//! pipelines that write.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bson::{Bson, Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

use banyan_tests::{Launch, Process, within};

const COUNT: i32 = 1000;

async fn with_posts() -> Result<(Process, Database)> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    let posts = test.collection::<Document>("posts");
    let document = |n: i32| doc! { "_id": n, "group": n % 10, "tags": [n % 3, n % 7] };
    posts.insert_many((0..COUNT).map(document)).await?;
    let index = mongodb::IndexModel::builder()
        .keys(doc! { "group": 1, "_id": -1 })
        .build();
    posts.create_index(index).await?;
    Ok((mongod, test))
}

/// The code that a command is refused with.
async fn refusal(test: &Database, command: Document) -> Result<i32> {
    refused(test.run_command(command).await)
}

fn refused(outcome: mongodb::error::Result<Document>) -> Result<i32> {
    let error = match outcome {
        Ok(reply) => bail!("it was answered: {reply}"),
        Err(error) => error,
    };
    match error.kind.as_ref() {
        ErrorKind::Command(error) => Ok(error.code),
        _ => Err(error).context("not a refusal"),
    }
}

fn cursor(reply: &Document) -> Result<(i64, usize)> {
    let cursor = reply.get_document("cursor")?;
    let batch = cursor
        .get_array("firstBatch")
        .or_else(|_| cursor.get_array("nextBatch"))?;
    Ok((cursor.get_i64("id")?, batch.len()))
}

#[tokio::test]
async fn a_cursor_goes_on_until_its_end() -> Result<()> {
    let (_mongod, test) = with_posts().await?;
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = test.client().start_session().await?;
    let mut run = async |command| test.run_command(command).session(&mut session).await;
    let reply = run(doc! { "find": "posts" }).await?;
    let (id, first) = cursor(&reply)?;
    ensure!(first == 101 && id != 0, "a first batch is bounded");
    let more = doc! { "getMore": id, "collection": "posts", "batchSize": 99 };
    ensure!(cursor(&run(more.clone()).await?)? == (id, 99));
    let elsewhere = doc! { "getMore": id, "collection": "others" };
    ensure!(refused(run(elsewhere).await)? == 13);
    let rest = doc! { "getMore": id, "collection": "posts" };
    ensure!(cursor(&run(rest).await?)? == (0, 800));
    ensure!(refused(run(more).await)? == 43);

    let limited = doc! { "find": "posts", "limit": 5, "batchSize": 5 };
    ensure!(
        cursor(&run(limited).await?)? == (0, 5),
        "the limit is known to be met"
    );
    let single = doc! { "find": "posts", "singleBatch": true, "batchSize": 3 };
    ensure!(cursor(&run(single).await?)? == (0, 3));
    let none = doc! { "find": "posts", "batchSize": 0 };
    let (id, found) = cursor(&run(none).await?)?;
    ensure!(found == 0 && id != 0);

    let kill = doc! { "killCursors": "posts", "cursors": [id, 1_i64] };
    let reply = test.run_command(kill).await?;
    ensure!(reply.get_array("cursorsKilled")? == &[Bson::Int64(id)]);
    ensure!(reply.get_array("cursorsNotFound")? == &[Bson::Int64(1)]);
    let more = doc! { "getMore": id, "collection": "posts" };
    ensure!(refused(run(more).await)? == 43);
    Ok(())
}

#[tokio::test]
async fn an_idle_cursor_is_closed() -> Result<()> {
    let (mongod, test) = with_posts().await?;
    let admin = mongod.direct().await.database("admin");
    admin
        .run_command(doc! { "setParameter": 1, "cursorTimeoutMillis": 50 })
        .await?;
    let open = |parameters: Document| {
        let mut find = doc! { "find": "posts", "batchSize": 1 };
        find.extend(parameters);
        find
    };
    let mut session = test.client().start_session().await?;
    let mut run = async |command| test.run_command(command).session(&mut session).await;
    let reply = run(open(doc! {})).await?;
    let kept = run(open(doc! { "noCursorTimeout": true })).await?;
    let (id, _) = cursor(&reply)?;
    let (kept, _) = cursor(&kept)?;
    within(Duration::from_secs(20), "the idle cursor's end", || async {
        let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
        let timed_out = status
            .get_document("metrics")?
            .get_document("cursor")?
            .get_i64("timedOut")?;
        ensure!(timed_out == 1);
        anyhow::Ok(())
    })
    .await;
    let gone = doc! { "getMore": id, "collection": "posts" };
    ensure!(refused(run(gone).await)? == 43);
    let more = doc! { "getMore": kept, "collection": "posts" };
    ensure!(cursor(&run(more).await?)?.1 == COUNT as usize - 1);
    Ok(())
}

#[tokio::test]
async fn explain_tells_the_way_and_what_it_costs() -> Result<()> {
    let (_mongod, test) = with_posts().await?;
    let explain = |find: Document| {
        let test = test.clone();
        async move {
            let command = doc! { "explain": find, "verbosity": "executionStats" };
            let reply = test.run_command(command).await?;
            let mut stage = reply
                .get_document("queryPlanner")?
                .get_document("winningPlan")?;
            let mut stages = vec![stage.get_str("stage")?.to_owned()];
            while let Ok(inner) = stage.get_document("inputStage") {
                stage = inner;
                stages.push(stage.get_str("stage")?.to_owned());
            }
            let stats = reply.get_document("executionStats")?;
            let counts = ["nReturned", "totalKeysExamined", "totalDocsExamined"];
            let counts = counts.map(|name| stats.get_i32(name).unwrap_or(-1));
            anyhow::Ok((stages.join(" "), counts))
        }
    };
    let filter = |filter: Document| doc! { "find": "posts", "filter": filter };
    ensure!(explain(filter(doc! { "_id": 7 })).await? == ("IDHACK".into(), [1, 1, 1]));
    ensure!(
        explain(filter(doc! { "group": 7 })).await? == ("FETCH IXSCAN".into(), [100, 100, 100])
    );
    ensure!(explain(filter(doc! { "tags": 6 })).await?.0 == "COLLSCAN");
    let sorted = doc! {
        "find": "posts", "filter": { "group": 3 }, "sort": { "_id": -1 }, "limit": 4,
    };
    ensure!(explain(sorted).await? == ("LIMIT FETCH IXSCAN".into(), [4, 4, 4]));
    let unsorted = doc! { "find": "posts", "sort": { "tags": 1 }, "limit": 4 };
    ensure!(explain(unsorted).await? == ("SORT COLLSCAN".into(), [4, 0, COUNT]));
    let count = doc! { "count": "posts", "query": { "group": { "$gte": 8 } } };
    let (stages, [_, keys, documents]) = explain(count).await?;
    ensure!(
        stages == "COUNT COUNT_SCAN" && keys == 200 && documents == 0,
        "{stages} {keys}"
    );
    Ok(())
}

#[tokio::test]
async fn explain_tells_what_a_write_would_do_and_what_a_lookup_reads() -> Result<()> {
    let (_mongod, test) = with_posts().await?;
    let explain = |command: Document| {
        let test = test.clone();
        async move {
            let explain = doc! { "explain": command, "verbosity": "executionStats" };
            anyhow::Ok(test.run_command(explain).await?)
        }
    };
    let counts = |stage: &Document, names: &[&str]| -> Vec<i64> {
        let count = |name: &&str| match stage.get(*name) {
            Some(Bson::Int32(count)) => i64::from(*count),
            Some(Bson::Int64(count)) => *count,
            _ => -1,
        };
        names.iter().map(count).collect()
    };
    let modified = [
        "nReturned",
        "nMatched",
        "nWouldModify",
        "nWouldUpsert",
        "nWouldDelete",
    ];
    let set = doc! { "$set": { "v": 1 } };
    for (command, expected) in [
        (
            doc! { "update": "posts", "updates": [{ "q": { "group": 7 }, "u": &set, "multi": true }] },
            [0, 100, 100, 0, -1],
        ),
        (
            doc! { "update": "posts", "updates": [{ "q": { "_id": -1 }, "u": &set, "upsert": true }] },
            [0, 0, 0, 1, -1],
        ),
        (
            doc! { "delete": "posts", "deletes": [{ "q": { "group": 7 }, "limit": 0 }] },
            [0, -1, -1, -1, 100],
        ),
        (
            doc! { "findAndModify": "posts", "query": { "group": 7 }, "update": &set },
            [1, 1, 1, 0, -1],
        ),
        (
            doc! { "findAndModify": "posts", "query": { "_id": -1 }, "remove": true },
            [0, -1, -1, -1, 0],
        ),
    ] {
        let reply = explain(command).await?;
        let stats = reply.get_document("executionStats")?;
        let stage = stats.get_document("executionStages")?;
        ensure!(counts(stage, &modified) == expected, "{stage}");
        ensure!(counts(stats, &["nReturned"]) == expected[..1], "{stats}");
    }
    let returned = doc! {
        "findAndModify": "posts", "query": { "group": 7 }, "update": &set, "fields": { "v": 1 },
    };
    let reply = explain(returned).await?;
    let plan = reply.get_document("queryPlanner")?;
    let plan = plan.get_document("winningPlan")?;
    let inner = plan.get_document("inputStage")?;
    ensure!(plan.get_str("stage")? == "PROJECTION_DEFAULT", "{plan}");
    ensure!(inner.get_str("stage")? == "UPDATE", "{plan}");
    let nowhere = doc! { "update": "nowhere", "updates": [{ "q": {}, "u": &set }] };
    let reply = explain(nowhere).await?;
    let plan = reply.get_document("queryPlanner")?;
    ensure!(*plan.get_document("winningPlan")? == doc! { "stage": "EOF" });

    let join = |local: &str, foreign: &str| {
        let lookup = doc! {
            "from": "posts", "localField": local, "foreignField": foreign, "as": "found",
        };
        let pipeline = [
            doc! { "$match": { "_id": { "$lt": 3 } } },
            doc! { "$lookup": lookup },
        ];
        doc! { "aggregate": "posts", "pipeline": pipeline.to_vec(), "cursor": {} }
    };
    for (command, expected, indexes) in [
        (join("_id", "_id"), [3, 3, 0], vec!["_id_"]),
        (
            join("group", "group"),
            [300, 300, 0],
            vec!["group_1__id_-1"],
        ),
    ] {
        let reply = explain(command).await?;
        let [cursor, lookup] = reply.get_array("stages")?.as_slice() else {
            bail!("{reply}");
        };
        let cursor = cursor.as_document().context("a stage")?;
        ensure!(counts(cursor, &["nReturned"]) == [3], "{cursor}");
        let lookup = lookup.as_document().context("a stage")?;
        let names = ["totalDocsExamined", "totalKeysExamined", "collectionScans"];
        ensure!(counts(lookup, &names) == expected, "{lookup}");
        let used = lookup.get_array("indexesUsed")?;
        ensure!(used.iter().filter_map(Bson::as_str).eq(indexes), "{lookup}");
    }
    Ok(())
}

#[tokio::test]
async fn a_command_ends_when_its_time_is_over_or_it_is_killed() -> Result<()> {
    let (mongod, test) = with_posts().await?;
    // A million times as many documents as there are: minutes of work.
    let range = doc! { "$range": [0, 1000] };
    let endless = doc! {
        "aggregate": "posts",
        "pipeline": [
            { "$set": { "a": range.clone() } },
            { "$unwind": "$a" },
            { "$set": { "b": range } },
            { "$unwind": "$b" },
            { "$count": "n" },
        ],
        "cursor": {},
    };
    let mut limited = endless.clone();
    limited.insert("maxTimeMS", 100);
    ensure!(refusal(&test, limited).await? == 50);

    let running = tokio::spawn({
        let test = test.clone();
        async move { refusal(&test, endless).await }
    });
    let admin = mongod.direct().await.database("admin");
    let operation = within(
        Duration::from_secs(10),
        "the operation in currentOp",
        || async {
            let running = doc! { "currentOp": 1, "command.aggregate": "posts" };
            let reply = admin.run_command(running).await?;
            let first = reply
                .get_array("inprog")?
                .first()
                .and_then(Bson::as_document);
            anyhow::Ok(first.context("not there yet")?.get_i32("opid")?)
        },
    )
    .await;
    admin
        .run_command(doc! { "killOp": 1, "op": operation })
        .await?;
    ensure!(running.await?? == 11601);
    Ok(())
}

#[tokio::test]
async fn pipelines_read_and_write_other_collections() -> Result<()> {
    let (_mongod, test) = with_posts().await?;
    let aggregate = |pipeline: Vec<Document>| {
        doc! { "aggregate": "posts", "pipeline": pipeline, "cursor": {} }
    };
    let by_group = doc! { "$group": { "_id": "$group", "n": { "$sum": 1 } } };
    let written = aggregate(vec![by_group.clone(), doc! { "$out": "groups" }]);
    ensure!(cursor(&test.run_command(written.clone()).await?)? == (0, 0));
    test.run_command(written).await?;
    let groups = test.collection::<Document>("groups");
    ensure!(groups.count_documents(doc! { "n": 100 }).await? == 10);
    let leftovers = test.list_collection_names().await?;
    ensure!(
        leftovers.iter().all(|name| !name.starts_with("tmp.")),
        "{leftovers:?}"
    );

    let add = doc! { "$merge": {
        "into": "groups", "whenMatched": [{ "$set": { "n": { "$add": ["$n", "$$new.n"] } } }],
    } };
    test.run_command(aggregate(vec![by_group, add])).await?;
    ensure!(groups.count_documents(doc! { "n": 200 }).await? == 10);

    let joined = aggregate(vec![
        doc! { "$match": { "_id": 17 } },
        doc! { "$lookup": {
            "from": "groups", "localField": "group", "foreignField": "_id", "as": "found",
        } },
    ]);
    let reply = test.run_command(joined).await?;
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    let first = batch
        .first()
        .and_then(Bson::as_document)
        .context("one document")?;
    ensure!(
        first.get_array("found")? == &[doc! { "_id": 7, "n": 200 }.into()],
        "{first}"
    );
    Ok(())
}

#[tokio::test]
async fn fields_that_a_command_does_not_know_are_refused() -> Result<()> {
    let (_mongod, test) = with_posts().await?;
    for (command, code) in [
        (doc! { "find": "posts", "fliter": {} }, 40415),
        (doc! { "count": "posts", "querry": {} }, 40415),
        (doc! { "find": "posts", "skip": -1 }, 51024),
        (doc! { "find": "posts", "skip": "1" }, 14),
        (doc! { "find": "posts", "hint": "nowhere" }, 2),
        (doc! { "find": "posts", "sort": { "a": 2 } }, 15975),
        (doc! { "find": "$posts" }, 73),
        (
            doc! { "find": "posts", "readConcern": { "level": "linearizable" } },
            123,
        ),
        (doc! { "aggregate": "posts", "pipeline": [] }, 9),
        (
            doc! { "aggregate": "posts", "pipeline": [{ "$nope": 1 }], "cursor": {} },
            40324,
        ),
        (doc! { "listDatabases": 1 }, 13),
        (doc! { "listIndexes": "nowhere" }, 26),
    ] {
        let found = refusal(&test, command.clone()).await?;
        ensure!(found == code, "{command}: {found}");
    }
    Ok(())
}

/// A value that changes its type and nothing else has another key to whoever reads keys.
#[tokio::test]
async fn covered_plans_follow_what_is_written() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    let things = test.collection::<Document>("things");
    let indexes = vec![
        doc! { "key": { "a": 1, "b.c": -1 }, "name": "ab" },
        doc! { "key": { "t": 1 }, "name": "t" },
    ];
    things
        .insert_one(doc! { "_id": 1, "a": 1, "b": { "c": 5_i64 } })
        .await?;
    test.run_command(doc! { "createIndexes": "things", "indexes": indexes })
        .await?;
    let written = [
        doc! { "a": 1.0 },
        doc! { "a": 1_i64, "b": {} },
        doc! { "a": Bson::Null, "b": { "c": Bson::Null } },
        doc! { "b": { "c": "x" } },
    ];
    for (number, fields) in written.into_iter().enumerate() {
        let mut stored = doc! { "_id": 1 };
        stored.extend(fields.clone());
        things.replace_one(doc! { "_id": 1 }, &stored).await?;
        let other = number as i32 + 2;
        things
            .insert_one(doc! { "_id": other, "a": 7, "t": [number as i32, 9] })
            .await?;
        let find = doc! {
            "find": "things", "filter": { "a": { "$ne": 7 } }, "hint": "ab",
            "projection": { "a": 1, "b.c": 1, "_id": 0 },
        };
        let reply = test.run_command(find.clone()).await?;
        let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
        ensure!(*batch == [Bson::Document(fields)], "{reply}");
        let explain = doc! { "explain": find, "verbosity": "executionStats" };
        let explained = test.run_command(explain).await?;
        let stats = explained.get_document("executionStats")?;
        ensure!(stats.get_i32("totalDocsExamined")? == 0, "{stats}");
    }
    let values = things.distinct("t", doc! {}).await?;
    let mut expected = vec![Bson::Null];
    expected.extend([0, 1, 2, 3, 9].map(Bson::Int32));
    ensure!(values == expected, "one document has none: {values:?}");
    let report = test
        .run_command(doc! { "validate": "things", "full": true })
        .await?;
    ensure!(report.get_bool("valid")?, "{report}");
    Ok(())
}
