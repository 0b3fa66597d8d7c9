//! Generated cases, with and without indexes.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use banyan_diff::case::Case;
use banyan_diff::hunt::{Bench, Hunt, Only};
use banyan_diff::known::Known;
use banyan_diff::notation;
use banyan_diff::record::known_file;
use banyan_diff::side::Side;
use banyan_tests::Launch;

/// Operations of a fixed and of a fresh seed.
const FIXED: (u64, usize) = (1, 2500);
const FRESH: usize = 1500;

#[tokio::test(flavor = "multi_thread")]
async fn indexes_change_no_answer() {
    let process = Launch::mongod().start().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for (seed, operations) in [FIXED, (now.as_secs(), FRESH)] {
        let only = Only {
            stories: Some(false),
            ..Only::default()
        };
        let known = Known::read(&known_file()).unwrap();
        let hunt = Hunt::new(seed, 0, operations, known, only);
        let mut bench = bench(&process.host(), "hunts");
        let started = Instant::now();
        let gone = |_: &mut Bench| bail!("seed {seed}: it gives no answer");
        hunt.work(&mut bench, &gone).unwrap();
        let (report, is_clean) = hunt.report(started);
        assert!(is_clean, "{report}");
        assert!(hunt.operations_done() >= operations);
    }
}

/// `distinct` has null among the values of an index, as the reference has, and not of a collection.
#[tokio::test(flavor = "multi_thread")]
async fn another_answer_by_an_index_is_seen() {
    let process = Launch::mongod().start().await;
    let mut bench = bench(&process.host(), "hunts_seen");
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
