//! Map-reduce: its results and options, on one data node and over shards, and scripts that go wrong.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process, eventually};
use bson::{Bson, Document, doc};
use mongodb::Database;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SUM: &str = "function(key, values) { return Array.sum(values); }";

async fn node_with_numbers(count: i32) -> Result<(Process, Database)> {
    // A small heap is full sooner.
    let heap = ["--setParameter", "jsHeapLimitMB=96"];
    let mongod = Launch::mongod().with(heap).start().await;
    let test = mongod.direct().await.database("test");
    let numbers = test.collection::<Document>("numbers");
    numbers
        .insert_many((0..count).map(|n| doc! { "_id": n, "parity": n % 2, "n": n }))
        .await?;
    Ok((mongod, test))
}

fn job(map: &str, reduce: &str) -> Document {
    doc! {
        "mapReduce": "numbers",
        "map": Bson::JavaScriptCode(map.to_owned()),
        "reduce": Bson::JavaScriptCode(reduce.to_owned()),
        "out": { "inline": 1 },
    }
}

/// The code and message of a job that fails.
async fn failure(test: &Database, job: Document) -> Result<(i32, String)> {
    match test.run_command(job).await {
        Ok(reply) => bail!("the job succeeded: {reply}"),
        Err(error) => match *error.kind {
            mongodb::error::ErrorKind::Command(ref error) => {
                Ok((error.code, error.message.clone()))
            }
            _ => bail!("the connection suffered: {error}"),
        },
    }
}

async fn works(test: &Database) -> Result<()> {
    let reply = test
        .run_command(job("function() { emit(this.parity, 1); }", SUM))
        .await?;
    let results = reply.get_array("results")?;
    ensure!(results.len() == 2, "{reply}");
    Ok(())
}

#[tokio::test]
async fn an_explained_job_tells_its_plan_and_its_stages_and_writes_nothing() -> Result<()> {
    let (_mongod, test) = node_with_numbers(10).await?;
    let map = "function() { emit(this.parity, 1); emit(9, 1); }";
    let stages = async |change: Document, verbosity: &str| -> Result<Vec<Document>> {
        let mut job = job(map, SUM);
        job.extend(change);
        let explain = doc! { "explain": job, "verbosity": verbosity };
        let told = test.run_command(explain).await?;
        let stages = told.get_array("stages")?.iter();
        Ok(stages.filter_map(Bson::as_document).cloned().collect())
    };
    let names = |stages: &[Document]| -> Vec<String> {
        let first = |stage: &Document| stage.keys().next().cloned().unwrap_or_default();
        stages.iter().map(first).collect()
    };
    let plain = stages(doc! {}, "queryPlanner").await?;
    ensure!(
        names(&plain) == ["$cursor", "$unwind", "$group"],
        "{plain:?}"
    );
    let planner = plain[0]
        .get_document("$cursor")?
        .get_document("queryPlanner")?;
    let plan = planner.get_document("winningPlan")?;
    ensure!(plan.get_str("stage")? == "PROJECTION_DEFAULT", "{plan}");
    ensure!(
        plan.get_document("inputStage")?.get_str("stage")? == "COLLSCAN",
        "{plan}"
    );
    ensure!(!plain[1].contains_key("nReturned"), "{plain:?}");

    let finalize = Bson::JavaScriptCode("function(key, value) { return value; }".to_owned());
    let change = doc! { "query": { "n": { "$lt": 6 } }, "finalize": finalize, "out": "results" };
    let run = stages(change, "executionStats").await?;
    let expected = ["$cursor", "$unwind", "$group", "$project", "$out"];
    ensure!(names(&run) == expected, "{run:?}");
    let returned = run.iter().map(|stage| stage.get_i64("nReturned"));
    let returned = returned.collect::<Result<Vec<_>, _>>()?;
    ensure!(returned == [6, 12, 3, 3, 0], "{run:?}");
    let collections = test.list_collection_names().await?;
    ensure!(
        !collections.contains(&"results".to_owned()),
        "{collections:?}"
    );

    let cut = stages(
        doc! { "limit": 2, "out": { "reduce": "results" } },
        "queryPlanner",
    )
    .await?;
    let expected = ["$cursor", "$project", "$unwind", "$group", "$merge"];
    ensure!(names(&cut) == expected, "{cut:?}");
    let mut broken = job("function() { throw 1; }", SUM);
    let explain = doc! { "explain": broken.clone(), "verbosity": "executionStats" };
    let (code, said) = failure(&test, explain).await?;
    ensure!(code == 139 || code == 8, "{code}: {said}");
    broken.insert("out", 5);
    let (code, said) = failure(&test, doc! { "explain": broken }).await?;
    ensure!(code == 2, "{code}: {said}");
    Ok(())
}

#[tokio::test]
async fn without_scripting_nothing_that_is_javascript_runs() -> Result<()> {
    let mongod = Launch::mongod().with(["--noscripting"]).start().await;
    let test = mongod.direct().await.database("test");
    test.run_command(doc! { "insert": "numbers", "documents": [{ "n": 1 }] })
        .await?;
    let (code, said) = failure(&test, job("function() { emit(1, 1); }", SUM)).await?;
    ensure!(code == 31264, "{code}: {said}");
    let find = doc! { "find": "numbers", "filter": { "$where": "true" } };
    let (code, said) = failure(&test, find).await?;
    ensure!(code == 6_108_304, "{code}: {said}");
    Ok(())
}

#[tokio::test]
async fn a_router_without_scripting_sends_no_javascript() -> Result<()> {
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start(shape).await;
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("quiet.yaml");
    fs::write(&config, "security:\n  javascriptEnabled: false\n")?;
    let launch = Launch::mongos(&cluster.config.connection_string());
    let config = config.display().to_string();
    let quiet = launch.with(["--config", &config]).start().await;
    let find = doc! { "find": "numbers", "filter": { "$or": [{ "$where": "true" }] } };
    let test = cluster.router.direct().await.database("test");
    test.run_command(doc! { "insert": "numbers", "documents": [{ "n": 1 }] })
        .await?;
    test.run_command(find.clone()).await?;
    let call = doc! { "$function": { "body": "function() {}", "args": [], "lang": "js" } };
    let call = doc! {
        "aggregate": "numbers", "pipeline": [{ "$project": { "x": call } }], "cursor": {},
    };
    test.run_command(call.clone()).await?;
    let test = quiet.direct().await.database("test");
    let (code, said) = failure(&test, call).await?;
    ensure!(code == 31264, "{code}: {said}");
    let (code, said) = failure(&test, job("function() { emit(1, 1); }", SUM)).await?;
    ensure!(code == 31264, "{code}: {said}");
    let (code, said) = failure(&test, find).await?;
    ensure!(code == 6_108_304, "{code}: {said}");
    test.run_command(doc! { "find": "numbers" }).await?;
    Ok(())
}

#[tokio::test]
async fn counts_options_and_outputs() -> Result<()> {
    let (_mongod, test) = node_with_numbers(1_000).await?;
    let map = "function() { emit(this.parity, this.n); }";
    let reply = test.run_command(job(map, SUM)).await?;
    let results = reply.get_array("results")?;
    ensure!(
        results[..]
            == [
                doc! { "_id": 0.0, "value": 249_500.0 }.into(),
                doc! { "_id": 1.0, "value": 250_000.0 }.into()
            ],
        "{reply}"
    );

    let mut with_options = job("function() { emit(base + this.parity, 1); }", SUM);
    with_options.insert("query", doc! { "n": { "$lt": 100 } });
    with_options.insert("scope", doc! { "base": "p" });
    with_options.insert(
        "finalize",
        Bson::JavaScriptCode(
            "function(key, value) { return {key: key, n: NumberInt(value)}; }".into(),
        ),
    );
    with_options.insert("out", "sums");
    let reply = test.run_command(with_options.clone()).await?;
    ensure!(reply.get_str("result")? == "sums", "{reply}");
    let counts = reply.get_document("counts")?;
    for (name, expected) in [("input", 100), ("emit", 100), ("output", 2)] {
        ensure!(
            counts.get(name).and_then(number) == Some(expected),
            "{counts}"
        );
    }
    let sums = test.collection::<Document>("sums");
    let row = sums
        .find_one(doc! { "_id": "p1" })
        .await?
        .context("p1 is there")?;
    ensure!(
        row == doc! { "_id": "p1", "value": { "key": "p1", "n": 50 } },
        "{row}"
    );

    let mut again = job(map, SUM);
    for (out, expected) in [
        (doc! { "replace": "out" }, 250_000.0),
        (doc! { "reduce": "out" }, 500_000.0),
        (doc! { "merge": "out" }, 250_000.0),
    ] {
        again.insert("out", out.clone());
        test.run_command(again.clone()).await?;
        let row = test
            .collection::<Document>("out")
            .find_one(doc! { "_id": 1 })
            .await?;
        ensure!(
            row == Some(doc! { "_id": 1.0, "value": expected }),
            "{out}: {row:?}"
        );
    }
    Ok(())
}

fn number(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) => Some(*number as i64),
        _ => None,
    }
}

#[tokio::test]
async fn a_script_that_goes_wrong_costs_its_own_job_only() -> Result<()> {
    let (_mongod, test) = node_with_numbers(200).await?;

    let (code, message) = failure(
        &test,
        job("function() { throw new Error('no such luck'); }", SUM),
    )
    .await?;
    ensure!(
        code == 139 && message.contains("no such luck"),
        "{code} {message}"
    );
    works(&test).await?;

    let (code, message) = failure(&test, job("this is not a function", SUM)).await?;
    ensure!(code == 139 || code == 2, "{code} {message}");

    let mut endless = job("function() { while (true) {} }", SUM);
    endless.insert("maxTimeMS", 500);
    let (code, message) = failure(&test, endless).await?;
    ensure!(code == 50, "{code} {message}");
    works(&test).await?;

    let hungry =
        "function() { var all = []; while (true) { all.push('x'.repeat(1000) + all.length); } }";
    let (code, message) = failure(&test, job(hungry, SUM)).await?;
    ensure!(message.contains("memory"), "{code} {message}");
    works(&test).await?;

    let aborting = "function() { var a = []; while (true) { a.push(new Array(1000).fill(1.5)); } }";
    let (code, message) = failure(&test, job(aborting, SUM)).await?;
    ensure!(code != 0, "{message}");
    works(&test).await
}

#[tokio::test]
async fn kill_op_ends_a_job() -> Result<()> {
    let (_mongod, test) = node_with_numbers(10).await?;
    let running = {
        let test = test.clone();
        tokio::spawn(
            async move { failure(&test, job("function() { while (true) {} }", SUM)).await },
        )
    };
    let admin = test.client().database("admin");
    let operation = eventually("the job shows in currentOp", || async {
        let reply = admin.run_command(doc! { "currentOp": 1 }).await?;
        let listed = reply
            .get_array("inprog")?
            .iter()
            .filter_map(Bson::as_document);
        let job = listed.into_iter().find(|operation| {
            operation
                .get_document("command")
                .is_ok_and(|command| command.contains_key("mapReduce"))
        });
        job.and_then(|operation| operation.get("opid").cloned())
            .context("not there yet")
    })
    .await;
    admin
        .run_command(doc! { "killOp": 1, "op": operation })
        .await?;
    let (code, message) = running.await??;
    ensure!(code == 11601, "{code} {message}");
    works(&test).await
}

#[tokio::test]
async fn a_killed_script_host_ends_its_job_with_an_error() -> Result<()> {
    let (mongod, test) = node_with_numbers(10).await?;
    let running = {
        let test = test.clone();
        tokio::spawn(
            async move { failure(&test, job("function() { while (true) {} }", SUM)).await },
        )
    };
    let host = eventually("the script host works", || async {
        children(mongod.pid())?
            .into_iter()
            .find(|&child| is_busy(child))
            .context("no busy child")
    })
    .await;
    kill(host, Signal::SIGKILL)?;
    let (code, message) = tokio::time::timeout(Duration::from_secs(30), running).await???;
    ensure!(code != 0, "{message}");
    works(&test).await
}

/// How many numbers match. A pipeline, by which drivers count, may not ask for JavaScript.
async fn counted(test: &Database, query: Document) -> Result<i32> {
    let counted = test
        .run_command(doc! { "count": "numbers", "query": query })
        .await?;
    Ok(counted.get_i32("n")?)
}

#[tokio::test]
async fn queries_may_ask_javascript() -> Result<()> {
    let (_mongod, test) = node_with_numbers(20).await?;
    let numbers = test.collection::<Document>("numbers");
    let odd = doc! { "$where": "this.parity == 1" };
    ensure!(counted(&test, odd).await? == 10);
    let function = Bson::JavaScriptCode("function() { return this.n < 3; }".into());
    let few = doc! { "$where": function };
    ensure!(numbers.delete_many(few).await?.deleted_count == 3);
    let query = |source: &str| doc! { "find": "numbers", "filter": { "$where": source } };
    let (code, message) = failure(&test, query("nothing.here")).await?;
    ensure!(
        code == 139 && message.contains("nothing is not defined"),
        "{code} {message}"
    );
    let mut endless = query("while (true);");
    endless.insert("maxTimeMS", 300);
    let (code, message) = failure(&test, endless).await?;
    ensure!(code == 50, "{code} {message}");
    ensure!(numbers.count_documents(doc! {}).await? == 17);
    Ok(())
}

/// The error's code; 0 where the command went well.
async fn code(database: &Database, command: Document) -> Result<i32> {
    match database.run_command(command).await {
        Ok(_) => Ok(0),
        Err(error) => match *error.kind {
            mongodb::error::ErrorKind::Command(ref error) => Ok(error.code),
            _ => bail!("the connection suffered: {error}"),
        },
    }
}

/// Options that are not what they should be, and MongoDB's codes for them.
fn wrong_options() -> Vec<(Document, i32)> {
    vec![
        (doc! { "what": 1 }, 40415),
        (doc! { "runtimeConstants": {} }, 40415),
        (doc! { "query": 1 }, 14),
        (doc! { "sort": [] }, 14),
        (doc! { "sort": {} }, 15976),
        (doc! { "limit": -1 }, 15958),
        (doc! { "limit": f64::NAN }, 15958),
        (doc! { "limit": "x" }, 14),
        (doc! { "scope": 1 }, 2),
        (doc! { "verbose": 1 }, 14),
        (doc! { "jsMode": 1 }, 14),
        (doc! { "bypassDocumentValidation": "x" }, 14),
        (doc! { "maxTimeMS": 1.5 }, 2),
        (doc! { "maxTimeMS": -1 }, 2),
        (doc! { "collation": 1 }, 14),
        (doc! { "collation": { "locale": 1 } }, 14),
        (doc! { "collation": { "strength": 1 } }, 40414),
        (
            doc! { "collation": { "locale": "simple", "what": 1 } },
            40415,
        ),
        (doc! { "collation": { "locale": "xx" } }, 2),
        (doc! { "map": 1 }, 2),
        (doc! { "finalize": [] }, 2),
        (doc! { "writeConcern": { "w": 1 } }, 72),
        (doc! { "out": 1 }, 2),
        (doc! { "out": { "inline": 2 } }, 2),
        (doc! { "out": { "inline": 1, "db": "x" } }, 72),
        (doc! { "out": { "what": "x" } }, 2),
        (doc! { "out": { "replace": 1 } }, 2),
        (doc! { "out": { "replace": "x", "merge": "x" } }, 2),
        (doc! { "out": { "replace": "x", "db": 1 } }, 2),
        (doc! { "out": { "replace": "x", "sharded": 1 } }, 2),
        (doc! { "out": { "merge": "x", "nonAtomic": "x" } }, 2),
        (doc! { "out": { "replace": "x", "what": 1 } }, 2),
        (doc! { "out": "" }, 73),
        (doc! { "out": "system.users" }, 17385),
        (
            doc! { "comment": { "a": 1 }, "collation": { "locale": "simple" }, "jsMode": true },
            0,
        ),
        (
            doc! { "query": null, "sort": null, "limit": null, "collation": null },
            0,
        ),
        (doc! { "out": { "merge": "x", "nonAtomic": false } }, 0),
    ]
}

async fn options_are_refused(database: &Database) -> Result<()> {
    let plain = job("function() { emit(this.parity, 1); }", SUM);
    for (options, expected) in wrong_options() {
        let mut command = plain.clone();
        command.extend(options.clone());
        let code = code(database, command).await?;
        ensure!(code == expected, "{options}: {code}, not {expected}");
    }
    Ok(())
}

#[tokio::test]
async fn options_are_read_as_mongodb_reads_them() -> Result<()> {
    let (_mongod, test) = node_with_numbers(10).await?;
    options_are_refused(&test).await
}

#[tokio::test]
async fn options_hold_over_several_shards() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin
        .run_command(doc! { "enableSharding": "test", "primaryShard": "shard0" })
        .await?;
    admin
        .run_command(doc! { "shardCollection": "test.numbers", "key": { "_id": 1 } })
        .await?;
    let test = client.database("test");
    let documents =
        (0..100).map(|n| doc! { "_id": n, "parity": n % 2, "n": (n * 37) % 100, "a": { "b": n } });
    test.collection::<Document>("numbers")
        .insert_many(documents)
        .await?;
    admin
        .run_command(doc! { "split": "test.numbers", "middle": { "_id": 60 } })
        .await?;
    admin
        .run_command(doc! { "moveChunk": "test.numbers", "find": { "_id": 60 }, "to": "shard1" })
        .await?;

    options_are_refused(&test).await?;

    // Which documents were mapped, and that both shards had to.
    let mapped = |options: Document| {
        let test = test.clone();
        async move {
            let mut command = job("function() { emit('n', {all: [this.n]}); }", LISTED);
            command.extend(options);
            let reply = test.run_command(command).await?;
            let input = reply.get_document("counts")?.get("input").and_then(number);
            let first = reply.get_array("results")?.first().cloned();
            let first = first.and_then(|first| first.as_document().cloned());
            let mut listed = Vec::new();
            if let Some(first) = first {
                let all = first.get_document("value")?.get_array("all")?;
                listed.extend(all.iter().filter_map(number));
            }
            listed.sort_unstable();
            ensure!(input == Some(listed.len() as i64), "{reply}");
            Ok(listed)
        }
    };
    for limit in [1, 10, 70, 99, 100, 1000] {
        let listed: Vec<i64> = mapped(doc! { "limit": limit }).await?;
        ensure!(
            listed.len() == limit.min(100) as usize,
            "{limit}: {listed:?}"
        );
    }
    let few = mapped(doc! { "limit": 10, "query": { "_id": { "$gte": 57, "$lt": 63 } } }).await?;
    ensure!(few.len() == 6, "{few:?}");
    let none = mapped(doc! { "limit": 10, "query": { "_id": { "$gte": 1000 } } }).await?;
    ensure!(none.is_empty(), "{none:?}");
    let first = mapped(doc! { "limit": 10, "sort": { "n": 1 } }).await?;
    ensure!(first == (0..10).collect::<Vec<_>>(), "{first:?}");
    let last = mapped(doc! { "limit": 25, "sort": { "n": -1 } }).await?;
    ensure!(last == (75..100).collect::<Vec<_>>(), "{last:?}");
    let nested = mapped(doc! { "limit": 3, "sort": { "a.b": -1 } }).await?;
    let mut expected: Vec<i64> = (97..100).map(|n| (n * 37) % 100).collect();
    expected.sort_unstable();
    ensure!(nested == expected, "{nested:?}");

    // A write concern that cannot be met is told of, and the results are there.
    let mut written = job("function() { emit(this.parity, 1); }", SUM);
    written.insert("out", "results");
    written.insert("writeConcern", doc! { "w": 9, "wtimeout": 100 });
    let reply = test.run_command(written.clone()).await?;
    let error = reply.get_document("writeConcernError").context("is told")?;
    ensure!(error.get_i32("code")? == 100, "{reply}");
    let results = test.collection::<Document>("results");
    ensure!(results.count_documents(doc! {}).await? == 2);
    written.insert("writeConcern", doc! { "w": "majority" });
    let reply = test.run_command(written.clone()).await?;
    ensure!(!reply.contains_key("writeConcernError"), "{reply}");
    written.insert("writeConcern", doc! { "what": 1 });
    ensure!(code(&test, written).await? == 40415);
    Ok(())
}

/// Puts lists together.
const LISTED: &str = "function(key, values) { \
     return {all: values.reduce(function (all, one) { return all.concat(one.all); }, [])}; }";

#[tokio::test]
async fn scripts_find_nothing_of_those_before_them() -> Result<()> {
    let (_mongod, test) = node_with_numbers(100).await?;
    let spoil = doc! { "$where": "Array.sum = function() { return -1; }; \
    Object.prototype.x = 1; Array.prototype.push = function() {}; return true;" };
    for _ in 0..5 {
        ensure!(counted(&test, spoil.clone()).await? == 100);
        let map = "function() { for (var k in {}) emit(k, 1); emit(this.parity, 1); }";
        let reply = test.run_command(job(map, SUM)).await?;
        let expected = [0.0, 1.0].map(|parity| doc! { "_id": parity, "value": 50.0 }.into());
        ensure!(reply.get_array("results")?[..] == expected, "{reply}");
        let plain = doc! { "$where": "Array.sum([1, 2]) === 3 && ({}).x === undefined" };
        ensure!(counted(&test, plain).await? == 100);
    }
    Ok(())
}

#[tokio::test]
async fn what_scripts_print_does_not_fill_the_log() -> Result<()> {
    let (mongod, test) = node_with_numbers(2).await?;
    let map = "function() { for (var i = 0; i < 100000; i++) print('line', i); emit(1, 1); }";
    test.run_command(job(map, SUM)).await?;
    let found = doc! { "$where": "for (var i = 0; i < 5000; i++) print('found', i); return true" };
    ensure!(counted(&test, found).await? == 2);
    let mut endless = job("function() { while (true) print('without end'); }", SUM);
    endless.insert("maxTimeMS", 300);
    ensure!(code(&test, endless).await? == 50);
    let log = mongod.log();
    ensure!(log.contains("line 17") && log.contains("found 17"));
    let told = log
        .lines()
        .filter(|line| line.contains("scripts printed more"));
    ensure!(told.count() == 3, "three times something is left out");
    ensure!(log.len() < 512 << 10, "the log has {} bytes", log.len());
    Ok(())
}

pub fn children(parent: Pid) -> Result<Vec<Pid>> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let mut all: Vec<Pid> = Vec::new();
    for word in text.split_whitespace() {
        all.push(Pid::from_raw(word.parse()?));
    }
    // A child belongs to the thread that started it: look at all of them.
    for task in fs::read_dir(format!("/proc/{parent}/task"))? {
        let path = task?.path().join("children");
        for word in fs::read_to_string(path)
            .unwrap_or_default()
            .split_whitespace()
        {
            all.push(Pid::from_raw(word.parse()?));
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// Whether the process has used a tenth of a second of processor time.
pub fn is_busy(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let user_ticks = after_name
        .split_whitespace()
        .nth(11)
        .and_then(|ticks| ticks.parse::<u64>().ok());
    user_ticks.is_some_and(|ticks| ticks >= 30)
}
