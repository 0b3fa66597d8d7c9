//! Indexes that are built while documents are written: nobody waits long, and what comes out is exact
//! on every member, whoever dies or changes his mind meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};
use tokio::task::JoinHandle;

const INTERRUPTED: i32 = 11601;
const INDEX_BUILD_ABORTED: i32 = 276;
const DUPLICATE_KEY: i32 = 11000;
const BUILD_IN_PROGRESS: i32 = 12587;
const CANNOT_INDEX_PARALLEL_ARRAYS: i32 = 171;

/// What a writer may wait on a loaded machine, with programs that are not optimised. A build that
/// held writers off would take longer than that.
const WAIT_MAX: Duration = Duration::from_millis(2500);

fn code<T: std::fmt::Debug>(outcome: mongodb::error::Result<T>) -> Result<i32> {
    match outcome {
        Ok(reply) => bail!("it was done: {reply:?}"),
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            other => bail!("{other}"),
        },
    }
}

/// Documents with a field of each sort that is indexed here.
async fn fill(test: &Database, collection: &str, documents: i32) -> Result<()> {
    let posts = test.collection::<Document>(collection);
    for start in (0..documents).step_by(1000) {
        let batch = (start..documents.min(start + 1000)).map(post);
        posts.insert_many(batch).await?;
    }
    Ok(())
}

fn post(n: i32) -> Document {
    doc! { "_id": n, "n": n % 97, "u": n, "tags": [n % 7, n % 11], "text": format!("post {n}") }
}

async fn indexes(test: &Database) -> Result<Vec<Document>> {
    let command = doc! { "listIndexes": "posts", "includeBuildUUIDs": true };
    let listed = test.run_command(command).await?;
    let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
    Ok(listed
        .iter()
        .filter_map(|index| index.as_document().cloned())
        .collect())
}

/// Waits until the list of indexes shows one that is being built.
async fn under_way(test: &Database) {
    eventually("an index is being built", || async {
        let listed = indexes(test).await?;
        match listed.iter().any(|index| index.contains_key("buildUUID")) {
            true => Ok(()),
            false => bail!("{listed:?}"),
        }
    })
    .await;
}

/// Every member has these indexes and no other, exactly.
async fn exact_everywhere(set: &ReplicaSet, names: &[&str]) {
    for member in &set.members {
        exact(&member.direct().await.database("test"), names).await;
    }
}

async fn exact(test: &Database, names: &[&str]) {
    eventually("the indexes are there", || async {
        let listed = indexes(test).await?;
        let mut found: Vec<&str> = listed
            .iter()
            .filter_map(|i| i.get_str("name").ok())
            .collect();
        found.sort_unstable();
        ensure!(found == names, "{found:?}");
        ensure!(listed.len() == names.len(), "{listed:?}");
        let validated = test.run_command(doc! { "validate": "posts" }).await?;
        ensure!(validated.get_bool("valid")?, "{validated}");
        Ok(())
    })
    .await;
}

fn creating(test: &Database, command: Document) -> JoinHandle<mongodb::error::Result<Document>> {
    let test = test.clone();
    tokio::spawn(async move { test.run_command(command).await })
}

/// Writes until it is told to end; the longest that a write took, and how many there were.
fn writer(
    client: &Client,
    collection: &'static str,
    own: i32,
    end: &Arc<AtomicBool>,
) -> JoinHandle<Result<(Duration, usize)>> {
    let posts = client.database("test").collection::<Document>(collection);
    let end = end.clone();
    tokio::spawn(async move {
        let (mut longest, mut count) = (Duration::ZERO, 0);
        for round in 0.. {
            if end.load(Ordering::Relaxed) {
                break;
            }
            let began = Instant::now();
            let id = own * 1_000_000 + round / 4;
            match round % 4 {
                0 => drop(posts.insert_one(post(id)).await?),
                1 => {
                    let change = doc! { "$set": { "n": round, "tags": [round % 5, 1, 2] } };
                    posts.update_one(doc! { "_id": id }, change).await?;
                }
                2 => {
                    // One of those that were there before.
                    let change = doc! { "$set": { "n": -round, "tags": "none" } };
                    let old = doc! { "_id": (round * 31 + own) % 3000 };
                    posts.update_one(old, change).await?;
                }
                _ => {
                    let gone = doc! { "_id": 3000 + (round * 7 + own) % 3000 };
                    posts.delete_one(gone).await?;
                }
            }
            longest = longest.max(began.elapsed());
            count += 1;
        }
        Ok((longest, count))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_while_indexes_are_built_on_every_member() -> Result<()> {
    let set = ReplicaSet::start("set", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    fill(&test, "posts", 20_000).await?;
    fill(&test, "others", 10).await?;
    let end = Arc::new(AtomicBool::new(false));
    let writers = [
        writer(&client, "posts", 1, &end),
        writer(&client, "posts", 2, &end),
        writer(&client, "others", 3, &end),
    ];
    let command = doc! { "createIndexes": "posts", "indexes": [
        { "key": { "n": 1, "_id": -1 }, "name": "n" },
        { "key": { "tags": 1 }, "name": "tags" },
        { "key": { "u": 1 }, "name": "u", "unique": true },
        {
            "key": { "text": 1 },
            "name": "some",
            "partialFilterExpression": { "n": { "$gt": 50 } },
        },
    ] };
    let reply = test.run_command(command).await?;
    ensure!(reply.get_i32("numIndexesBefore")? == 1, "{reply}");
    ensure!(reply.get_i32("numIndexesAfter")? == 5, "{reply}");
    end.store(true, Ordering::Relaxed);
    for writer in writers {
        let (longest, count) = writer.await??;
        ensure!(
            count > 0 && longest < WAIT_MAX,
            "{longest:?} in {count} writes"
        );
    }
    exact_everywhere(&set, &["_id_", "n", "some", "tags", "u"]).await;
    // From here on the unique index refuses.
    let twice = test.collection::<Document>("posts");
    let outcome = twice.insert_one(doc! { "_id": "twice", "u": 7 }).await;
    ensure!(outcome.is_err_and(|error| error.to_string().contains("E11000")));
    let hinted = doc! { "count": "posts", "query": { "tags": 3 }, "hint": "tags" };
    let counted = test.run_command(hinted).await?.get_i32("n")?;
    let scanned = doc! { "count": "posts", "query": { "tags": 3 }, "hint": { "$natural": 1 } };
    assert_eq!(counted, test.run_command(scanned).await?.get_i32("n")?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_index_can_hold_aborts_its_build_everywhere() -> Result<()> {
    let set = ReplicaSet::start("set", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    fill(&test, "posts", 3_000).await?;
    let posts = test.collection::<Document>("posts");
    posts.insert_one(doc! { "_id": "twin", "u": 1234 }).await?;
    posts
        .insert_one(doc! { "_id": "parallel", "u": -1, "a": [1, 2], "b": [3, 4] })
        .await?;
    let build = |key: Document, unique: bool| {
        let index = doc! { "key": key, "name": "i", "unique": unique };
        test.run_command(doc! { "createIndexes": "posts", "indexes": [index] })
    };
    let refused = build(doc! { "u": 1 }, true).await;
    let told = format!("{refused:?}");
    ensure!(told.contains("dup key: { u: 1234 }"), "{told}");
    assert_eq!(code(refused)?, DUPLICATE_KEY);
    let refused = build(doc! { "a": 1, "b": 1 }, false).await;
    assert_eq!(code(refused)?, CANNOT_INDEX_PARALLEL_ARRAYS);
    exact_everywhere(&set, &["_id_"]).await;
    // What stood against it is gone.
    posts.delete_one(doc! { "_id": "twin" }).await?;
    build(doc! { "u": 1 }, true).await?;
    exact_everywhere(&set, &["_id_", "i"]).await;
    Ok(())
}

/// The operations that `currentOp` shows for builds themselves.
async fn operations(client: &Client) -> Result<Vec<Document>> {
    let command = doc! { "currentOp": 1, "desc": "IndexBuildsCoordinatorMongod" };
    let shown = client.database("admin").run_command(command).await?;
    let shown = shown.get_array("inprog")?;
    Ok(shown
        .iter()
        .filter_map(|operation| operation.as_document().cloned())
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_waits_for_a_member_is_seen_dropped_killed_and_at_last_committed() -> Result<()>
{
    let mut set = ReplicaSet::start("set", 3, &[]).await;
    let primary = set.primary().await;
    let away = (primary + 1) % 3;
    let client = set.members[primary].direct().await;
    let test = client.database("test");
    fill(&test, "posts", 500).await?;
    set.members[away].kill();
    let command = doc! {
        "createIndexes": "posts",
        "indexes": [{ "key": { "n": 1 }, "name": "n" }],
        "commitQuorum": 3,
    };

    let build = creating(&test, command.clone());
    under_way(&test).await;
    eventually("it waits for its quorum", || async {
        let shown = operations(&client).await?;
        let first = shown.first().context("none is shown")?;
        let message = first.get_str("msg")?;
        ensure!(message.contains("commit quorum"), "{first}");
        ensure!(first.get_str("ns")? == "test.posts", "{first}");
        Ok(())
    })
    .await;
    let hinted = doc! { "find": "posts", "filter": { "n": 5 }, "hint": "n" };
    ensure!(test.run_command(hinted).await.is_err(), "it was used");
    let explained = doc! { "explain": { "find": "posts", "filter": { "n": 5 } } };
    let explained = test.run_command(explained).await?;
    ensure!(!explained.to_string().contains("IXSCAN"), "{explained}");
    let rename = doc! { "renameCollection": "test.posts", "to": "test.renamed" };
    let renamed = client.database("admin").run_command(rename).await;
    assert_eq!(code(renamed)?, BUILD_IN_PROGRESS);
    // Who asks for the same waits for the same.
    let joined = creating(&test, command.clone());
    eventually("both wait", || async {
        let shown = doc! { "currentOp": 1, "command.createIndexes": "posts" };
        let shown = client.database("admin").run_command(shown).await?;
        let shown = shown.get_array("inprog")?;
        // The two, and the build itself.
        ensure!(shown.len() == 3, "{shown:?}");
        Ok(())
    })
    .await;
    test.run_command(doc! { "dropIndexes": "posts", "index": "n" })
        .await?;
    assert_eq!(code(build.await?)?, INDEX_BUILD_ABORTED);
    assert_eq!(code(joined.await?)?, INDEX_BUILD_ABORTED);

    let build = creating(&test, command.clone());
    under_way(&test).await;
    for shown in operations(&client).await? {
        let kill = doc! { "killOp": 1, "op": shown.get_i32("opid")? };
        client.database("admin").run_command(kill).await?;
    }
    assert_eq!(code(build.await?)?, INTERRUPTED);

    // The command's own time is over.
    let mut short = command.clone();
    short.insert("maxTimeMS", 1500);
    assert_eq!(code(test.run_command(short).await)?, 50);
    eventually("nothing is left of them", || async {
        let listed = indexes(&test).await?;
        ensure!(listed.len() == 1, "{listed:?}");
        Ok(())
    })
    .await;

    let build = creating(&test, command);
    under_way(&test).await;
    set.members[away].start().await;
    build.await??;
    exact_everywhere(&set, &["_id_", "n"]).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_outlives_its_primary() -> Result<()> {
    let mut set = ReplicaSet::start("set", 3, &[]).await;
    let primary = set.primary().await;
    let away = (primary + 1) % 3;
    let client = set.members[primary].direct().await;
    let test = client.database("test");
    fill(&test, "posts", 2_000).await?;
    set.members[away].kill();
    let build = creating(
        &test,
        doc! {
            "createIndexes": "posts",
            "indexes": [
                { "key": { "tags": 1 }, "name": "tags" },
                { "key": { "u": 1 }, "name": "u", "unique": true },
            ],
            "commitQuorum": "votingMembers",
        },
    );
    under_way(&test).await;
    set.members[primary].kill();
    ensure!(build.await?.is_err(), "nobody can have answered");
    set.members[away].start().await;
    // Whoever leads now has the others' votes but that of the one who is gone.
    let other = set.client().await.database("test");
    eventually("writes go on", || async {
        let late = doc! { "_id": "late", "u": "late", "tags": ["x", "y"] };
        let change = doc! { "$set": late };
        let posts = other.collection::<Document>("posts");
        let written = posts
            .update_one(doc! { "_id": "late" }, change)
            .upsert(true)
            .await?;
        ensure!(written.upserted_id == Some(Bson::from("late")) || written.matched_count == 1);
        anyhow::Ok(())
    })
    .await;
    under_way(&other).await;
    set.members[primary].start().await;
    exact_everywhere(&set, &["_id_", "tags", "u"]).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_a_crash_interrupts_is_finished_after_the_start() -> Result<()> {
    // In the midst of putting keys into the index that is unique, and between taking up the tables
    // of the other one and putting right what has been written meanwhile.
    for place in ["index-part:6", "index-tables:1"] {
        finished_after_a_crash_at(place).await?;
    }
    Ok(())
}

async fn finished_after_a_crash_at(place: &str) -> Result<()> {
    let mut server: Process = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    fill(&test, "posts", 4_000).await?;
    server.stop().await;
    server.set_variable("BANYAN_CRASH", Some(place.to_owned()));
    server.start().await;
    let command = doc! { "createIndexes": "posts", "indexes": [
        { "key": { "n": 1 }, "name": "n" },
        { "key": { "u": 1 }, "name": "u", "unique": true },
    ] };
    let refused = server
        .direct()
        .await
        .database("test")
        .run_command(command)
        .await;
    ensure!(refused.is_err(), "it was to die: {refused:?}");
    server.ended().await;
    server.set_variable("BANYAN_CRASH", None);
    server.start().await;
    exact(&server.direct().await.database("test"), &["_id_", "n", "u"]).await;
    Ok(())
}
