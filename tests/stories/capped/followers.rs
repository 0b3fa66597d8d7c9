//! Several writers, and who follows them.

use std::time::Duration;

use anyhow::{Result, ensure};
use banyan_tests::ReplicaSet;
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::Collection;
use mongodb::options::{CursorType, ReadPreference, SelectionCriteria};

use super::{ids, make, members_agree, validate};

/// Several write at once and share rounds of the log. Whoever follows sees everything in one order,
/// that of the collection, from wherever and whenever; no limit is overstepped; and what was acknowledged
/// is there after the primary was killed in between.
#[tokio::test]
async fn who_follows_many_writers_misses_nothing() -> Result<()> {
    const WRITERS: i32 = 8;
    const EACH: i32 = 60;
    let mut set = ReplicaSet::start("capped", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    let log = make(&test, "log", doc! { "size": 16 << 20 }).await?;
    let few = make(&test, "few", doc! { "size": 1 << 20, "max": 3 }).await?;
    log.insert_one(doc! { "writer": -1, "n": 0 }).await?;
    let primary = set.primary().await;
    let total = (WRITERS * EACH) as usize + 1;
    let followers: Vec<_> = [(primary, 0), (primary, 1), ((primary + 1) % 3, 2)]
        .into_iter()
        .map(|(member, batch)| {
            let uri = set.members[member].uri();
            tokio::spawn(follow(uri, batch, total))
        })
        .collect();
    let write = |writer: i32| {
        let (log, few) = (log.clone(), few.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while n < EACH {
                // One by one, and a few at once.
                let many = if n % 10 == 0 { 4 } else { 1 };
                let documents = (n..n + many).map(|n| doc! { "writer": writer, "n": n });
                log.insert_many(documents).await?;
                few.insert_one(doc! { "writer": writer, "n": n }).await?;
                n += many;
            }
            anyhow::Ok(())
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(write).collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let there = few.find(doc! {}).await?;
        let there: Vec<Document> = there.try_collect().await?;
        ensure!(there.len() <= 3, "{there:?}");
    }
    for writer in writers {
        writer.await??;
    }
    let order = order_of(&log).await?;
    ensure!(order.len() == total, "{} of {total}", order.len());
    for follower in followers {
        ensure!(follower.await?? == order, "another order");
    }
    ensure!(few.count_documents(doc! {}).await? == 3);
    members_agree(&set, "log").await?;
    members_agree(&set, "few").await?;

    // They go on while the primary is killed, one statement after the other, each repeated once.
    let before = order.len();
    let again: Vec<_> = (WRITERS..2 * WRITERS).map(write).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let primary = set.primary().await;
    set.members[primary].kill();
    for writer in again {
        writer.await??;
    }
    set.members[primary].start().await;
    set.settled().await;
    let order = order_of(&log).await?;
    ensure!(order.len() == before + total - 1, "{}", order.len());
    for writer in 0..2 * WRITERS {
        let of_writer = order.iter().filter(|(by, _)| *by == writer);
        let numbers: Vec<_> = of_writer.map(|(_, n)| *n).collect();
        ensure!(numbers == (0..EACH).collect::<Vec<_>>(), "{numbers:?}");
    }
    for n in 0..3 {
        few.insert_one(doc! { "_id": n }).await?;
    }
    ensure!(ids(&few, 1).await? == [0, 1, 2]);
    ensure!(validate(&test, "few").await? == 3);
    members_agree(&set, "log").await?;
    members_agree(&set, "few").await
}

/// Who wrote what, in the order of the collection.
async fn order_of(log: &Collection<Document>) -> Result<Vec<(i32, i32)>> {
    let found: Vec<Document> = log.find(doc! {}).await?.try_collect().await?;
    found.iter().map(written).collect()
}

fn written(document: &Document) -> Result<(i32, i32)> {
    Ok((document.get_i32("writer")?, document.get_i32("n")?))
}

/// The same as one member tells whoever follows it. `batch`: how many at once; 0: as it likes.
async fn follow(uri: String, batch: u32, total: usize) -> Result<Vec<(i32, i32)>> {
    let member = banyan_tests::connect(&uri).await.database("test");
    let nearest = SelectionCriteria::ReadPreference(ReadPreference::Nearest {
        options: Default::default(),
    });
    let log = member.collection::<Document>("log");
    let mut seen = Vec::new();
    let all = async {
        // On a secondary it may not be there yet: the cursor ends then.
        while seen.is_empty() {
            let mut tail = log
                .find(doc! {})
                .selection_criteria(nearest.clone())
                .cursor_type(CursorType::TailableAwait);
            if batch > 0 {
                tail = tail.batch_size(batch);
            }
            let mut tail = tail.await?;
            while seen.len() < total
                && let Some(document) = tail.try_next().await?
            {
                seen.push(written(&document)?);
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(90), all).await??;
    Ok(seen)
}
