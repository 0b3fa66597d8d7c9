//! Clients that people have: pymongo, mongosh, and our own shell, each with its script in
//! `tests/clients/`.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, program, repository};

fn script(name: &str) -> PathBuf {
    repository().join("tests/clients").join(name)
}

/// Runs a client to its end; what it printed.
async fn run(mut command: Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = tokio::task::spawn_blocking(move || command.output()).await??;
    let output = String::from_utf8_lossy(&stdout).into_owned();
    ensure!(
        status.success(),
        "{status}\n{output}\n{}",
        String::from_utf8_lossy(&stderr)
    );
    Ok(output)
}

fn pymongo(uri: &str) -> Command {
    python("pymongo_tour.py", uri)
}

fn python(file: &str, uri: &str) -> Command {
    let mut command = Command::new(repository().join(".venv/bin/python"));
    command.arg(script(file)).arg(uri);
    command
}

fn mongosh(uri: &str, file: &str) -> Command {
    let mut command = Command::new(repository().join(".node/node_modules/.bin/mongosh"));
    command.env("HOME", std::env::temp_dir());
    command.args(["--quiet", "--norc", uri]).arg(script(file));
    command
}

fn shell(address: &str, file: &str) -> Command {
    let mut command = Command::new(program("mongo"));
    command.args(["--quiet", address]).arg(script(file));
    command
}

#[tokio::test]
async fn each_client_tours_a_standalone() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let uri = format!("mongodb://{}/", mongod.host());
    ensure!(run(pymongo(&uri)).await?.ends_with("tour complete\n"));
    ensure!(
        run(mongosh(&uri, "shell_tour.js"))
            .await?
            .ends_with("tour complete\n")
    );
    ensure!(
        run(shell(&mongod.host(), "shell_tour.js"))
            .await?
            .ends_with("tour complete\n")
    );
    for (script, code) in [("quit(3)", 3), ("1", 0), ("throw new Error('no')", 1)] {
        let mut command = Command::new(program("mongo"));
        command.args(["--quiet", &mongod.host(), "--eval", script]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        ensure!(output.status.code() == Some(code), "{script}: {output:?}");
    }
    Ok(())
}

#[tokio::test]
async fn each_client_tours_a_set_and_a_router() -> Result<()> {
    let set = ReplicaSet::start("tour", 3, &[]).await;
    ensure!(run(pymongo(&set.uri())).await?.ends_with("tour complete\n"));
    drop(set);
    let cluster = Cluster::start(ClusterShape::default()).await;
    let uri = format!("mongodb://{}/", cluster.router.host());
    ensure!(run(pymongo(&uri)).await?.ends_with("tour complete\n"));
    ensure!(
        run(mongosh(&uri, "shell_tour.js"))
            .await?
            .ends_with("tour complete\n")
    );
    let address = cluster.router.host();
    ensure!(
        run(shell(&address, "shell_tour.js"))
            .await?
            .ends_with("tour complete\n")
    );
    let status = run(shell(&address, "sharding_tour.js")).await?;
    for expected in [
        "--- Sharding Status ---",
        "-->>",
        "on : shard0",
        r#"{ "id" : { "$minKey" : 1 } }"#,
        "tour complete",
    ] {
        ensure!(
            status.contains(expected),
            "{expected} is missing:\n{status}"
        );
    }
    let status = run(mongosh(&uri, "mongosh_status.js")).await?;
    ensure!(
        status.contains("shardingVersion") && status.contains("test.posts"),
        "{status}"
    );
    Ok(())
}

#[tokio::test]
async fn each_client_follows_changes() -> Result<()> {
    let set = ReplicaSet::start("tour", 1, &[]).await;
    let clients = [
        python("pymongo_changes.py", &set.uri()),
        mongosh(&set.uri(), "changes.js"),
        shell(&set.members[0].host(), "changes.js"),
    ];
    for client in clients {
        ensure!(run(client).await?.ends_with("changes complete\n"));
    }
    Ok(())
}
