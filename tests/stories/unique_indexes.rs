//! Indexes become unique while documents are written.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::ReplicaSet;
use bson::{Bson, Document, doc};
use futures::future::join_all;
use mongodb::Database;

const CANNOT_CONVERT: i32 = 359;
const DUPLICATE_KEY: i32 = 11_000;

/// What a command is refused with, as the reply tells it.
async fn refusal(database: &Database, command: Document) -> Result<Document> {
    let refused = database.run_command(command.clone()).await.err();
    let refused = refused.with_context(|| format!("{command} succeeded"))?;
    let reply = refused
        .server_response()
        .with_context(|| format!("{command}: {refused}"))?;
    Ok(Document::try_from(reply.as_ref())?)
}

fn change(index: Document) -> Document {
    doc! { "collMod": "users", "index": index }
}

/// How many of these inserts, all sent at once, were let in.
async fn let_in(database: &Database, documents: Vec<Document>) -> Result<usize> {
    let users = database.collection::<Document>("users");
    let inserts = documents.iter().map(|document| users.insert_one(document));
    let mut count = 0;
    for outcome in join_all(inserts.map(IntoFuture::into_future)).await {
        match outcome {
            Ok(_) => count += 1,
            Err(error) => ensure!(error.to_string().contains("E11000"), "{error}"),
        }
    }
    Ok(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_becomes_unique_beside_writes() -> Result<()> {
    let set = ReplicaSet::start("unique", 3, &[]).await;
    let database = set.client().await.database("test");
    let users = database.collection::<Document>("users");
    users
        .insert_many([
            doc! { "_id": 1, "name": "ada" },
            doc! { "_id": 2, "name": "ada" },
            doc! { "_id": 3, "name": "ada" },
            doc! { "_id": 4, "name": "eve" },
        ])
        .await?;
    let index = doc! { "key": { "name": 1 }, "name": "name" };
    let create = doc! { "createIndexes": "users", "indexes": [index] };
    database.run_command(create).await?;
    let prepare = change(doc! { "name": "name", "prepareUnique": true });
    let told = database.run_command(prepare).await?;
    ensure!(told.get_bool("prepareUnique_new")?, "{told}");

    // What is there stays and may change otherwise; of new ones with one name, one is let in.
    users
        .update_one(doc! { "_id": 2 }, doc! { "$set": { "age": 7 } })
        .await?;
    let many = |from: i32, name: &str| -> Vec<Document> {
        let ids = from..from + 20;
        ids.map(|id| doc! { "_id": id, "name": name }).collect()
    };
    ensure!(let_in(&database, many(10, "bob")).await? == 1);
    ensure!(let_in(&database, many(40, "ada")).await? == 0);

    // Which documents stand against it is told.
    let convert = change(doc! { "name": "name", "unique": true });
    let refused = refusal(&database, convert.clone()).await?;
    ensure!(refused.get_i32("code")? == CANNOT_CONVERT, "{refused}");
    let violations = Bson::from(vec![doc! { "ids": [1, 2, 3] }]);
    ensure!(refused.get("violations") == Some(&violations), "{refused}");
    users.delete_many(doc! { "_id": { "$in": [1, 3] } }).await?;
    let mut dry = convert.clone();
    dry.insert("dryRun", true);
    database.run_command(dry).await?;

    // It becomes unique while others go on writing.
    let writing = async {
        for id in 100..160 {
            users
                .insert_one(doc! { "_id": id, "name": format!("user {id}") })
                .await?;
        }
        anyhow::Ok(())
    };
    let converting = async { anyhow::Ok(database.run_command(convert).await?) };
    let (told, ()) = futures::try_join!(converting, writing)?;
    ensure!(told.get_bool("unique_new")?, "{told}");
    ensure!(let_in(&database, many(200, "user 130")).await? == 0);
    ensure!(let_in(&database, many(240, "zoe")).await? == 1);
    let insert = doc! { "insert": "users", "documents": [{ "_id": 300, "name": "ada" }] };
    let reply = database.run_command(insert).await?;
    let errors = reply.get_array("writeErrors").ok();
    let first = errors.and_then(|errors| errors.first()?.as_document());
    let code = first.and_then(|error| error.get_i32("code").ok());
    ensure!(code == Some(DUPLICATE_KEY), "{reply}");
    ensure!(users.count_documents(doc! {}).await? == 64);

    // Also for who leads after that.
    let down = doc! { "replSetStepDown": 30, "force": true };
    let _ = set.client().await.database("admin").run_command(down).await;
    let late = async {
        loop {
            if let Ok(count) = let_in(&database, many(400, "ada")).await {
                return count;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let count = tokio::time::timeout(Duration::from_secs(60), late).await?;
    ensure!(count == 0, "{count} were let in");
    Ok(())
}
