//! One `mongod` alone: it starts, answers, keeps its data over a clean stop and over `kill -9`, and
//! refuses what it must refuse.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use bson::{Document, doc};

use banyan_tests::{Launch, program, within};

#[tokio::test]
async fn data_and_indexes_survive_a_clean_stop_and_a_kill() -> Result<()> {
    let mut mongod = Launch::mongod().start().await;
    let posts = |client: mongodb::Client| client.database("test").collection::<Document>("posts");

    let before = posts(mongod.direct().await);
    before
        .insert_many((0..500).map(|i| doc! { "_id": i, "parity": i % 2 }))
        .await?;
    before
        .create_index(
            mongodb::IndexModel::builder()
                .keys(doc! { "parity": 1 })
                .build(),
        )
        .await?;
    mongod.stop().await;

    mongod.start().await;
    let between = posts(mongod.direct().await);
    ensure!(between.count_documents(doc! { "parity": 1 }).await? == 250);
    between.delete_many(doc! { "parity": 1 }).await?;
    between
        .insert_one(doc! { "_id": "last", "parity": 0 })
        .write_concern(
            mongodb::options::WriteConcern::builder()
                .journal(true)
                .build(),
        )
        .await?;
    mongod.kill();

    mongod.start().await;
    let after = posts(mongod.direct().await);
    ensure!(after.count_documents(doc! {}).await? == 251);
    ensure!(
        after
            .count_documents(doc! { "parity": 0 })
            .hint(mongodb::options::Hint::Name("parity_1".into()))
            .await?
            == 251
    );
    ensure!(after.list_index_names().await? == ["_id_", "parity_1"]);
    Ok(())
}

#[tokio::test]
async fn a_directory_in_use_and_a_port_in_use_are_refused_with_a_clear_word() -> Result<()> {
    let first = Launch::mongod().start().await;

    let mut same_port = Launch::mongod().prepare();
    same_port.port = first.port;
    same_port.spawn();
    let status = same_port.ended().await;
    ensure!(!status.success());
    let log = same_port.log();
    ensure!(
        log.contains("in use") && log.contains(&first.port.to_string()),
        "{log}"
    );

    let mut same_directory = Launch::mongod().prepare_on(first.data_directory().to_owned());
    same_directory.spawn();
    let status = same_directory.ended().await;
    ensure!(!status.success());
    let log = same_directory.log();
    ensure!(log.contains("lock"), "{log}");

    // In the background it is the parent that says so, with the child's code.
    let log_path = same_directory.data_directory().join("../forked.log");
    let forked = Command::new(program("mongod"))
        .arg("--dbpath")
        .arg(same_directory.data_directory())
        .args(["--port", &same_directory.port.to_string(), "--fork"])
        .arg("--logpath")
        .arg(&log_path)
        .output()?;
    let complaint = String::from_utf8_lossy(&forked.stderr);
    ensure!(forked.status.code() == Some(100), "{complaint}");
    ensure!(complaint.contains("exited with 100"), "{complaint}");
    ensure!(fs::read_to_string(&log_path)?.contains("lock"));
    Ok(())
}

#[tokio::test]
async fn a_foreign_or_missing_directory_is_refused_and_left_alone() -> Result<()> {
    let mut mongod = Launch::mongod().prepare();
    fs::create_dir_all(mongod.data_directory())?;
    let foreign = mongod.data_directory().join("thesis.txt");
    fs::write(&foreign, "years of work")?;
    mongod.spawn();
    ensure!(!mongod.ended().await.success());
    ensure!(mongod.log().contains("thesis.txt"), "{}", mongod.log());
    ensure!(fs::read_to_string(&foreign)? == "years of work");
    ensure!(
        fs::read_dir(mongod.data_directory())?.count() == 1,
        "nothing was added"
    );

    let mut mongod = Launch::mongod().prepare_on(tempfile::tempdir()?.path().join("nowhere"));
    mongod.spawn();
    ensure!(!mongod.ended().await.success());
    ensure!(mongod.log().contains("nowhere"), "{}", mongod.log());
    Ok(())
}

#[tokio::test]
async fn a_bad_command_gets_a_code_and_the_server_goes_on() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let test = mongod.direct().await.database("test");
    for (command, code) in [
        (doc! { "noSuchCommand": 1 }, 59),
        (doc! { "find": 5 }, 2),
        (doc! { "find": "c", "filter": { "a": { "$nope": 1 } } }, 2),
        (doc! { "insert": "c", "documents": [], "ordered": true }, 16),
    ] {
        let error = test
            .run_command(command.clone())
            .await
            .expect_err("it is refused");
        let found = match error.kind.as_ref() {
            mongodb::error::ErrorKind::Command(error) => Some(error.code),
            _ => None,
        };
        ensure!(found == Some(code), "{command}: {error}");
    }
    within(Duration::from_secs(5), "a ping", || async {
        test.run_command(doc! { "ping": 1 }).await
    })
    .await;
    Ok(())
}
