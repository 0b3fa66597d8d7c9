//! What an operator does with a set: makes one of one member, asks how it is, takes a member out of
//! service, moves the lead, loses a member of two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually, states, within};
use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;
use mongodb::options::{ReadPreference, SelectionCriteria};
use nix::sys::signal::{Signal, kill};

pub(crate) async fn admin(process: &Process, command: Document) -> Result<Document> {
    let admin = process.direct().await.database("admin");
    Ok(admin.run_command(command).await?)
}

/// The code of a command's refusal, and what it says.
pub(crate) async fn refusal(process: &Process, command: Document) -> Result<(i32, String)> {
    match admin(process, command.clone()).await {
        Ok(reply) => bail!("{command} succeeded: {reply}"),
        Err(error) => match error.downcast::<mongodb::error::Error>()?.kind.as_ref() {
            ErrorKind::Command(error) => Ok((error.code, error.message.clone())),
            other => bail!("{command}: {other}"),
        },
    }
}

pub(crate) async fn configuration(process: &Process) -> Result<Document> {
    let reply = admin(process, doc! { "replSetGetConfig": 1 }).await?;
    Ok(reply.get_document("config")?.clone())
}

/// The line of a member in what another one says of the set.
pub(crate) async fn line(seen_by: &Process, host: &str) -> Result<Document> {
    let status = admin(seen_by, doc! { "replSetGetStatus": 1 }).await?;
    let members = status.get_array("members")?;
    let found = members
        .iter()
        .filter_map(|member| member.as_document())
        .find(|member| member.get_str("name").is_ok_and(|name| name == host));
    found
        .cloned()
        .with_context(|| format!("{host} in {status}"))
}

pub(crate) async fn becomes(seen_by: &Process, host: &str, state: &str) -> Document {
    eventually(&format!("{host} is {state}"), || async {
        let line = line(seen_by, host).await?;
        ensure!(line.get_str("stateStr")? == state, "{line}");
        Ok::<_, anyhow::Error>(line)
    })
    .await
}

async fn insert(process: &Process, id: &str) -> Result<()> {
    let posts = process.direct().await.database("test").collection("posts");
    posts.insert_one(doc! { "_id": id }).await?;
    Ok(())
}

#[tokio::test]
async fn a_member_makes_its_own_set_and_others_join_it() -> Result<()> {
    let mut first = Launch::mongod()
        .with(["--replSet", "own", "--selfInitiate"])
        .prepare();
    first.spawn();
    let started = Instant::now();
    within(Duration::from_secs(10), "a primary", || async {
        let hello = admin(&first, doc! { "hello": 1 }).await?;
        ensure!(hello.get_bool("isWritablePrimary")?, "{hello}");
        ensure!(hello.get_str("setName")? == "own" && hello.get_str("me")? == first.host());
        Ok::<_, anyhow::Error>(())
    })
    .await;
    // A tenth of a second, where nothing else runs.
    ensure!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    insert(&first, "before").await?;

    let second = Launch::mongod().with(["--replSet", "own"]).start().await;
    let mut next = configuration(&first).await?;
    ensure!(next.get_i32("version")? == 1, "{next}");
    let set_id = next
        .get_document("settings")?
        .get_object_id("replicaSetId")?;
    next.insert("version", 2);
    next.get_array_mut("members")?
        .push(doc! { "_id": 1, "host": second.host() }.into());
    admin(&first, doc! { "replSetReconfig": next }).await?;
    becomes(&first, &second.host(), "SECONDARY").await;

    // On a directory that has a configuration the flag changes nothing.
    first.stop().await;
    first.start().await;
    let kept = configuration(&first).await?;
    ensure!(kept.get_i32("version")? == 2, "{kept}");
    ensure!(
        kept.get_document("settings")?
            .get_object_id("replicaSetId")?
            == set_id
    );
    Ok(())
}

#[tokio::test]
async fn a_set_is_not_made_where_none_belongs() -> Result<()> {
    let mut nameless = Launch::mongod().with(["--selfInitiate"]).prepare();
    nameless.spawn();
    ensure!(!nameless.ended().await.success());
    ensure!(nameless.log().contains("--replSet"), "{}", nameless.log());

    let mut standalone = Launch::mongod().start().await;
    insert(&standalone, "mine").await?;
    standalone.stop().await;
    let data = standalone.data_directory().to_owned();
    let mut heir = Launch::mongod()
        .with(["--replSet", "own", "--selfInitiate"])
        .prepare_on(data.clone());
    heir.spawn();
    ensure!(!heir.ended().await.success());
    ensure!(
        heir.log().contains("the data of a standalone"),
        "{}",
        heir.log()
    );

    // By hand it keeps its data.
    let mut heir = Launch::mongod().with(["--replSet", "own"]).prepare_on(data);
    heir.start().await;
    let configuration = doc! { "_id": "own", "members": [{ "_id": 0, "host": heir.host() }] };
    admin(&heir, doc! { "replSetInitiate": configuration }).await?;
    let hello = admin(&heir, doc! { "hello": 1 }).await?;
    ensure!(hello.get_str("me")? == heir.host(), "{hello}");
    let posts = heir.direct().await.database("test");
    let posts = posts.collection::<Document>("posts");
    ensure!(posts.count_documents(doc! {}).await? == 1);
    Ok(())
}

#[tokio::test]
async fn of_two_members_one_goes_and_comes_back() -> Result<()> {
    let mut set = ReplicaSet::start("pair", 2, &[]).await;
    let lost = set.primary().await;
    let kept = 1 - lost;
    insert(&set.members[lost], "both").await?;
    let lost_host = set.members[lost].host();
    eventually("it has come over", || async {
        let posts = set.members[kept].direct().await.database("test");
        let found = posts.collection::<Document>("posts");
        ensure!(found.count_documents(doc! {}).await? == 1);
        Ok::<_, anyhow::Error>(())
    })
    .await;
    set.members[lost].kill();

    let down = becomes(&set.members[kept], &lost_host, "(not reachable/healthy)").await;
    ensure!(
        down.get_f64("health")? == 0.0 && down.get_i32("state")? == 8,
        "{down}"
    );
    ensure!(
        down.get_str("lastHeartbeatMessage")?.contains(&lost_host),
        "{down}"
    );
    let hello = eventually("nobody leads", || async {
        let hello = admin(&set.members[kept], doc! { "hello": 1 }).await?;
        ensure!(!hello.contains_key("primary"), "{hello}");
        Ok::<_, anyhow::Error>(hello)
    })
    .await;
    ensure!(
        hello.get_bool("secondary")? && !hello.get_bool("isWritablePrimary")?,
        "{hello}"
    );
    let (code, _) = refusal_of_write(&set.members[kept]).await?;
    ensure!(code == 10107, "{code}");
    // Reads that allow a secondary go on.
    let posts = set.members[kept].direct().await.database("test");
    let posts = posts.collection::<Document>("posts");
    let secondary = SelectionCriteria::ReadPreference(ReadPreference::Secondary {
        options: Default::default(),
    });
    let found = posts
        .find_one(doc! {})
        .selection_criteria(secondary)
        .await?;
    ensure!(found == Some(doc! { "_id": "both" }), "{found:?}");

    set.members[lost].start().await;
    set.settled().await;
    insert(&set.members[set.primary().await], "again").await?;
    Ok(())
}

async fn refusal_of_write(process: &Process) -> Result<(i32, String)> {
    let database = process.direct().await.database("test");
    let write = doc! { "insert": "posts", "documents": [{ "_id": "no" }] };
    let Err(error) = database.run_command(write).await else {
        bail!("the write went through")
    };
    match error.kind.as_ref() {
        ErrorKind::Command(error) => Ok((error.code, error.message.clone())),
        other => bail!("{other}"),
    }
}

#[tokio::test]
async fn a_secondary_is_taken_out_of_service_and_put_back() -> Result<()> {
    let set = ReplicaSet::start("service", 3, &[]).await;
    let primary = set.primary().await;
    let (primary, other) = (&set.members[primary], &set.members[(primary + 1) % 3]);
    let maintain = |on: bool| doc! { "replSetMaintenance": on };

    let (code, said) = refusal(primary, maintain(true)).await?;
    ensure!((code, said.as_str()) == (95, "primaries can't modify maintenance mode"));
    ensure!(refusal(other, maintain(false)).await?.0 == 96);
    admin(other, maintain(true)).await?;
    admin(other, maintain(true)).await?;
    let seen = becomes(primary, &other.host(), "RECOVERING").await;
    ensure!(
        seen.get_str("infoMessage")? == "in maintenance mode",
        "{seen}"
    );
    let own = line(other, &other.host()).await?;
    ensure!(own.get_i32("maintenanceMode")? == 2, "{own}");
    let hello = admin(other, doc! { "hello": 1 }).await?;
    ensure!(!hello.get_bool("secondary")?, "{hello}");
    let read = doc! { "find": "posts" };
    let Err(error) = other
        .direct()
        .await
        .database("test")
        .run_command(read)
        .await
    else {
        bail!("a member in maintenance answers")
    };
    ensure!(
        matches!(error.kind.as_ref(), ErrorKind::Command(error) if error.code == 13436),
        "{error}"
    );
    ensure!(refusal(other, doc! { "replSetStepUp": 1 }).await?.0 == 125);

    // As often as it was begun.
    admin(other, maintain(false)).await?;
    ensure!(line(other, &other.host()).await?.get_i32("state")? == 3);
    admin(other, maintain(false)).await?;
    becomes(primary, &other.host(), "SECONDARY").await;
    Ok(())
}

#[tokio::test]
async fn the_lead_is_asked_for_and_given_away() -> Result<()> {
    let set = ReplicaSet::start("moves", 3, &[]).await;
    let first = set.primary().await;
    let (old, new) = (&set.members[first], &set.members[(first + 1) % 3]);

    admin(new, doc! { "replSetFreeze": 30 }).await?;
    ensure!(refusal(new, doc! { "replSetStepUp": 1 }).await?.0 == 125);
    let frozen = line(new, &new.host()).await?;
    ensure!(
        frozen
            .get_str("infoMessage")?
            .contains("does not seek election"),
        "{frozen}"
    );
    let thawed = admin(new, doc! { "replSetFreeze": 0 }).await?;
    ensure!(thawed.get_str("info")? == "unfreezing", "{thawed}");
    admin(new, doc! { "replSetStepUp": 1 }).await?;
    ensure!(
        admin(new, doc! { "hello": 1 })
            .await?
            .get_bool("isWritablePrimary")?
    );
    insert(new, "up").await?;
    becomes(new, &old.host(), "SECONDARY").await;

    for (command, code) in [
        (doc! { "replSetStepDown": -1 }, 2),
        (
            doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 10 },
            2,
        ),
        (
            doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": "x" },
            14,
        ),
        (doc! { "replSetAbortPrimaryCatchUp": 1 }, 20),
        (doc! { "replSetSyncFrom": old.host() }, 95),
    ] {
        let (refused, said) = refusal(new, command.clone()).await?;
        ensure!(refused == code, "{command}: {said}");
    }
    let own = old.host();
    ensure!(refusal(old, doc! { "replSetSyncFrom": &own }).await?.0 == 72);
    ensure!(
        refusal(old, doc! { "replSetSyncFrom": "127.0.0.1:9" })
            .await?
            .0
            == 74
    );
    let third = set.members[(first + 2) % 3].host();
    let noted = admin(old, doc! { "replSetSyncFrom": &third }).await?;
    ensure!(noted.get_str("syncFromRequested")? == third && noted.contains_key("warning"));

    // A write finds another primary in far less time than an election takes.
    let started = Instant::now();
    admin(new, doc! { "replSetStepDown": 60 }).await?;
    loop {
        let led = set.primary().await;
        if insert(&set.members[led], "after").await.is_ok() {
            break;
        }
    }
    // 300 ms, where nothing else runs.
    ensure!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn the_size_of_the_log_is_changed_and_kept() -> Result<()> {
    let mut member = Launch::mongod()
        .with([
            "--replSet",
            "sized",
            "--selfInitiate",
            "--oplogMinRetentionHours",
            "0.5",
        ])
        .start()
        .await;
    eventually("a primary", || insert(&member, "one")).await;
    let resize = |size: i32| doc! { "replSetResizeOplog": 1, "size": size };
    ensure!(refusal(&member, resize(989)).await?.0 == 51024);
    admin(&member, resize(2000)).await?;
    let sizes = |member: Document| -> Result<f64> {
        let value = member.get("maxSize").context("maxSize")?;
        let number = value.as_i64().map(|n| n as f64);
        let number = number.or(value.as_i32().map(f64::from)).or(value.as_f64());
        number.with_context(|| format!("{member}"))
    };
    let stats = doc! { "collStats": "oplog.rs" };
    let local = member.direct().await.database("local");
    let shown = sizes(local.run_command(stats.clone()).await?)?;
    ensure!(shown == f64::from(2000 << 20), "{shown}");
    member.stop().await;
    member.start().await;
    let local = member.direct().await.database("local");
    let kept = eventually("it answers", || async {
        sizes(local.run_command(stats.clone()).await?)
    })
    .await;
    ensure!(kept == f64::from(2000 << 20), "{kept}");
    Ok(())
}

/// A reconfiguration to the current configuration with a change.
async fn next(primary: &Process, change: impl FnOnce(&mut Document)) -> Result<Document> {
    let mut config = configuration(primary).await?;
    config.insert("version", config.get_i32("version")? + 1);
    change(&mut config);
    Ok(doc! { "replSetReconfig": config, "maxTimeMS": 20_000 })
}

#[tokio::test]
async fn a_configuration_is_changed_by_mongodbs_rules() -> Result<()> {
    let set = ReplicaSet::start("changes", 3, &[]).await;
    let primary = set.primary().await;
    let (primary, other) = (&set.members[primary], &set.members[(primary + 1) % 3]);
    let nothing = next(primary, |_| {}).await?;
    ensure!(refusal(other, nothing.clone()).await?.0 == 10107);
    let committed = admin(
        primary,
        doc! { "replSetGetConfig": 1, "commitmentStatus": true },
    );
    ensure!(committed.await?.get_bool("commitmentStatus")?);
    let asked = doc! { "replSetGetConfig": 1, "commitmentStatus": true };
    ensure!(refusal(other, asked).await?.0 == 10107);

    let only = primary.host();
    let alone = next(primary, |config| {
        let members = config.get_array_mut("members").expect("there are members");
        members.retain(|member| {
            let member = member.as_document().expect("members are documents");
            member.get_str("host").is_ok_and(|host| host == only)
        });
    });
    let (code, said) = refusal(primary, alone.await?).await?;
    ensure!(
        code == 103 && said.contains("at most 1 voting member"),
        "{said}"
    );
    let settings = next(primary, |config| {
        let settings = config.get_document_mut("settings").expect("settings");
        settings.insert("electionTimeoutMillis", 1500);
        settings.insert("heartbeatIntervalMillis", 150);
        config.insert("writeConcernMajorityJournalDefault", false);
    });
    admin(primary, settings.await?).await?;
    let shown = configuration(primary).await?;
    ensure!(shown.get_i32("version")? == 2, "{shown}");
    ensure!(
        shown
            .get_document("settings")?
            .get_i32("electionTimeoutMillis")?
            == 1500
    );
    ensure!(
        !shown.get_bool("writeConcernMajorityJournalDefault")?,
        "{shown}"
    );
    let status = admin(primary, doc! { "replSetGetStatus": 1 }).await?;
    ensure!(
        status.get_i64("heartbeatIntervalMillis")? == 150,
        "{status}"
    );
    ensure!(states(&status).len() == 3);
    eventually("the others have it", || async {
        let version = configuration(other).await?.get_i32("version")?;
        ensure!(version == 2, "{version}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
    Ok(())
}

/// What a member says of itself, every time it is asked until it's stopped.
async fn watched(member: &Process, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let hello = admin(member, doc! { "hello": 1 }).await?;
        ensure!(hello.contains_key("setName"), "a moment outside: {hello}");
        let status = admin(member, doc! { "replSetGetStatus": 1 }).await?;
        ensure!(!states(&status).contains(&10), "REMOVED: {status}");
    }
    Ok(())
}

#[tokio::test]
async fn members_get_other_names() -> Result<()> {
    let mut set = ReplicaSet::start("named", 3, &[]).await;
    let stop = AtomicBool::new(false);
    let renaming = async {
        // One after the other, and then all at once.
        for names in [
            &["localhost", "127.0.0.1", "127.0.0.1"],
            &["127.0.0.1", "localhost", "localhost"],
        ] {
            let primary = &set.members[set.primary().await];
            let change = next(primary, |config| {
                let members = config.get_array_mut("members").expect("there are members");
                for ((listed, member), name) in members.iter_mut().zip(&set.members).zip(names) {
                    let listed = listed.as_document_mut().expect("members are documents");
                    listed.insert("host", format!("{name}:{}", member.port));
                }
            });
            admin(primary, change.await?).await?;
            for (member, name) in set.members.iter().zip(names) {
                eventually("it knows its name", || async {
                    let hello = admin(member, doc! { "hello": 1 }).await?;
                    ensure!(hello.get_str("me")? == format!("{name}:{}", member.port));
                    ensure!(hello.contains_key("primary"), "{hello}");
                    Ok::<_, anyhow::Error>(())
                })
                .await;
            }
            insert(&set.members[set.primary().await], names[0]).await?;
        }
        stop.store(true, Ordering::Relaxed);
        Ok(())
    };
    let [a, b, c] = &set.members[..] else {
        bail!("three members")
    };
    tokio::try_join!(
        renaming,
        watched(a, &stop),
        watched(b, &stop),
        watched(c, &stop)
    )?;

    // The group goes by the new names, too.
    let lost = set.primary().await;
    set.members[lost].kill();
    insert(&set.members[set.primary().await], "after").await?;
    Ok(())
}

#[tokio::test]
async fn a_vote_counts_once_it_is_given() -> Result<()> {
    let mut set = ReplicaSet::start("votes", 3, &[]).await;
    let led = set.primary().await;
    let host = set.members[(led + 1) % 3].host();
    for votes in [0, 1] {
        let primary = &set.members[led];
        let change = next(primary, |config| {
            let members = config.get_array_mut("members").expect("there are members");
            for listed in members {
                let listed = listed.as_document_mut().expect("members are documents");
                if listed.get_str("host").is_ok_and(|listed| listed == host) {
                    listed.insert("votes", votes);
                    listed.insert("priority", votes);
                }
            }
        });
        admin(primary, change.await?).await?;
    }
    // One that is stopped holds nothing up: the others are a majority.
    let stopped = set.members[(led + 2) % 3].pid();
    let unchanged = next(&set.members[led], |_| {}).await?;
    kill(stopped, Signal::SIGSTOP)?;
    let started = Instant::now();
    let changed = admin(&set.members[led], unchanged).await;
    let took = started.elapsed();
    kill(stopped, Signal::SIGCONT)?;
    changed?;
    ensure!(took < Duration::from_secs(2), "{took:?}");
    // Without the third vote the other one could not be elected, now or later.
    set.members[led].kill();
    insert(&set.members[set.primary().await], "voted").await
}

/// The id of a collection.
pub(crate) async fn uuid_of(database: &mongodb::Database, collection: &str) -> Result<Bson> {
    let listed = doc! { "listCollections": 1, "filter": { "name": collection } };
    let listed = database.run_command(listed).await?;
    let batch = listed.get_document("cursor")?.get_array("firstBatch")?;
    let listed = batch[0].as_document().context("the collection")?;
    let uuid = listed.get_document("info")?.get("uuid");
    uuid.cloned().context("its id")
}
