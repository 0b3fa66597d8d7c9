use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::index_keys::{NoIndex, to_buckets, to_measurements};
use super::*;
use crate::{extjson, golden};

fn document(text: &str) -> RawDocumentBuf {
    extjson::parse(text).unwrap()
}

fn shown(document: &RawDocument) -> String {
    extjson::relaxed_text(document).unwrap()
}

fn series(text: &str) -> TimeSeries {
    TimeSeries::parse(&document(text)).unwrap()
}

fn distinct() -> ObjectId {
    ObjectId::from_bytes([7; 12])
}

/// Puts measurements into buckets, each into the last one or a new one, as a writer does.
fn fill(series: &TimeSeries, measurements: &[RawDocumentBuf]) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for document in measurements {
        let measurement = Measurement::of(document, series).unwrap();
        let takes = |bucket: &&mut Bucket| bucket.takes(&measurement, series);
        match buckets.last_mut().filter(takes) {
            Some(bucket) => bucket.add(&measurement, series, None),
            None => {
                let mut bucket = Bucket::open(series, &measurement, distinct());
                assert!(bucket.takes(&measurement, series));
                bucket.add(&measurement, series, None);
                buckets.push(bucket);
            }
        }
    }
    buckets
}

fn unpacked(series: &TimeSeries, bucket: &RawDocument) -> Vec<RawDocumentBuf> {
    let meta = series.meta_field.as_deref();
    let rows = Rows::of(bucket, &series.time_field, meta, |_| true).unwrap();
    rows.collect()
}

#[test]
fn measurements_in_buckets() {
    golden::check("src/time_series/buckets.golden", |commands| {
        let (mut options, mut measurements) = (None, Vec::new());
        for command in commands {
            match golden::split(command) {
                ("series", text) => options = Some(series(text)),
                (_, text) => measurements.push(document(text)),
            }
        }
        let series = options.unwrap();
        let mut output = Vec::new();
        for bucket in fill(&series, &measurements) {
            let kept = bucket.to_document();
            // What is read again is the same bucket.
            let read = Bucket::parse(&kept, &series).unwrap();
            assert_eq!(read.to_document(), kept);
            assert_eq!(
                (read.count(), read.bytes()),
                (bucket.count(), bucket.bytes())
            );
            output.push(shown(&kept));
            let rows = unpacked(&series, &kept);
            output.extend(rows.iter().map(|row| format!("  {}", shown(row))));
        }
        output
    });
}

#[test]
fn index_keys_of_buckets() {
    let series = series(
        r#"{"timeField":"t","metaField":"m","granularity":"seconds","bucketMaxSpanSeconds":3600}"#,
    );
    golden::check("src/time_series/index_keys.golden", |commands| {
        let each = commands.iter().map(|command| {
            let (_, key) = golden::split(command);
            match to_buckets(&document(key), &series) {
                Ok(buckets) => {
                    assert_eq!(to_measurements(&buckets, &series).unwrap(), document(key));
                    shown(&buckets)
                }
                Err(NoIndex::Time(name)) => format!("no order of times: {name}"),
                Err(NoIndex::Field(name)) => format!("no order of values: {name}"),
            }
        });
        each.collect()
    });
    for of_buckets_alone in [
        rawdoc! { "control.min.t": 1 },
        rawdoc! { "control.min.t": 1, "control.max.t": -1 },
        rawdoc! { "control.min.x": 1, "control.max.y": 1 },
        rawdoc! { "metadata": 1 },
    ] {
        assert_eq!(to_measurements(&of_buckets_alone, &series), None);
    }
}

fn seconds(count: i64) -> RawDocumentBuf {
    rawdoc! { "t": bson::DateTime::from_millis(count * 1000), "x": 1 }
}

const SECONDS: &str =
    r#"{"timeField":"t","metaField":"m","granularity":"seconds","bucketMaxSpanSeconds":3600}"#;

#[test]
fn a_bucket_holds_a_thousand_measurements() {
    let series = series(SECONDS);
    let buckets = fill(&series, &vec![seconds(5); 2_500]);
    let counts: Vec<usize> = buckets.iter().map(Bucket::count).collect();
    assert_eq!(counts, [1_000, 1_000, 500]);
}

#[test]
fn a_bucket_spans_no_more_than_its_granularity() {
    let series = series(SECONDS);
    let at: Vec<_> = [65, 60 + 3_599, 60 + 3_600, 70].map(seconds).into();
    let buckets = fill(&series, &at);
    let counts: Vec<usize> = buckets.iter().map(Bucket::count).collect();
    assert_eq!(counts, [2, 1, 1]);
}

#[test]
fn large_measurements_share_buckets_by_ten() {
    let series = series(SECONDS);
    let large = rawdoc! { "t": bson::DateTime::from_millis(0), "x": "y".repeat(60_000) };
    let buckets = fill(&series, &vec![large; 25]);
    let counts: Vec<usize> = buckets.iter().map(Bucket::count).collect();
    assert_eq!(counts, [10, 10, 5]);
    let huge = rawdoc! { "t": bson::DateTime::from_millis(0), "x": "y".repeat(6_000_000) };
    let measurement = Measurement::of(&huge, &series).unwrap();
    let bucket = Bucket::open(&series, &measurement, distinct());
    assert!(!bucket.has_room_for(&measurement));
}

#[test]
fn ids_are_in_the_order_of_times() {
    let times = [
        i64::MIN,
        -5_000,
        -1,
        0,
        999,
        1_000,
        1 << 40,
        5 << 40,
        i64::MAX,
    ];
    let ids: Vec<_> = times.map(|time| bucket_id(time, distinct())).into();
    assert!(ids.is_sorted());
    assert_eq!(ids[0].to_hex(), "000000000707070707070707");
    assert_eq!(ids[5].to_hex(), "000000010707070707070707");
    assert_eq!(ids[8].to_hex(), "ffffffff0707070707070707");
}

#[test]
fn only_fields_that_are_wanted_are_unpacked() {
    let series = series(SECONDS);
    let one = rawdoc! { "_id": 1, "t": bson::DateTime::from_millis(0), "m": 2, "x": 3 };
    let bucket = fill(&series, &[one])[0].to_document();
    let only = |wanted: &'static str| {
        let rows = Rows::of(&bucket, "t", Some("m"), move |name| name == wanted).unwrap();
        rows.collect::<Vec<_>>()
    };
    assert_eq!(only("x"), [rawdoc! { "x": 3 }]);
    assert_eq!(only("m"), [rawdoc! { "m": 2 }]);
    assert_eq!(only(""), [rawdoc! {}]);
}

#[test]
fn what_is_no_bucket_is_told() {
    let no = |document: &RawDocument, meta: Option<&'static str>| {
        Rows::of(document, "t", meta, |_| true).err()
    };
    assert_eq!(no(&rawdoc! {}, None), Some(RowError::NoData));
    assert_eq!(no(&rawdoc! { "data": {} }, None), Some(RowError::NoTimes));
    let compressed = rawdoc! { "control": { "version": 2 }, "data": { "t": 1 } };
    assert_eq!(no(&compressed, None), Some(RowError::Version(2)));
    let meta = rawdoc! { "meta": 1, "data": { "t": {} } };
    assert_eq!(no(&meta, None), Some(RowError::UnexpectedMeta));
    assert_eq!(no(&meta, Some("m")), None);
    assert!(Bucket::parse(&compressed, &series(SECONDS)).is_none());
}

#[test]
fn options_are_kept_as_they_were() {
    for text in [
        SECONDS,
        r#"{"timeField":"t","granularity":"hours","bucketMaxSpanSeconds":2592000}"#,
        r#"{"timeField":"t","bucketRoundingSeconds":90,"bucketMaxSpanSeconds":90}"#,
    ] {
        assert_eq!(shown(&series(text).to_document()), text);
    }
    for text in [
        r#"{"timeField":"t"}"#,
        r#"{"timeField":"t","bucketRoundingSeconds":0,"bucketMaxSpanSeconds":90}"#,
        r#"{"granularity":"hours","bucketMaxSpanSeconds":2592000}"#,
    ] {
        assert_eq!(TimeSeries::parse(&document(text)), None);
    }
}
