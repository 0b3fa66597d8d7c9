//! What one member does for one build: load, then vote or decide.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use banyan_document::elements;
use banyan_document::key::{KeyError, Keys};
use banyan_document::time_series::index_keys::bounded_field;
use banyan_storage::build::{LoadEnd, LoadHost, LoadPhase, LoadProgress};
use banyan_storage::{
    BuildId, CatalogChange, Collection, Index, IndexBuild, StorageError, Violation,
};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::sync::Semaphore;

use super::abort::{abort, abort_latched, aborted};
use super::active::Active;
use super::quorum;
use super::rebuild::{rebuilds, replaced};
use crate::errors;
use crate::node::Node;
use crate::operations::{Progress, Registration};
use crate::params;
use banyan_replication::machine::effects;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::unique::duplicate;

/// How long a member waits before it looks again at what it could do for a build.
const LOOK: Duration = Duration::from_millis(50);
/// How often a secondary repeats its vote.
const VOTE_EVERY: Duration = Duration::from_millis(250);
const VOTE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a member rests when it could not load, for want of disk space perhaps.
const RETRY: Duration = Duration::from_secs(1);

/// A load takes no more threads: others want to write meanwhile.
const WORKERS_MAX: usize = 4;

pub(super) fn register(node: &Node, collection: &Collection, build: &IndexBuild) -> Registration {
    node.operations.register_own(
        "IndexBuildsCoordinatorMongod".to_owned(),
        "createIndexes",
        collection.namespace.database(),
        command(collection, build),
        node.operations.background(),
    )
}

/// The command that a build goes on for, as `currentOp` shows it.
fn command(collection: &Collection, build: &IndexBuild) -> RawDocumentBuf {
    rawdoc! {
        "createIndexes": collection.namespace.collection(),
        "indexes": catalog_ops::build_specs(build),
        "$db": collection.namespace.database(),
    }
}

/// Works on a build until the catalog names it no more.
pub(super) async fn run(node: Weak<Node>, active: Arc<Active>, loads: Arc<Semaphore>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        if active.is_over(&node) {
            return;
        }
        let step = step(&node, &active, &loads).await;
        if let Err(error) = step {
            tracing::warn!(%error, "an index build cannot go on; it is tried again");
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl Active {
    fn is_over(&self, node: &Node) -> bool {
        self.gone.load(Ordering::Acquire) || node.operations.is_shutting_down()
    }

    fn show(&self, message: &'static str, counted: Option<(u64, u64)>) {
        let progress = Progress { message, counted };
        self.registration.show_progress(progress);
    }

    /// What stands against the index at the moment.
    fn violation(&self, node: &Node) -> Result<Option<Violation>, StorageError> {
        self.build.violation(&node.replica.store.snapshot())
    }
}

async fn step(
    node: &Arc<Node>,
    active: &Arc<Active>,
    loads: &Arc<Semaphore>,
) -> Result<(), CommandError> {
    let catalog = node.replica.store.catalog();
    let Some(collection) = catalog.by_id(active.address.collection) else {
        return idle(node).await;
    };
    let known = collection.build(&active.address.build);
    let Some(build) = known.filter(|build| build.is_same(&active.build)) else {
        return idle(node).await;
    };
    if node.replica.is_primary() && !build.is_committed {
        if let Some(error) = interruption(node, active) {
            return abort(node, &collection.namespace, &active.address, error).await;
        }
        if let Some(violation) = active.violation(node).map_err(errors::storage)? {
            let error = refusal(node, collection, &active.address.build, &violation)?;
            return abort(node, &collection.namespace, &active.address, error).await;
        }
    }
    if !build.is_loaded() {
        return load(node, active, loads).await;
    }
    active.show("Index Build: waiting for the commit quorum", None);
    if !node.replica.is_primary() {
        return vote(node, active).await;
    }
    let changed = active.quorum.lock().clone();
    let wanted = changed.as_deref().unwrap_or(&build.options);
    let enough = quorum::is_satisfied(node, wanted, &active.votes.lock());
    match enough {
        true => commit(node, active, collection).await,
        false => idle(node).await,
    }
}

/// Lets some time pass, or something happen.
async fn idle(node: &Arc<Node>) -> Result<(), CommandError> {
    let mut changed = node.index_builds.watch();
    let _ = tokio::time::timeout(LOOK, changed.changed()).await;
    Ok(())
}

/// Somebody has killed the operation.
fn interruption(node: &Node, active: &Active) -> Option<CommandError> {
    // A shutdown raises it too: the build goes on after the start.
    let killed = active.registration.interrupt().is_raised() && !node.operations.is_shutting_down();
    killed.then(|| CommandError::new(ErrorCode::Interrupted, "operation was interrupted"))
}

async fn load(
    node: &Arc<Node>,
    active: &Arc<Active>,
    loads: &Arc<Semaphore>,
) -> Result<(), CommandError> {
    active.show("Index Build: waiting for other builds", None);
    let Ok(turn) = tokio::time::timeout(VOTE_EVERY, loads.clone().acquire_owned()).await else {
        return Ok(());
    };
    let (loading, building) = (node.clone(), active.clone());
    let loaded = tokio::task::spawn_blocking(move || {
        let host = Loading {
            node: &loading,
            active: &building,
        };
        loading
            .replica
            .store
            .load_build(building.address, &building.build, &host)
    });
    let ended = loaded.await.map_err(|error| {
        CommandError::new(
            ErrorCode::InternalError,
            format!("an index build ended early: {error}"),
        )
    })?;
    drop(turn);
    let ended = ended.map_err(errors::storage);
    *active.failure.lock() = ended.as_ref().err().cloned();
    let error = match ended {
        Ok(LoadEnd::Complete) => {
            node.replica.machine.tell_of_definitions();
            return Ok(());
        }
        Ok(LoadEnd::Stopped) => return Ok(()),
        Err(error) => error,
    };
    let catalog = node.replica.store.catalog();
    let Some(collection) = catalog.by_id(active.address.collection) else {
        return Ok(());
    };
    // One that is committed is aborted by nobody: the index is there for clients.
    let build = collection.build(&active.address.build);
    match build.is_some_and(|build| !build.is_committed) && node.replica.is_primary() {
        true => abort(node, &collection.namespace, &active.address, error).await,
        false => Err(error),
    }
}

/// The load's view of the member.
struct Loading<'a> {
    node: &'a Node,
    active: &'a Active,
}

impl LoadHost for Loading<'_> {
    fn workers(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cores.min(WORKERS_MAX)
    }

    fn keys(&self, index: &Index, document: &RawDocument) -> Option<Keys> {
        effects::keys_of(index, document).ok()
    }

    fn goes_on(&self, progress: LoadProgress) -> bool {
        let message = match progress.phase {
            LoadPhase::Scanning => "Index Build: scanning collection",
            LoadPhase::Inserting => "Index Build: inserting keys from external sorter into index",
        };
        let counted = Some((progress.done, progress.total));
        self.active.show(message, counted);
        if self.active.is_over(self.node) {
            return false;
        }
        // There is no use in the rest if the build is to be aborted.
        let is_over = self.node.replica.is_primary()
            && !self.active.build.is_committed
            && (self.active.registration.interrupt().is_raised()
                || self
                    .active
                    .violation(self.node)
                    .is_ok_and(|found| found.is_some()));
        !is_over
    }
}

/// Tells the primary that this member is through.
async fn vote(node: &Arc<Node>, active: &Active) -> Result<(), CommandError> {
    if let Some(host) = node.replication.own_host() {
        let vote = rawdoc! {
            "voteCommitIndexBuild": params::uuid(&active.address.build),
            "hostAndPort": host,
        };
        // Whoever does not hear it now hears it soon.
        let _ = node.replication.ask_primary(&vote, VOTE_TIMEOUT).await;
    }
    let mut changed = node.index_builds.watch();
    let _ = tokio::time::timeout(VOTE_EVERY, changed.changed()).await;
    Ok(())
}

/// Commits the build unless something stands against it. No write of the collection is under way
/// from the look at that until the entry is applied.
async fn commit(
    node: &Arc<Node>,
    active: &Active,
    collection: &Collection,
) -> Result<(), CommandError> {
    let term = node.replica.writable_term()?;
    let namespaces = [&collection.namespace];
    let _locks = node.replica.locks.exclusive_giving_way(&namespaces).await;
    let catalog = node.replica.store.catalog();
    let Some(collection) = catalog.by_id(active.address.collection) else {
        return Ok(());
    };
    let current = collection.build(&active.address.build);
    if !current.is_some_and(|build| build.is_same(&active.build) && !build.is_committed) {
        return Ok(());
    }
    if let Some(violation) = active.violation(node).map_err(errors::storage)? {
        let error = refusal(node, collection, &active.address.build, &violation)?;
        let builds = [active.build.clone()];
        return abort_latched(node, collection, &builds, error, &[], term).await;
    }
    let mut changes = match rebuilds(&active.build) {
        true => replaced(collection, &active.build),
        false => Vec::new(),
    };
    changes.push(CatalogChange::CommitIndexBuild {
        collection: collection.id,
        build: active.address.build,
    });
    catalog_ops::apply(&node.replica, &changes, term)
        .await
        .map(drop)
}

/// Whether an index is over the least and greatest values of a field of measurements.
fn is_of_measurements(index: &Index) -> bool {
    let key = index.spec.get_document("key").into_iter();
    let mut fields = key.flat_map(elements);
    fields.any(|field| bounded_field(field.name()).is_some())
}

/// What whoever asked for the index is told about a violation.
fn refusal(
    node: &Node,
    collection: &Collection,
    build: &BuildId,
    violation: &Violation,
) -> Result<CommandError, CommandError> {
    let (index, record) = match violation {
        Violation::Duplicate { index, record, .. } | Violation::Unindexable { index, record } => {
            (index, record)
        }
    };
    let found = node.replica.store.snapshot().record(collection.id, record);
    let found = found.map_err(errors::storage)?;
    let empty = rawdoc! {};
    let document = found.as_deref().unwrap_or(&empty);
    let mut error = match violation {
        Violation::Duplicate { key, .. } => duplicate(collection, index, document, key),
        Violation::Unindexable { .. } => match effects::keys_of(index, document) {
            Err(KeyError::ParallelArrays(..)) if is_of_measurements(index) => CommandError::new(
                ErrorCode::Location(5930501),
                "Indexed measurement field contains an array value",
            ),
            Err(error) => CommandError::new(ErrorCode::from_code(error.code()), error.to_string()),
            // It has been changed since, after all.
            Ok(_) => aborted(build, "a document could not be indexed"),
        },
    };
    error.message = format!(
        "Index build failed: {}: Collection {} ( {} ) :: caused by :: {}",
        uuid::Uuid::from_bytes(*build),
        collection.namespace,
        uuid::Uuid::from_bytes(collection.uuid),
        error.message
    );
    Ok(error)
}
