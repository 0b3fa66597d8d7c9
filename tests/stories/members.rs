//! The life of a member: it joins far behind, comes back empty, gives the lead away, is refused;
//! and what happens when its files are not what they were.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually, states};
use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;

async fn admin(process: &Process, command: Document) -> Result<Document> {
    let admin = process.direct().await.database("admin");
    Ok(admin.run_command(command).await?)
}

/// The code of a command's refusal.
async fn refusal(process: &Process, command: Document) -> Result<i32> {
    match admin(process, command.clone()).await {
        Ok(reply) => bail!("{command} succeeded: {reply}"),
        Err(error) => match error.downcast::<mongodb::error::Error>()?.kind.as_ref() {
            ErrorKind::Command(error) => Ok(error.code),
            other => bail!("{command}: {other}"),
        },
    }
}

async fn configuration(process: &Process) -> Result<Document> {
    let reply = admin(process, doc! { "replSetGetConfig": 1 }).await?;
    Ok(reply.get_document("config")?.clone())
}

/// The current configuration with these members and the next version.
async fn with_members(process: &Process, members: Vec<Bson>) -> Result<Document> {
    let mut next = configuration(process).await?;
    next.insert("version", next.get_i32("version")? + 1);
    next.insert("members", members);
    Ok(next)
}

async fn count(process: &Process) -> Result<u64> {
    let posts = process
        .direct()
        .await
        .database("test")
        .collection::<Document>("posts");
    Ok(posts.count_documents(doc! {}).await?)
}

async fn has(process: &Process, expected: u64) {
    eventually("the member has everything", || async {
        match count(process).await? {
            found if found == expected => Ok(()),
            found => bail!("{found} of {expected}"),
        }
    })
    .await;
}

#[tokio::test]
async fn a_newcomer_far_behind_fetches_the_state() -> Result<()> {
    // The log keeps a few megabytes, the data is a multiple of that.
    let set = ReplicaSet::start("snap", 1, &["--oplogSize", "4"]).await;
    let first = &set.members[0];
    let posts = first.direct().await.database("test").collection("posts");
    let filler = "x".repeat(200_000);
    for batch in 0..10 {
        let documents = (0..20).map(|n| doc! { "_id": batch * 20 + n, "filler": &filler });
        posts.insert_many(documents).await?;
    }
    eventually("the log is cut", || async {
        let oplog = first.direct().await.database("local");
        let oldest = oplog
            .collection::<Document>("oplog.rs")
            .find_one(doc! { "op": "i" })
            .await?
            .context("the log holds inserts")?;
        match oldest.get_document("o")?.get_i32("_id")? {
            0 => bail!("the log still begins with the first insert"),
            _ => Ok(()),
        }
    })
    .await;

    let newcomer = Launch::mongod()
        .with(["--replSet", "snap", "--oplogSize", "4"])
        .start()
        .await;
    let mut members = configuration(first).await?.get_array("members")?.clone();
    members.push(doc! { "_id": 1, "host": newcomer.host() }.into());
    let next = with_members(first, members).await?;
    admin(first, doc! { "replSetReconfig": next }).await?;
    let fetched = AtomicBool::new(false);
    eventually("the newcomer is SECONDARY", || {
        joins(first, &newcomer, &fetched)
    })
    .await;
    ensure!(
        fetched.into_inner(),
        "the newcomer did not show that it fetches"
    );
    has(&newcomer, 200).await;
    posts.insert_one(doc! { "_id": "after" }).await?;
    has(&newcomer, 201).await;
    Ok(())
}

/// What both say while one joins makes sense to who watches, and ends well.
async fn joins(first: &Process, newcomer: &Process, fetched: &AtomicBool) -> Result<()> {
    let status = admin(first, doc! { "replSetGetStatus": 1 }).await?;
    let seen = states(&status);
    // STARTUP, STARTUP2, RECOVERING, SECONDARY: it's there, and no stranger.
    assert!(matches!(seen[..], [1, 0 | 5 | 3 | 2]), "{status}");
    let asked = newcomer.direct().await.database("admin");
    let own = asked.run_command(doc! { "replSetGetStatus": 1 }).await;
    let own = match own.map_err(|error| *error.kind) {
        Ok(own) => own,
        Err(ErrorKind::Command(error)) if error.code == 94 => bail!("it was not told yet"),
        Err(other) => panic!("{other}"),
    };
    assert!(matches!(states(&own)[..], [_, 5 | 3 | 2]), "{own}");
    if let Ok(progress) = own.get_document("initialSyncStatus") {
        fetched.store(true, Ordering::Relaxed);
        assert_eq!(progress.get_str("syncSource")?, first.host());
        let hello = admin(newcomer, doc! { "hello": 1 }).await?;
        assert_eq!(hello.get_str("setName")?, "snap", "{hello}");
        assert_eq!(hello.get_str("me")?, newcomer.host(), "{hello}");
    }
    match seen[..] {
        [1, 2] => Ok(()),
        _ => bail!("{seen:?}"),
    }
}

#[tokio::test]
async fn a_member_that_lost_its_directory_comes_back() -> Result<()> {
    let mut set = ReplicaSet::start("wiped", 3, &[]).await;
    let posts = set.client().await.database("test").collection("posts");
    posts
        .insert_many((0..100).map(|id| doc! { "_id": id }))
        .await?;
    let lost = (set.primary().await + 1) % 3;
    set.members[lost].kill();
    fs::remove_dir_all(set.members[lost].data_directory())?;
    set.members[lost].start().await;
    has(&set.members[lost], 100).await;
    set.settled().await;
    posts.insert_one(doc! { "_id": "after" }).await?;
    has(&set.members[lost], 101).await;
    Ok(())
}

#[tokio::test]
async fn one_of_two_comes_back_without_its_directory() -> Result<()> {
    let mut set = ReplicaSet::start("halved", 2, &[]).await;
    let posts = set.client().await.database("test").collection("posts");
    posts
        .insert_many((0..100).map(|id| doc! { "_id": id }))
        .await?;
    // Once the secondary, and then the one that led.
    for round in 0..2 {
        let lost = (set.primary().await + 1 + round) % 2;
        set.members[lost].kill();
        fs::remove_dir_all(set.members[lost].data_directory())?;
        set.members[lost].start().await;
        let count = 100 + round as u64;
        has(&set.members[lost], count).await;
        set.settled().await;
        posts
            .insert_one(doc! { "_id": 1000 + count as i64 })
            .await?;
        has(&set.members[lost], count + 1).await;
    }
    Ok(())
}

#[tokio::test]
async fn the_lead_is_given_away_and_stays_away() -> Result<()> {
    let set = ReplicaSet::start("lead", 3, &[]).await;
    let old = set.primary().await;
    let frozen = (old + 1) % 3;
    admin(&set.members[frozen], doc! { "replSetFreeze": 60 }).await?;
    ensure!(refusal(&set.members[old], doc! { "replSetFreeze": 60 }).await? == 95);
    ensure!(refusal(&set.members[frozen], doc! { "replSetStepDown": 60 }).await? == 10107);

    let started = Instant::now();
    admin(&set.members[old], doc! { "replSetStepDown": 60 }).await?;
    let new = set.primary().await;
    ensure!(new != old && new != frozen, "{new} leads after {old}");
    ensure!(started.elapsed() < Duration::from_secs(10));
    let write = doc! { "insert": "posts", "documents": [{ "_id": 1 }] };
    let stale = set.members[old].direct().await.database("test");
    let Err(error) = stale.run_command(write).await else {
        bail!("a former primary took a write")
    };
    let ErrorKind::Command(error) = error.kind.as_ref() else {
        bail!("{error}")
    };
    ensure!(error.code == 10107, "{error}");
    Ok(())
}

#[tokio::test]
async fn configurations_that_make_no_sense_are_refused() -> Result<()> {
    let set = ReplicaSet::start("rules", 2, &[]).await;
    let primary = &set.members[set.primary().await];
    let stranger = Launch::mongod().with(["--replSet", "other"]).start().await;

    let same = configuration(primary).await?;
    ensure!(refusal(primary, doc! { "replSetReconfig": same.clone() }).await? == 103);
    ensure!(refusal(primary, doc! { "replSetInitiate": same.clone() }).await? == 23);
    let mut renamed = same.clone();
    renamed.insert("_id", "another");
    ensure!(refusal(primary, doc! { "replSetReconfig": renamed }).await? == 93);

    let members = same.get_array("members")?.clone();
    let mut doubled = members.clone();
    doubled.push(members[0].clone());
    let next = with_members(primary, doubled).await?;
    ensure!(refusal(primary, doc! { "replSetReconfig": next }).await? == 103);
    let next = with_members(primary, vec![]).await?;
    ensure!(refusal(primary, doc! { "replSetReconfig": next }).await? == 103);

    let wrong_name = doc! { "_id": "mine", "members": [{ "_id": 0, "host": stranger.host() }] };
    ensure!(refusal(&stranger, doc! { "replSetInitiate": wrong_name }).await? == 93);
    let elsewhere = doc! { "_id": "other", "members": [{ "_id": 0, "host": primary.host() }] };
    ensure!(refusal(&stranger, doc! { "replSetInitiate": elsewhere }).await? == 93);
    ensure!(refusal(&stranger, doc! { "replSetGetConfig": 1 }).await? == 94);
    ensure!(configuration(primary).await?.get_i32("version")? == 1);
    Ok(())
}

#[tokio::test]
async fn a_damaged_or_missing_log_is_not_used() -> Result<()> {
    let mut process = Launch::mongod().start().await;
    let posts = process.direct().await.database("test").collection("posts");
    for id in 0..300 {
        posts.insert_one(doc! { "_id": id }).await?;
    }
    process.stop().await;

    let log = process.data_directory().join("log");
    let file = fs::read_dir(&log)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "raftlog")
        })
        .context("there is a log file")?;
    let sound = fs::read(&file)?;
    let mut damaged = sound.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 100].fill(0xee);
    fs::write(&file, &damaged)?;
    process.spawn();
    ensure!(!process.ended().await.success());
    ensure!(process.log().contains("damaged"), "{}", process.log());

    // It's left as it was found: with its content back, all is well.
    ensure!(fs::read(&file)? == damaged);
    fs::write(&file, &sound)?;
    process.start().await;
    ensure!(count(&process).await? == 300);
    process.stop().await;

    fs::rename(&log, log.with_extension("away"))?;
    process.spawn();
    ensure!(!process.ended().await.success());
    ensure!(process.log().contains("missing"), "{}", process.log());
    Ok(())
}
