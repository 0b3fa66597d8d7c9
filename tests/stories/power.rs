//! Power cuts that leave holes in what the state had not synced: the log has it, so servers come back
//! by themselves with everything that was acknowledged.

use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually};
use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::WriteConcern;

const DOCUMENTS: i32 = 40;

fn synced(process: &Process) -> Result<usize> {
    Ok(used(&std::fs::read(
        process.data_directory().join("state/0.jnl"),
    )?))
}

fn used(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |at| at + 1)
}

/// Loses a page in the middle of what was written after `synced`.
fn lose_a_page(process: &Process, synced: usize) -> Result<()> {
    let journal = process.data_directory().join("state/0.jnl");
    let bytes = std::fs::read(&journal)?;
    let written = used(&bytes);
    ensure!(written > synced + 1_000_000, "{synced} {written}");
    let file = std::fs::File::options().write(true).open(&journal)?;
    file.write_all_at(&[0; 4096], (synced + (written - synced) / 2) as u64)?;
    Ok(())
}

async fn write(client: &Client, from: i32) -> Result<()> {
    let posts = client.database("test").collection::<Document>("posts");
    for n in from..from + DOCUMENTS {
        posts
            .insert_one(doc! { "_id": n, "s": "x".repeat(100_000) })
            .write_concern(WriteConcern::majority())
            .await?;
    }
    Ok(())
}

async fn check(client: &Client, expected: i32) -> Result<()> {
    let database = client.database("test");
    let found = database
        .run_command(doc! { "count": "posts" })
        .await?
        .get_i32("n")?;
    ensure!(found == expected, "{found} of {expected} documents");
    let validated = database
        .run_command(doc! { "validate": "posts", "full": true })
        .await?;
    ensure!(validated.get_bool("valid")?, "{validated}");
    Ok(())
}

#[tokio::test]
async fn a_standalone_with_a_hole_in_its_journal_comes_back_with_everything() -> Result<()> {
    let mut mongod = Launch::mongod().start().await;
    let before = synced(&mongod)?;
    write(&mongod.direct().await, 0).await?;
    mongod.kill();
    lose_a_page(&mongod, before)?;
    mongod.start().await;
    ensure!(
        mongod.data_directory().join("state/journal.cut").exists(),
        "the page was not missed"
    );
    let client = mongod.direct().await;
    check(&client, DOCUMENTS).await?;
    write(&client, DOCUMENTS).await?;
    check(&client, 2 * DOCUMENTS).await
}

#[tokio::test]
async fn a_member_with_a_hole_in_its_journal_comes_back_with_everything() -> Result<()> {
    let mut set = ReplicaSet::start("power", 3, &[]).await;
    let secondary = (set.primary().await + 1) % 3;
    let before = synced(&set.members[secondary])?;
    let client = set.client().await;
    write(&client, 0).await?;
    let direct = set.members[secondary].direct().await;
    eventually("the secondary has all", || check(&direct, DOCUMENTS)).await;
    set.members[secondary].kill();
    lose_a_page(&set.members[secondary], before).context("the secondary")?;
    set.members[secondary].start().await;
    let cut = set.members[secondary].data_directory();
    ensure!(
        cut.join("state/journal.cut").exists(),
        "the page was not missed"
    );
    write(&client, DOCUMENTS).await?;
    let direct = set.members[secondary].direct().await;
    eventually("it has all again", || check(&direct, 2 * DOCUMENTS)).await;
    Ok(())
}
