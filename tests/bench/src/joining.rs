//! How long an empty member takes to join a set, beside copying the files of the member that has
//! the data (`cp -r` and a sync of the copy).

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, ReplicaSet, within};
use bson::{Binary, Document, doc, spec::BinarySubtype};
use futures::future::try_join_all;
use mongodb::Client;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

use crate::report::{Expected, Line, Report};

/// Gigabytes of documents; `BANYAN_JOINING_GB` says otherwise.
const GIGABYTES: f64 = 2.0;
const DOCUMENT_BYTES: usize = 1024;
const BATCH: usize = 1000;
const WRITERS: usize = 4;
const COPY_TIMEOUT: Duration = Duration::from_secs(120);

pub async fn run(report: &mut Report) -> Result<()> {
    let gigabytes = match std::env::var("BANYAN_JOINING_GB") {
        Ok(text) => text.parse().context("BANYAN_JOINING_GB is a number")?,
        Err(_) => GIGABYTES,
    };
    // A short log, so that the member has to fetch the state.
    let set = ReplicaSet::start("joining", 1, &["--oplogSize", "16"]).await;
    let client = set.client().await;
    let documents = (gigabytes * (1_u64 << 30) as f64) as usize / DOCUMENT_BYTES;
    load(&client, documents).await?;
    let giver = &set.members[0];
    let copied = copy(giver.data_directory())?;
    let joined = join(&client, documents).await?;
    eprintln!(
        "   {gigabytes} GB: copied in {:.1} s, joined in {:.1} s",
        copied.as_secs_f64(),
        joined.as_secs_f64()
    );
    let rate = |took: Duration| gigabytes * 1024.0 / took.as_secs_f64();
    report.add(Line {
        what: format!("joining: {gigabytes} GB"),
        unit: "MB/s",
        ours: vec![rate(joined)],
        beside: "cp -r; sync",
        other: vec![rate(copied)],
        expected: Expected::AtLeast(0.5),
    });
    Ok(())
}

async fn load(client: &Client, documents: usize) -> Result<()> {
    let collection = client.database("bench").collection::<Document>("joining");
    collection
        .create_index(
            mongodb::IndexModel::builder()
                .keys(doc! { "user": 1 })
                .build(),
        )
        .await?;
    let each = documents.div_ceil(WRITERS);
    let writers = (0..WRITERS).map(|writer| {
        let collection = collection.clone();
        async move {
            let mut random = StdRng::seed_from_u64(writer as u64);
            let end = (each * (writer + 1)).min(documents);
            let mut next = each * writer;
            while next < end {
                let batch: Vec<Document> = (next..end.min(next + BATCH))
                    .map(|id| document(id, &mut random))
                    .collect();
                next += batch.len();
                collection.insert_many(batch).await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(writers).await?;
    Ok(())
}

/// Half of it is like text, half does not compress.
fn document(id: usize, random: &mut StdRng) -> Document {
    const WORDS: [&str; 8] = [
        "banyan ", "trunk ", "root ", "leaf ", "branch ", "shade ", "forest ", "seed ",
    ];
    let mut noise = vec![0; DOCUMENT_BYTES / 2];
    random.fill_bytes(&mut noise);
    let mut text = String::with_capacity(DOCUMENT_BYTES / 2);
    while text.len() < DOCUMENT_BYTES / 2 - 80 {
        text.push_str(WORDS[random.random_range(0..WORDS.len())]);
    }
    doc! {
        "_id": id as i64,
        "user": random.random_range(0..100_000),
        "text": text,
        "noise": Binary { subtype: BinarySubtype::Generic, bytes: noise },
    }
}

/// Copies the files of a server that runs: while its store tidies up after the load, some go away
/// under the copy, and it begins again.
fn copy(data: &Path) -> Result<Duration> {
    let deadline = Instant::now() + COPY_TIMEOUT;
    loop {
        match copy_once(data) {
            Err(_) if Instant::now() < deadline => {}
            outcome => return outcome,
        }
    }
}

fn copy_once(data: &Path) -> Result<Duration> {
    ensure!(Command::new("sync").status()?.success(), "sync");
    let target = tempfile::tempdir()?;
    let copy = target.path().join("copy");
    let started = Instant::now();
    let copied = Command::new("cp").arg("-r").arg(data).arg(&copy).status()?;
    ensure!(copied.success(), "cp -r");
    let synced = Command::new("sync").arg("-f").arg(&copy).status()?;
    ensure!(synced.success(), "sync -f");
    Ok(started.elapsed())
}

/// From the change of the configuration until the new member is SECONDARY and level.
async fn join(client: &Client, documents: usize) -> Result<Duration> {
    let member = Launch::mongod()
        .with(["--replSet", "joining", "--oplogSize", "16"])
        .start()
        .await;
    let admin = client.database("admin");
    let got = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
    let mut configuration = got.get_document("config")?.clone();
    let version = configuration.get_i32("version")?;
    configuration.insert("version", version + 1);
    let members = configuration.get_array_mut("members")?;
    members.push(doc! { "_id": 1, "host": member.host() }.into());
    let started = Instant::now();
    admin
        .run_command(doc! { "replSetReconfig": configuration })
        .await?;
    let direct = member.direct().await;
    within(Duration::from_secs(1800), "the member joins", || async {
        let hello = direct
            .database("admin")
            .run_command(doc! { "hello": 1 })
            .await?;
        match hello.get_bool("secondary").unwrap_or(false) {
            true => Ok(()),
            false => bail!("{hello}"),
        }
    })
    .await;
    let took = started.elapsed();
    let count = direct
        .database("bench")
        .run_command(doc! { "count": "joining" })
        .await?;
    ensure!(count.get_i32("n")? as usize == documents, "{count}");
    Ok(took)
}
