//! Commands that operators' tools and old drivers send: writes held up for a backup, sizes of ranges,
//! sums of files.

use std::time::Duration;

use anyhow::{Result, ensure};
use banyan_tests::{Launch, Process};
use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};

use crate::operating::{admin, refusal};

async fn run(process: &Process, database: &str, command: Document) -> Result<Document> {
    let database = process.direct().await.database(database);
    Ok(database.run_command(command).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_wait_while_an_operator_has_locked_them_out() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let posts = mongod.direct().await.database("test");
    let posts = posts.collection::<Document>("posts");
    posts.insert_one(doc! { "_id": 1 }).await?;
    let reply = admin(&mongod, doc! { "fsync": 1 }).await?;
    ensure!(reply.get_i32("numFiles")? == 1, "{reply}");
    for times in [1, 2] {
        let reply = admin(&mongod, doc! { "fsync": 1, "lock": true }).await?;
        ensure!(reply.get_i64("lockCount")? == times, "{reply}");
    }
    let shown = admin(&mongod, doc! { "currentOp": 1 }).await?;
    ensure!(shown.get_bool("fsyncLock")?, "{shown}");

    // Reads go on, writes end with their time or wait.
    ensure!(posts.count_documents(doc! {}).await? == 1);
    let late = doc! { "insert": "posts", "documents": [{ "_id": 2 }], "maxTimeMS": 100 };
    let error = run(&mongod, "test", late).await.unwrap_err().to_string();
    ensure!(error.contains("exceeded time limit"), "{error}");
    let bulk = doc! {
        "bulkWrite": 1, "ops": [{ "insert": 0, "document": { "_id": 3 } }],
        "nsInfo": [{ "ns": "test.posts" }], "maxTimeMS": 100,
    };
    let (code, _) = refusal(&mongod, bulk).await?;
    ensure!(code == 50, "{code}");
    let writer = posts.clone();
    let waiting = tokio::spawn(async move { writer.insert_one(doc! { "_id": 4 }).await });
    let reply = admin(&mongod, doc! { "fsyncUnlock": 1 }).await?;
    ensure!(reply.get_i64("lockCount")? == 1, "{reply}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished());
    ensure!(posts.count_documents(doc! {}).await? == 1);
    let reply = admin(&mongod, doc! { "fsyncUnlock": 1 }).await?;
    ensure!(reply.get_i64("lockCount")? == 0, "{reply}");
    waiting.await??;
    ensure!(posts.count_documents(doc! {}).await? == 2);
    let (_, message) = refusal(&mongod, doc! { "fsyncUnlock": 1 }).await?;
    ensure!(message == "fsyncUnlock called when not locked", "{message}");
    Ok(())
}

#[tokio::test]
async fn sizes_of_ranges_and_sums_of_files_are_those_of_what_is_there() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let database = mongod.direct().await.database("test");
    let posts = database.collection::<Document>("posts");
    let there: Vec<_> = (0..200)
        .map(|id| doc! { "_id": id, "a": id % 5, "p": "x".repeat(10) })
        .collect();
    let one = bson::serialize_to_vec(&there[0])?.len() as i64;
    posts.insert_many(&there).await?;
    let index = doc! { "createIndexes": "posts", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
    run(&mongod, "test", index).await?;
    let size = |more: Document| {
        let mut command = doc! { "dataSize": "test.posts" };
        command.extend(more);
        run(&mongod, "other", command)
    };
    let whole = size(doc! {}).await?;
    ensure!(whole.get_i32("numObjects")? == 200, "{whole}");
    ensure!(whole.get_i64("size")? == 200 * one, "{whole}");
    let range = doc! { "keyPattern": { "a": 1 }, "min": { "a": 1 }, "max": { "a": 4 } };
    let part = size(range).await?;
    ensure!(part.get_i32("numObjects")? == 120, "{part}");
    ensure!(part.get_i64("size")? == 120 * one, "{part}");
    ensure!(size(doc! { "min": { "a": 1 } }).await.is_err());
    // The beginning of a longer key will do, and nothing but an index that has it.
    let longer = doc! { "key": { "p": -1, "a": -1, "_id": 1 }, "name": "longer" };
    run(
        &mongod,
        "test",
        doc! { "createIndexes": "posts", "indexes": [longer] },
    )
    .await?;
    let x = "x".repeat(10);
    let range = doc! {
        "keyPattern": { "p": -1, "a": -1 },
        "min": { "p": &x, "a": 4 },
        "max": { "p": &x, "a": 2 },
    };
    let part = size(range).await?;
    ensure!(part.get_i32("numObjects")? == 80, "{part}");
    ensure!(
        size(doc! { "min": { "p": &x }, "max": { "p": "y" } })
            .await
            .is_err()
    );
    let other = doc! {
        "dataSize": "test.posts", "keyPattern": { "a": 1 }, "min": { "p": 1 }, "max": { "p": 2 },
    };
    let (code, said) = refusal(&mongod, other).await?;
    ensure!(code == 16634, "{code}: {said}");
    run(
        &mongod,
        "test",
        doc! { "create": "seen", "viewOn": "posts" },
    )
    .await?;
    let (code, said) = refusal(&mongod, doc! { "dataSize": "test.seen" }).await?;
    ensure!(code == 166, "{code}: {said}");
    let nothing = run(&mongod, "other", doc! { "dataSize": "test.nothing" }).await?;
    ensure!(!nothing.contains_key("estimate"), "{nothing}");

    // The sum of "abc" a thousand times, as `md5sum` has it.
    let bytes = "abc".repeat(1_000).into_bytes();
    let chunks = database.collection::<Document>("fs.chunks");
    for (n, part) in bytes.chunks(40).enumerate() {
        let data = Binary {
            subtype: BinarySubtype::Generic,
            bytes: part.to_vec(),
        };
        let chunk = doc! { "files_id": "book", "n": n as i32, "data": data };
        chunks.insert_one(chunk).await?;
    }
    let sum = run(&mongod, "test", doc! { "filemd5": "book", "root": "fs" }).await?;
    ensure!(sum.get_i32("numChunks")? == 75, "{sum}");
    ensure!(
        sum.get_str("md5")? == "8f33d0ecfe648a745b169baf8a77658b",
        "{sum}"
    );
    chunks.delete_one(doc! { "n": 40 }).await?;
    let error = run(&mongod, "test", doc! { "filemd5": "book" })
        .await
        .unwrap_err();
    ensure!(error.to_string().contains("chunks out of order"), "{error}");
    Ok(())
}
