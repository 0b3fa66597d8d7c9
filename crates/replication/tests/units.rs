//! Write units: what statements see of those before them, and how conflicts end.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use banyan_consensus::{Committed, Group, Options, PeerId, StateMachine, SyncMode, Transport};
use banyan_execution::tickets::Tickets;
use banyan_execution::work::Work;
use banyan_execution::{Interrupt, InterruptSlot, PlanSummaryStats, Planned, ReadView, Request};
use banyan_query::Context;
use banyan_query::canonical::{CanonicalQuery, Order};
use banyan_query::filter::Filter;
use banyan_query::update::{Update, UpdateContext};
use banyan_replication::clock::Clock;
use banyan_replication::machine::{Machine, Prepared};
use banyan_replication::replica::Replica;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::context::{Operation, WriteContext};
use banyan_replication::write::insert::KeyedDocument;
use banyan_replication::write::modify::{self, Action, Effect, Target};
use banyan_replication::write::shard_rules::Versions;
use banyan_replication::write::staging::Staging;
use banyan_replication::write::unit::{Isolation, WriteUnit};
use banyan_storage::{
    CatalogChange, IndexDefinition, Namespace, Part, Snapshot, Store, StoreOptions,
};
use banyan_wire::{CommandError, ErrorCode, SessionId};
use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// A set of one.
struct Member {
    replica: Arc<Replica>,
    tickets: Tickets,
    work: Work,
    operation: Quiet,
    directory: TempDir,
}

struct Quiet {
    interrupt: Interrupt,
    slot: Arc<InterruptSlot>,
    wrote: AtomicU64,
    /// For a lock.
    waited: AtomicBool,
}

impl Quiet {
    fn new(deadline: Option<Instant>) -> Quiet {
        Quiet {
            interrupt: Interrupt::new(Arc::new(AtomicBool::new(false)), deadline),
            slot: Arc::default(),
            wrote: AtomicU64::new(0),
            waited: AtomicBool::new(false),
        }
    }
}

impl Operation for Quiet {
    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn slot(&self) -> &Arc<InterruptSlot> {
        &self.slot
    }

    fn run_plan(&self, _: &Arc<PlanSummaryStats>) {}

    fn wrote(&self, _: u64) {
        self.wrote.fetch_add(1, Ordering::Relaxed);
    }

    fn waits_for_lock(&self, waits: bool) {
        self.waited.fetch_or(waits, Ordering::Relaxed);
    }

    fn before_numbered_write(&self, _: &SessionId, _: i64) -> Result<(), CommandError> {
        Ok(())
    }

    fn was_late(&self) {}
}

struct Nobody;

impl Transport for Nobody {
    fn send(&self, _: PeerId, _: &str, _: Vec<Bytes>) {}
}

fn machine(directory: &Path) -> (Store, Arc<Machine>, Arc<Clock>) {
    let store = Store::open(directory, &StoreOptions::default()).unwrap();
    let clock = Arc::new(Clock::new());
    let machine = Arc::new(Machine::open(store.clone(), clock.clone()).unwrap());
    (store, machine, clock)
}

impl Member {
    async fn new() -> Member {
        let directory = tempfile::tempdir().unwrap();
        let (store, machine, clock) = machine(directory.path());
        let log = directory.path().join("log");
        std::fs::create_dir_all(&log).unwrap();
        let options = Options::new(1, SyncMode::Interval(Duration::from_millis(100)));
        let group = Group::open(&log, options, machine.clone(), Arc::new(Nobody)).unwrap();
        group.bootstrap("nobody:1").unwrap();
        let replica = Arc::new(Replica::new(store, machine, group, clock));
        while replica.writable_term().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Member {
            replica,
            tickets: Tickets::default(),
            work: Work::default(),
            operation: Quiet::new(None),
            directory,
        }
    }

    /// With an index on `_id` and these.
    async fn with_collection(self, name: &str, indexes: &[RawDocumentBuf]) -> Member {
        let namespace = Namespace::new("db", name);
        catalog_ops::create_if_missing(&self.context(), &namespace, None)
            .await
            .unwrap();
        let collection = self.replica.store.catalog().find(&namespace).unwrap().id;
        for spec in indexes {
            let index = IndexDefinition {
                id: self.replica.store.allocate_id(),
                spec: spec.clone(),
            };
            let change = CatalogChange::CreateIndex { collection, index };
            let term = self.replica.writable_term().unwrap();
            catalog_ops::apply(&self.replica, &[change], term)
                .await
                .unwrap();
        }
        self
    }

    fn context(&self) -> WriteContext<'_> {
        WriteContext {
            operation: &self.operation,
            replica: &self.replica,
            tickets: &self.tickets,
            work: &self.work,
            database: "db",
            session: None,
            txn_number: None,
            rules: None,
            versions: Versions::default(),
            journal: false,
            bypass_validation: false,
            commit_time_max: None,
        }
    }

    async fn staging(&self, collection: &str) -> Staging<'_> {
        Staging::open(self.context(), collection, true)
            .await
            .unwrap()
    }

    async fn within(&self, unit: WriteUnit, collection: &str) -> Staging<'_> {
        let staging = Staging::within(self.context(), unit, collection, true);
        staging.await.unwrap()
    }

    /// What everybody sees of a collection.
    fn committed(&self, collection: &str) -> Vec<RawDocumentBuf> {
        let namespace = Namespace::new("db", collection);
        let id = self.replica.store.catalog().find(&namespace).unwrap().id;
        let records = self.replica.store.snapshot().records(id, .., false);
        records.map(|pair| (*pair.unwrap().1).to_owned()).collect()
    }

    fn entries(&self) -> u64 {
        self.operation.wrote.load(Ordering::Relaxed)
    }
}

async fn insert(staging: &mut Staging<'_>, document: &RawDocument) -> Result<(), CommandError> {
    staging.unit.begin_statement();
    let collection = staging.collection.clone().unwrap();
    let mut keyed = KeyedDocument::new(&collection, document)?;
    keyed.insert(staging, &collection).await
}

fn target(filter: &RawDocument, multi: bool) -> Target<'_> {
    Target {
        filter: Arc::new(Filter::parse(filter, &Context::default()).unwrap()),
        hint: None,
        sort: None,
        multi,
        hidden_too: false,
        most: None,
        keep_documents: false,
    }
}

async fn delete(
    staging: &mut Staging<'_>,
    filter: &RawDocument,
    multi: bool,
) -> Result<Effect, CommandError> {
    modify::run(staging, &target(filter, multi), &Action::Delete).await
}

/// How many were matched and changed; an upsert counts as one.
async fn update(
    staging: &mut Staging<'_>,
    filter: &RawDocument,
    update: &RawDocument,
    (multi, upsert): (bool, bool),
) -> Result<(u64, u64), CommandError> {
    let update = RawBsonRef::Document(update);
    let update = Update::parse(update, &[], &Context::default()).unwrap();
    let time = Timestamp {
        time: 1,
        increment: 1,
    };
    let context = UpdateContext::new(DateTime::from_millis(0), time);
    let target = target(filter, multi);
    loop {
        let action = Action::Update(&update, context.clone());
        let effect = modify::run(staging, &target, &action).await?;
        if effect.matched > 0 || !upsert {
            return Ok((effect.matched, effect.modified));
        }
        if modify::upsert(staging, &target, &update, &context)
            .await?
            .is_some()
        {
            return Ok((0, 1));
        }
    }
}

/// What the next statement finds.
fn find(
    staging: &mut Staging<'_>,
    filter: &RawDocument,
    sort: Option<&RawDocument>,
) -> Vec<RawDocumentBuf> {
    staging.unit.begin_statement();
    let collection = staging.collection.clone().unwrap();
    let filter = Arc::new(Filter::parse(filter, &Context::default()).unwrap());
    let query = CanonicalQuery {
        order: Order::parse(sort, None).unwrap(),
        ..CanonicalQuery::of_filter(filter)
    };
    let request = Request {
        query: Arc::new(query),
        ..Request::default()
    };
    let view = ReadView {
        collection: Some(staging.unit.viewed(&collection).unwrap()),
        snapshot: staging.unit.read_view(),
        later: None,
    };
    let planned = Planned::new(view, request).unwrap();
    let executor = planned.open(&Arc::default()).unwrap();
    executor
        .map(|row| (**row.as_ref().unwrap()).to_owned())
        .collect()
}

fn conflicts<T: std::fmt::Debug>(outcome: Result<T, CommandError>) -> bool {
    outcome.is_err_and(|error| error.code == ErrorCode::WriteConflict)
}

fn is_duplicate<T>(outcome: Result<T, CommandError>) -> bool {
    outcome.is_err_and(|error| error.code == ErrorCode::DuplicateKey)
}

fn index(name: &str, key: RawDocumentBuf, unique: bool) -> RawDocumentBuf {
    rawdoc! { "v": 2, "key": key, "name": name, "unique": unique }
}

/// Whoever comes behind what is on its way meets its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_is_staged_beside_what_is_being_committed() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let mut staging = member.staging("c").await;
    let mut all = Vec::new();
    for number in 0..60 {
        let document = rawdoc! { "_id": number };
        insert(&mut staging, &document).await.unwrap();
        all.push(document);
        staging.flush_beside().await.unwrap();
        let again = insert(&mut staging, &rawdoc! { "_id": number }).await;
        assert!(is_duplicate(again), "{number}");
    }
    staging.flush_beside().await.unwrap();
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c"), all);
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 60 }).await.unwrap();
    staging.flush_beside().await.unwrap();
    staging.give_up().await;
    assert_eq!(member.committed("c").len(), 61, "it was on its way");
}

/// A statement that fills several entries changes each document once, whatever others change meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_changed_beside_what_is_being_committed() {
    const DOCUMENTS: i32 = 7_000;
    const ROUNDS: i32 = 4;
    let indexes = [
        index("n", rawdoc! { "n": 1 }, false),
        index("u", rawdoc! { "u": 1 }, true),
    ];
    let member = Member::new().await.with_collection("c", &indexes).await;
    let mut staging = member.staging("c").await;
    for number in 0..DOCUMENTS {
        let document = rawdoc! { "_id": number, "u": number, "n": 1, "m": 0 };
        insert(&mut staging, &document).await.unwrap();
    }
    staging.finish().await.unwrap();
    let done = AtomicBool::new(false);
    let others = async || {
        let mut random = StdRng::seed_from_u64(1);
        let mut changed = 0;
        while !done.load(Ordering::Relaxed) {
            let mut staging = member.staging("c").await;
            let number = random.random_range(0..DOCUMENTS);
            let plus = rawdoc! { "$inc": { "m": 1 } };
            let one = rawdoc! { "_id": number };
            let one = update(&mut staging, &one, &plus, (false, false)).await;
            staging.finish().await.unwrap();
            if number < DOCUMENTS / 2 {
                changed += one.unwrap().1;
            }
        }
        changed
    };
    let all = async || {
        let everything = (DOCUMENTS as u64, DOCUMENTS as u64);
        for _ in 0..ROUNDS {
            let entries = member.entries();
            let mut staging = member.staging("c").await;
            let statements = [
                // The collection, an index within which they move, and unique keys that change.
                (
                    rawdoc! { "m": { "$gte": 0 } },
                    rawdoc! { "$inc": { "n": 1 } },
                ),
                (
                    rawdoc! { "n": { "$gt": 0 } },
                    rawdoc! { "$inc": { "n": 1 } },
                ),
                (
                    rawdoc! { "m": { "$gte": 0 } },
                    rawdoc! { "$inc": { "u": DOCUMENTS } },
                ),
            ];
            for (filter, change) in &statements {
                let changed = update(&mut staging, filter, change, (true, false)).await;
                assert_eq!(changed.unwrap(), everything, "{filter:?}");
            }
            staging.finish().await.unwrap();
            assert!(member.entries() > entries + 3, "in several entries");
        }
        let mut staging = member.staging("c").await;
        let second_half = rawdoc! { "_id": { "$gte": DOCUMENTS / 2 } };
        let gone = delete(&mut staging, &second_half, true).await;
        assert_eq!(gone.unwrap().modified, DOCUMENTS as u64 / 2);
        staging.finish().await.unwrap();
    };
    let runtime = tokio::runtime::Handle::current();
    let changed = std::thread::scope(|scope| {
        let others = scope.spawn(|| runtime.block_on(others()));
        let all = scope.spawn(|| runtime.block_on(all())).join();
        done.store(true, Ordering::Relaxed);
        all.unwrap();
        others.join().unwrap()
    });
    let left = member.committed("c");
    assert_eq!(left.len() as i32, DOCUMENTS / 2);
    let mut counted = 0;
    for (number, document) in left.iter().enumerate() {
        let number = number as i32;
        assert_eq!(document.get_i32("n").unwrap(), 1 + 2 * ROUNDS, "{number}");
        assert_eq!(document.get_i32("u").unwrap(), number + ROUNDS * DOCUMENTS);
        counted += document.get_i32("m").unwrap() as u64;
    }
    assert!(changed > 0);
    assert_eq!(counted, changed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_sees_those_before_it_and_nobody_else_does() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1, "n": 1 })
        .await
        .unwrap();
    let by_id = rawdoc! { "_id": 1 };
    let plus = rawdoc! { "$inc": { "n": 1 } };
    for _ in 0..3 {
        let done = update(&mut staging, &by_id, &plus, (false, false)).await;
        assert_eq!(done.unwrap(), (1, 1));
    }
    let scan = rawdoc! { "n": 4 };
    let done = update(&mut staging, &scan, &plus, (true, false)).await;
    assert_eq!(done.unwrap(), (1, 1));
    assert_eq!(
        find(&mut staging, &rawdoc! {}, None),
        [rawdoc! { "_id": 1, "n": 5 }]
    );
    assert!(member.committed("c").is_empty());
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c"), [rawdoc! { "_id": 1, "n": 5 }]);
    assert_eq!(member.entries(), 1, "one entry for all of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_makes_room_for_another() {
    let unique = index("u", rawdoc! { "u": 1 }, true);
    let member = Member::new().await.with_collection("c", &[unique]).await;
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1, "u": 7 })
        .await
        .unwrap();
    staging.finish().await.unwrap();

    let mut staging = member.staging("c").await;
    let again = rawdoc! { "_id": 1, "u": 7, "again": true };
    assert!(is_duplicate(insert(&mut staging, &again).await));
    assert_eq!(
        delete(&mut staging, &rawdoc! { "_id": 1 }, false)
            .await
            .unwrap()
            .matched,
        1
    );
    assert_eq!(
        delete(&mut staging, &rawdoc! { "_id": 1 }, false)
            .await
            .unwrap()
            .matched,
        0
    );
    assert_eq!(
        delete(&mut staging, &rawdoc! { "u": 7 }, true)
            .await
            .unwrap()
            .matched,
        0
    );
    insert(&mut staging, &again).await.unwrap();
    assert!(is_duplicate(insert(&mut staging, &again).await));
    let entries = member.entries();
    staging.finish().await.unwrap();
    assert_eq!(member.entries(), entries + 1);
    assert_eq!(member.committed("c"), [again]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_key_moves_within_a_unit() {
    let unique = index("u", rawdoc! { "u": 1 }, true);
    let member = Member::new().await.with_collection("c", &[unique]).await;
    let mut staging = member.staging("c").await;
    for id in 1..=3 {
        insert(&mut staging, &rawdoc! { "_id": id, "u": id })
            .await
            .unwrap();
    }
    assert!(is_duplicate(
        insert(&mut staging, &rawdoc! { "_id": 4, "u": 3 }).await
    ));
    let to = |u: i32| rawdoc! { "$set": { "u": u } };
    let one = rawdoc! { "_id": 1 };
    assert!(is_duplicate(
        update(&mut staging, &one, &to(2), (false, false)).await
    ));
    update(&mut staging, &rawdoc! { "_id": 2 }, &to(9), (false, false))
        .await
        .unwrap();
    update(&mut staging, &one, &to(2), (false, false))
        .await
        .unwrap();
    insert(&mut staging, &rawdoc! { "_id": 4, "u": 1 })
        .await
        .unwrap();
    // Each takes the key that the one before it has left.
    let all = rawdoc! { "u": { "$gte": 1 } };
    let minus = rawdoc! { "$inc": { "u": -1 } };
    let done = update(&mut staging, &all, &minus, (true, false)).await;
    assert_eq!(done.unwrap(), (4, 4));
    staging.finish().await.unwrap();
    assert_eq!(member.entries(), 1);
    let (mut staging, sort) = (member.staging("c").await, rawdoc! { "u": 1 });
    let found = find(&mut staging, &rawdoc! {}, Some(&sort));
    let found: Vec<_> = found.iter().map(|d| d.get_i32("_id").unwrap()).collect();
    assert_eq!(found, [4, 1, 3, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_shows_stored_and_staged_keys_in_one_order() {
    let by_n = index("n", rawdoc! { "n": 1 }, false);
    let member = Member::new().await.with_collection("c", &[by_n]).await;
    let mut staging = member.staging("c").await;
    for id in [2, 4, 6, 8] {
        insert(&mut staging, &rawdoc! { "_id": id, "n": id })
            .await
            .unwrap();
    }
    staging.finish().await.unwrap();
    let mut staging = member.staging("c").await;
    for id in [1, 5, 9] {
        insert(&mut staging, &rawdoc! { "_id": id, "n": id })
            .await
            .unwrap();
    }
    let (six, to_three) = (rawdoc! { "_id": 6 }, rawdoc! { "$set": { "n": 3 } });
    update(&mut staging, &six, &to_three, (false, false))
        .await
        .unwrap();
    delete(&mut staging, &rawdoc! { "n": 8 }, false)
        .await
        .unwrap();
    let mut numbers = |filter: &RawDocument, direction: i32| -> Vec<i32> {
        let sort = rawdoc! { "n": direction };
        let found = find(&mut staging, filter, Some(&sort));
        found
            .iter()
            .map(|document| document.get_i32("n").unwrap())
            .collect()
    };
    let inner = rawdoc! { "n": { "$gt": 1, "$lt": 9 } };
    assert_eq!(
        numbers(&rawdoc! { "n": { "$gte": 0 } }, 1),
        [1, 2, 3, 4, 5, 9]
    );
    assert_eq!(numbers(&inner, 1), [2, 3, 4, 5]);
    assert_eq!(numbers(&inner, -1), [5, 4, 3, 2]);
    // A scan does not meet what it moves ahead of itself.
    let (all, up) = (
        rawdoc! { "n": { "$gte": 0 } },
        rawdoc! { "$inc": { "n": 100 } },
    );
    let done = update(&mut staging, &all, &up, (true, false)).await;
    assert_eq!(done.unwrap(), (6, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_that_is_only_staged_is_met_once() {
    let by_a = index("a", rawdoc! { "a": 1 }, false);
    let member = Member::new().await.with_collection("c", &[by_a]).await;
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1, "a": [1, 2, 3], "n": 0 })
        .await
        .unwrap();
    let (any, plus) = (
        rawdoc! { "a": { "$gte": 1 } },
        rawdoc! { "$inc": { "n": 1 } },
    );
    assert_eq!(
        update(&mut staging, &any, &plus, (true, false))
            .await
            .unwrap(),
        (1, 1)
    );
    // No single element lies between the two.
    let both = rawdoc! { "a": { "$gt": 2, "$lt": 2 } };
    assert_eq!(find(&mut staging, &both, None).len(), 1);
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c")[0].get_i32("n").unwrap(), 1);
}

fn as_of_now(member: &Member) -> WriteUnit {
    let snapshot: Snapshot = member.replica.store.snapshot();
    WriteUnit::begin(&member.replica, Isolation::Snapshot(snapshot)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_outlives_commands_and_spans_collections() {
    let member = Member::new().await.with_collection("a", &[]).await;
    let member = member.with_collection("b", &[]).await;
    let entries = member.entries();
    let unit = as_of_now(&member);
    let mut staging = member.within(unit, "a").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    let mut staging = member.within(staging.into_unit(), "b").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    let mut staging = member.within(staging.into_unit(), "a").await;
    assert_eq!(find(&mut staging, &rawdoc! { "_id": 1 }, None).len(), 1);

    // Others neither see it nor are told: they wait until it is known how it ends.
    let mut other = member.staging("a").await;
    let twin = rawdoc! { "_id": 1, "other": true };
    let attempt = insert(&mut other, &twin);
    let waited = tokio::time::timeout(Duration::from_millis(50), attempt).await;
    assert!(waited.is_err());
    drop(other);

    let mut unit = staging.into_unit();
    assert!(member.committed("a").is_empty());
    unit.commit(&member.context(), None, || ()).await.unwrap();
    drop(unit);
    assert_eq!(member.entries(), entries + 1);
    assert_eq!(
        (member.committed("a").len(), member.committed("b").len()),
        (1, 1)
    );
    let mut other = member.staging("a").await;
    assert!(is_duplicate(insert(&mut other, &twin).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_dropped_leaves_nothing() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let mut staging = member.within(as_of_now(&member), "c").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    drop(staging);
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_changed_since_is_a_conflict() {
    let unique = index("u", rawdoc! { "u": 1 }, true);
    let member = Member::new().await.with_collection("c", &[unique]).await;
    let mut staging = member.staging("c").await;
    for id in 1..=3 {
        insert(&mut staging, &rawdoc! { "_id": id, "u": id })
            .await
            .unwrap();
    }
    staging.finish().await.unwrap();

    let unit = as_of_now(&member);
    let plus = rawdoc! { "$inc": { "n": 1 } };
    let (one, two, three) = (
        rawdoc! { "_id": 1 },
        rawdoc! { "_id": 2 },
        rawdoc! { "_id": 3 },
    );
    let mut other = member.staging("c").await;
    update(&mut other, &one, &plus, (false, false))
        .await
        .unwrap();
    delete(&mut other, &three, false).await.unwrap();
    insert(&mut other, &rawdoc! { "_id": 4, "u": 4 })
        .await
        .unwrap();
    other.finish().await.unwrap();

    let mut staging = member.within(unit, "c").await;
    // It reads the state of then.
    assert_eq!(find(&mut staging, &rawdoc! {}, None).len(), 3);
    assert!(
        find(&mut staging, &one, None)[0]
            .get("n")
            .unwrap()
            .is_none()
    );
    assert!(conflicts(
        update(&mut staging, &one, &plus, (false, false)).await
    ));
    assert!(conflicts(
        update(&mut staging, &rawdoc! { "u": 1 }, &plus, (true, false)).await
    ));
    assert!(conflicts(delete(&mut staging, &three, false).await));
    // Where it has not seen the key that is there, nor that one has gone.
    assert!(conflicts(
        insert(&mut staging, &rawdoc! { "_id": 5, "u": 4 }).await
    ));
    assert!(conflicts(
        insert(&mut staging, &rawdoc! { "_id": 6, "u": 3 }).await
    ));
    update(&mut staging, &two, &plus, (false, false))
        .await
        .unwrap();

    // Whom another one is changing nobody waits for.
    let mut later = member.within(as_of_now(&member), "c").await;
    assert!(conflicts(
        update(&mut later, &two, &plus, (false, false)).await
    ));
    let mut unit = staging.into_unit();
    unit.commit(&member.context(), None, || ()).await.unwrap();
    // It was begun before that.
    assert!(conflicts(
        update(&mut later, &two, &plus, (false, false)).await
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_waited_for_as_long_as_the_operation_has() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let member = member.with_collection("other", &[]).await;
    let namespace = Namespace::new("db", "c");
    let changing = member.replica.locks.exclusive(&[&namespace]).await;
    // Writers of other collections do not notice.
    let mut staging = member.staging("other").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    assert!(!member.operation.waited.load(Ordering::Relaxed));

    let short = Quiet::new(Some(Instant::now() + Duration::from_millis(30)));
    let context = WriteContext {
        operation: &short,
        ..member.context()
    };
    let error = Staging::open(context, "c", true).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::MaxTimeMSExpired);
    assert!(short.waited.load(Ordering::Relaxed));
    // Others may wait for the holder of a lock, so it gives up.
    let within = Staging::within(member.context(), staging.into_unit(), "c", true);
    let error = within.await.err().unwrap();
    assert_eq!(error.code, ErrorCode::LockTimeout);
    drop(changing);
    member.staging("c").await.finish().await.unwrap();
}

/// One statement of a generated bulk.
enum Statement {
    Insert(RawDocumentBuf),
    Update(RawDocumentBuf, RawDocumentBuf, (bool, bool)),
    Delete(RawDocumentBuf, bool),
}

fn generate(random: &mut StdRng) -> Statement {
    let mut number = |end: i32| random.random_range(0..end);
    let filter = match number(4) {
        0 => rawdoc! { "_id": number(6) },
        1 => rawdoc! { "n": { "$gte": number(4) } },
        2 => rawdoc! { "u": number(6) },
        _ => rawdoc! { "a": number(4) },
    };
    let kinds = (number(3) == 0, number(3) == 0);
    let change = match number(5) {
        0 => rawdoc! { "$set": { "u": number(6) } },
        1 => rawdoc! { "$push": { "a": number(4) } },
        2 => rawdoc! { "$inc": { "u": -1, "n": 1 } },
        3 => rawdoc! { "$set": { "a": [number(4)] } },
        _ => rawdoc! { "$inc": { "n": 1 } },
    };
    match number(8) {
        0..=1 => {
            let (id, n) = (number(6), number(4));
            Statement::Insert(rawdoc! { "_id": id, "u": number(6), "n": n, "a": [n, n + 1] })
        }
        2..=6 => Statement::Update(filter, change, kinds),
        _ => Statement::Delete(filter, kinds.0),
    }
}

async fn execute(staging: &mut Staging<'_>, statement: &Statement) -> String {
    let outcome = match statement {
        Statement::Insert(document) => insert(staging, document).await.map(|()| (0, 1)),
        Statement::Update(filter, change, kinds) => update(staging, filter, change, *kinds).await,
        Statement::Delete(filter, multi) => delete(staging, filter, *multi)
            .await
            .map(|effect| (effect.matched, effect.modified)),
    };
    match outcome {
        Ok(counts) => format!("{counts:?}"),
        Err(error) => format!("{:?}", error.code),
    }
}

/// Statements in one unit come to what they come to one by one, here and on a member that works the
/// entries out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_is_its_statements_one_after_another() {
    let indexes = [
        index("u", rawdoc! { "u": 1 }, true),
        index("a_n", rawdoc! { "a": 1, "n": 1 }, false),
    ];
    let mut member = Member::new().await;
    for seed in 0..60 {
        let (together, single) = (format!("together{seed}"), format!("single{seed}"));
        member = member.with_collection(&together, &indexes).await;
        member = member.with_collection(&single, &indexes).await;
        let mut random = StdRng::seed_from_u64(seed);
        let statements: Vec<_> = (0..25).map(|_| generate(&mut random)).collect();
        for (begun, part) in statements.chunks(12).enumerate() {
            let mut unit = member.staging(&together).await;
            for (at, statement) in part.iter().enumerate() {
                let mut own = member.staging(&single).await;
                let expected = execute(&mut own, statement).await;
                own.finish().await.unwrap();
                let outcome = execute(&mut unit, statement).await;
                assert_eq!(
                    outcome, expected,
                    "seed {seed}, part {begun}, statement {at}"
                );
            }
            unit.finish().await.unwrap();
        }
        let by_id = |documents: Vec<RawDocumentBuf>| -> BTreeMap<String, RawDocumentBuf> {
            let named = documents
                .into_iter()
                .map(|d| (format!("{:?}", d.get("_id")), d));
            named.collect()
        };
        let of_generated = |documents: Vec<RawDocumentBuf>| -> Vec<RawDocumentBuf> {
            // An upsert without an `_id` makes one up.
            documents
                .iter()
                .filter(|d| d.get_i32("_id").is_ok())
                .cloned()
                .collect()
        };
        let (one, other) = (member.committed(&together), member.committed(&single));
        assert_eq!(one.len(), other.len(), "seed {seed}");
        assert_eq!(
            by_id(of_generated(one)),
            by_id(of_generated(other)),
            "seed {seed}"
        );
    }
    let follower = member.directory.path().join("follower");
    std::fs::create_dir_all(&follower).unwrap();
    let (store, machine, _) = machine(&follower);
    let log = member.replica.group.entries(1, u64::MAX).unwrap();
    let committed = log
        .into_iter()
        .map(|(position, data)| Committed::<Prepared> {
            position,
            data,
            prepared: None,
            membership: None,
        });
    machine.apply(committed.collect()).unwrap();
    assert_eq!(
        machine.applied_index(),
        member.replica.machine.applied_index()
    );
    for part in Part::ALL {
        let dump = |store: &Store| {
            let mut pairs = Vec::new();
            let snapshot = store.snapshot();
            let chunk = snapshot.export(part, None, None, usize::MAX, &mut pairs);
            assert!(chunk.unwrap().next.is_none());
            pairs
        };
        assert!(dump(&store) == dump(&member.replica.store), "{part:?}");
    }
}
