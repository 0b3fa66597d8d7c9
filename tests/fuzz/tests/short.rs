//! A short run of what `scripts/fuzz` does for as long as one likes, and all that has failed once.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use banyan_fuzz::batch::{self, Counts, Plan};
use banyan_fuzz::directory::{self, Template};
use banyan_fuzz::server::{Server, Shape};
use banyan_fuzz::{Kind, found, host};

const SECONDS: Duration = Duration::from_secs(15);
const MESSAGES: usize = 90;

/// Sends all kinds of messages in turn.
async fn a_while(shape: Shape) -> Result<()> {
    let seed = u64::from(rand::random::<u32>());
    let mut server = Server::start(shape).await;
    let (began, mut total) = (Instant::now(), Counts::default());
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.is_sent()).cycle();
    for (number, kind) in (0..).zip(kinds) {
        if began.elapsed() > SECONDS && number >= 8 {
            break;
        }
        let plan = Plan {
            seed,
            number,
            kind,
            messages: MESSAGES,
        };
        let (sent, counts) = batch::send(&server, &plan);
        let problems = server.problems();
        if !problems.is_empty() {
            let path = std::env::temp_dir().join(format!("{}-{seed}-{number}", shape.name()));
            found::write(&path, &sent.concat())?;
            panic!("{plan:?}, kept in {}: {problems:#?}", path.display());
        }
        total.add(&counts);
    }
    ensure!(total.ok > 50, "nothing was understood: {total:?}");
    ensure!(total.closed > 50, "nothing was damaged: {total:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_lives_on() -> Result<()> {
    a_while(Shape::Standalone).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_lives_on() -> Result<()> {
    a_while(Shape::Set).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lives_on() -> Result<()> {
    a_while(Shape::Cluster).await
}

#[test]
fn script_hosts_end_in_good_order() -> Result<()> {
    let seed = u64::from(rand::random::<u32>());
    let mut problems = Vec::new();
    for number in 0..8 {
        problems.extend(host::round(seed, number, &mut Counts::default())?);
    }
    ensure!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_directories_are_refused_or_served_whole() -> Result<()> {
    let seed = u64::from(rand::random::<u32>());
    for killed in [false, true] {
        let template = Template::make(killed).await?;
        for number in 0..6 {
            let (problems, what) = directory::round(&template, seed, number).await?;
            ensure!(problems.is_empty(), "{what}: {problems:#?}");
        }
    }
    Ok(())
}

/// Its server took it for one that had just been made, and answered with nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_without_its_list_of_tables_is_refused() -> Result<()> {
    let template = Template::make(false).await?;
    let outcome = directory::with(&template, |data| {
        Ok(std::fs::remove_file(
            data.join("state/keyspaces/2/current"),
        )?)
    });
    let outcome = outcome.await?;
    ensure!(outcome.contains("has no file `current`"), "{outcome}");
    Ok(())
}

/// Its server tried without a pause to load an index that its log commits, and never served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_index_over_damaged_documents_ends_the_start() -> Result<()> {
    // Now and then the state on disk is so new when the server is killed that it has the index.
    for _ in 0..10 {
        let template = Template::make(true).await?;
        let outcome = directory::with(&template, |data| {
            let table = data.join("state/keyspaces/1/tables/0");
            let mut bytes = std::fs::read(&table)?;
            bytes[100..600].fill(0);
            Ok(std::fs::write(&table, bytes)?)
        });
        let outcome = outcome.await?;
        if outcome.starts_with("ended with 100: an index of fuzz.c cannot be loaded") {
            return Ok(());
        }
        ensure!(outcome.starts_with("a find is refused"), "{outcome}");
    }
    bail!("no killed server had its index in the log alone")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_once_does_not_any_more() -> Result<()> {
    let mut files: Vec<_> = std::fs::read_dir(found::folder())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_none());
    files.sort();
    ensure!(!files.is_empty(), "there is nothing to send");
    for path in files {
        let problems = found::replay(&path).await?;
        ensure!(problems.is_empty(), "{}: {problems:#?}", path.display());
    }
    Ok(())
}
