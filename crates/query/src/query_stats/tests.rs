use std::sync::Arc;
use std::time::Duration;

use banyan_document::number::Number;
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use super::rate::RateLimit;
use super::{Asked, Batch, Key, QueryStats, Transform, Work, size};
use crate::shape::QueryShape;

const NOW: Timestamp = Timestamp {
    time: 7,
    increment: 1,
};

fn key(body: &RawDocumentBuf) -> Key {
    let asked = Asked {
        database: "t",
        body,
        client: None,
        collection_type: "collection",
    };
    Key::new(&QueryShape::of("t", body).unwrap(), &asked)
}

fn find(path: &str) -> Key {
    let mut filter = RawDocumentBuf::new();
    filter.append(bson::raw::CString::try_from(path).unwrap(), 1);
    key(&rawdoc! { "find": "c", "filter": filter })
}

/// Statistics in so many bytes.
fn stats(size: &str) -> Arc<QueryStats> {
    let stats = QueryStats::new(1 << 30);
    stats.set_size(size).unwrap();
    stats.set_rate(-1);
    Arc::new(stats)
}

fn run(stats: &Arc<QueryStats>, key: Key) {
    let batch = Batch {
        took: Duration::from_micros(10),
        returned: 3,
        ..Batch::default()
    };
    stats.record(key).add(&batch);
}

fn shown(stats: &QueryStats) -> Vec<RawDocumentBuf> {
    stats.documents(&Transform::default(), NOW)
}

#[test]
fn runs_of_one_shape_are_added_up_once_their_last_batch_is_read() {
    let stats = stats("10MB");
    let recording = stats.record(key(&rawdoc! { "find": "c", "filter": { "a": 1 } }));
    let batch = |took, returned| Batch {
        took: Duration::from_micros(took),
        returned,
        work: Some(Work {
            from_plan_cache: true,
            ..Work::default()
        }),
    };
    recording.add(&batch(10, 2));
    recording.add(&batch(30, 1));
    assert!(shown(&stats).is_empty());
    drop(recording);
    run(&stats, key(&rawdoc! { "find": "c", "filter": { "a": 9 } }));
    let all = shown(&stats);
    assert_eq!(all.len(), 1);
    let metrics = all[0].get_document("metrics").unwrap();
    let figure = |figures: &RawDocument, name: &str| figures.get_i64(name).unwrap();
    assert_eq!(figure(metrics, "execCount"), 2);
    let total = metrics.get_document("totalExecMicros").unwrap();
    assert_eq!(figure(total, "sum"), 50);
    assert_eq!((figure(total, "min"), figure(total, "max")), (10, 40));
    let squares = total.get("sumOfSquares").unwrap().unwrap();
    assert_eq!(
        Number::from_raw(squares).unwrap().to_i64_exact(),
        Some(1_700)
    );
    let first = metrics.get_document("firstResponseExecMicros").unwrap();
    assert_eq!(figure(first, "sum"), 20);
    let cached = metrics.get_document("fromPlanCache").unwrap();
    assert_eq!((figure(cached, "true"), figure(cached, "false")), (1, 0));
    assert_eq!(all[0].get_timestamp("asOf").unwrap(), NOW);
}

#[test]
fn how_a_query_asks_to_be_answered_tells_it_apart_and_its_values_do_not() {
    let plain = key(&rawdoc! { "find": "c", "filter": { "a": 1 } });
    let commented = |text| key(&rawdoc! { "find": "c", "filter": { "a": 1 }, "comment": text });
    assert_ne!(plain.hash, commented("x").hash);
    assert_eq!(commented("y").hash, commented("x").hash);
    assert_eq!(plain.shape_hash, commented("x").shape_hash);
    let hinted = key(&rawdoc! { "find": "c", "filter": { "a": 1 }, "hint": "a_1" });
    assert_ne!(plain.hash, hinted.hash);
}

#[test]
fn what_has_failed_or_returned_nothing_yet_does_not_count() {
    let stats = stats("10MB");
    let failed = stats.record(find("a"));
    failed.add(&Batch::default());
    failed.discard();
    drop(failed);
    drop(stats.record(find("a")));
    assert!(shown(&stats).is_empty());
}

#[test]
fn the_store_forgets_what_was_not_run_for_the_longest_time() {
    let stats = stats("1MB");
    for number in 0..3_000 {
        run(&stats, find(&format!("f{number}")));
        run(&stats, find("often"));
    }
    let figures = stats.figures();
    let figure = |name: &str| figures.get_i64(name).unwrap();
    assert!(figure("numEvicted") > 0);
    assert_eq!(figure("numEntries") + figure("numEvicted"), 3_001);
    assert!(figure("queryStatsStoreSizeEstimateBytes") <= 1 << 20);
    assert_eq!(figure("maxSizeBytes"), 1 << 20);
    let often = find("often").shape_hash;
    let runs = shown(&stats).into_iter().find_map(|entry| {
        let is_it = entry.get_str("queryShapeHash").unwrap() == often;
        let metrics = entry.get_document("metrics").unwrap();
        is_it.then(|| metrics.get_i64("execCount").unwrap())
    });
    assert_eq!(runs, Some(3_000));
    stats.set_size("0MB").unwrap();
    assert!(shown(&stats).is_empty());
    run(&stats, find("a"));
    let refused = stats.figures().get_i64("numQueryStatsStoreWriteErrors");
    assert_eq!(refused.unwrap(), 1);
}

#[test]
fn no_more_count_in_a_second_than_are_wanted() {
    let limit = RateLimit::default();
    let counted = |second| {
        let tries = (0..10).filter(|_| limit.allows(4, Duration::from_secs(second)));
        tries.count()
    };
    assert_eq!((counted(0), counted(0), counted(3)), (4, 0, 4));
    let stats = QueryStats::new(1 << 30);
    assert!(!stats.is_on() && !stats.sample());
    stats.set_rate(1);
    assert!(stats.sample());
    while stats.sample() {}
    assert!(stats.figures().get_i64("numRateLimitedRequests").unwrap() > 0);
    stats.set_rate(-1);
    assert!((0..1_000).all(|_| stats.sample()));
}

#[test]
fn a_size_is_a_number_with_its_unit() {
    let parse = |text| size::parse(text, 1_000_000_000);
    assert_eq!(parse("1%"), Some(10_000_000));
    assert_eq!(parse("2MB"), Some(2 << 20));
    assert_eq!(parse("0.5 GB"), Some(1 << 29));
    assert_eq!(parse("4GB"), Some(1_000_000_000));
    for wrong in ["", "1", "101%", "x", "-1MB", "1KB", "1.2.3MB"] {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}

#[test]
fn names_are_hashed_on_demand_and_what_is_asked_is_checked() {
    let stats = stats("10MB");
    run(&stats, find("a.b"));
    let secret = |subtype| Binary {
        subtype,
        bytes: vec![1; 32],
    };
    let transform = |identifiers: RawDocumentBuf| {
        Transform::parse(&rawdoc! { "transformIdentifiers": identifiers })
    };
    let sensitive = secret(BinarySubtype::Sensitive);
    let hashing = transform(rawdoc! { "algorithm": "hmac-sha-256", "hmacKey": sensitive });
    let hidden = &stats.documents(&hashing.unwrap(), NOW)[0];
    let shape = hidden
        .get_document("key")
        .unwrap()
        .get_document("queryShape")
        .unwrap();
    let filter = shape.get_document("filter").unwrap();
    let (name, test) = filter.iter().next().unwrap().unwrap();
    assert_eq!(
        test.as_document().unwrap().to_owned(),
        rawdoc! { "$eq": "?number" }
    );
    let parts: Vec<_> = name.as_str().split('.').collect();
    assert!(
        parts.len() == 2 && parts.iter().all(|part| part.len() == 44),
        "{name:?}"
    );
    let hash = |entry: &RawDocumentBuf| entry.get_str("queryShapeHash").unwrap().to_owned();
    assert_eq!(hash(hidden), hash(&shown(&stats)[0]));
    let cases = [
        (
            rawdoc! {},
            "BSON field '$queryStats.transformIdentifiers.algorithm' is missing but a required field",
        ),
        (
            rawdoc! { "algorithm": 1 },
            "BSON field '$queryStats.transformIdentifiers.algorithm' is the wrong type 'int', expected type 'string'",
        ),
        (
            rawdoc! { "algorithm": "x" },
            "Enumeration value 'x' for field '$queryStats.transformIdentifiers.algorithm' is not a valid value.",
        ),
        (
            rawdoc! { "algorithm": "hmac-sha-256" },
            "The 'hmacKey' parameter of the $queryStats stage must be specified when applying the hmac-sha-256 algorithm",
        ),
        (
            rawdoc! { "algorithm": "hmac-sha-256", "hmacKey": secret(BinarySubtype::Generic) },
            "BSON field '$queryStats.transformIdentifiers.hmacKey' is the wrong binData type 'general', expected type 'sensitive'",
        ),
        (
            rawdoc! { "other": 1 },
            "BSON field '$queryStats.transformIdentifiers.other' is an unknown field.",
        ),
    ];
    for (identifiers, expected) in cases {
        assert_eq!(transform(identifiers).unwrap_err().message, expected);
    }
}
