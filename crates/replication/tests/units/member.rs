//! A set of one, and the statements that tests run on it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use banyan_consensus::{Group, Options, PeerId, SyncMode, Transport};
use banyan_execution::tickets::Tickets;
use banyan_execution::work::Work;
use banyan_execution::{Interrupt, InterruptSlot, PlanSummaryStats, Planned, ReadView, Request};
use banyan_query::Context;
use banyan_query::canonical::{CanonicalQuery, Order};
use banyan_query::filter::Filter;
use banyan_query::update::{Update, UpdateContext};
use banyan_replication::clock::Clock;
use banyan_replication::machine::Machine;
use banyan_replication::replica::Replica;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::context::{Operation, WriteContext};
use banyan_replication::write::insert::KeyedDocument;
use banyan_replication::write::modify::{self, Action, Effect, Target};
use banyan_replication::write::shard_rules::Versions;
use banyan_replication::write::staging::Staging;
use banyan_replication::write::unit::WriteUnit;
use banyan_storage::{CatalogChange, IndexDefinition, Namespace, Store, StoreOptions};
use banyan_wire::{CommandError, ErrorCode, SessionId};
use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use bytes::Bytes;
use tempfile::TempDir;

/// A set of one.
pub struct Member {
    pub replica: Arc<Replica>,
    pub tickets: Tickets,
    pub work: Work,
    pub operation: Quiet,
    pub directory: TempDir,
}

pub struct Quiet {
    pub interrupt: Interrupt,
    pub slot: Arc<InterruptSlot>,
    pub wrote: AtomicU64,
    /// For a lock.
    pub waited: AtomicBool,
}

impl Quiet {
    pub fn new(deadline: Option<Instant>) -> Quiet {
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

pub struct Nobody;

impl Transport for Nobody {
    fn send(&self, _: PeerId, _: &str, _: Vec<Bytes>) {}
}

pub fn machine(directory: &Path) -> (Store, Arc<Machine>, Arc<Clock>) {
    let store = Store::open(directory, &StoreOptions::default()).unwrap();
    let clock = Arc::new(Clock::new());
    let machine = Arc::new(Machine::open(store.clone(), clock.clone()).unwrap());
    (store, machine, clock)
}

impl Member {
    pub async fn new() -> Member {
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
    pub async fn with_collection(self, name: &str, indexes: &[RawDocumentBuf]) -> Member {
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

    pub fn context(&self) -> WriteContext<'_> {
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

    pub async fn staging(&self, collection: &str) -> Staging<'_> {
        Staging::open(self.context(), collection, true)
            .await
            .unwrap()
    }

    pub async fn within(&self, unit: WriteUnit, collection: &str) -> Staging<'_> {
        let staging = Staging::within(self.context(), unit, collection, true);
        staging.await.unwrap()
    }

    /// What everybody sees of a collection.
    pub fn committed(&self, collection: &str) -> Vec<RawDocumentBuf> {
        let namespace = Namespace::new("db", collection);
        let id = self.replica.store.catalog().find(&namespace).unwrap().id;
        let records = self.replica.store.snapshot().records(id, .., false);
        records.map(|pair| (*pair.unwrap().1).to_owned()).collect()
    }

    pub fn entries(&self) -> u64 {
        self.operation.wrote.load(Ordering::Relaxed)
    }
}

pub async fn insert(staging: &mut Staging<'_>, document: &RawDocument) -> Result<(), CommandError> {
    staging.unit.begin_statement();
    let collection = staging.collection.clone().unwrap();
    let mut keyed = KeyedDocument::new(&collection, document)?;
    keyed.insert(staging, &collection).await
}

pub fn target(filter: &RawDocument, multi: bool) -> Target<'_> {
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

pub async fn delete(
    staging: &mut Staging<'_>,
    filter: &RawDocument,
    multi: bool,
) -> Result<Effect, CommandError> {
    modify::run(staging, &target(filter, multi), &Action::Delete).await
}

/// How many were matched and changed; an upsert counts as one.
pub async fn update(
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
pub fn find(
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

pub fn conflicts<T: std::fmt::Debug>(outcome: Result<T, CommandError>) -> bool {
    outcome.is_err_and(|error| error.code == ErrorCode::WriteConflict)
}

pub fn is_duplicate<T>(outcome: Result<T, CommandError>) -> bool {
    outcome.is_err_and(|error| error.code == ErrorCode::DuplicateKey)
}

pub fn index(name: &str, key: RawDocumentBuf, unique: bool) -> RawDocumentBuf {
    rawdoc! { "v": 2, "key": key, "name": name, "unique": unique }
}
