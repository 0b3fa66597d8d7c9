//! `$function` and `$accumulator`: on a server, over shards, beyond memory, and when scripts or their
//! hosts go wrong.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, eventually};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::Database;
use mongodb::error::ErrorKind;
use nix::sys::signal::{Signal, kill};

use super::map_reduce::{children, is_busy};

const GROUP: &str = "internalDocumentSourceGroupMaxMemoryBytes";

fn function(body: &str, arguments: impl Into<Bson>) -> Document {
    doc! { "$function": { "body": body, "args": arguments.into(), "lang": "js" } }
}

/// How many there are and what they add up to, in two ways: each result says whether they agree.
fn grouped() -> Vec<Document> {
    let average = doc! { "$accumulator": {
        "init": "function(first) { return {n: NumberInt(0), sum: first}; }",
        "initArgs": [0],
        "accumulate": "function(s, v) { s.n = NumberInt(s.n + 1); s.sum += v; return s; }",
        "accumulateArgs": ["$v"],
        "merge": "function(a, b) { return {n: NumberInt(a.n + b.n), sum: a.sum + b.sum}; }",
        "finalize": "function(s) { return {n: s.n, average: s.sum / s.n}; }",
        "lang": "js",
    } };
    let group = doc! { "$group": {
        "_id": "$k", "scripted": average, "n": { "$sum": 1 }, "average": { "$avg": "$v" },
    } };
    let same = function(
        "function(s, n, average) { return s.n === n && s.average === average; }",
        vec!["$scripted", "$n", "$average"],
    );
    vec![
        group,
        doc! { "$project": { "n": 1, "same": same } },
        doc! { "$sort": { "_id": 1 } },
    ]
}

async fn results(database: &Database, pipeline: Vec<Document>) -> Result<Vec<Document>> {
    let collection = database.collection::<Document>("c");
    Ok(collection.aggregate(pipeline).await?.try_collect().await?)
}

async fn check_groups(database: &Database, groups: usize, documents: i32) -> Result<()> {
    let found = results(database, grouped()).await?;
    ensure!(found.len() == groups, "{} groups", found.len());
    let wrong = found
        .iter()
        .find(|group| !group.get_bool("same").is_ok_and(|same| same));
    ensure!(wrong.is_none(), "{wrong:?}");
    let counted: i32 = found.iter().flat_map(|group| group.get_i32("n")).sum();
    ensure!(counted == documents, "{counted}");
    Ok(())
}

async fn fill(database: &Database, documents: i32, groups: i32) -> Result<()> {
    let document = |n: i32| doc! { "_id": n, "k": n % groups, "v": n * 3, "text": "x".repeat(200) };
    let documents: Vec<Document> = (0..documents).map(document).collect();
    database.collection("c").insert_many(documents).await?;
    Ok(())
}

fn aggregate(stage: Document) -> Document {
    doc! { "aggregate": "c", "pipeline": [stage], "cursor": {} }
}

async fn failure(database: &Database, command: Document) -> Result<(i32, String)> {
    match database.run_command(command).await {
        Ok(reply) => bail!("it succeeded: {reply}"),
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok((error.code, error.message)),
            other => bail!("the connection suffered: {other}"),
        },
    }
}

fn endless() -> Document {
    let body = "function() { while (true) {} }";
    aggregate(doc! { "$project": { "x": function(body, Vec::<Bson>::new()) } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_of_a_pipeline_agree_with_what_is_built_in() -> Result<()> {
    let server = Launch::mongod().start().await;
    let client = server.direct().await;
    let test = client.database("test");
    // More than one batch of a group, and many groups.
    fill(&test, 12_000, 3).await?;
    check_groups(&test, 3, 12_000).await?;
    let parameter = doc! { "setParameter": 1, GROUP: 20_000 };
    client.database("admin").run_command(parameter).await?;
    test.run_command(doc! { "drop": "c" }).await?;
    fill(&test, 12_000, 700).await?;
    check_groups(&test, 700, 12_000).await?;
    let admin = client.database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
    let query = status.get_document("metrics")?.get_document("query")?;
    let spills = query.get_document("group")?.get_i64("spills")?;
    ensure!(spills > 0, "{query}");

    // The scripts of one command share variables, and not with those of others.
    let count = "function() { return typeof n === 'undefined' ? (n = 1) : ++n; }";
    let count = doc! { "$project": { "x": function(count, Vec::<Bson>::new()) } };
    for _ in 0..2 {
        let found = results(&test, vec![doc! { "$limit": 3 }, count.clone()]).await?;
        let counted: Vec<f64> = found.iter().flat_map(|one| one.get_f64("x")).collect();
        ensure!(counted == [1.0, 2.0, 3.0], "{counted:?}");
    }
    let update = doc! { "$set": { "v": function("function(v) { return v + 1; }", vec!["$v"]) } };
    let update = doc! { "q": { "_id": 4 }, "u": [update] };
    test.run_command(doc! { "update": "c", "updates": [update] })
        .await?;
    let odd = function("function(v) { return v === 13; }", vec!["$v"]);
    let counted = doc! { "count": "c", "query": { "$expr": odd } };
    ensure!(test.run_command(counted).await?.get_i32("n")? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_ends_with_its_command_and_its_host() -> Result<()> {
    let server = Launch::mongod().start().await;
    let client = server.direct().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    fill(&test, 50, 5).await?;
    let mut short = endless();
    short.insert("maxTimeMS", 300);
    let (code, message) = failure(&test, short).await?;
    ensure!(code == 50, "{code} {message}");

    let run = |command: Document| {
        let test = test.clone();
        tokio::spawn(async move { failure(&test, command).await })
    };
    let running = run(endless());
    let operation = eventually("the pipeline shows in currentOp", || async {
        let reply = admin.run_command(doc! { "currentOp": 1 }).await?;
        let listed = reply.get_array("inprog")?.iter();
        let mut listed = listed.filter_map(Bson::as_document);
        let found = listed.find(|operation| {
            let command = operation.get_document("command");
            command.is_ok_and(|command| command.contains_key("aggregate"))
        });
        found
            .and_then(|operation| operation.get("opid").cloned())
            .context("not there yet")
    })
    .await;
    admin
        .run_command(doc! { "killOp": 1, "op": operation })
        .await?;
    let (code, message) = running.await??;
    ensure!(code == 11601, "{code} {message}");

    let running = run(endless());
    let host = eventually("the script host works", || async {
        let children = children(server.pid())?.into_iter();
        let mut busy = children.filter(|&child| is_busy(child));
        busy.next().context("no busy child")
    })
    .await;
    kill(host, Signal::SIGKILL)?;
    let (code, message) = tokio::time::timeout(Duration::from_secs(30), running).await???;
    ensure!(code == 139, "{code} {message}");
    check_groups(&test, 5, 50).await
}

/// The scripts of many documents go to the host together; what one of them does to itself, to its host
/// or to its command comes behind the results of those before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_fails_for_one_document_does_so_behind_the_others() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    fill(&test, 1000, 5).await?;
    let bodies = [
        ("throw new Error('not this one')", 139),
        (
            "for (const kept = [];;) kept.push(new Array(100000).fill(v))",
            146,
        ),
        ("while (true) {}", 50),
    ];
    for (body, expected) in bodies {
        let body = format!("function(v) {{ if (v === 1500) {body}; return v; }}");
        let set = doc! { "$set": { "x": function(&body, vec!["$v"]) } };
        let mut command = aggregate(set);
        command.insert("cursor", doc! { "batchSize": 100 });
        if expected == 50 {
            // The time counts while the command runs, and not between.
            command.insert("maxTimeMS", 3000);
        }
        // A cursor belongs to its session, and the driver may take another for each command.
        let mut session = test.client().start_session().await?;
        let mut reply = test.run_command(command).session(&mut session).await?;
        let mut found = reply.get_document("cursor")?.get_array("firstBatch")?.len();
        let failure = loop {
            let id = reply.get_document("cursor")?.get_i64("id")?;
            let more = doc! { "getMore": id, "collection": "c", "batchSize": 100 };
            match test.run_command(more).session(&mut session).await {
                Ok(next) => reply = next,
                Err(error) => break error,
            }
            found += reply.get_document("cursor")?.get_array("nextBatch")?.len();
        };
        ensure!(
            matches!(&*failure.kind, ErrorKind::Command(error) if error.code == expected),
            "{failure}"
        );
        // One that never ends holds up those that were asked with it.
        let least = if expected == 50 { 200 } else { 500 };
        ensure!((least..=500).contains(&found), "{found} before {expected}");
    }
    check_groups(&test, 5, 1000).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_has_shards_merge_and_run_scripts() -> Result<()> {
    let cluster = Cluster::start(ClusterShape {
        shards: 2,
        ..ClusterShape::default()
    })
    .await;
    let client = cluster.client().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    for command in [
        doc! { "enableSharding": "test" },
        doc! { "shardCollection": "test.c", "key": { "_id": 1 } },
        doc! { "split": "test.c", "middle": { "_id": 1000 } },
        doc! { "moveChunk": "test.c", "find": { "_id": 0 }, "to": "shard1" },
        doc! { "moveChunk": "test.c", "find": { "_id": 1000 }, "to": "shard0" },
    ] {
        let outcome = admin.run_command(command.clone()).await;
        outcome.with_context(|| command.to_string())?;
    }
    fill(&test, 2000, 40).await?;
    check_groups(&test, 40, 2000).await?;
    let even = function("function(v) { return v % 2 === 0; }", vec!["$v"]);
    let counted = doc! { "count": "c", "query": { "$expr": even } };
    ensure!(test.run_command(counted).await?.get_i32("n")? == 1000);

    // What the router computes shares variables, too.
    let count = "function() { return typeof n === 'undefined' ? (n = 1) : ++n; }";
    let pipeline = vec![
        doc! { "$sort": { "_id": 1 } },
        doc! { "$group": { "_id": { "$lt": ["$_id", 1000] } } },
        doc! { "$project": { "x": function(count, Vec::<Bson>::new()) } },
        doc! { "$group": { "_id": null, "x": { "$sum": "$x" } } },
    ];
    let found = results(&test, pipeline).await?;
    ensure!(found == [doc! { "_id": null, "x": 3.0 }], "{found:?}");

    let broken = doc! { "$group": { "_id": null, "x": { "$accumulator": {
        "init": "function() { return 0; }", "accumulate": "function(s) { return s; }",
        "accumulateArgs": [], "merge": "function() { throw new Error('not merged'); }",
        "lang": "js",
    } } } };
    let (code, message) = failure(&test, aggregate(broken)).await?;
    ensure!(
        code == 139 && message.contains("not merged"),
        "{code} {message}"
    );
    let late = doc! { "$group": { "_id": null, "x": { "$accumulator": {
        "init": "function() { return 0; }", "accumulate": "function(s) { return s; }",
        "accumulateArgs": [], "merge": "function() { while (true) {} }", "lang": "js",
    } } } };
    let mut late = aggregate(late);
    late.insert("maxTimeMS", 1500);
    let (code, message) = failure(&test, late).await?;
    ensure!(code == 50, "{code} {message}");
    check_groups(&test, 40, 2000).await
}

#[tokio::test]
async fn without_an_engine_no_function_is_called() -> Result<()> {
    let server = Launch::mongod().with(["--noscripting"]).start().await;
    let test = server.direct().await.database("test");
    fill(&test, 1, 1).await?;
    let call = function("function() { return 1; }", Vec::<Bson>::new());
    let call = aggregate(doc! { "$project": { "x": call } });
    for command in [call.clone(), aggregate(grouped().remove(0))] {
        let (code, message) = failure(&test, command).await?;
        ensure!(code == 31264, "{code} {message}");
    }
    // As in MongoDB, one that nothing is handed to is none.
    test.run_command(doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] })
        .await?;
    test.run_command(call).await?;
    Ok(())
}
