//! Cursors whose next batch is read while the client looks at the one before.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

use banyan_tests::{Launch, Process, within};

/// Some 8 MB: several batches whose size is left to the server.
const COUNT: i32 = 20_000;

async fn filled() -> Result<(Process, Database)> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    let text = "a".repeat(360);
    let document = |n: i32| doc! { "_id": n, "left": COUNT - 1 - n, "text": &text };
    let collection = test.collection::<Document>("c");
    collection.insert_many((0..COUNT).map(document)).await?;
    Ok((mongod, test))
}

/// Where the cursor stands, and the `_id`s of the batch.
fn batch(reply: &Document) -> Result<(i64, Vec<i32>)> {
    let cursor = reply.get_document("cursor")?;
    let batch = cursor
        .get_array("firstBatch")
        .or_else(|_| cursor.get_array("nextBatch"))?;
    let ids = batch.iter().map(|document| {
        let document = document.as_document().context("no document")?;
        Ok(document.get_i32("_id")?)
    });
    Ok((cursor.get_i64("id")?, ids.collect::<Result<_>>()?))
}

fn more(id: i64, size: Option<i32>) -> Document {
    let mut more = doc! { "getMore": id, "collection": "c" };
    more.extend(size.map(|size| ("batchSize".to_owned(), size.into())));
    more
}

fn code(outcome: mongodb::error::Result<Document>) -> Result<i32> {
    match outcome.map_err(|error| *error.kind) {
        Err(ErrorKind::Command(error)) => Ok(error.code),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn each_document_comes_once_whatever_the_batches_are() -> Result<()> {
    let (_mongod, test) = filled().await?;
    // A client that changes its mind, that keeps to a size, and one that leaves it to the server.
    let sizes: [&[Option<i32>]; 4] = [
        &[None],
        &[Some(1_000)],
        &[None, None, Some(3), Some(700), None],
        &[None, Some(5_000), Some(1), Some(5_000)],
    ];
    let finds = [
        doc! { "find": "c" },
        doc! { "find": "c", "limit": 15_000, "skip": 100 },
        doc! { "find": "c", "filter": { "left": { "$gte": 900 } }, "sort": { "left": -1 } },
    ];
    for find in finds {
        let all = test.collection::<Document>("c");
        let skip = find.get_i32("skip").unwrap_or(0);
        let least = if find.contains_key("filter") { 900 } else { 0 };
        let count = all.count_documents(doc! { "left": { "$gte": least } });
        let count = i32::try_from(count.await?)? - skip;
        let count = find
            .get_i32("limit")
            .map_or(count, |limit| limit.min(count));
        for sizes in sizes {
            let mut session = test.client().start_session().await?;
            let mut run = async |command| test.run_command(command).session(&mut session).await;
            let (mut id, mut seen) = batch(&run(find.clone()).await?)?;
            let mut sizes = sizes.iter().cycle();
            while id != 0 {
                let size = sizes.next().copied().flatten();
                let (next, some) = batch(&run(more(id, size)).await?)?;
                if let (Some(size), true) = (size, next != 0) {
                    ensure!(some.len() == usize::try_from(size)?, "{}", some.len());
                }
                seen.extend(some);
                id = next;
            }
            let expected: Vec<i32> = (skip..skip + count).collect();
            ensure!(seen == expected, "{find}: {} of {count}", seen.len());
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_error_comes_with_the_batch_that_has_it() -> Result<()> {
    let (_mongod, test) = filled().await?;
    let quotient = doc! { "$divide": [1, { "$subtract": ["$_id", 9_000] }] };
    let project = doc! { "$project": { "text": 1, "quotient": quotient } };
    let aggregate = doc! { "aggregate": "c", "pipeline": [project], "cursor": {} };
    for sizes in [[None, None], [None, Some(1)]] {
        let mut session = test.client().start_session().await?;
        let mut run = async |command| test.run_command(command).session(&mut session).await;
        let (id, mut seen) = batch(&run(aggregate.clone()).await?)?;
        let mut sizes = sizes.into_iter();
        let refused = loop {
            let size = sizes.next().unwrap_or(Some(400));
            let reply = run(more(id, size)).await;
            match reply {
                Ok(reply) => seen.extend(batch(&reply)?.1),
                Err(_) => break code(reply)?,
            }
        };
        ensure!(refused == 2, "{refused}");
        ensure!(seen.len() > 3_000 && seen.len() <= 9_000);
        ensure!(seen.iter().copied().eq(0..i32::try_from(seen.len())?));
        ensure!(code(run(more(id, None)).await)? == 43, "it is closed");
    }
    Ok(())
}

#[tokio::test]
async fn a_cursor_that_is_killed_is_gone_whoever_reads() -> Result<()> {
    let (mongod, test) = filled().await?;
    let mut session = test.client().start_session().await?;
    let mut run = async |command| test.run_command(command).session(&mut session).await;
    for _ in 0..20 {
        let (id, _) = batch(&run(doc! { "find": "c" }).await?)?;
        ensure!(batch(&run(more(id, None)).await?)?.0 == id);
        // The driver takes no session for it.
        let kill = doc! { "killCursors": "c", "cursors": [id] };
        let reply = test.run_command(kill).await?;
        ensure!(reply.get_array("cursorsKilled")?.len() == 1, "{reply}");
        ensure!(code(run(more(id, None)).await)? == 43);
    }
    let admin = mongod.direct().await.database("admin");
    within(Duration::from_secs(20), "no cursor", || async {
        let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
        let cursors = status.get_document("metrics")?.get_document("cursor")?;
        let open = cursors.get_document("open")?;
        ensure!(open.get_i64("total")? == 0, "{open}");
        anyhow::Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_slow_filter_is_waited_for() -> Result<()> {
    let (_mongod, test) = filled().await?;
    // Each batch passes over most of the collection.
    let some = doc! { "$match": { "$expr": { "$eq": [{ "$mod": ["$_id", 40] }, 0] } } };
    let own = doc! { "$set": { "text": { "$concat": ["$text", "$text", "$text"] } } };
    let aggregate = doc! {
        "aggregate": "c", "pipeline": [some, own], "cursor": { "batchSize": 90 },
    };
    let mut session = test.client().start_session().await?;
    let mut run = async |command| test.run_command(command).session(&mut session).await;
    let (mut id, mut seen) = batch(&run(aggregate).await?)?;
    while id != 0 {
        let (next, some) = batch(&run(more(id, Some(90))).await?)?;
        seen.extend(some);
        id = next;
    }
    let expected: Vec<i32> = (0..COUNT).step_by(40).collect();
    ensure!(seen == expected, "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn of_a_collection_that_was_dropped_nothing_is_handed_out() -> Result<()> {
    let finds = [
        doc! { "find": "c", "batchSize": 100 },
        doc! { "find": "c", "sort": { "left": 1 }, "batchSize": 100 },
    ];
    for find in finds {
        let (_mongod, test) = filled().await?;
        let mut session = test.client().start_session().await?;
        let mut run = async |command| test.run_command(command).session(&mut session).await;
        let (id, _) = batch(&run(find).await?)?;
        // From here on batches are read ahead.
        ensure!(batch(&run(more(id, Some(500))).await?)?.1.len() == 500);
        ensure!(batch(&run(more(id, Some(500))).await?)?.1.len() == 500);
        run(doc! { "drop": "c" }).await?;
        ensure!(code(run(more(id, Some(500))).await)? == 175);
        ensure!(code(run(more(id, Some(500))).await)? == 43, "it is closed");
    }
    Ok(())
}
