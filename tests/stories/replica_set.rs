//! A replica set: made by hand, losing its primary under load, coming back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, connect, eventually, within};
use bson::{Document, doc};
use futures::TryStreamExt;
use futures::future::try_join_all;
use mongodb::error::ErrorKind;
use tokio::sync::Mutex;

async fn member(name: &str) -> Process {
    Launch::mongod()
        .with(["--shardsvr", "--replSet", name])
        .start()
        .await
}

/// The reply of a command that answers `ok: 0`.
async fn refused(process: &Process, command: Document) -> Result<Document> {
    let admin = process.direct().await.database("admin");
    let Err(error) = admin.run_command(command.clone()).await else {
        bail!("{command} succeeded")
    };
    ensure!(
        matches!(*error.kind, ErrorKind::Command(_)),
        "{command}: {error}"
    );
    let reply = error
        .server_response()
        .expect("a command's error has a reply");
    Ok(Document::try_from(reply.as_ref())?)
}

#[tokio::test]
async fn a_set_is_made_by_hand() -> Result<()> {
    let first = member("set_a").await;
    let second = member("set_a").await;
    let admin = first.direct().await.database("admin");

    let status = refused(&first, doc! { "replSetGetStatus": 1 }).await?;
    ensure!(status.get_i32("startupStatus")? == 3, "{status}");
    ensure!(status.get_str("info")? == "run rs.initiate(...) if not yet done for the set");
    ensure!(
        status.get_str("errmsg")?
            == "can't get local.system.replset config from self or any seed (EMPTYCONFIG)"
    );
    ensure!(status.get_i32("code")? == 94 && status.get_str("codeName")? == "NotYetInitialized");

    let initiated = admin.run_command(doc! { "replSetInitiate": {} }).await?;
    let info = initiated.get_str("info2")?;
    ensure!(
        info == "no configuration explicitly specified -- making one",
        "{initiated}"
    );
    let me = first.host();
    ensure!(
        initiated.get_str("me")? == me && initiated.contains_key("info"),
        "{initiated}"
    );

    let hello = eventually("the first member leads", || async {
        let hello = admin.run_command(doc! { "isMaster": 1 }).await?;
        if hello.get_bool("ismaster")? {
            Ok(hello)
        } else {
            bail!("{hello}")
        }
    })
    .await;
    ensure!(
        hello.get_str("setName")? == "set_a" && !hello.get_bool("secondary")?,
        "{hello}"
    );
    ensure!(hello.get_str("primary")? == me && hello.get_str("me")? == me);
    ensure!(hello.get_array("hosts")?.len() == 1);
    ensure!(hello.get_i32("maxBsonObjectSize")? == 16_777_216);

    first
        .direct()
        .await
        .database("test")
        .collection("before")
        .insert_one(doc! { "_id": 1 })
        .await?;
    let got = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
    let mut configuration = got.get_document("config")?.clone();
    ensure!(configuration.get_i32("version")? == 1);
    configuration.insert("version", 2);
    let members = configuration.get_array_mut("members")?;
    members.push(doc! { "_id": 1, "host": second.host() }.into());
    admin
        .run_command(doc! { "replSetReconfig": configuration })
        .await?;

    let got = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
    let configuration = got.get_document("config")?;
    ensure!(configuration.get_i32("version")? == 2, "{configuration}");
    ensure!(configuration.get_array("members")?.len() == 2);

    let status = eventually("the second member is SECONDARY", || async {
        let status = admin.run_command(doc! { "replSetGetStatus": 1 }).await?;
        if banyan_tests::states(&status) == [1, 2] {
            Ok(status)
        } else {
            bail!("{status}")
        }
    })
    .await;
    for member in status.get_array("members")? {
        let member = member.as_document().expect("members are documents");
        for field in [
            "name",
            "health",
            "state",
            "stateStr",
            "uptime",
            "optime",
            "optimeDate",
        ] {
            ensure!(member.contains_key(field), "{field} is missing: {member}");
        }
        let is_self = member.get_bool("self").unwrap_or(false);
        ensure!(is_self || member.contains_key("pingMs") && member.contains_key("lastHeartbeat"));
    }
    let other = second.direct().await;
    let found = other
        .database("test")
        .collection::<Document>("before")
        .find_one(doc! {})
        .await?;
    ensure!(found == Some(doc! { "_id": 1 }));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_no_acknowledged_write() -> Result<()> {
    let mut set = ReplicaSet::start("set_b", 3, &[]).await;
    let client = connect(&format!("{}&retryWrites=true", set.uri())).await;
    let posts = client.database("test").collection::<Document>("posts");
    posts.insert_one(doc! { "_id": -1_i64 }).await?;

    let stop = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicI64::new(0));
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (posts, stop, next) = (posts.clone(), stop.clone(), next.clone());
            let acknowledged = acknowledged.clone();
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    posts.insert_one(doc! { "_id": id }).await?;
                    acknowledged.lock().await.push(id);
                }
                anyhow::Ok(())
            })
        })
        .collect();
    let written = |count: usize| {
        let acknowledged = acknowledged.clone();
        async move {
            let have = acknowledged.lock().await.len();
            if have >= count {
                Ok(have)
            } else {
                bail!("{have} of {count} writes")
            }
        }
    };
    eventually("a load", || written(200)).await;

    let old = set.primary().await;
    let before = acknowledged.lock().await.len();
    set.members[old].kill();
    let killed = Instant::now();
    let new = set.primary().await;
    let leaderless = killed.elapsed();
    ensure!(new != old);
    ensure!(
        leaderless < Duration::from_secs(3),
        "{leaderless:?} without a primary"
    );
    eventually("the load goes on", || written(before + 200)).await;
    stop.store(true, Ordering::Relaxed);
    for outcome in try_join_all(tasks).await? {
        outcome?;
    }

    let mut found: HashMap<i64, u32> = HashMap::new();
    let mut cursor = posts.find(doc! {}).await?;
    while let Some(post) = cursor.try_next().await? {
        *found.entry(post.get_i64("_id")?).or_default() += 1;
    }
    let acknowledged = acknowledged.lock().await;
    let wrong: Vec<_> = acknowledged
        .iter()
        .filter(|id| found.get(id) != Some(&1))
        .collect();
    ensure!(
        wrong.is_empty(),
        "acknowledged, and not there exactly once: {wrong:?}"
    );

    set.members[old].start().await;
    set.settled().await;
    let returned = set.members[old]
        .direct()
        .await
        .database("test")
        .collection::<Document>("posts");
    within(
        Duration::from_secs(30),
        "the killed member catches up",
        || async {
            let count = returned.count_documents(doc! {}).await?;
            if count == found.len() as u64 {
                Ok(())
            } else {
                bail!("{count} of {}", found.len())
            }
        },
    )
    .await;
    Ok(())
}

#[tokio::test]
async fn a_set_comes_back_after_all_its_members_were_killed() -> Result<()> {
    let mut set = ReplicaSet::start("set_c", 3, &[]).await;
    let posts = set
        .client()
        .await
        .database("test")
        .collection::<Document>("posts");
    posts
        .insert_many((0..300).map(|id| doc! { "_id": id }))
        .await?;
    for member in &mut set.members {
        member.kill();
    }
    for member in &mut set.members {
        member.start().await;
    }
    set.settled().await;
    let posts = set
        .client()
        .await
        .database("test")
        .collection::<Document>("posts");
    ensure!(posts.count_documents(doc! {}).await? == 300);
    posts.insert_one(doc! { "_id": "after" }).await?;
    Ok(())
}
