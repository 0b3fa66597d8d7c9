//! Members that join under load, are killed while they do, or come back when the log is gone.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually};
use bson::{Document, doc};
use mongodb::options::{ReadConcern, WriteConcern};
use mongodb::{Client, Collection};
use rand::SeedableRng;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::StdRng;
use tokio::task::JoinHandle;

/// A short log, so that whoever is behind has to fetch the state.
const SHORT_LOG: [&str; 2] = ["--oplogSize", "3"];
const PADDING: usize = 1000;

/// About so many megabytes, with an index beside the one on `_id`.
async fn load(client: &Client, megabytes: i64) -> Result<()> {
    let things = things(client);
    things
        .create_index(mongodb::IndexModel::builder().keys(doc! { "n": 1 }).build())
        .await?;
    for batch in 0..megabytes {
        let documents = (0..1000).map(|at| thing(batch * 1000 + at));
        things.insert_many(documents).await?;
    }
    Ok(())
}

fn things(client: &Client) -> Collection<Document> {
    client.database("test").collection("things")
}

fn thing(id: i64) -> Document {
    // Of a kind that does not become small when it's compressed.
    let mut random = StdRng::seed_from_u64(id as u64);
    let padding = Alphanumeric.sample_string(&mut random, PADDING);
    doc! { "_id": id, "n": id % 1000, "padding": padding }
}

/// Writes one thing after the other until it's stopped.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicI64>,
    task: JoinHandle<Result<Vec<i64>>>,
}

const FIRST_OF_LOAD: i64 = 1_000_000_000;

impl Load {
    fn start(client: &Client) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicI64::new(0));
        let (stopped, counter) = (stop.clone(), acknowledged.clone());
        let things = things(client);
        let task = tokio::spawn(async move {
            let mut written = Vec::new();
            let mut id = FIRST_OF_LOAD;
            while !stopped.load(Ordering::Relaxed) {
                id += 1;
                if things.insert_one(thing(id)).await.is_ok() {
                    written.push(id);
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                if id % 10 == 0 {
                    let changed = doc! { "$set": { "n": id % 77, "changed": id } };
                    // Whether it counts is of no interest: all members must agree on it.
                    let _ = things.update_one(doc! { "_id": id % 1000 }, changed).await;
                    let _ = things.delete_one(doc! { "_id": id % 3000 }).await;
                }
            }
            Ok(written)
        });
        Load {
            stop,
            acknowledged,
            task,
        }
    }

    /// Waits for more writes.
    async fn goes_on(&self) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        eventually("writes go on", || async {
            match self.acknowledged.load(Ordering::Relaxed) > before + 20 {
                true => Ok(()),
                false => bail!("no more than {before}"),
            }
        })
        .await;
    }

    async fn end(self) -> Result<Vec<i64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

async fn add_member(client: &Client, id: i32, host: &str, more: Document) -> Result<()> {
    let admin = client.database("admin");
    eventually("the configuration is changed", || async {
        let got = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
        let mut configuration = got.get_document("config")?.clone();
        let version = configuration.get_i32("version")?;
        configuration.insert("version", version + 1);
        let mut member = doc! { "_id": id, "host": host };
        member.extend(more.clone());
        let members = configuration.get_array_mut("members")?;
        if !members.iter().any(|known| {
            known
                .as_document()
                .is_some_and(|known| known.get_str("host").is_ok_and(|known| known == host))
        }) {
            members.push(member.into());
            admin
                .run_command(doc! { "replSetReconfig": configuration })
                .await?;
        }
        anyhow::Ok(())
    })
    .await;
    Ok(())
}

async fn is_secondary(process: &Process) -> Result<()> {
    let admin = process.direct().await.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).await?;
    match hello.get_bool("secondary").unwrap_or(false) {
        true => Ok(()),
        false => bail!("{hello}\n{}", process.log()),
    }
}

/// All members hold the same, and their indexes what their records say.
async fn all_are_equal(client: &Client, members: &[&Process], written: &[i64]) -> Result<()> {
    let majority = things(client)
        .insert_one(thing(-1))
        .write_concern(WriteConcern::majority())
        .await;
    majority?;
    let mut hashes = Vec::new();
    for member in members {
        let direct = member.direct().await;
        eventually("the last write is everywhere", || async {
            let query = doc! { "_id": -1 };
            let found = things(&direct)
                .find_one(query)
                .read_concern(ReadConcern::local())
                .await?;
            found.map(drop).ok_or_else(|| anyhow::anyhow!("not yet"))
        })
        .await;
        let test = direct.database("test");
        let hash = test.run_command(doc! { "dbHash": 1 }).await?;
        hashes.push(hash.get_str("md5")?.to_owned());
        let checked = test.run_command(doc! { "validate": "things" }).await?;
        ensure!(checked.get_bool("valid")?, "{checked}");
        let indexes = checked.get_document("keysPerIndex")?;
        ensure!(indexes.len() == 2, "{checked}");
        let query = doc! { "_id": { "$gt": FIRST_OF_LOAD } };
        let there = things(&direct).count_documents(query).await?;
        ensure!(
            there >= written.len() as u64,
            "{there} of {}",
            written.len()
        );
    }
    ensure!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    let last = written.last().copied().unwrap_or(-1);
    let found = things(client).find_one(doc! { "_id": last }).await?;
    ensure!(found.is_some(), "{last} was acknowledged");
    Ok(())
}

/// Waits until some of a snapshot is in and the rest is not.
async fn is_half_in(process: &Process) -> Result<()> {
    let state = process.data_directory().join("state").join("keyspaces");
    let started = Instant::now();
    while tables(&state) < 3 {
        ensure!(started.elapsed() < Duration::from_secs(60), "nothing is in");
        // It is over within a second.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let log = process.log();
    ensure!(log.contains("fetching a snapshot"), "{log}");
    ensure!(!log.contains("the snapshot is in"), "too late: {log}");
    Ok(())
}

/// The tables of the engine.
fn tables(state: &Path) -> usize {
    let folders = std::fs::read_dir(state).into_iter().flatten().flatten();
    folders
        .filter_map(|folder| std::fs::read_dir(folder.path().join("tables")).ok())
        .flat_map(|tables| tables.flatten())
        .filter(|table| table.metadata().is_ok_and(|meta| meta.len() > 100_000))
        .count()
}

#[tokio::test]
async fn a_member_that_is_killed_while_it_joins_goes_on_where_it_was() -> Result<()> {
    let set = ReplicaSet::start("joined", 1, &SHORT_LOG).await;
    let client = set.client().await;
    load(&client, 60).await?;
    let writing = Load::start(&client);
    let mut joining = Launch::mongod()
        .with(["--replSet", "joined"])
        .with(SHORT_LOG)
        .start()
        .await;
    add_member(&client, 1, &joining.host(), doc! {}).await?;
    is_half_in(&joining).await?;
    joining.kill();
    writing.goes_on().await;
    joining.start().await;
    eventually("the member has joined", || is_secondary(&joining)).await;
    let log = joining.log();
    ensure!(log.contains("going on with a snapshot"), "{log}");
    ensure!(log.matches("fetching a snapshot").count() == 1, "{log}");
    writing.goes_on().await;
    let written = writing.end().await?;
    all_are_equal(&client, &[&set.members[0], &joining], &written).await
}

#[tokio::test]
async fn a_member_joins_although_its_giver_is_killed() -> Result<()> {
    let mut set = ReplicaSet::start("bereft", 3, &SHORT_LOG).await;
    let client = set.client().await;
    load(&client, 50).await?;
    let writing = Load::start(&client);
    let joining = Launch::mongod()
        .with(["--replSet", "bereft"])
        .with(SHORT_LOG)
        .start()
        .await;
    add_member(&client, 3, &joining.host(), doc! {}).await?;
    let giver = set.primary().await;
    is_half_in(&joining).await?;
    set.members[giver].kill();
    eventually("the member has joined", || is_secondary(&joining)).await;
    let log = joining.log();
    ensure!(log.matches("fetching a snapshot").count() >= 2, "{log}");
    writing.goes_on().await;
    set.members[giver].start().await;
    eventually("the giver is back", || is_secondary(&set.members[giver])).await;
    let written = writing.end().await?;
    let mut members: Vec<&Process> = set.members.iter().collect();
    members.push(&joining);
    all_are_equal(&client, &members, &written).await
}

#[tokio::test]
async fn a_member_that_was_away_for_too_long_fetches_the_state() -> Result<()> {
    let mut set = ReplicaSet::start("late", 3, &SHORT_LOG).await;
    let client = set.client().await;
    load(&client, 2).await?;
    let away = (set.primary().await + 1) % 3;
    set.members[away].stop().await;
    let before = KeptState::of(&set.members[away])?;
    // Old records of the one that is away must not come back.
    things(&client)
        .delete_many(doc! { "_id": { "$lt": 500 } })
        .await?;
    for batch in 10..40 {
        let documents = (0..1000).map(|at| thing(batch * 1000 + at));
        things(&client).insert_many(documents).await?;
    }
    let writing = Load::start(&client);
    set.members[away].start().await;
    eventually("it has caught up", || is_secondary(&set.members[away])).await;
    let log = set.members[away].log();
    ensure!(log.contains("the snapshot is in"), "{log}");
    writing.goes_on().await;

    // What an old state lacks comes from the others too.
    set.members[away].kill();
    before.put_back(&set.members[away])?;
    set.members[away].start().await;
    eventually("it is whole again", || is_secondary(&set.members[away])).await;
    let log = set.members[away].log();
    ensure!(log.contains("a part of the state is missing"), "{log}");
    writing.goes_on().await;
    let written = writing.end().await?;
    let members: Vec<&Process> = set.members.iter().collect();
    all_are_equal(&client, &members, &written).await
}

#[tokio::test]
async fn a_lone_member_that_lost_its_state_says_so() -> Result<()> {
    let mut set = ReplicaSet::start("lost", 1, &["--oplogSize", "1"]).await;
    set.members[0].stop().await;
    let before = KeptState::of(&set.members[0])?;
    set.members[0].start().await;
    let client = set.client().await;
    let log = client.database("local").collection::<Document>("oplog.rs");
    let at = |natural: i32| {
        let log = &log;
        async move {
            let order = doc! { "$natural": natural };
            let entry = log.find_one(doc! {}).sort(order).await?;
            let entry = entry.ok_or_else(|| anyhow::anyhow!("the log is empty"))?;
            anyhow::Ok(entry.get_timestamp("ts")?)
        }
    };
    let kept = at(-1).await?;
    load(&client, 10).await?;
    eventually("the log is cut", || async {
        match at(1).await? <= kept {
            true => bail!("not yet"),
            false => Ok(()),
        }
    })
    .await;
    set.members[0].kill();
    before.put_back(&set.members[0])?;
    set.members[0].spawn();
    let status = set.members[0].ended().await;
    ensure!(status.code() == Some(100), "{status}");
    let log = set.members[0].log();
    ensure!(log.contains("the state ends at entry"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_restarted_secondary_does_not_go_back() -> Result<()> {
    let mut set = ReplicaSet::start("forward", 3, &[]).await;
    let client = set.client().await;
    let counters = client.database("test").collection::<Document>("counters");
    counters.insert_one(doc! { "_id": 1, "n": 0 }).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let counting = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            let more = doc! { "$inc": { "n": 1 } };
            counters.update_one(doc! { "_id": 1 }, more).await?;
        }
        anyhow::Ok(())
    });
    let secondary = (set.primary().await + 1) % 3;
    let mut seen = 0;
    for _ in 0..3 {
        let direct = set.members[secondary].direct().await;
        eventually("the counter is there", || counter(&direct)).await;
        let later = seen + 50;
        while seen < later {
            seen = seen.max(counter(&direct).await?);
        }
        set.members[secondary].kill();
        set.members[secondary].spawn();
        let direct = set.members[secondary].direct().await;
        let found = eventually("it answers reads again", || counter(&direct)).await;
        ensure!(found >= seen, "{found} after {seen}");
    }
    stop.store(true, Ordering::Relaxed);
    counting.await?
}

async fn counter(member: &Client) -> Result<i32> {
    let counters = member.database("test").collection::<Document>("counters");
    let found = counters.find_one(doc! { "_id": 1 }).await?;
    let found = found.ok_or_else(|| anyhow::anyhow!("no counter"))?;
    Ok(found.get_i32("n")?)
}

/// A member's state as it once was, without the log.
struct KeptState(tempfile::TempDir);

impl KeptState {
    fn of(process: &Process) -> Result<KeptState> {
        let kept = tempfile::tempdir()?;
        copy_folder(&process.data_directory().join("state"), kept.path())?;
        Ok(KeptState(kept))
    }

    fn put_back(&self, process: &Process) -> Result<()> {
        let state = process.data_directory().join("state");
        std::fs::remove_dir_all(&state)?;
        copy_folder(self.0.path(), &state)
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &target)?,
            false => std::fs::copy(entry.path(), target).map(drop)?,
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_arbiter_keeps_no_data() -> Result<()> {
    let set = ReplicaSet::start("judged", 1, &SHORT_LOG).await;
    let client = set.client().await;
    load(&client, 20).await?;
    let arbiter = Launch::mongod()
        .with(["--replSet", "judged"])
        .with(SHORT_LOG)
        .start()
        .await;
    add_member(&client, 1, &arbiter.host(), doc! { "arbiterOnly": true }).await?;
    eventually("it is an arbiter", || async {
        let admin = client.database("admin");
        let status = admin.run_command(doc! { "replSetGetStatus": 1 }).await?;
        match banyan_tests::states(&status) == [1, 7] {
            true => Ok(()),
            false => bail!("{status}"),
        }
    })
    .await;
    for batch in 100..110 {
        let documents = (0..1000).map(|at| thing(batch * 1000 + at));
        things(&client)
            .insert_many(documents)
            .write_concern(WriteConcern::majority())
            .await?;
    }
    let state = arbiter.data_directory().join("state");
    eventually("its directory stays small", || async {
        let bytes = bytes_under(&state);
        match bytes < 2_000_000 {
            true => Ok(()),
            false => bail!("{bytes} bytes"),
        }
    })
    .await;
    tokio::time::timeout(Duration::from_secs(5), set.status()).await??;
    Ok(())
}

fn bytes_under(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_under(&entry.path()),
            // The engine's journal is as large as it may grow from its beginning; what is in it counts.
            Ok(meta) => std::os::unix::fs::MetadataExt::blocks(&meta) * 512,
            Err(_) => 0,
        })
        .sum()
}
