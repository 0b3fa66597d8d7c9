//! What an operator does with the log, and what a start says that cannot be what was meant.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use banyan_tests::{Launch, Process, eventually, program};
use bson::{Document, doc};
use nix::sys::signal::{Signal, kill};

use crate::operating::{admin, refusal};

/// The messages of a log file, in order.
fn messages(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let message = |line: &str| Some(json(line)?.get("msg")?.as_str()?.to_owned());
    text.lines().filter_map(message).collect()
}

fn json(line: &str) -> Option<serde_json::Value> {
    serde_json::from_str(line).ok()
}

fn holds(path: &Path, message: &str) -> bool {
    messages(path).iter().any(|line| line == message)
}

async fn rotated(server: &Process, ask: impl Future<Output = ()>) {
    let log = server.log_path();
    let before = fs::metadata(&log).map(|file| inode(&file)).ok();
    ask.await;
    eventually("a new log file", || async {
        let now = inode(&fs::metadata(&log)?);
        ensure!(Some(now) != before && holds(&log, "log file rotated"));
        Ok::<_, anyhow::Error>(())
    })
    .await;
}

fn inode(file: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(file)
}

async fn signal(server: &Process) {
    kill(server.pid(), Signal::SIGUSR1).expect("the signal is sent");
}

/// The files that the log was moved to.
fn moved_away(server: &Process) -> Result<Vec<std::path::PathBuf>> {
    let log = server.log_path();
    let directory = log.parent().expect("it lies in a directory");
    let mut found = Vec::new();
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("log.") {
            found.push(path);
        }
    }
    Ok(found)
}

#[tokio::test]
async fn the_log_goes_on_in_a_new_file_however_the_old_one_went() -> Result<()> {
    let server = Launch::mongod().start().await;
    let log = server.log_path();

    // By itself it is renamed with the time, by a signal or by a command.
    rotated(&server, signal(&server)).await;
    rotated(&server, async {
        let reply = admin(&server, doc! { "logRotate": 1 }).await;
        reply.expect("it is rotated");
    })
    .await;
    let moved = moved_away(&server)?;
    ensure!(moved.len() == 2, "{moved:?}");
    for path in &moved {
        ensure!(
            holds(path, "log rotation initiated"),
            "{:?}",
            messages(path)
        );
    }

    // Somebody else has renamed it: nothing is lost, and its name is taken again.
    let outside = log.with_extension("outside");
    fs::rename(&log, &outside)?;
    rotated(&server, signal(&server)).await;
    ensure!(holds(&outside, "log rotation initiated"));
    ensure!(moved_away(&server)?.len() == 3, "only the one from outside");

    for (command, code) in [
        (doc! { "logRotate": "audit" }, 4),
        (doc! { "logRotate": {} }, 14),
        (doc! { "logRotate": 1, "how": 1 }, 40415),
    ] {
        let refused = refusal(&server, command).await?;
        ensure!(refused.0 == code, "{refused:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_log_that_is_reopened_is_moved_by_others_only() -> Result<()> {
    let server = Launch::mongod()
        .with(["--logRotate", "reopen"])
        .start()
        .await;
    let log = server.log_path();
    signal(&server).await;
    eventually("the same file goes on", || async {
        ensure!(holds(&log, "log file rotated"));
        Ok(())
    })
    .await;
    let outside = log.with_extension("1");
    fs::rename(&log, &outside)?;
    rotated(&server, signal(&server)).await;
    ensure!(moved_away(&server)?.len() == 1);
    let options: Document = admin(&server, doc! { "getCmdLineOpts": 1 }).await?;
    let parsed = options.get_document("parsed")?.get_document("systemLog")?;
    ensure!(parsed.get_str("logRotate")? == "reopen", "{options}");
    Ok(())
}

/// How a start went that should not go well: its exit code, and what it said.
fn refused(name: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(program(name)).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), said))
}

#[test]
fn what_would_be_relied_on_without_effect_ends_the_start() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name).display().to_string();
    let file = path("config.yaml");
    fs::write(&file, "security:\n  keyFile: /no/such/key\n")?;
    for name in ["mongod", "configsvr", "mongos"] {
        let own: &[&str] = match name {
            "mongos" => &["--configdb", "localhost:1"],
            _ => &["--dbpath", directory.path().to_str().unwrap_or_default()],
        };
        for given in [["--keyFile", "/no/such/key"], ["--config", &file]] {
            let (code, said) = refused(name, &[own, &given].concat())?;
            ensure!(
                code == Some(2) && said.contains("keyFile"),
                "{name}: {said}"
            );
        }
    }
    let log = path("log");
    let reopen = ["--logRotate", "reopen", "--logpath", &log];
    let (code, said) = refused("mongod", &reopen)?;
    ensure!(code == Some(2) && said.contains("logAppend"), "{said}");
    Ok(())
}

/// What the log says of the slow operations of a kind, newest last.
fn slow(server: &Process, kind: &str) -> Vec<serde_json::Value> {
    let text = server.log();
    let lines = text.lines().filter_map(json);
    let slow = lines.filter(|line| line["msg"] == "Slow query");
    slow.map(|line| line["attr"].clone())
        .filter(|attributes| attributes["type"] == kind && attributes["ns"] == "logs.c")
        .collect()
}

#[tokio::test]
async fn a_slow_operation_is_logged_with_its_plan_and_what_it_examined() -> Result<()> {
    // Everything counts as slow.
    let server = Launch::mongod().with(["--slowms", "0"]).start().await;
    let database = server.direct().await.database("logs");
    let run = |command: Document| database.run_command(command);
    let documents: Vec<Document> = (0..50)
        .map(|n| doc! { "_id": n, "a": n % 5, "secret": "not for the log" })
        .collect();
    run(doc! { "insert": "c", "documents": documents }).await?;
    run(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] }).await?;
    let long = "x".repeat(100_000);
    run(doc! { "find": "c", "filter": { "a": 3, "b": { "$ne": long } }, "batchSize": 4 }).await?;
    run(doc! { "update": "c", "updates": [
        { "q": { "_id": { "$lt": 3 } }, "u": { "$set": { "b": 1 } }, "multi": true },
    ] })
    .await?;
    run(doc! { "delete": "c", "deletes": [{ "q": { "_id": 7 }, "limit": 1 }] }).await?;
    let refused = run(doc! { "find": "c", "filter": { "$no": 1 } }).await;
    ensure!(refused.is_err());

    let inserted = &slow(&server, "insert")[0];
    ensure!(inserted["ninserted"] == 50, "{inserted}");
    ensure!(inserted["commitWaitMicros"].is_u64(), "{inserted}");
    ensure!(!server.log().contains("not for the log"));

    let found = slow(&server, "query");
    ensure!(found.len() == 2, "{found:?}");
    let (found, failed) = (&found[0], &found[1]);
    for (name, value) in [
        ("planSummary", serde_json::json!("IXSCAN { a: 1 }")),
        ("nreturned", 4.into()),
        ("keysExamined", 4.into()),
        ("docsExamined", 4.into()),
    ] {
        ensure!(found[name] == value, "{name}: {found}");
    }
    ensure!(found["reslen"].as_u64() > Some(100) && found["durationMillis"].is_i64());
    let command = found["command"].as_str().unwrap_or_default();
    ensure!(
        command.starts_with(r#"{"find":"c","filter":{"a":3"#),
        "{command}"
    );
    ensure!(command.len() < 1_000, "{} bytes", command.len());
    ensure!(failed["errCode"] == 2, "{failed}");

    let updated = &slow(&server, "update")[0];
    ensure!(
        updated["nMatched"] == 3 && updated["nModified"] == 3,
        "{updated}"
    );
    ensure!(updated["docsExamined"] == 3, "{updated}");
    let command = updated["command"].as_str().unwrap_or_default();
    ensure!(command.contains(r#""q":{"_id":{"$lt":3}}"#), "{command}");
    let deleted = &slow(&server, "remove")[0];
    ensure!(
        deleted["planSummary"] == "IDHACK" && deleted["ndeleted"] == 1,
        "{deleted}"
    );
    Ok(())
}

/// Closes a connection that has asked for nothing.
async fn come_and_go(server: &Process) {
    let stream = tokio::net::TcpStream::connect(server.host()).await;
    drop(stream.expect("it is accepted"));
}

#[tokio::test]
async fn how_much_is_logged_is_set_while_the_server_runs() -> Result<()> {
    let server = Launch::mongod().with(["-v"]).start().await;
    let log = server.log_path();
    let set = async |name: &str, value: bson::Bson| {
        let reply = admin(&server, doc! { "setParameter": 1, name: value }).await?;
        Ok::<_, anyhow::Error>(reply.get("was").cloned())
    };
    ensure!(set("logLevel", 0.into()).await? == Some(bson::Bson::Int32(1)));
    come_and_go(&server).await;
    ensure!(set("quiet", true.into()).await? == Some(bson::Bson::Boolean(false)));
    // Only what warns is written now, and that it is rotated does not.
    let before = messages(&log).len();
    let rotation = admin(&server, doc! { "logRotate": 1 }).await;
    rotation.expect("it is rotated");
    ensure!(messages(&log).is_empty() && before > 0);
    ensure!(set("logLevel", 1.into()).await? == Some(bson::Bson::Int32(0)));
    come_and_go(&server).await;
    eventually("a line for developers", || async {
        ensure!(holds(&log, "connection ended"));
        Ok::<_, anyhow::Error>(())
    })
    .await;
    Ok(())
}
