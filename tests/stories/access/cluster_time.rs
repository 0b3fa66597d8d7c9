//! Signed cluster times, and sessions of one id: what clients forge, and what they hand on.

use std::process::Command;

use anyhow::{Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Process, ReplicaSet, eventually, repository};
use bson::doc;

use super::*;

const KEY: &str = "a2V5cyBvZiB0aW1l";
/// A key signs for this long: a story sees one take over from another.
const ROTATION: &str = "KeysRotationIntervalSec=8";

/// Runs one of the clients against these servers.
async fn run(script: &str, arguments: &[&str]) -> Result<()> {
    let clients = repository().join("tests/clients");
    let mut python = Command::new(repository().join(".venv/bin/python"));
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python.arg(clients.join(script)).args(arguments);
    let output = tokio::task::spawn_blocking(move || python.output()).await??;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.ends_with("complete\n"),
        "{script} {arguments:?}: {said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn key(directory: &tempfile::TempDir) -> Result<String> {
    let path = key_file(directory.path(), "key", KEY)?;
    Ok(path.display().to_string())
}

/// The keys that a process keeps, as a member sees them.
async fn keys(process: &Process, root: &Client) -> Result<Vec<i64>> {
    let create = doc! { "createUser": "keeper", "pwd": PASSWORD, "roles": ["__system"] };
    // It may be there already.
    let _ = root.database("admin").run_command(create).await;
    let keeper = client(process, "keeper").await;
    let find = doc! { "find": "system.keys", "sort": { "_id": 1 } };
    let found = keeper.database("admin").run_command(find).await?;
    let batch = found.get_document("cursor")?.get_array("firstBatch")?;
    let ids = batch
        .iter()
        .map(|key| Ok(key.as_document().expect("a key").get_i64("_id")?));
    ids.collect()
}

#[tokio::test]
async fn a_set_believes_only_times_that_it_has_signed() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key(&directory)?;
    let flags = ["--keyFile", &key, "--setParameter", ROTATION];
    let set = ReplicaSet::start("timed", 3, &flags).await;
    let primary = &set.members[set.primary().await];
    make_root(primary).await?;
    let host = primary.host();
    run("pymongo_cluster_time.py", &[&host, &host]).await
}

#[tokio::test]
async fn keys_are_the_sets_whoever_leads() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key(&directory)?;
    let mut set = ReplicaSet::start("kept", 3, &["--keyFile", &key]).await;
    let first = set.primary().await;
    let root = make_root(&set.members[first]).await?;
    let before = eventually("keys are made", || async {
        let keys = keys(&set.members[first], &root).await?;
        ensure!(keys.len() == 2, "{keys:?}");
        Ok(keys)
    })
    .await;
    set.members[first].stop().await;
    let second = set.primary().await;
    let root = client(&set.members[second], "root").await;
    // What the first primary signed the second believes, and it signs with the same key.
    let told = root
        .database("admin")
        .run_command(doc! { "ping": 1 })
        .await?;
    let signature = told
        .get_document("$clusterTime")?
        .get_document("signature")?;
    ensure!(signature.get_i64("keyId")? == before[0], "{told}");
    ensure!(keys(&set.members[second], &root).await? == before, "others");
    set.members[first].start().await;
    let root = client(&set.members[first], "root").await;
    eventually("the member that was away has them as well", || async {
        let keys = keys(&set.members[first], &root).await?;
        ensure!(keys == before, "{keys:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_cluster_signs_with_the_keys_of_its_config_servers() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key(&directory)?;
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let flags = ["--keyFile", &key, "--setParameter", ROTATION];
    let cluster = Cluster::start_with(shape, &flags).await;
    let router = cluster.router.host();
    make_root(&cluster.router).await?;
    run("pymongo_cluster_time.py", &[&router, &router]).await?;
    // Who talks to a shard itself is believed no more.
    let shard = &cluster.shards[0];
    let primary = &shard.members[shard.primary().await];
    let root = make_root(primary).await?;
    run("pymongo_cluster_time.py", &[&primary.host(), &router]).await?;
    let own = keys(primary, &root).await?;
    ensure!(own.is_empty(), "a shard makes none: {own:?}");
    Ok(())
}

#[tokio::test]
async fn sessions_of_two_users_are_two_whatever_they_call_them() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key(&directory)?;
    let mut set = ReplicaSet::start("owned", 1, &["--keyFile", &key]).await;
    make_root(&set.members[0]).await?;
    let host = set.members[0].host();
    run("pymongo_sessions.py", &[&host, "first"]).await?;
    set.members[0].stop().await;
    set.members[0].start().await;
    set.primary().await;
    run("pymongo_sessions.py", &[&host, "again"]).await
}

#[tokio::test]
async fn routed_sessions_are_their_users_as_well() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key(&directory)?;
    let cluster = Cluster::start_with(ClusterShape::default(), &["--keyFile", &key]).await;
    let root = make_root(&cluster.router).await?;
    let host = cluster.router.host();
    run("pymongo_sessions.py", &[&host, "first"]).await?;

    // What a session runs on shards ends with it.
    let alice = client(&cluster.router, "alice").await;
    let slow = "function () { var end = Date.now() + 100; while (Date.now() < end); return true; }";
    let find = doc! { "find": "c", "filter": { "$where": slow }, "comment": "slow" };
    let running = tokio::spawn(async move { code(&alice, "test", find).await });
    let admin = root.database("admin");
    eventually("it runs on a shard", || async {
        let operations = doc! { "currentOp": 1, "command.comment": "slow" };
        let operations = admin.run_command(operations).await?;
        ensure!(!operations.get_array("inprog")?.is_empty(), "none");
        Ok(())
    })
    .await;
    let hers = doc! { "user": "alice", "db": "admin" };
    let kill = doc! { "killAllSessions": [hers] };
    expect(&root, "admin", kill, 0).await?;
    let ended = running.await??;
    ensure!(ended == 11_601, "{ended}");
    shards_know_what_sessions_go_on(&cluster).await
}

/// Of a session that is kept or ended through a router.
async fn shards_know_what_sessions_go_on(cluster: &Cluster) -> Result<()> {
    let alice = client(&cluster.router, "alice").await;
    let bob = client(&cluster.router, "bob").await;
    let session = alice.start_session().await?;
    let lsid = session.id().clone();
    let mut roots = Vec::new();
    for shard in &cluster.shards {
        roots.push(make_root(&shard.members[0]).await?);
    }
    let everywhere = async |expected: bool| {
        for root in &roots {
            let all = doc! { "$listLocalSessions": { "allUsers": true } };
            let list = doc! { "aggregate": 1, "pipeline": [all], "cursor": { "batchSize": 1_000 } };
            let listed = root.database("admin").run_command(list).await?;
            let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
            let ids = listed
                .iter()
                .map(|one| &one.as_document().expect("one")["_id"]);
            let mut ids = ids.map(|id| id.as_document().expect("an _id").get("id"));
            let found = ids.any(|id| id == lsid.get("id"));
            ensure!(found == expected, "{found}: {listed:?}");
        }
        Ok(())
    };
    let keep = doc! { "refreshSessions": [lsid.clone()] };
    expect(&alice, "admin", keep, 0).await?;
    everywhere(true).await?;
    // What he calls so is another one.
    let end = doc! { "endSessions": [lsid.clone()] };
    expect(&bob, "admin", end.clone(), 0).await?;
    everywhere(true).await?;
    expect(&alice, "admin", end, 0).await?;
    everywhere(false).await
}

#[tokio::test]
async fn a_shard_without_a_cluster_tells_no_time_and_believes_none() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key(&directory)?;
    let set = ReplicaSet::start("lone", 1, &["--shardsvr", "--keyFile", &key]).await;
    let root = make_root(&set.members[0]).await?;
    let admin = root.database("admin");
    let told = admin.run_command(doc! { "ping": 1 }).await?;
    ensure!(!told.contains_key("$clusterTime"), "{told}");
    let hash = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let signature = doc! { "hash": hash, "keyId": 0_i64 };
    let time = bson::Timestamp {
        time: 1_700_000_000,
        increment: 1,
    };
    let claimed = doc! { "clusterTime": time, "signature": signature };
    // As the reference answers. Until the member has looked whether it belongs to a cluster, a
    // time that is past is of no account.
    let find = doc! { "find": "c", "$clusterTime": claimed };
    eventually("the member knows that it has no cluster", || {
        expect(&root, "test", find.clone(), 210)
    })
    .await;
    Ok(())
}
