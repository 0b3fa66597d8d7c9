//! Generated cases: with and without indexes, and beside the reference where there is one.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use banyan_diff::case::Case;
use banyan_diff::hunt::{Bench, Hunt, Only};
use banyan_diff::known::Known;
use banyan_diff::notation;
use banyan_diff::record::known_file;
use banyan_diff::servers;
use banyan_diff::side::Side;

/// Names the program of the reference.
const REFERENCE: &str = "BANYAN_REFERENCE";

#[tokio::test(flavor = "multi_thread")]
async fn indexes_change_no_answer() {
    let process = servers::banyan().start().await;
    let mut bench = bench(&process.host(), "hunts");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let only = Only {
        stories: Some(false),
        ..Only::default()
    };
    for (seed, operations) in [(1, 2500), (now.as_secs(), 1500)] {
        play(&mut bench, seed, operations, &only);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_answers_alike() {
    let Some(program) = std::env::var_os(REFERENCE) else {
        eprintln!("{REFERENCE} is not set: nothing is compared with it");
        return;
    };
    let process = servers::banyan().start().await;
    let reference = servers::reference(program.into()).start().await;
    let mut bench = bench(&process.host(), "hunts");
    let mut side = Side::new(&reference.host(), "hunts");
    side.prepare().unwrap();
    bench.reference = Some(side);
    play(&mut bench, 2, 2500, &Only::default());
}

/// `distinct` has null among the values of an index, as the reference has, and not of a collection.
#[tokio::test(flavor = "multi_thread")]
async fn another_answer_by_an_index_is_seen() {
    let process = servers::banyan().start().await;
    let mut bench = bench(&process.host(), "hunts");
    let case = |command: &str| Case {
        documents: notation::split("[{_id: 9, c: 2.0}]").unwrap(),
        indexes: vec![notation::parse_document("{key: {c: 1, a: 1}}").unwrap()],
        before: None,
        command: notation::parse_document(command).unwrap(),
    };
    let differs = case("{distinct: \"c\", key: \"a\", query: {c: 2}}");
    let difference = bench.by_indexes(&differs).unwrap();
    assert_eq!(
        (&*difference.class, &*difference.found),
        ("more results", "null")
    );
    let same = case("{find: \"c\", filter: {c: 2}}");
    assert_eq!(bench.by_indexes(&same), None);
}

fn bench(address: &str, database: &str) -> Bench {
    let mut banyan = Side::new(address, database);
    banyan.prepare().unwrap();
    Bench {
        banyan,
        reference: None,
        router: None,
        many: None,
    }
}

#[track_caller]
fn play(bench: &mut Bench, seed: u64, operations: usize, only: &Only) {
    let known = Known::read(&known_file()).unwrap();
    let hunt = Hunt::new(seed, 0, operations, known, only.clone());
    let started = Instant::now();
    let gone = |_: &mut Bench| bail!("seed {seed}: a server gives no answer");
    hunt.work(bench, &gone).unwrap();
    let (report, is_clean) = hunt.report(started);
    assert!(is_clean, "{report}");
    assert!(hunt.operations_done() >= operations);
}
