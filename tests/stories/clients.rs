//! Clients that people have: pymongo, mongosh, and our own shell, each with its script in
//! `tests/clients/`.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, program, repository};

pub fn script(name: &str) -> PathBuf {
    repository().join("tests/clients").join(name)
}

/// Runs a client to its end; what it printed.
pub async fn run(mut command: Command) -> Result<String> {
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

pub fn python(file: &str, uri: &str) -> Command {
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

#[tokio::test]
async fn pymongo_tails_capped_collections() -> Result<()> {
    let set = ReplicaSet::start("tour", 1, &[]).await;
    let cluster = Cluster::start(ClusterShape::default()).await;
    let router = format!("mongodb://{}/", cluster.router.host());
    for uri in [set.uri(), router] {
        let told = run(python("pymongo_capped.py", &uri)).await?;
        ensure!(told.ends_with("capped complete\n"), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn a_driver_repeats_what_a_test_has_fail_and_keeps_to_its_api() -> Result<()> {
    const TESTS: [&str; 2] = ["--setParameter", "enableTestCommands=1"];
    let set = ReplicaSet::start("tour", 1, &TESTS).await;
    let told = run(python("pymongo_fail_points.py", &set.uri())).await?;
    ensure!(told.ends_with("fail points complete\n"), "{told}");
    drop(set);
    let cluster = Cluster::start_with(ClusterShape::default(), &TESTS).await;
    let uri = format!("mongodb://{}/", cluster.router.host());
    let told = run(python("pymongo_fail_points.py", &uri)).await?;
    ensure!(told.ends_with("fail points complete\n"), "{told}");
    Ok(())
}

#[tokio::test]
async fn one_bulk_writes_to_several_collections() -> Result<()> {
    let set = ReplicaSet::start("tour", 1, &[]).await;
    let told = run(python("pymongo_bulk_write.py", &set.uri())).await?;
    ensure!(told.ends_with("bulk complete\n"), "{told}");
    drop(set);
    let cluster = Cluster::start(ClusterShape::default()).await;
    let uri = format!("mongodb://{}/", cluster.router.host());
    let told = run(python("pymongo_bulk_write.py", &uri)).await?;
    ensure!(told.ends_with("bulk complete\n"), "{told}");
    Ok(())
}

/// The members of the set get tags, except the first, which is made the primary.
async fn tagged_set() -> Result<ReplicaSet> {
    let set = ReplicaSet::start("tour", 3, &[]).await;
    let tag = "cfg = rs.conf(); self = db.hello().me; n = 0; \
         for (m of cfg.members) if (m.host !== self) m.tags = {n: String(++n)}; \
         print(rs.reconfig(cfg).ok)";
    let address = format!("tour/{}", set.members[0].host());
    ensure!(shell_prints(&address, tag).await? == "1\n");
    Ok(set)
}

fn prompt(address: &str) -> Command {
    let mut command = python("shell_prompt.py", &format!("mongodb://{address}/"));
    command.arg(program("mongo")).arg(address);
    command
}

async fn two_documents(address: &str) -> Result<()> {
    let made = "db.prompted.insertMany([{_id: 1}, {_id: 2}]); print('made')";
    ensure!(shell_prints(address, made).await?.starts_with("made"));
    Ok(())
}

#[tokio::test]
async fn the_prompt_completes_lists_and_is_interrupted() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    two_documents(&mongod.host()).await?;
    let told = run(prompt(&mongod.host())).await?;
    ensure!(told.ends_with("prompt complete\n"), "{told}");
    Ok(())
}

#[tokio::test]
async fn the_prompt_of_a_router_is_interrupted_on_the_shards() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let address = cluster.router.host();
    let sharded = "sh.enableSharding('test', 'shard0'); sh.shardCollection('test.prompted', {_id: 1}); \
        sh.splitAt('test.prompted', {_id: 2}); sh.moveChunk('test.prompted', {_id: 2}, 'shard1').ok";
    let moved = shell_prints(&address, sharded).await?;
    ensure!(moved == "1\n", "{moved}");
    two_documents(&address).await?;
    let told = run(prompt(&address)).await?;
    ensure!(told.ends_with("prompt complete\n"), "{told}");

    // What the balancer does, and what came of moves, is on the status page.
    let failed = "db.getSiblingDB('config').changelog.insert({_id: 'made up', what: 'moveChunk.from', \
        time: new Date(), ns: 'test.a', details: {from: 'shard0', to: 'shard1', note: 'aborted', \
        errmsg: 'no such luck'}}); db.getSiblingDB('config').actionlog.insert({_id: 'made up', \
        what: 'balancer.round', time: new Date(), details: {errorOccured: true, errmsg: 'no luck'}}); \
        sh.stopBalancer(); sh.status()";
    let status = shell_prints(&address, failed).await?;
    for expected in [
        "  balancer:\n",
        "\tCurrently enabled:  no\n",
        "\tCurrently running:  no\n",
        "\tFailed balancer rounds in last 5 attempts:  ",
        "\tLast reported error:  no luck\n",
        "\t\t1 : Success\n",
        "\t\t1 : Failed with error 'no such luck', from shard0 to shard1\n",
    ] {
        ensure!(
            status.contains(expected),
            "{expected} is missing:\n{status}"
        );
    }
    Ok(())
}

/// What `--eval` prints, on either of its outputs.
async fn shell_prints(address: &str, source: &str) -> Result<String> {
    let mut command = Command::new(program("mongo"));
    command.env("TZ", "UTC");
    command.args(["--quiet", address, "--eval", source]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
}

#[tokio::test]
async fn the_shell_uses_a_whole_set() -> Result<()> {
    let set = tagged_set().await?;
    let hosts: Vec<String> = set.members.iter().map(|member| member.host()).collect();
    let address = format!("tour/{}/sets", hosts.join(","));
    let toured = run(shell(&address, "shell_set.js")).await?;
    ensure!(toured.ends_with("set tour complete\n"), "{toured}");
    // Each member by itself shows all that it has.
    for member in &set.members {
        let shown = "shellWord('show dbs')";
        let names = shell_prints(&member.host(), shown).await?;
        for name in ["config", "local", "sets"] {
            let listed = names
                .lines()
                .any(|line| line.split('\t').next() == Some(name));
            ensure!(listed, "{name} is missing:\n{names}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_shell_says_once_what_went_wrong() -> Result<()> {
    let set = ReplicaSet::start("tour", 1, &[]).await;
    let address = set.members[0].host();
    for (source, expected) in [
        ("print(shellPrompt())", "tour:PRIMARY> "),
        (
            "new Date(0).toString()",
            "Thu Jan 01 1970 00:00:00 GMT+0000 (UTC)",
        ),
        ("new Date(0).toLocaleString()", "Thu Jan  1 00:00:00 1970"),
        ("throw 'a word'", "uncaught exception: a word"),
        (
            "throw new Error('of mine')",
            "uncaught exception: Error: of mine",
        ),
        (
            "db.posts.find({a: {$bad: 1}})",
            "uncaught exception: MongoServerError[BadValue]: unknown operator: $bad",
        ),
        (
            "db.posts.insertOne({_id: 1}); db.posts.insertOne({_id: 1})",
            "uncaught exception: WriteError({\n\t\"index\" : 0,\n\t\"code\" : 11000,\n\t\"errmsg\" : \
             \"E11000 duplicate key error collection: test.posts index: _id_ dup key: { _id: 1.0 }\",\
             \n\t\"op\" : {\n\t\t\"_id\" : 1\n\t}\n})",
        ),
        (
            "db.posts.insertOne({_id: 2}, {writeConcern: {w: 9, wtimeout: 1000}})",
            "uncaught exception: WriteConcernError({\n\t\"code\" : 100,\n\t\"codeName\" : \
             \"UnsatisfiableWriteConcern\",\n\t\"errmsg\" : \"Not enough data-bearing nodes\",\n\t\
             \"errInfo\" : {\n\t\t\"writeConcern\" : {\n\t\t\t\"w\" : 9,\n\t\t\t\"wtimeout\" : 1000,\
             \n\t\t\t\"provenance\" : \"clientSupplied\"\n\t\t}\n\t}\n})\nThe write was made; only \
             the wait for other members failed. Result: { \"acknowledged\" : true, \"insertedId\" : 2 }",
        ),
        (
            "rs.remove('stranger:1')",
            &format!(
                "uncaught exception: Error: Couldn't find stranger:1 in {address}. Is stranger:1 a \
                 member of this replset?"
            ),
        ),
        (
            "rs.freeze()",
            "uncaught exception: Error: Expected a number of seconds, but got undefined",
        ),
        (
            "rs.reconfig()",
            "uncaught exception: Error: Expected a configuration document, as rs.conf() returns \
             it, but got undefined",
        ),
        (
            "sh.addShard('a:1')",
            "uncaught exception: Error: not connected to a mongos",
        ),
    ] {
        let printed = shell_prints(&address, source).await?;
        ensure!(
            printed == format!("{expected}\n"),
            "{source} printed\n{printed}\nand not\n{expected}"
        );
    }
    let alone = shell_prints("localhost:1", "1").await?;
    ensure!(
        alone.starts_with("couldn't connect to server localhost:1: Connection refused"),
        "{alone}"
    );
    Ok(())
}
