use super::*;
use crate::fixture::{Fixture, request};
use crate::interrupt::Interrupt;
use crate::row::{HANDED_ON_BYTES, RowStream};
use crate::tickets::Tickets;
use crate::{Executor, Request};
use banyan_query::canonical::CanonicalQuery;
use bson::{RawDocumentBuf, rawdoc};

const DOCUMENTS: i32 = 60_000;

/// Runs with tickets for more threads than one, and for one alone.
async fn on_all_cores_and_on_one(work: impl Fn()) {
    for total in [8, 1] {
        let interrupt = Interrupt::new(Arc::default(), None);
        let work = async { work() };
        Tickets::new(total).run(&interrupt, work).await.unwrap();
    }
}

/// The ids of all that is handed on, batch by batch. `rests`: between two batches, now and then.
fn handed_on(executor: &mut Executor, rests: bool) -> Vec<i32> {
    let mut ids = Vec::new();
    let mut rows = VecDeque::new();
    for batch in 0.. {
        executor.next_batch(64, &mut rows).unwrap();
        assert!(rows.len() <= 64);
        if rows.is_empty() {
            break;
        }
        ids.extend(rows.drain(..).map(|row| row.get_i32("_id").unwrap()));
        if rests && batch % 5 == 0 {
            executor.save();
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_large_scan_hands_on_comes_in_order() {
    let fixture = Fixture::new();
    let is_there = |id: &i32| id % 1000 > 300;
    let documents: Vec<_> = (0..DOCUMENTS)
        .map(|id| rawdoc! { "_id": id, "a": id % 7, "b": id % 3 })
        .collect();
    let collection = fixture.collection("c", &documents, &[]);
    let mut batch = banyan_storage::Batch::new();
    for id in (0..DOCUMENTS).filter(|id| !is_there(id)) {
        let record = banyan_storage::RecordId::number(id as u64 + 1);
        crate::fixture::remove(&mut batch, &collection, &record, &documents[id as usize]);
    }
    fixture.store.commit(batch).unwrap();
    for filter in [
        rawdoc! {},
        rawdoc! {"a": {"$lt": 4}},
        rawdoc! {"a": 3, "b": 1},
    ] {
        let asked = request(&filter, None);
        let matches = |id: &i32| {
            let document = &documents[*id as usize];
            is_there(id) && asked.query.filter.try_matches(document).unwrap()
        };
        let expected: Vec<i32> = (0..DOCUMENTS).filter(matches).collect();
        let looked_at = (0..DOCUMENTS).filter(is_there).count();
        on_all_cores_and_on_one(|| {
            for rests in [false, true] {
                let mut executor = fixture.open(&collection, &asked);
                assert_eq!(handed_on(&mut executor, rests), expected);
                let run = executor.explain_run();
                assert_eq!(run.get_i32("docsExamined").unwrap() as usize, looked_at);
                assert_eq!(run.get_i32("nReturned").unwrap() as usize, expected.len());
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_workers_read_what_is_handed_on() {
    if parallel::workers() < 2 {
        return;
    }
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..DOCUMENTS).map(|id| rawdoc! { "_id": id }).collect();
    let collection = fixture.collection("c", &documents, &[]);
    let asked = request(&rawdoc! {}, None);
    let interrupt = Interrupt::new(Arc::default(), None);
    let work = async {
        let mut executor = fixture.open(&collection, &asked);
        assert_eq!(handed_on(&mut executor, false).len(), DOCUMENTS as usize);
        let run = executor.explain_run();
        assert!(run.get_array("workers").unwrap().into_iter().count() >= 2);
    };
    Tickets::new(8).run(&interrupt, work).await.unwrap();
}

/// A limit is reached with what it takes to come there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_read_than_a_limit_asks_for() {
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..DOCUMENTS).map(|id| rawdoc! { "_id": id }).collect();
    let collection = fixture.collection("c", &documents, &[]);
    let asked = request(&rawdoc! {}, None);
    let query = CanonicalQuery {
        limit: Some(20_000),
        ..CanonicalQuery::clone(&asked.query)
    };
    let asked = Request {
        query: Arc::new(query),
        ..asked
    };
    on_all_cores_and_on_one(|| {
        let mut executor = fixture.open(&collection, &asked);
        assert!(handed_on(&mut executor, false).into_iter().eq(0..20_000));
        let run = executor.explain_run();
        let scan = run.get_document("inputStage").unwrap();
        assert_eq!(scan.get_i32("docsExamined").unwrap(), 20_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_read_ahead_than_has_room() {
    let fixture = Fixture::new();
    let text = "x".repeat(4000);
    let documents: Vec<RawDocumentBuf> = (0..12_000)
        .map(|id| rawdoc! { "_id": id, "text": text.as_str() })
        .collect();
    let collection = fixture.collection("c", &documents, &[]);
    let asked = request(&rawdoc! {}, None);
    on_all_cores_and_on_one(|| {
        let mut executor = fixture.open(&collection, &asked);
        let mut rows = VecDeque::new();
        let mut handed_on = 0;
        while handed_on < 12_000 {
            executor.next_batch(64, &mut rows).unwrap();
            handed_on += rows.len();
            rows.clear();
            let looked_at = executor.explain_run().get_i32("docsExamined").unwrap();
            let ahead = looked_at as usize - handed_on;
            // What every worker may read until it looks at the room comes on top of twice the bytes.
            assert!(ahead * 4000 < 3 * BYTES, "{ahead}");
        }
    })
    .await;
}

/// What fails is told once all that comes before it was handed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_found_before_a_failure_comes_first() {
    let fixture = Fixture::new();
    let documents: Vec<RawDocumentBuf> = (0..DOCUMENTS).map(|id| rawdoc! { "_id": id }).collect();
    let collection = fixture.collection("c", &documents, &[]);
    let fails_at = 31_234;
    let difference = rawdoc! {"$subtract": ["$_id", fails_at]};
    let filter = rawdoc! {"$expr": {"$ne": [{"$divide": [1, difference]}, 7]}};
    let asked = request(&filter, None);
    on_all_cores_and_on_one(|| {
        let mut executor = fixture.open(&collection, &asked);
        let (mut rows, mut ids) = (VecDeque::new(), Vec::new());
        let failure = loop {
            let outcome = executor.next_batch(64, &mut rows);
            assert!(outcome.is_err() || !rows.is_empty(), "{}", ids.len());
            ids.extend(rows.drain(..).map(|row| row.get_i32("_id").unwrap()));
            if let Err(error) = outcome {
                break error;
            }
        };
        assert!(failure.to_string().contains("divide by zero"), "{failure}");
        assert!(ids.iter().copied().eq(0..fails_at), "{}", ids.len());
    })
    .await;
}

/// What does not fit into a client's batch would be kept by the cursor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_documents_are_handed_on_few_at_once() {
    let fixture = Fixture::new();
    let text = "x".repeat(HANDED_ON_BYTES / 4);
    let documents: Vec<RawDocumentBuf> = (0..40)
        .map(|id| rawdoc! { "_id": id, "text": text.as_str() })
        .collect();
    let collection = fixture.collection("c", &documents, &[]);
    let mut executor = fixture.open(&collection, &request(&rawdoc! {}, None));
    let (mut rows, mut ids) = (VecDeque::new(), Vec::new());
    while ids.len() < documents.len() {
        executor.next_batch(64, &mut rows).unwrap();
        assert!((1..=4).contains(&rows.len()), "{}", rows.len());
        ids.extend(rows.drain(..).map(|row| row.get_i32("_id").unwrap()));
    }
    assert!(ids.iter().copied().eq(0..40));
}
