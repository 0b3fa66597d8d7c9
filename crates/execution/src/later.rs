//! Where readers go on after a rest: in the newest state, as long as the ranges of a sharded
//! collection that they count on are whole in it.
//!
//! A reader that a router has sent answers for the ranges that the shard owned when it began. Their
//! documents stay where they are when a range moves away, until the shard removes them. Everybody
//! who counts on the range and may rest is registered here as a [`RangePreserver`]. Before the first
//! of the documents goes, all of these are given one snapshot, of the state as it is then. They
//! never go on in a later one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use banyan_query::QueryError;
use banyan_storage::{Catalog, CollectionId, Snapshot, Store};
use bson::RawDocument;
use parking_lot::Mutex;

use crate::error::plan_killed;
use crate::operators::ShardFilter;

/// Preservers are spread over this many locks.
const SHARDS: usize = 16;

/// The states that a reader may go on in.
#[derive(Clone)]
pub struct LaterStates {
    store: Store,
    preserver: Option<Arc<RangePreserver>>,
}

impl LaterStates {
    /// Always the newest one.
    pub fn newest(store: Store) -> LaterStates {
        LaterStates {
            store,
            preserver: None,
        }
    }

    /// The newest one in which the preserver's ranges are whole.
    pub fn preserving(store: Store, preserver: Arc<RangePreserver>) -> LaterStates {
        LaterStates {
            store,
            preserver: Some(preserver),
        }
    }

    /// The state to go on in. Every index that the catalog names is complete in the snapshot.
    pub fn open(&self) -> Result<(Arc<Catalog>, Snapshot), QueryError> {
        let newest = || (self.store.catalog(), self.store.snapshot());
        let Some(preserver) = &self.preserver else {
            return Ok(newest());
        };
        // Held until the snapshot is taken: a removal begins before that or after it.
        match &*preserver.kept.lock() {
            Kept::Nothing => Ok(newest()),
            Kept::State(catalog, snapshot) => Ok((catalog.clone(), snapshot.clone())),
            Kept::Lost => Err(plan_killed("the state was replaced by another member's")),
        }
    }

    /// What exists by now, whatever state is read.
    pub fn newest_catalog(&self) -> Arc<Catalog> {
        self.store.catalog()
    }

    /// Notes which collections are read; until then all are taken to be.
    pub fn reads(&self, collections: impl Iterator<Item = CollectionId>) {
        if let Some(preserver) = &self.preserver {
            preserver.reads.get_or_init(|| collections.collect());
        }
    }

    /// Whether a snapshot is kept for this reader, which it cannot let go.
    pub fn keeps_snapshot(&self) -> bool {
        let preserver = self.preserver.as_ref();
        preserver.is_some_and(|preserver| matches!(*preserver.kept.lock(), Kept::State(..)))
    }
}

/// A reader that counts on ranges, between two of its batches.
pub struct RangePreserver {
    registry: Arc<RangePreservers>,
    number: u64,
    /// The ranges. `None`: all.
    filter: Option<Arc<dyn ShardFilter>>,
    reads: OnceLock<Box<[CollectionId]>>,
    kept: Mutex<Kept>,
}

enum Kept {
    /// The ranges are whole in the newest state.
    Nothing,
    /// They were in this one.
    State(Arc<Catalog>, Snapshot),
    /// They were in one that is gone.
    Lost,
}

impl RangePreserver {
    fn counts_on(&self, collection: CollectionId, min: &RawDocument, max: &RawDocument) -> bool {
        let reads = self.reads.get();
        let filter = self.filter.as_ref();
        reads.is_none_or(|reads| reads.contains(&collection))
            && filter.is_none_or(|filter| filter.owns_part_of(min, max))
    }
}

impl Drop for RangePreserver {
    fn drop(&mut self) {
        self.registry.shard(self.number).lock().remove(&self.number);
    }
}

/// All preservers of a member.
#[derive(Default)]
pub struct RangePreservers {
    shards: [Mutex<HashMap<u64, Weak<RangePreserver>>>; SHARDS],
    opened: AtomicU64,
}

impl RangePreservers {
    /// To be called before the reader's first snapshot is taken. Whether the shard still owns the
    /// ranges has to be looked at once more after that: a removal that has begun before is not
    /// noticed here.
    pub fn preserve(self: &Arc<Self>, filter: Option<Arc<dyn ShardFilter>>) -> Arc<RangePreserver> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let preserver = Arc::new(RangePreserver {
            registry: self.clone(),
            number,
            filter,
            reads: OnceLock::new(),
            kept: Mutex::new(Kept::Nothing),
        });
        let known = Arc::downgrade(&preserver);
        self.shard(number).lock().insert(number, known);
        preserver
    }

    /// The documents of a range are going to be removed, and none of them is yet.
    pub fn removal_begins(
        &self,
        store: &Store,
        collection: CollectionId,
        min: &RawDocument,
        max: &RawDocument,
    ) {
        let mut state = None;
        for preserver in self.all() {
            let mut kept = preserver.kept.lock();
            if matches!(*kept, Kept::Nothing) && preserver.counts_on(collection, min, max) {
                let (catalog, snapshot) =
                    state.get_or_insert_with(|| (store.catalog(), store.snapshot()));
                *kept = Kept::State(catalog.clone(), snapshot.clone());
            }
        }
    }

    /// The whole state is another one, and nobody knows what was removed on the way to it.
    pub fn state_replaced(&self) {
        for preserver in self.all() {
            *preserver.kept.lock() = Kept::Lost;
        }
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Weak<RangePreserver>>> {
        &self.shards[number as usize % SHARDS]
    }

    /// No lock is held any more when one of them is dropped.
    fn all(&self) -> Vec<Arc<RangePreserver>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().values().filter_map(Weak::upgrade));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;
    use crate::fixture::{self, Fixture, request};
    use crate::request::Request;
    use banyan_storage::{Batch, Collection, RecordId};
    use bson::{RawDocumentBuf, rawdoc};
    use std::collections::BTreeSet;

    const DOCUMENTS: i32 = 100;

    /// Owns what is below a value of `k`.
    struct Below(i32);

    impl ShardFilter for Below {
        fn owns(&self, document: &RawDocument) -> bool {
            document.get_i32("k").is_ok_and(|k| k < self.0)
        }

        fn owns_part_of(&self, min: &RawDocument, _: &RawDocument) -> bool {
            self.owns(min)
        }

        fn dependencies(&self, paths: &mut BTreeSet<String>) {
            paths.insert("k".to_owned());
        }
    }

    struct Shard {
        fixture: Fixture,
        collection: Arc<Collection>,
        preservers: Arc<RangePreservers>,
    }

    impl Shard {
        fn new() -> Shard {
            let fixture = Fixture::new();
            let documents: Vec<_> = (0..DOCUMENTS).map(document).collect();
            let index = fixture::index(rawdoc! { "k": 1 }, "k_1");
            let collection = fixture.collection("c", &documents, &[index]);
            Shard {
                fixture,
                collection,
                preservers: Arc::default(),
            }
        }

        /// A reader that has read ten documents, and rests.
        fn resting(&self, sort: Option<&RawDocument>, below: i32) -> Executor {
            let filter: Arc<dyn ShardFilter> = Arc::new(Below(below));
            let preserver = self.preservers.preserve(Some(filter.clone()));
            let later = LaterStates::preserving(self.fixture.store.clone(), preserver);
            later.reads([self.collection.id].into_iter());
            let request = Request {
                shard_filter: Some(filter),
                ..request(&rawdoc! { "k": { "$gte": 0 } }, sort)
            };
            let mut reader =
                self.fixture
                    .open_in(&self.collection, &request, Some(later), &Arc::default());
            for _ in 0..10 {
                reader.next_record().unwrap().unwrap();
            }
            reader.save();
            reader
        }

        fn removal_begins(&self, min: i32) {
            let (min, max) = (rawdoc! { "k": min }, rawdoc! { "k": DOCUMENTS });
            self.preservers
                .removal_begins(&self.fixture.store, self.collection.id, &min, &max);
        }

        /// Removes what the documents of a range are, or puts it back as later records.
        fn change(&self, ks: std::ops::Range<i32>, back: bool) {
            let mut batch = Batch::new();
            for k in ks {
                let document = document(k);
                let record = |id| RecordId::number(id as u64 + 1);
                match back {
                    true => {
                        fixture::insert(&mut batch, &self.collection, &record(k + 1000), &document)
                    }
                    false => fixture::remove(&mut batch, &self.collection, &record(k), &document),
                }
            }
            self.fixture.store.commit(batch).unwrap();
        }
    }

    fn document(k: i32) -> RawDocumentBuf {
        rawdoc! { "_id": k, "k": k }
    }

    fn rest_of(mut reader: Executor) -> Vec<i32> {
        let mut read = Vec::new();
        while let Some((_, row)) = reader.next_record().unwrap() {
            read.push(row.get_i32("_id").unwrap());
            reader.save();
        }
        read.sort_unstable();
        read
    }

    #[test]
    fn who_rests_goes_on_before_a_removal() {
        let shard = Shard::new();
        let orders = [rawdoc! { "k": 1 }, rawdoc! { "$natural": 1 }];
        let readers = orders.each_ref().map(|order| {
            let reader = shard.resting(Some(order), DOCUMENTS);
            assert!(!reader.holds_snapshot());
            reader
        });
        shard.removal_begins(50);
        assert!(readers.iter().all(Executor::holds_snapshot));
        shard.change(50..75, false);
        // A later one changes nothing for them.
        shard.removal_begins(75);
        shard.change(75..DOCUMENTS, false);
        shard.change(50..DOCUMENTS, true);
        let expected: Vec<i32> = (10..DOCUMENTS).collect();
        for (reader, order) in readers.into_iter().zip(orders) {
            assert_eq!(rest_of(reader), expected, "{order:?}");
        }
        assert!(shard.preservers.all().is_empty());
    }

    #[test]
    fn who_does_not_count_on_the_range_holds_nothing() {
        let shard = Shard::new();
        let reader = shard.resting(None, 50);
        shard.removal_begins(50);
        assert!(!reader.holds_snapshot());
        shard.change(50..DOCUMENTS, false);
        shard.change(50..DOCUMENTS, true);
        assert_eq!(rest_of(reader), (10..50).collect::<Vec<_>>());
        // Another collection is no concern either.
        let reader = shard.resting(None, DOCUMENTS);
        let other = shard.collection.id + 1;
        let min = rawdoc! { "k": 0 };
        shard
            .preservers
            .removal_begins(&shard.fixture.store, other, &min, &min);
        assert!(!reader.holds_snapshot());
    }

    #[test]
    fn nobody_goes_on_in_a_state_of_another_member() {
        let shard = Shard::new();
        let mut reader = shard.resting(None, DOCUMENTS);
        shard.preservers.state_replaced();
        // What it has read ahead was read before.
        let error = loop {
            match reader.next_record() {
                Ok(row) => assert!(row.is_some(), "it has come to the end"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind, banyan_query::ErrorKind::QueryPlanKilled);
    }

    /// Keys that a merge holds back are of an earlier state than what they lead to.
    #[test]
    fn a_merge_by_keys_passes_over_what_is_gone_and_what_matches_no_more() {
        let all = 3 * DOCUMENTS;
        let documents: Vec<_> = (0..all).map(|k| of_group(k, k % 2)).collect();
        let index = fixture::index(rawdoc! { "g": 1, "k": 1 }, "g_1_k_1");
        for direction in [1, -1] {
            let fixture = Fixture::new();
            let collection = fixture.collection("c", &documents, std::slice::from_ref(&index));
            let filter = rawdoc! { "g": { "$in": [0, 1] } };
            let mut request = request(&filter, Some(&rawdoc! { "k": direction }));
            // Without one all would be sorted.
            Arc::get_mut(&mut request.query).unwrap().limit = Some(all as u64);
            let mut reader = fixture.open(&collection, &request);
            let in_order = |k: i32| if direction == 1 { k } else { all - 1 - k };
            for k in 0..10 {
                let (_, row) = reader.next_record().unwrap().unwrap();
                assert_eq!(row.get_i32("_id").unwrap(), in_order(k));
            }
            reader.save();
            let plan = reader.explain_run();
            let fetch = plan.get_document("inputStage").unwrap();
            let merge = fetch.get_document("inputStage").unwrap();
            assert_eq!(merge.get_str("stage").unwrap(), "SORT_MERGE");
            let fetched = fetch.get_i32("docsExamined").unwrap();
            assert!(
                fetched < 2 * DOCUMENTS,
                "{fetched} were read before the change"
            );
            let mut batch = Batch::new();
            for k in (fetched..fetched + 20).map(in_order) {
                let record = RecordId::number(k as u64 + 1);
                fixture::remove(&mut batch, &collection, &record, &of_group(k, k % 2));
                if k % 3 == 0 {
                    fixture::insert(&mut batch, &collection, &record, &of_group(k, 2));
                }
            }
            fixture.store.commit(batch).unwrap();
            let mut rest = Vec::new();
            while let Some((_, row)) = reader.next_record().unwrap() {
                rest.push(row.get_i32("_id").unwrap());
            }
            let expected = (10..fetched).chain(fetched + 20..all).map(in_order);
            assert_eq!(rest, expected.collect::<Vec<_>>());
        }
    }

    fn of_group(k: i32, g: i32) -> RawDocumentBuf {
        rawdoc! { "_id": k, "g": g, "k": k }
    }
}
