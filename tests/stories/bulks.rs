//! Many statements in one command: a later one sees what those before it did, and one that is cut
//! off by a crash and sent again does everything once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use rand::Rng;

use crate::concerns::{Wire, session};

const ROUNDS: i32 = 3;
/// Documents that are there from the beginning, and as many that the first round makes.
const DOCUMENTS: i32 = 100;
/// So many statements meet each of them.
const TIMES: i32 = 3;

/// Statements that find their documents by `_id`, by another index and by an upsert, in turns.
fn bulk(number: i64, session: &Document) -> Document {
    let statement = |at: i32| {
        let id = at % (2 * DOCUMENTS);
        let query = match at % 2 {
            0 => doc! { "_id": id },
            _ => doc! { "k": id },
        };
        let update = doc! {
            "$inc": { "n": 1 }, "$setOnInsert": { if at % 2 == 0 { "k" } else { "_id" }: id },
        };
        doc! { "q": query, "u": update, "upsert": true }
    };
    let statements: Vec<Bson> = (0..2 * DOCUMENTS * TIMES)
        .map(|at| statement(at).into())
        .collect();
    doc! {
        "update": "c", "updates": statements, "lsid": session.clone(), "txnNumber": number,
        "writeConcern": { "w": "majority" },
    }
}

/// Sends a command to whoever leads until it is answered.
async fn persist(set: &ReplicaSet, command: &Document) -> Document {
    eventually("the bulk is answered", || async {
        let host = set.members[set.primary().await].host();
        let command = command.clone();
        let sent = move || Wire::connect_to(&host)?.ok("test", command);
        tokio::task::spawn_blocking(sent).await?
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_that_a_kill_cuts_off_is_done_once_by_its_retry() -> Result<()> {
    let mut set = ReplicaSet::start("bulks", 3, &[]).await;
    let mut wire = Wire::connect_to(&set.members[set.primary().await].host())?;
    let index = doc! { "key": { "k": 1 }, "name": "k", "unique": true };
    wire.ok("test", doc! { "createIndexes": "c", "indexes": [index] })?;
    let there: Vec<_> = (0..DOCUMENTS)
        .map(|id| doc! { "_id": id, "k": id, "n": 0 })
        .collect();
    let insert = doc! { "insert": "c", "documents": there, "writeConcern": { "w": "majority" } };
    wire.ok("test", insert)?;

    let session = session();
    for round in 1..=ROUNDS {
        let primary = set.primary().await;
        let command = bulk(round.into(), &session);
        let (host, first) = (set.members[primary].host(), command.clone());
        let running =
            tokio::task::spawn_blocking(move || Wire::connect_to(&host)?.run("test", first));
        let delay = rand::rng().random_range(0..150);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        set.members[primary].kill();
        // It may have been answered before.
        let _ = running.await;
        let reply = persist(&set, &command).await;
        ensure!(
            reply.get_i32("n")? == 2 * DOCUMENTS * TIMES,
            "round {round}: {reply}"
        );
        set.members[primary].start().await;
        set.settled().await;

        let mut wire = Wire::connect_to(&set.members[set.primary().await].host())?;
        let others = doc! { "n": { "$ne": round * TIMES } };
        let wrong = doc! { "find": "c", "filter": others, "limit": 3 };
        let wrong = wire.ok("test", wrong)?;
        let wrong = wrong.get_document("cursor")?.get_array("firstBatch")?;
        ensure!(wrong.is_empty(), "round {round}: {wrong:?}");
        let count = wire.ok(
            "test",
            doc! { "count": "c", "query": { "n": { "$gte": 0 } } },
        )?;
        ensure!(
            count.get_i32("n")? == 2 * DOCUMENTS,
            "round {round}: {count}"
        );
    }
    Ok(())
}

/// The errors of a bulk's statements, by index.
fn errors(reply: &Document) -> Result<Vec<(i32, i32)>> {
    let Ok(errors) = reply.get_array("writeErrors") else {
        return Ok(Vec::new());
    };
    let line = |error: &Bson| -> Result<(i32, i32)> {
        let error = error.as_document().context("an error")?;
        Ok((error.get_i32("index")?, error.get_i32("code")?))
    };
    errors.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_see_those_before_them_and_stop_as_they_are_told() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let mut wire = Wire::connect(&mongod)?;
    let statements = || {
        let set =
            |q: Document, u: i32| doc! { "q": q, "u": { "$set": { "u": u } }, "upsert": true };
        vec![
            set(doc! { "_id": 1 }, 1),
            set(doc! { "_id": 2 }, 1),
            set(doc! { "u": 1 }, 2),
            set(doc! { "_id": 2 }, 1),
            set(doc! { "_id": 3 }, 2),
            set(doc! { "_id": 2 }, 3),
        ]
    };
    for (ordered, stopped) in [
        (true, vec![(1, 11_000)]),
        (false, vec![(1, 11_000), (4, 11_000)]),
    ] {
        wire.run("test", doc! { "drop": "c" })?;
        let index = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
        wire.ok("test", doc! { "createIndexes": "c", "indexes": [index] })?;
        let update = doc! { "update": "c", "updates": statements(), "ordered": ordered };
        let reply = wire.ok("test", update)?;
        ensure!(errors(&reply)? == stopped, "{ordered}: {reply}");
        let found = wire.ok("test", doc! { "find": "c", "sort": { "_id": 1 } })?;
        let found = found
            .get_document("cursor")?
            .get_array("firstBatch")?
            .clone();
        let expected: Vec<Bson> = match ordered {
            true => vec![doc! { "_id": 1, "u": 1 }.into()],
            false => vec![
                doc! { "_id": 1, "u": 2 }.into(),
                doc! { "_id": 2, "u": 3 }.into(),
            ],
        };
        ensure!(found == expected, "{ordered}: {found:?}");
    }
    // What the first deletes the others do not find.
    let deletes = vec![
        doc! { "q": { "u": 3 }, "limit": 1 },
        doc! { "q": { "_id": 2 }, "limit": 1 },
        doc! { "q": { "u": { "$gte": 0 } }, "limit": 0 },
    ];
    let reply = wire.ok("test", doc! { "delete": "c", "deletes": deletes })?;
    ensure!(reply.get_i32("n")? == 2, "{reply}");
    Ok(())
}

/// A large insert is prepared and committed in parts. Its errors are told by the documents' numbers in
/// the whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_large_insert_refuses_is_told_by_its_number() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let mut wire = Wire::connect(&mongod)?;
    let text = "y".repeat(600_000);
    let many: Vec<Document> = (0..2_500).map(|id| doc! { "_id": id }).collect();
    let large: Vec<Document> = (0..20).map(|id| doc! { "_id": id, "x": &text }).collect();
    for (mut documents, refused) in [(many, [1_700, 2_300, 2_400]), (large, [9, 15, 18])] {
        // One is there, one comes before it in the same part, one cannot be had.
        let [there, before, never] = refused;
        documents[there] = doc! { "_id": -1 };
        documents[before] = doc! { "_id": i32::try_from(before)? - 1 };
        documents[never] = doc! { "_id": [1] };
        for ordered in [true, false] {
            wire.run("test", doc! { "drop": "c" })?;
            wire.ok("test", doc! { "insert": "c", "documents": [{ "_id": -1 }] })?;
            let documents: Vec<Bson> = documents.iter().cloned().map(Bson::from).collect();
            let count = documents.len();
            let insert = doc! { "insert": "c", "documents": documents, "ordered": ordered };
            let reply = wire.ok("test", insert)?;
            let number = |at: usize| i32::try_from(at);
            let (stopped, inserted) = match ordered {
                true => (vec![(number(there)?, 11_000)], there),
                false => (
                    vec![
                        (number(there)?, 11_000),
                        (number(before)?, 11_000),
                        (number(never)?, 53),
                    ],
                    count - 3,
                ),
            };
            ensure!(errors(&reply)? == stopped, "{ordered}: {reply}");
            ensure!(reply.get_i32("n")? == number(inserted)?, "{reply}");
            let found = wire.ok("test", doc! { "count": "c" })?;
            ensure!(found.get_i32("n")? == number(inserted)? + 1, "{found}");
        }
    }
    Ok(())
}
