//! `setAuditConfig`: which audit events are wanted changes while the processes run.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process, ReplicaSet, eventually};
use bson::{Document, doc};

use super::audit::events;
use super::*;

const NOT_ENABLED: i32 = 344;
const NOT_AT_RUN_TIME: i32 = 345;
const NOT_IMPLEMENTED: i32 = 238;
const ILLEGAL_OPERATION: i32 = 20;
const BAD_VALUE: i32 = 2;

const AUDITED: [&str; 5] = [
    "--auditDestination",
    "file",
    "--auditFormat",
    "JSON",
    "--auditRuntimeConfiguration",
];

/// A process with an audit log of its own.
fn audited(launch: Launch, path: &Path, more: &[&str]) -> Launch {
    let path = path.to_str().expect("a path in UTF-8");
    launch
        .with_all(&AUDITED)
        .with(["--auditPath", path])
        .with_all(more)
}

fn wanted(filter: Document, successes: bool) -> Document {
    doc! { "setAuditConfig": 1, "filter": filter, "auditAuthorizationSuccess": successes }
}

async fn known(client: &Client) -> Result<Document> {
    Ok(client
        .database("admin")
        .run_command(doc! { "getAuditConfig": 1 })
        .await?)
}

/// Whether a process has noted an event of this kind that holds this text.
fn has(path: &Path, action: &str, text: &str) -> Result<bool> {
    let found = events(path)?.into_iter();
    let mut found = found.filter(|event| event.get_str("atype").ok() == Some(action));
    Ok(found.any(|event| event.to_string().contains(text)))
}

#[tokio::test]
async fn a_node_keeps_what_is_wanted_over_a_restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit.json");
    let mut mongod = audited(Launch::mongod(), &path, &["--auth"]).start().await;
    let root = make_root(&mongod).await?;
    make_user(&root, "alice", vec![role("readWrite", "test")]).await?;
    make_user(&root, "host", vec![role("hostManager", "admin")]).await?;
    let alice = client(&mongod, "alice").await;
    let first = known(&root).await?;
    ensure!(first.get_document("filter")?.is_empty(), "{first}");
    ensure!(!first.get_bool("auditAuthorizationSuccess")?, "{first}");
    ensure!(
        first.get_timestamp("clusterParameterTime")?.time == 0,
        "{first}"
    );
    expect(&alice, "admin", doc! { "getAuditConfig": 1 }, UNAUTHORIZED).await?;
    expect(&alice, "admin", wanted(doc! {}, true), UNAUTHORIZED).await?;

    let reads = doc! { "atype": "authCheck", "param.command": { "$in": ["find", "count"] } };
    let host = client(&mongod, "host").await;
    host.database("admin")
        .run_command(wanted(reads.clone(), true))
        .await?;
    expect(&alice, "test", doc! { "find": "seen" }, 0).await?;
    expect(
        &alice,
        "test",
        doc! { "insert": "unseen", "documents": [{}] },
        0,
    )
    .await?;
    ensure!(has(&path, "authCheck", "test.seen")?);
    ensure!(!has(&path, "authCheck", "unseen")? && !has(&path, "createCollection", "unseen")?);
    for (command, code) in [
        (wanted(doc! { "a": { "$no": 1 } }, true), BAD_VALUE),
        (doc! { "setAuditConfig": 1, "filter": {} }, 40_414),
        (
            doc! { "setParameter": 1, "auditAuthorizationSuccess": false },
            ILLEGAL_OPERATION,
        ),
    ] {
        expect(&root, "admin", command, code).await?;
    }

    mongod.stop().await;
    mongod.start().await;
    let root = client(&mongod, "root").await;
    let alice = client(&mongod, "alice").await;
    expect(&alice, "test", doc! { "count": "later" }, 0).await?;
    ensure!(has(&path, "authCheck", "test.later")?);
    let after = known(&root).await?;
    ensure!(after.get_document("filter")? == &reads, "{after}");
    ensure!(after.get_bool("auditAuthorizationSuccess")?, "{after}");

    let all = wanted(doc! {}, false);
    root.database("admin").run_command(all).await?;
    ensure!(has(&path, "auditConfigure", "count")?);
    expect(&alice, "test", doc! { "find": "hidden" }, 0).await?;
    expect(&alice, "other", doc! { "find": "refused" }, UNAUTHORIZED).await?;
    ensure!(has(&path, "authCheck", "refused")? && !has(&path, "authCheck", "hidden")?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_member_of_a_set_notes_what_is_wanted() -> Result<()> {
    let set = ReplicaSet::start_as(
        Launch::mongod().with([
            "--auditDestination",
            "console",
            "--auditRuntimeConfiguration",
        ]),
        "audited",
        2,
        &[],
    )
    .await;
    let client = set.client().await;
    let admin = client.database("admin");
    let value = doc! { "filter": { "atype": "createDatabase" }, "auditAuthorizationSuccess": true };
    admin
        .run_command(doc! { "setClusterParameter": { "auditConfig": &value } })
        .await?;
    let shown = doc! { "getClusterParameter": "auditConfig" };
    for member in &set.members {
        let own = member.direct().await;
        eventually("every member holds to it", || async {
            let known = known(&own).await?;
            ensure!(
                known.get_document("filter")? == value.get_document("filter")?,
                "{known}"
            );
            ensure!(known.get_bool("auditAuthorizationSuccess")?, "{known}");
            ensure!(
                known.get_timestamp("clusterParameterTime")?.time > 0,
                "{known}"
            );
            let shown = own.database("admin").run_command(shown.clone()).await?;
            let shown = shown.get_array("clusterParameters")?.first().cloned();
            let shown = shown
                .and_then(|shown| shown.as_document().cloned())
                .context("one")?;
            ensure!(shown.get_str("_id")? == "auditConfig", "{shown}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_of_a_cluster_note_what_is_wanted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let key = key_file(folder.path(), "key", "Y2x1c3RlciBrZXk=")?;
    let key = key.to_str().context("a path in UTF-8")?;
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let console = [
        "--auditDestination",
        "console",
        "--auditRuntimeConfiguration",
    ];
    let cluster = Cluster::start_as(shape, |launch| {
        launch.with(["--keyFile", key]).with_all(&console)
    })
    .await;
    let root = make_root(&cluster.router).await?;
    make_user(&root, "alice", vec![role("readWrite", "test")]).await?;
    let path = folder.path().join("audit.json");
    let launch = Launch::mongos(&cluster.config.connection_string());
    let router = audited(launch, &path, &["--keyFile", key]).start().await;
    let root = client(&router, "root").await;
    let reads = doc! { "atype": { "$in": ["authCheck", "createCollection"] } };
    root.database("admin")
        .run_command(wanted(reads.clone(), true))
        .await?;
    let alice = client(&router, "alice").await;
    expect(&alice, "test", doc! { "find": "seen" }, 0).await?;
    ensure!(has(&path, "authCheck", "test.seen")?);
    ensure!(!has(&path, "authenticate", "alice")?);
    let same = async |process: &Process, client: &Client| {
        let known = known(client).await?;
        ensure!(
            known.get_document("filter")? == &reads,
            "{}: {known}",
            process.host()
        );
        anyhow::Ok(())
    };
    let first = client(&cluster.router, "root").await;
    eventually("the other router knows", || same(&cluster.router, &first)).await;
    let shard = &cluster.shards[0].members[0];
    let own = make_root(shard).await?;
    eventually("the shard knows", || same(shard, &own)).await;
    expect(&own, "admin", wanted(doc! {}, false), NOT_IMPLEMENTED).await?;
    let config = &cluster.config.members[0];
    let noted = config
        .log()
        .lines()
        .any(|line| line.starts_with(r#"{"atype":"auditConfigure""#) && line.contains("root"));
    ensure!(noted, "{}", config.log());
    Ok(())
}

/// Without the flag, a process tells what its own flags say.
#[tokio::test]
async fn who_is_not_configured_at_run_time_says_so() -> Result<()> {
    let without = Launch::mongod().start().await;
    let own = without.direct().await;
    for command in [doc! { "getAuditConfig": 1 }, wanted(doc! {}, true)] {
        expect(&own, "admin", command, NOT_ENABLED).await?;
    }
    let filter = r#"{"atype": "createIndex"}"#;
    let launch = Launch::mongod().with(["--auditDestination", "console", "--auditFilter", filter]);
    let launch = launch.with(["--setParameter", "auditAuthorizationSuccess=true"]);
    let fixed = launch.start().await;
    let own = fixed.direct().await;
    let told = known(&own).await?;
    ensure!(
        told.get_document("filter")? == &doc! { "atype": "createIndex" },
        "{told}"
    );
    ensure!(told.get_bool("auditAuthorizationSuccess")?, "{told}");
    ensure!(!told.contains_key("clusterParameterTime"), "{told}");
    expect(&own, "admin", wanted(doc! {}, true), NOT_AT_RUN_TIME).await?;
    Ok(())
}
