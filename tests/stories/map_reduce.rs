//! Map-reduce on one data node: its results, and scripts that go wrong.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, Process, eventually};
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

#[tokio::test]
async fn queries_may_ask_javascript() -> Result<()> {
    let (_mongod, test) = node_with_numbers(20).await?;
    let numbers = test.collection::<Document>("numbers");
    let odd = doc! { "$where": "this.parity == 1" };
    ensure!(numbers.count_documents(odd).await? == 10);
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

fn children(parent: Pid) -> Result<Vec<Pid>> {
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
fn is_busy(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let user_ticks = after_name
        .split_whitespace()
        .nth(11)
        .and_then(|ticks| ticks.parse::<u64>().ok());
    user_ticks.is_some_and(|ticks| ticks >= 30)
}
