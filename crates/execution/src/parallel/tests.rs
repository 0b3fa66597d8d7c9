use super::*;
use crate::fixture::{Fixture, request};
use crate::interrupt::{Cause, Interrupt};
use crate::tickets::Tickets;
use banyan_query::canonical::CanonicalQuery;
use banyan_query::spill::{SpillFile, SpillStore};
use banyan_query::{Budget, Memory};
use bson::{Bson, RawDocument, RawDocumentBuf, rawdoc};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

use crate::operators::ShardFilter;

const DOCUMENTS: i32 = 20_000;

/// The ids that a part has seen, in its order.
#[derive(Default)]
struct Ids(Vec<i32>);

impl Sink for Ids {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        self.0.push(member.document.get_i32("_id").unwrap());
        Ok(())
    }
}

fn collection(fixture: &Fixture) -> Arc<banyan_storage::Collection> {
    let document = |id| rawdoc! { "_id": id, "a": id % 7 };
    let documents: Vec<RawDocumentBuf> = (0..DOCUMENTS).map(document).collect();
    fixture.collection("c", &documents, &[])
}

fn interrupt() -> Interrupt {
    Interrupt::new(Arc::default(), None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_document_is_seen_once_and_in_order() {
    let fixture = Fixture::new();
    let collection = collection(&fixture);
    let work = async || {
        let mut executor = fixture.open(&collection, &request(&rawdoc! {"a": {"$lt": 3}}, None));
        let parts = executor.divide(|| Ok(Ids::default())).unwrap().unwrap();
        let ids = parts.into_iter().flat_map(|part| part.0);
        assert!(ids.eq((0..DOCUMENTS).filter(|id| id % 7 < 3)));
        assert!(executor.next_record().unwrap().is_none(), "it has ended");
        let run = executor.explain_run();
        assert_eq!(run.get_i32("docsExamined").unwrap(), DOCUMENTS);
        let mut executor = fixture.open(&collection, &request(&rawdoc! {"a": 3}, None));
        assert_eq!(executor.count_up_to(u64::MAX).unwrap(), 2857);
    };
    // With tickets for more threads than one, and for one alone.
    for total in [8, 1] {
        Tickets::new(total).run(&interrupt(), work()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_workers_end_with_the_operation() {
    let fixture = Fixture::new();
    let collection = collection(&fixture);
    let work = async {
        let killed = interrupt();
        killed.raise(Cause::Killed);
        let slot = Arc::new(InterruptSlot::default());
        slot.set(Some(killed));
        let request = request(&rawdoc! {}, None);
        let mut executor = fixture.open_in(&collection, &request, None, &slot);
        let outcome = executor.divide(|| Ok(Ids::default()));
        assert!(matches!(outcome, Err(error) if error.kind == ErrorKind::Interrupted));
        // The executor's own handle and this one are left.
        while Arc::strong_count(&slot) > 2 {
            tokio::task::yield_now().await;
        }
    };
    Tickets::new(8).run(&interrupt(), work).await.unwrap();
}

/// Runs with tickets for more threads than one, and for one alone.
async fn on_all_cores_and_on_one(work: impl Fn()) {
    for total in [8, 1] {
        let work = async { work() };
        Tickets::new(total).run(&interrupt(), work).await.unwrap();
    }
}

fn all_ids(mut executor: crate::Executor) -> (Vec<i32>, RawDocumentBuf) {
    let mut ids = Vec::new();
    while let Some((record, row)) = executor.next_record().unwrap() {
        let id = row.get_i32("_id").unwrap();
        assert_eq!(record.as_number(), Some(id as u64 + 1));
        ids.push(id);
    }
    (ids, executor.explain_run())
}

/// Numbers, strings, arrays, null, nothing and an empty array, many of them alike.
fn mixed(id: i32) -> RawDocumentBuf {
    let mut document = rawdoc! { "_id": id };
    let value = match id % 11 {
        0 => return document,
        1 => Bson::Null,
        2 => Bson::Array(Vec::new()),
        3 => Bson::Array(vec![(id % 13).into(), "x".into()]),
        4 => Bson::String(format!("{:>6}", id * 7919 % 30)),
        5 => Bson::Double(f64::from(id % 9) + 0.5),
        6 => bson::bson!({ "b": id % 5 }),
        _ => Bson::Int32(id.wrapping_mul(7919) % 300),
    };
    document.append(cstr!("a"), bson::RawBson::try_from(value).unwrap());
    document
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sort_comes_to_the_same_on_any_number_of_cores() {
    let fixture = Fixture::new();
    let documents: Vec<RawDocumentBuf> = (0..DOCUMENTS).map(mixed).collect();
    let collection = fixture.collection("c", &documents, &[]);
    for sort in [
        rawdoc! {"a": 1},
        rawdoc! {"a": -1},
        rawdoc! {"a.b": 1, "a": -1},
    ] {
        let asked = request(&rawdoc! {}, Some(&sort));
        let pattern = asked.query.order.pattern().unwrap().clone();
        let mut expected: Vec<i32> = (0..DOCUMENTS).collect();
        expected.sort_by_key(|id| pattern.key(&documents[*id as usize]).unwrap());
        for limit in [None, Some(10), Some(9_000)] {
            let query = CanonicalQuery {
                limit,
                ..CanonicalQuery::clone(&asked.query)
            };
            let asked = crate::Request {
                query: Arc::new(query),
                budget: Budget::unlimited(),
                ..asked.clone()
            };
            let most = limit.map_or(usize::MAX, |limit| limit as usize);
            let expected = &expected[..most.min(expected.len())];
            on_all_cores_and_on_one(|| {
                let (ids, run) = all_ids(fixture.open(&collection, &asked));
                assert_eq!(ids, expected);
                let scan = run.get_document("inputStage").unwrap();
                assert_eq!(scan.get_i32("docsExamined").unwrap(), DOCUMENTS);
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_scan_finds_seldom_is_found_in_order() {
    let fixture = Fixture::new();
    let holes = |id: &i32| id % 1000 > 300;
    let documents: Vec<_> = (0..60_000)
        .map(|id| rawdoc! { "_id": id, "a": id % 700, "late": id > 50_000 })
        .collect();
    let collection = fixture.collection("c", &documents, &[]);
    let mut batch = banyan_storage::Batch::new();
    for id in (0..60_000).filter(|id| !holes(id)) {
        let record = banyan_storage::RecordId::number(id as u64 + 1);
        crate::fixture::remove(&mut batch, &collection, &record, &documents[id as usize]);
    }
    fixture.store.commit(batch).unwrap();
    // Seldom throughout, never before the end, nowhere.
    for filter in [rawdoc! {"a": 3}, rawdoc! {"late": true}, rawdoc! {"a": -1}] {
        let request = request(&filter, None);
        let found = |id: &i32| {
            holes(id)
                && request
                    .query
                    .filter
                    .try_matches(&documents[*id as usize])
                    .unwrap()
        };
        let expected: Vec<i32> = (0..60_000).filter(found).collect();
        on_all_cores_and_on_one(|| {
            let (ids, run) = all_ids(fixture.open(&collection, &request));
            assert_eq!(ids, expected);
            let looked_at = (0..60_000).filter(holes).count();
            assert_eq!(run.get_i32("docsExamined").unwrap() as usize, looked_at);
            // It rests between any two documents.
            assert_eq!(fixture.find(&collection, &request).0, expected);
        })
        .await;
    }
}

/// What is found ahead is bounded, and nothing is lost where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_found_ahead_than_has_room() {
    let fixture = Fixture::new();
    let text = "x".repeat(2000);
    let documents: Vec<_> = (0..20_000)
        .map(|id| rawdoc! { "_id": id, "late": id > 6000, "text": text.as_str() })
        .collect();
    let collection = fixture.collection("c", &documents, &[]);
    let request = request(&rawdoc! {"late": true}, None);
    on_all_cores_and_on_one(|| {
        let mut executor = fixture.open(&collection, &request);
        let (_, first) = executor.next_record().unwrap().unwrap();
        assert_eq!(first.get_i32("_id").unwrap(), 6001);
        let looked_at = executor.explain_run().get_i32("docsExamined").unwrap();
        assert!(looked_at < 14_000, "{looked_at}");
        drop(first);
        let (ids, _) = all_ids(executor);
        assert!(ids.into_iter().eq(6002..20_000));
    })
    .await;
}

/// What an index finds, fetched or covered, counted, sorted or taken in its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_scan_is_divided_by_its_keys() {
    let fixture = Fixture::new();
    let value = |id: i32| match id % 4 {
        0 => Bson::Int32(id.wrapping_mul(7919) % 5000),
        1 => Bson::String(format!("user {:05}", id * 31 % 20_000)),
        2 => Bson::Double(f64::from(id % 77) / 7.0),
        _ => Bson::Null,
    };
    let document = |id: i32| {
        let mut document = rawdoc! { "_id": id, "b": id % 10 };
        document.append(cstr!("a"), bson::RawBson::try_from(value(id)).unwrap());
        document
    };
    let documents: Vec<RawDocumentBuf> = (0..60_000).map(document).collect();
    let indexes = [crate::fixture::index(rawdoc! {"a": 1}, "a_1")];
    let collection = fixture.collection("c", &documents, &indexes);
    let filters = [
        rawdoc! {"a": {"$gte": 100}},
        rawdoc! {"a": {"$gte": "user"}, "b": {"$gt": 3}},
        rawdoc! {"a": {"$lt": 200}},
        rawdoc! {"a": {"$gte": -1}},
    ];
    for filter in filters {
        let asked = crate::Request {
            hint: Some(bson::RawBsonRef::String("a_1")),
            ..request(&filter, None)
        };
        let matching = |id: &i32| {
            let document = &documents[*id as usize];
            asked.query.filter.try_matches(document).unwrap()
        };
        let key = |id: &i32| {
            let pattern = banyan_document::KeyPattern::parse(&rawdoc! {"a": 1}).unwrap();
            pattern
                .keys(&documents[*id as usize])
                .unwrap()
                .keys
                .remove(0)
        };
        let mut expected: Vec<i32> = (0..60_000).filter(matching).collect();
        expected.sort_by_cached_key(|id| key(id).bytes);
        on_all_cores_and_on_one(|| {
            let mut executor = fixture.open(&collection, &asked);
            let parts = executor.divide(|| Ok(Ids::default())).unwrap().unwrap();
            assert!(parts.len() > 1);
            let ids: Vec<i32> = parts.into_iter().flat_map(|part| part.0).collect();
            assert_eq!(ids, expected);
            let run = executor.explain_run();
            let fetched = run.get_i32("docsExamined").unwrap() as usize;
            assert!(fetched >= expected.len());
            let mut executor = fixture.open(&collection, &asked);
            let count = executor.count_up_to(u64::MAX).unwrap();
            assert_eq!(count, expected.len() as u64);
            // Of the keys alone, where they tell.
            let counted = crate::Request {
                goal: crate::Goal::Count,
                ..asked.clone()
            };
            let mut executor = fixture.open(&collection, &counted);
            let count = executor.count_up_to(u64::MAX).unwrap();
            assert_eq!(count, expected.len() as u64);
        })
        .await;
        let sorted = crate::Request {
            hint: asked.hint,
            ..request(&filter, Some(&rawdoc! {"b": -1}))
        };
        let mut in_order = expected.clone();
        in_order.sort_by_key(|id| -(id % 10));
        on_all_cores_and_on_one(|| {
            let (ids, _) = all_ids(fixture.open(&collection, &sorted));
            assert_eq!(ids, in_order);
            let executor = fixture.open(&collection, &sorted);
            assert_eq!(handed_out(executor, |_, _| ()), in_order);
        })
        .await;
    }
}

/// The ids of what is handed out to a client. `between` runs after every batch.
fn handed_out(
    mut executor: crate::Executor,
    mut between: impl FnMut(&mut crate::Executor, usize),
) -> Vec<i32> {
    let mut ids = Vec::new();
    let mut rows = std::collections::VecDeque::new();
    loop {
        crate::RowStream::next_batch(&mut executor, 64, &mut rows).unwrap();
        if rows.is_empty() {
            return ids;
        }
        ids.extend(rows.drain(..).map(|row| row.get_i32("_id").unwrap()));
        between(&mut executor, ids.len());
    }
}

/// What an index finds is read in another order than it is handed out in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_are_read_ahead_come_in_the_order_of_the_index() {
    let fixture = Fixture::new();
    let document = |id: i32| rawdoc! { "_id": id, "a": id * 7919 % 12_007, "b": id % 5 };
    let documents: Vec<RawDocumentBuf> = (0..12_007).map(document).collect();
    let indexes = [crate::fixture::index(rawdoc! {"a": 1}, "a_1")];
    let collection = fixture.collection("c", &documents, &indexes);
    for (filter, reverse) in [
        (rawdoc! {"a": {"$gte": 100}}, false),
        (rawdoc! {"a": {"$gte": 100}}, true),
        (rawdoc! {"a": {"$gte": 100}, "b": {"$ne": 3}}, false),
        (rawdoc! {"a": {"$gte": 100}, "b": -1}, false),
    ] {
        let sort = rawdoc! {"a": if reverse { -1 } else { 1 }};
        let request = request(&filter, Some(&sort));
        let matching = |id: &i32| {
            let document = &documents[*id as usize];
            request.query.filter.try_matches(document).unwrap()
        };
        let mut expected: Vec<i32> = (0..12_007).filter(matching).collect();
        expected.sort_by_key(|id| id * 7919 % 12_007);
        if reverse {
            expected.reverse();
        }
        on_all_cores_and_on_one(|| {
            let mut examined = 0;
            let note = |executor: &mut crate::Executor, _| {
                let run = executor.explain_run();
                examined = run.get_i32("docsExamined").unwrap();
            };
            let executor = fixture.open(&collection, &request);
            assert_eq!(handed_out(executor, note), expected);
            assert!(expected.is_empty() || examined == 11_907, "{examined}");
            let executor = fixture.open(&collection, &request);
            assert_eq!(
                handed_out(executor, |executor, _| executor.save()),
                expected
            );
        })
        .await;
    }
}

/// What a window has no room for is read when its turn comes, also in a later state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_read_ahead_than_has_room() {
    let text = "x".repeat(60_000);
    let value = |id: i32| id * 7 % 1500;
    let document = |id: i32| {
        let text = if value(id) < 1000 { "" } else { text.as_str() };
        rawdoc! { "_id": id, "a": value(id), "text": text }
    };
    let documents: Vec<RawDocumentBuf> = (0..1500).map(document).collect();
    let indexes = [crate::fixture::index(rawdoc! {"a": 1}, "a_1")];
    let request = request(&rawdoc! {"a": {"$gte": 0}}, None);
    let run = |changes: bool| -> Vec<i32> {
        let fixture = Fixture::new();
        let collection = fixture.collection("c", &documents, &indexes);
        let executor = fixture.open(&collection, &request);
        let mut is_reached = false;
        let ids = handed_out(executor, |executor, handed_out| {
            if handed_out < 1150 || std::mem::replace(&mut is_reached, true) {
                return;
            }
            // The window ends with 1275, of which 70 have room.
            let examined = executor.stats.documents();
            assert!((1100..1250).contains(&examined), "{examined}");
            if changes {
                executor.save();
                let record = |id: i32| banyan_storage::RecordId::number(id as u64 + 1);
                let mut batch = banyan_storage::Batch::new();
                for id in (0..1500).filter(|id| value(*id) >= 1200) {
                    let document = &documents[id as usize];
                    crate::fixture::remove(&mut batch, &collection, &record(id), document);
                }
                fixture.store.commit(batch).unwrap();
                let mut batch = banyan_storage::Batch::new();
                for id in (0..1500).filter(|id| value(*id) >= 1250) {
                    let changed = rawdoc! { "_id": id, "a": -1 };
                    crate::fixture::insert(&mut batch, &collection, &record(id), &changed);
                }
                fixture.store.commit(batch).unwrap();
            }
        });
        ids.into_iter().map(value).collect()
    };
    on_all_cores_and_on_one(|| {
        assert_eq!(run(false), Vec::from_iter(0..1500));
        let mut values = run(true);
        // Some were read before they were removed.
        let early = values.split_off(1200);
        assert_eq!(values, Vec::from_iter(0..1200));
        assert!(early.len() < 76 && early.iter().all(|value| *value < 1276));
    })
    .await;
}

/// Owns everything, and kills the operation once it was asked so often.
struct KillsAt(usize, AtomicUsize, Interrupt);

impl ShardFilter for KillsAt {
    fn owns(&self, _: &RawDocument) -> bool {
        if self.1.fetch_add(1, Ordering::Relaxed) == self.0 {
            self.2.raise(Cause::Killed);
        }
        true
    }

    fn owns_part_of(&self, _: &RawDocument, _: &RawDocument) -> bool {
        true
    }

    fn dependencies(&self, _: &mut BTreeSet<String>) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_workers_of_a_sort_end_with_the_operation() {
    let fixture = Fixture::new();
    let collection = collection(&fixture);
    let work = async {
        let killed = interrupt();
        let slot = Arc::new(InterruptSlot::default());
        slot.set(Some(killed.clone()));
        let asked = Arc::new(KillsAt(5000, AtomicUsize::new(0), killed));
        let request = crate::Request {
            shard_filter: Some(asked.clone()),
            ..request(&rawdoc! {}, Some(&rawdoc! {"a": 1}))
        };
        let mut executor = fixture.open_in(&collection, &request, None, &slot);
        let outcome = executor.next_record();
        assert!(matches!(outcome, Err(error) if error.kind == ErrorKind::Interrupted));
        while Arc::strong_count(&slot) > 2 {
            tokio::task::yield_now().await;
        }
        assert!(asked.1.load(Ordering::Relaxed) < 10_000);
    };
    Tickets::new(8).run(&interrupt(), work).await.unwrap();
}

/// Files in memory.
#[derive(Debug)]
struct Files;

struct Blocks(Vec<Vec<u8>>);

impl SpillStore for Files {
    fn create(&self) -> Result<Box<dyn SpillFile>, QueryError> {
        Ok(Box::new(Blocks(Vec::new())))
    }
}

impl SpillFile for Blocks {
    fn append(&mut self, block: &[u8]) -> Result<u64, QueryError> {
        self.0.push(block.to_vec());
        Ok(self.0.len() as u64 - 1)
    }

    fn read(&self, place: u64, block: &mut Vec<u8>) -> Result<u64, QueryError> {
        block.clone_from(&self.0[place as usize]);
        Ok(place + 1)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_workers_of_a_sort_cannot_hold_goes_to_disk_or_fails() {
    let fixture = Fixture::new();
    let documents: Vec<RawDocumentBuf> = (0..DOCUMENTS).map(mixed).collect();
    let collection = fixture.collection("c", &documents, &[]);
    let sort = rawdoc! {"a": 1};
    let asked = request(&rawdoc! {}, Some(&sort));
    let pattern = asked.query.order.pattern().unwrap().clone();
    let mut expected: Vec<i32> = (0..DOCUMENTS).collect();
    expected.sort_by_key(|id| pattern.key(&documents[*id as usize]).unwrap());
    let with = |bytes: i64| {
        let memory = Arc::new(Memory::new(Some(Box::new(Files)), usize::MAX));
        memory.set_parameter("internalQueryMaxBlockingSortMemoryUsageBytes", bytes);
        let budget = Budget::with_memory(memory.clone());
        let request = crate::Request {
            budget,
            ..asked.clone()
        };
        (memory, request)
    };
    on_all_cores_and_on_one(|| {
        for (bytes, spills) in [(200_000, true), (1 << 30, false)] {
            let (memory, request) = with(bytes);
            let (ids, run) = all_ids(fixture.open(&collection, &request));
            assert_eq!(ids, expected);
            assert_eq!(run.get_bool("usedDisk").unwrap(), spills);
            assert_eq!(request.budget.used_disk(), spills);
            assert_eq!(memory.held(), 0);
        }
        let (memory, request) = with(200_000);
        request.budget.allow_disk(false);
        let mut executor = fixture.open(&collection, &request);
        let error = executor.next_record().err().unwrap();
        assert_eq!(error.kind.code(), 292);
        drop(executor);
        assert_eq!(memory.held(), 0);
    })
    .await;
}
