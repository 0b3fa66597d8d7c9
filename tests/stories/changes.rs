//! Change streams and the oplog, as drivers see them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually, within};
use bson::{Document, Timestamp, doc};
use futures::TryStreamExt;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::options::{FullDocumentBeforeChangeType, FullDocumentType};
use mongodb::{Client, Collection};

type Stream = ChangeStream<ChangeStreamEvent<Document>>;

/// The next event; none within a while is an error.
async fn next(stream: &mut Stream) -> Result<ChangeStreamEvent<Document>> {
    let waited = tokio::time::timeout(Duration::from_secs(30), stream.try_next()).await;
    waited
        .context("no event came")??
        .context("the stream ended")
}

/// The code of a command's error.
fn code(error: &mongodb::error::Error) -> Option<i32> {
    let reply = Document::try_from(error.server_response()?.as_ref()).ok()?;
    reply.get_i32("code").ok()
}

async fn code_of(client: &Client, database: &str, command: Document) -> Result<i32> {
    match client.database(database).run_command(command.clone()).await {
        Ok(reply) => bail!("{command} succeeded: {reply}"),
        Err(error) => code(&error).with_context(|| format!("{command}: {error}")),
    }
}

fn watch(options: Document) -> Document {
    doc! { "aggregate": "posts", "pipeline": [{ "$changeStream": options }], "cursor": {} }
}

/// An event that fits into no document comes in fragments, and a stream goes on behind any of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_event_comes_in_fragments() -> Result<()> {
    const LARGE: usize = (16 << 20) - 1024;
    const TOO_LARGE: i32 = 10_334;
    let set = ReplicaSet::start("split", 1, &[]).await;
    let database = set.client().await.database("test");
    let images = doc! { "enabled": true };
    database
        .run_command(doc! { "create": "posts", "changeStreamPreAndPostImages": images })
        .await?;
    let posts = database.collection::<Document>("posts");
    let text = |letter: &str| letter.repeat(LARGE);
    posts
        .insert_one(doc! { "_id": 1, "text": text("a") })
        .await?;
    let since = database.run_command(doc! { "ping": 1 }).await?;
    let since = since.get_timestamp("operationTime")?;
    posts
        .update_one(doc! { "_id": 1 }, doc! { "$set": { "text": text("b") } })
        .await?;
    posts.insert_one(doc! { "_id": 2 }).await?;

    // The rest of the events, each with the fields that it has.
    let database = &database;
    let read = |start: Document, splits: bool| async move {
        let mut stage = doc! { "fullDocument": "required", "fullDocumentBeforeChange": "required" };
        stage.extend(start);
        let mut pipeline = vec![doc! { "$changeStream": stage }];
        if splits {
            pipeline.push(doc! { "$changeStreamSplitLargeEvent": {} });
        }
        let command =
            doc! { "aggregate": "posts", "pipeline": pipeline, "cursor": { "batchSize": 0 } };
        let mut session = database.client().start_session().await?;
        let reply = database.run_command(command).session(&mut session).await?;
        let id = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_i64("id"));
        let id = id.unwrap_or_default();
        let mut events: Vec<Document> = Vec::new();
        while events
            .last()
            .is_none_or(|last| last.contains_key("splitEvent"))
        {
            let more = doc! { "getMore": id, "collection": "posts", "maxTimeMS": 1000 };
            let reply = database.run_command(more).session(&mut session).await?;
            let cursor = reply.get_document("cursor").cloned().unwrap_or_default();
            for event in cursor.get_array("nextBatch").into_iter().flatten() {
                events.extend(event.as_document().cloned());
            }
        }
        Ok::<_, mongodb::error::Error>(events)
    };
    let begin = doc! { "startAtOperationTime": Timestamp { time: since.time, increment: since.increment + 1 } };
    let refused = read(begin.clone(), false).await.unwrap_err();
    ensure!(code(&refused) == Some(TOO_LARGE), "{refused}");
    let all = read(begin, true).await?;
    let fields: Vec<Vec<String>> = all
        .iter()
        .map(|event| event.keys().cloned().collect())
        .collect();
    ensure!(all.len() == 4, "{fields:?}");
    ensure!(
        fields[0].last().is_some_and(|last| last == "fullDocument"),
        "{fields:?}"
    );
    ensure!(
        fields[1] == ["_id", "splitEvent", "fullDocumentBeforeChange"],
        "{fields:?}"
    );
    ensure!(
        fields[2] == ["_id", "splitEvent", "updateDescription"],
        "{fields:?}"
    );
    ensure!(all[2].get_document("splitEvent")? == &doc! { "fragment": 3, "of": 3 });
    for seen in 0..3 {
        let token = all[seen].get_document("_id")?.clone();
        let rest = read(doc! { "resumeAfter": token.clone() }, true).await?;
        ensure!(rest == all[seen + 1..], "behind fragment {seen}");
        let refused = read(doc! { "resumeAfter": token }, false)
            .await
            .unwrap_err();
        ensure!(code(&refused) == Some(280), "{refused}");
    }
    let misplaced = doc! { "aggregate": "posts", "cursor": {}, "pipeline": [
        { "$changeStreamSplitLargeEvent": {} },
    ] };
    ensure!(code_of(&set.client().await, "test", misplaced).await? == 20);
    Ok(())
}

const INSERTS: i32 = 400;

/// Inserts numbers one after another, each until it is acknowledged.
async fn insert_numbers(client: Client) -> Result<()> {
    let posts = client.database("test").collection::<Document>("posts");
    for number in 0..INSERTS {
        within(Duration::from_secs(60), "an insert", || async {
            match posts.insert_one(doc! { "_id": number }).await {
                // It was there, and only its acknowledgement was lost.
                Err(error) if error.to_string().contains("E11000") => Ok(()),
                outcome => outcome.map(drop),
            }
        })
        .await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_outlives_its_primary() -> Result<()> {
    let mut set = ReplicaSet::start("changes", 3, &[]).await;
    let client = set.client().await;
    let posts = client.database("test").collection::<Document>("posts");
    let mut stream: Stream = posts.watch().await?;
    let writer = tokio::spawn(insert_numbers(set.client().await));
    let mut killed = false;
    for number in 0..INSERTS {
        if number == INSERTS / 4 && !killed {
            let primary = set.primary().await;
            set.members[primary].kill();
            killed = true;
        }
        let event = next(&mut stream).await?;
        let key = event.document_key.context("an insert has a key")?;
        ensure!(
            event.operation_type == OperationType::Insert && key.get_i32("_id")? == number,
            "{number} was expected, {key} came"
        );
    }
    writer.await??;
    ensure!(killed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_say_what_has_changed() -> Result<()> {
    let set = ReplicaSet::start("changes", 1, &[]).await;
    let client = set.client().await;
    let database = client.database("test");
    let create = doc! { "create": "posts", "changeStreamPreAndPostImages": { "enabled": true } };
    database.run_command(create).await?;
    let posts = database.collection::<Document>("posts");
    let mut stream: Stream = posts
        .watch()
        .full_document(FullDocumentType::WhenAvailable)
        .full_document_before_change(FullDocumentBeforeChangeType::Required)
        .await?;

    let first = doc! { "_id": 1, "title": "a", "tags": [1, 2, 3], "by": { "name": "x", "age": 5 } };
    posts.insert_one(&first).await?;
    let change = doc! {
        "$set": { "title": "b", "by.age": 6 }, "$unset": { "by.name": 1 }, "$push": { "tags": 4 },
    };
    posts.update_one(doc! { "_id": 1 }, change).await?;
    let second = doc! { "_id": 1, "title": "b", "tags": [1, 2, 3, 4], "by": { "age": 6 } };
    let cut = vec![doc! { "$set": { "tags": { "$slice": ["$tags", 2] } } }];
    posts.update_one(doc! { "_id": 1 }, cut).await?;
    posts
        .replace_one(doc! { "_id": 1 }, doc! { "new": true })
        .await?;
    posts.delete_one(doc! { "_id": 1 }).await?;

    let event = next(&mut stream).await?;
    ensure!(event.operation_type == OperationType::Insert);
    ensure!(event.full_document.as_ref() == Some(&first) && event.wall_time.is_some());
    ensure!(event.full_document_before_change.is_none());

    let event = next(&mut stream).await?;
    ensure!(event.operation_type == OperationType::Update);
    let description = event.update_description.context("an update is described")?;
    let updated = doc! { "title": "b", "by.age": 6, "tags.3": 4 };
    for (name, value) in &updated {
        ensure!(
            description.updated_fields.get(name) == Some(value),
            "{description:?}"
        );
    }
    ensure!(
        description.updated_fields.len() == updated.len(),
        "{description:?}"
    );
    ensure!(description.removed_fields == ["by.name"], "{description:?}");
    ensure!(event.full_document_before_change == Some(first));
    ensure!(event.full_document.as_ref() == Some(&second));

    let event = next(&mut stream).await?;
    let description = event.update_description.context("an update is described")?;
    let truncated = description.truncated_arrays.unwrap_or_default();
    ensure!(truncated.len() == 1, "{truncated:?}");
    ensure!(truncated[0].field == "tags" && truncated[0].new_size == 2);

    let event = next(&mut stream).await?;
    ensure!(event.operation_type == OperationType::Replace);
    ensure!(event.full_document == Some(doc! { "_id": 1, "new": true }));
    let event = next(&mut stream).await?;
    ensure!(event.operation_type == OperationType::Delete);
    let before = event.full_document_before_change;
    ensure!(before == Some(doc! { "_id": 1, "new": true }));

    // The end of the collection is the end of its stream, and another begins behind it.
    posts.drop().await?;
    posts.insert_one(doc! { "_id": 2 }).await?;
    let event = next(&mut stream).await?;
    ensure!(event.operation_type == OperationType::Drop);
    let event = next(&mut stream).await?;
    ensure!(event.operation_type == OperationType::Invalidate);
    ensure!(stream.try_next().await?.is_none() && !stream.is_alive());
    let refused = posts.watch().resume_after(event.id.clone()).await;
    ensure!(refused.err().and_then(|error| code(&error)) == Some(260));
    let mut stream: Stream = posts.watch().start_after(event.id).await?;
    let event = next(&mut stream).await?;
    ensure!(event.full_document == Some(doc! { "_id": 2 }));

    // This one keeps no images.
    let token = event.id;
    posts
        .update_one(doc! { "_id": 2 }, doc! { "$set": { "a": 1 } })
        .await?;
    let required = doc! {
        "resumeAfter": bson::serialize_to_document(&token)?, "fullDocumentBeforeChange": "required",
    };
    ensure!(code_of(&client, "test", watch(required)).await? == 47);
    Ok(())
}

/// Waits until an idle stream's token has moved past one. The server does the waiting.
async fn moved(stream: &mut Stream, from: &ResumeToken) -> Result<ResumeToken> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if let Some(event) = stream.next_if_any().await? {
            bail!("an event: {event:?}");
        }
        let token = stream.resume_token().context("a stream has a token")?;
        if token != *from {
            return Ok(token);
        }
    }
    bail!("the token stays {from:?}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_stream_moves_on() -> Result<()> {
    let set = ReplicaSet::start("changes", 2, &[]).await;
    let client = set.client().await;
    let database = client.database("test");
    let posts = database.collection::<Document>("posts");
    let mut stream: Stream = posts.watch().await?;
    let first = stream.resume_token().context("a token from the start")?;
    let others = database.collection::<Document>("others");
    others.insert_one(doc! { "_id": 1 }).await?;
    let token = moved(&mut stream, &first).await?;
    let text = |token: &ResumeToken| -> Result<String> {
        let document = bson::serialize_to_document(token)?;
        Ok(document.get_str("_data")?.to_owned())
    };
    ensure!(
        text(&token)? > text(&first)?,
        "a token that has not moved: {first:?}, {token:?}"
    );

    // The token serves on the other member, which shows the same events.
    posts
        .insert_many((0..10).map(|number| doc! { "_id": number }))
        .await?;
    let secondary = 1 - set.primary().await;
    let direct = set.members[secondary].direct().await;
    let on_secondary = direct.database("test").collection::<Document>("posts");
    let mut there: Stream = on_secondary.watch().resume_after(token).await?;
    for number in 0..10 {
        let (here, there) = (next(&mut stream).await?, next(&mut there).await?);
        ensure!(here.id == there.id && here.cluster_time == there.cluster_time);
        ensure!(here.document_key == Some(doc! { "_id": number }));
    }

    // A token of one collection is none of another.
    let token = bson::serialize_to_document(&stream.resume_token())?;
    let other = doc! {
        "aggregate": "others", "pipeline": [{ "$changeStream": { "resumeAfter": token } }],
        "cursor": {},
    };
    ensure!(code_of(&client, "test", other).await? == 280);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oplog_is_read_by_time_and_tailed() -> Result<()> {
    let set = ReplicaSet::start("changes", 1, &["--oplogSize", "4"]).await;
    let client = set.client().await;
    let database = client.database("test");
    let posts = database.collection::<Document>("posts");
    let oplog = client.database("local").collection::<Document>("oplog.rs");
    posts
        .insert_many((0..5).map(|number| doc! { "_id": number }))
        .await?;
    // An idle primary writes entries of its own.
    let newest = oplog
        .find_one(doc! { "op": { "$ne": "n" } })
        .sort(doc! { "$natural": -1 })
        .await?
        .context("the newest entry")?;
    ensure!(newest.get_document("o")? == &doc! { "_id": 4 }, "{newest}");
    let start = newest.get_timestamp("ts")?;
    let tail = doc! {
        "find": "oplog.rs", "filter": { "ts": { "$gte": start }, "op": { "$ne": "n" } },
        "tailable": true, "awaitData": true, "oplogReplay": true,
    };
    let local = client.database("local");
    // A cursor belongs to its session, and the driver may take another for each command.
    let mut session = client.start_session().await?;
    let reply = local.run_command(tail).session(&mut session).await?;
    let cursor = reply.get_document("cursor")?;
    ensure!(cursor.get_array("firstBatch")?.len() == 1, "{cursor}");
    let id = cursor.get_i64("id")?;
    let more = doc! { "getMore": id, "collection": "oplog.rs", "maxTimeMS": 10_000 };

    let change = doc! { "$set": { "a.b": 1 } };
    posts.update_one(doc! { "_id": 4 }, change).await?;
    posts
        .delete_many(doc! { "_id": { "$in": [0, 1, 2] } })
        .await?;
    let mut entries = Vec::new();
    while entries.len() < 4 {
        let reply = local
            .run_command(more.clone())
            .session(&mut session)
            .await?;
        let batch = reply.get_document("cursor")?.get_array("nextBatch")?;
        ensure!(!batch.is_empty(), "nothing came");
        entries.extend(batch.iter().filter_map(|e| e.as_document().cloned()));
    }
    let diff = doc! { "$v": 2, "diff": { "i": { "a": { "b": 1 } } } };
    ensure!(entries[0].get_document("o")? == &diff, "{}", entries[0]);
    ensure!(entries[0].get_document("o2")? == &doc! { "_id": 4 });
    let times: Vec<Timestamp> = entries
        .iter()
        .map(|entry| entry.get_timestamp("ts"))
        .collect::<Result<_, _>>()?;
    ensure!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    ensure!(
        entries[1..]
            .iter()
            .all(|entry| entry.get_str("op").is_ok_and(|op| op == "d"))
    );

    // It is read like any collection, and is nobody's to change.
    let kinds = oplog
        .distinct("op", doc! { "ts": { "$gte": start }, "op": { "$ne": "n" } })
        .await?;
    ensure!(kinds == ["d".into(), "i".into(), "u".into()], "{kinds:?}");
    let sorted = doc! { "find": "oplog.rs", "tailable": true, "sort": { "$natural": -1 } };
    ensure!(code_of(&client, "local", sorted).await? == 2);
    ensure!(code_of(&client, "local", doc! { "drop": "oplog.rs" }).await? == 5_255_000);
    let index = doc! { "key": { "ns": 1 }, "name": "ns" };
    let indexes = doc! { "createIndexes": "oplog.rs", "indexes": [index] };
    ensure!(code_of(&client, "local", indexes).await? == 73);
    ensure!(code_of(&client, "local", doc! { "create": "oplog.rs" }).await? == 73);

    // Behind what the log still has, both kinds of followers are told so.
    posts.insert_one(doc! { "_id": 5 }).await?;
    let unread = newest_entry(&client).await?;
    cut_log_past(unread.get_timestamp("ts")?, &posts).await;
    let lost = local.run_command(more).session(&mut session).await;
    ensure!(lost.is_err_and(|error| code(&error) == Some(136)));
    Ok(())
}

/// Writes into a collection until nobody can follow its database from there any more.
async fn cut_log_past(time: Timestamp, filled: &Collection<Document>) {
    let database = filled.client().database(&filled.namespace().db);
    let from_there = watch(doc! { "startAtOperationTime": time });
    let filler = "x".repeat(20_000);
    eventually("the log is cut", || async {
        let documents = (0..100).map(|_| doc! { "filler": &filler });
        filled.insert_many(documents).await?;
        let opened = database.run_command(from_there.clone()).await;
        match opened.err().and_then(|error| code(&error)) {
            Some(286) => Ok(()),
            other => bail!("{other:?}"),
        }
    })
    .await;
}

/// The last entry of a member's log.
async fn newest_entry(client: &Client) -> Result<Document> {
    let oplog = client.database("local").collection::<Document>("oplog.rs");
    let newest = oplog.find_one(doc! {}).sort(doc! { "$natural": -1 });
    newest.await?.context("no entry")
}

/// A member whose log begins where the state that it fetched ends: streams go on there without a
/// gap, or are told that there would be one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_at_a_member_that_has_just_joined() -> Result<()> {
    let short_log = ["--oplogSize", "2"];
    let set = ReplicaSet::start("changes", 1, &short_log).await;
    let client = set.client().await;
    let database = client.database("test");
    let posts = database.collection::<Document>("posts");
    let others = database.collection::<Document>("others");
    posts.insert_one(doc! { "_id": -1 }).await?;
    let mut stream: Stream = posts.watch().await?;
    posts.insert_one(doc! { "_id": 0 }).await?;
    let early = next(&mut stream).await?;
    let begun = early.cluster_time.context("an event has a time")?;
    cut_log_past(begun, &others).await;

    let mut stream: Stream = posts.watch().await?;
    let joining = Launch::mongod()
        .with(["--replSet", "changes"])
        .with(short_log)
        .start()
        .await;
    let admin = client.database("admin");
    let got = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
    let mut config = got.get_document("config")?.clone();
    config.insert("version", config.get_i32("version")? + 1);
    let member = doc! { "_id": 1, "host": joining.host(), "priority": 5 };
    config.get_array_mut("members")?.push(member.into());
    // It leads once it has the state.
    admin
        .run_command(doc! { "replSetReconfig": config })
        .await?;
    let direct = joining.direct().await;
    eventually("the other member leads", || async {
        let hello = direct
            .database("admin")
            .run_command(doc! { "hello": 1 })
            .await?;
        ensure!(hello.get_bool("isWritablePrimary")?, "{hello}");
        anyhow::Ok(())
    })
    .await;
    for number in 1..20 {
        posts.insert_one(doc! { "_id": number }).await?;
    }
    for number in 1..20 {
        let event = next(&mut stream).await?;
        ensure!(
            event.document_key == Some(doc! { "_id": number }),
            "{event:?}"
        );
    }

    // Its log has a beginning, of which no more than the time is known, and says who leads.
    let oplog = direct.database("local").collection::<Document>("oplog.rs");
    let first = oplog.find_one(doc! {}).await?.context("a first entry")?;
    ensure!(
        first.get_str("op")? == "n" && first.get_i64("t")? > 0,
        "{first}"
    );
    let begins = first.get_timestamp("ts")?;
    let at = oplog.find_one(doc! { "ts": { "$gte": begins } }).await?;
    ensure!(at.as_ref() == Some(&first), "{at:?}");
    let last = newest_entry(&direct).await?;
    let lead = oplog.find_one(doc! { "o.msg": "new primary" }).await?;
    let lead = lead.context("a new primary says so")?;
    ensure!(lead.get_i64("t")? == last.get_i64("t")? && lead.get_i64("t")? > first.get_i64("t")?);
    let there = direct.database("test");
    for (time, lost) in [
        (begins, true),
        (
            Timestamp {
                increment: begins.increment + 1,
                ..begins
            },
            false,
        ),
    ] {
        let opened = there
            .run_command(watch(doc! { "startAtOperationTime": time }))
            .await;
        let refused = opened.err().and_then(|error| code(&error));
        ensure!(refused == lost.then_some(286), "{time}: {refused:?}");
    }
    let resume = doc! { "resumeAfter": bson::serialize_to_document(&early.id)? };
    ensure!(code_of(&direct, "test", watch(resume)).await? == 286);
    Ok(())
}

/// The last event before a fetched state is no longer in the log of who fetched it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_may_name_what_lies_right_before_the_log() -> Result<()> {
    let mut set = ReplicaSet::start("changes", 3, &["--oplogSize", "2"]).await;
    let client = set.client().await;
    let database = client.database("test");
    let posts = database.collection::<Document>("posts");
    let others = database.collection::<Document>("others");
    let away = (set.primary().await + 1) % 3;
    let mut stream: Stream = posts.watch().await?;
    set.members[away].kill();
    posts.insert_one(doc! { "_id": 0 }).await?;
    let early = next(&mut stream).await?;
    let begun = early.cluster_time.context("an event has a time")?;
    cut_log_past(begun, &others).await;
    let mut stream: Stream = posts.watch().await?;
    posts.insert_one(doc! { "_id": 1 }).await?;
    let last = next(&mut stream).await?;
    set.members[away].start().await;
    let direct = set.members[away].direct().await;
    eventually("the state is fetched", || async {
        let newest = newest_entry(&direct).await?;
        let time = last.cluster_time.context("an event has a time")?;
        ensure!(newest.get_timestamp("ts")? == time, "{newest}");
        ensure!(
            newest.get_str("op")? == "n",
            "the log was not cut: {newest}"
        );
        // It says so before it answers anything else.
        let read = direct.database("test").collection::<Document>("posts");
        read.find_one(doc! {}).await?.context("no data")?;
        anyhow::Ok(())
    })
    .await;

    let there = direct.database("test");
    let resume = doc! { "resumeAfter": bson::serialize_to_document(&last.id)? };
    let mut other = watch(resume.clone());
    other.insert("aggregate", "others");
    ensure!(code_of(&direct, "test", other.clone()).await? == 286);
    other.insert("aggregate", 1);
    there.run_command(other).await?;
    let mut there: Stream = there
        .collection::<Document>("posts")
        .watch()
        .resume_after(last.id)
        .await?;
    posts.insert_one(doc! { "_id": 2 }).await?;
    let (event, here) = (next(&mut there).await?, next(&mut stream).await?);
    ensure!(event.id == here.id && event.document_key == Some(doc! { "_id": 2 }));

    // Who lags behind waits for what a token names.
    let admin = client.database("admin");
    let got = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
    let mut config = got.get_document("config")?.clone();
    config.insert("version", config.get_i32("version")? + 1);
    let members = config.get_array_mut("members")?;
    let host = set.members[away].host();
    let delayed = members
        .iter_mut()
        .filter_map(|member| member.as_document_mut());
    let delayed = delayed.filter(|member| member.get_str("host").is_ok_and(|own| own == host));
    for member in delayed {
        member.extend(doc! { "priority": 0, "hidden": true, "secondaryDelaySecs": 2 });
    }
    admin
        .run_command(doc! { "replSetReconfig": config })
        .await?;
    posts
        .insert_many((3..6).map(|number| doc! { "_id": number }))
        .await?;
    let named = next(&mut stream).await?;
    let lagging = direct.database("test").collection::<Document>("posts");
    let mut there: Stream = lagging.watch().resume_after(named.id).await?;
    ensure!(
        lagging.find_one(doc! { "_id": 3 }).await?.is_none(),
        "it does not lag"
    );
    let event = next(&mut there).await?;
    ensure!(event.document_key == Some(doc! { "_id": 4 }), "{event:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_open_on_replica_sets_alone() -> Result<()> {
    let standalone = Launch::mongod().start().await;
    let client = standalone.direct().await;
    ensure!(code_of(&client, "test", watch(doc! {})).await? == 40573);
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start(shape).await;
    let client = cluster.client().await;
    ensure!(code_of(&client, "test", watch(doc! {})).await? == 238);
    Ok(())
}
