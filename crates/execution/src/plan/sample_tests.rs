//! Samples that are drawn by record ids.

use std::collections::HashSet;
use std::sync::Arc;

use banyan_storage::{Batch, Collection, RecordId};
use bson::{RawDocumentBuf, rawdoc};

use crate::fixture::Fixture;
use crate::request::Request;

fn documents(count: i32) -> Vec<RawDocumentBuf> {
    (0..count).map(|id| rawdoc! { "_id": id }).collect()
}

fn drawn(fixture: &Fixture, collection: &Arc<Collection>, size: u64) -> (bool, Vec<i32>) {
    let request = Request {
        sample: Some(size),
        ..Request::default()
    };
    let (found, _) = fixture.find(collection, &request);
    let executor = fixture.open(collection, &request);
    (executor.is_sample(), found)
}

#[test]
fn each_record_is_drawn_once_and_as_likely_as_any_other() {
    let fixture = Fixture::new();
    let collection = fixture.collection("drawn", &documents(200), &[]);
    // Gaps make nobody more likely.
    let mut batch = Batch::new();
    for id in (0..200_u64).filter(|id| !id.is_multiple_of(4)) {
        let record = RecordId::number(id + 1);
        batch.delete_record(&collection, &record, &rawdoc! { "_id": id as i32 });
    }
    fixture.store.commit(batch).unwrap();
    let more: Vec<_> = documents(300).split_off(200);
    let mut batch = Batch::new();
    for (at, document) in more.iter().enumerate() {
        let record = RecordId::number(201 + at as u64);
        batch.insert_record(&collection, &record, document);
    }
    fixture.store.commit(batch).unwrap();
    let mut counts = [0_u32; 300];
    for _ in 0..600 {
        let (is_sample, found) = drawn(&fixture, &collection, 7);
        assert!(is_sample);
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), 7);
        for id in found {
            counts[usize::try_from(id).unwrap()] += 1;
        }
    }
    // 4,200 draws of 150 records: 28 each, with a deviation of about 5.
    for (id, count) in counts.iter().enumerate() {
        let is_there = id >= 200 || id.is_multiple_of(4);
        let expected = if is_there { 3..=75 } else { 0..=0 };
        assert!(expected.contains(count), "{id} was drawn {count} times");
    }
}

#[test]
fn large_samples_and_small_collections_are_scanned() {
    let fixture = Fixture::new();
    let small = fixture.collection("small", &documents(100), &[]);
    assert_eq!(drawn(&fixture, &small, 1), (false, (0..100).collect()));
    let large = fixture.collection("large", &documents(400), &[]);
    assert!(drawn(&fixture, &large, 19).0);
    assert!(!drawn(&fixture, &large, 20).0);
}
