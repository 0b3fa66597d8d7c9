//! Index builds, from the command that asks for one to the index that readers use.
//!
//! 1. `createIndexes` on a collection with documents writes an entry that starts the build
//!    ([`start`]). It holds the collection's lock for that moment only.
//! 2. Every member, once it has applied the entry, finds the build in its catalog and loads the keys
//!    on a thread of its own ([`worker`]), beside the writes that go on
//!    ([`banyan_storage::build`] says why the index is exact in the end).
//! 3. A secondary that is through tells the primary, again and again, until the build is over
//!    (`voteCommitIndexBuild`). Nothing about votes is kept on disk: whoever leads next is told, too.
//! 4. The primary, once it is through itself and has the votes that the commit quorum asks for
//!    ([`quorum`]), holds off the collection's writes for a moment, looks for what stands against the
//!    index (two documents with one unique key), and writes the entry that commits the build or
//!    aborts it.
//! 5. A member that has not loaded everything by then goes on; its readers get the index when it
//!    has. A primary in that state makes writes wait that a unique index would have to check.
//!
//! Whatever changes the catalog (an entry, a fetched snapshot, a restart) is followed by
//! [`IndexBuilds::reconcile`], which starts the work on builds that are there and ends that on
//! builds that are not. So nothing else has to remember that a build is under way.

mod abort;
pub(crate) mod active;
pub mod quorum;
mod rebuild;
mod worker;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use banyan_execution::Interrupt;
use banyan_storage::build::BuildAddress;
use banyan_storage::{
    CatalogChange, Collection, Index, IndexBuild, IndexBuildDefinition, IndexDefinition, IndexId,
    Namespace,
};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use abort::abort;
use active::{Active, IndexBuilds};
use rebuild::{REBUILDS, rebuilds, removal};

pub use abort::{abort_latched, aborted};

use crate::errors;
use crate::node::Node;
use banyan_replication::write::catalog_ops;

/// Whoever waits for a build looks at it this often, besides when something is told.
const LOOK: Duration = Duration::from_millis(100);

/// A build that somebody waits for.
#[derive(Debug, Clone)]
pub struct Begun {
    address: BuildAddress,
    namespace: Namespace,
    indexes: Vec<IndexId>,
    /// The command that waits has started it: if that is interrupted, the build is aborted.
    own: bool,
}

impl Begun {
    /// One that somebody else has started.
    pub fn joined(collection: &Collection, build: &IndexBuild) -> Begun {
        Begun {
            address: address(collection, build),
            namespace: collection.namespace.clone(),
            indexes: build.indexes.iter().map(|index| index.id).collect(),
            own: false,
        }
    }
}

fn address(collection: &Collection, build: &IndexBuild) -> BuildAddress {
    BuildAddress {
        collection: collection.id,
        build: build.id,
    }
}

/// Works on the builds that a restart interrupted, and on those that come.
pub fn attend(node: &Arc<Node>) {
    // A node that was opened outside of a runtime begins when somebody waits for a build.
    *node.index_builds.runtime.lock() = Handle::try_current().ok();
    let known = Arc::downgrade(node);
    node.replica.machine.on_definitions(Box::new(move || {
        if let Some(node) = known.upgrade() {
            node.index_builds.reconcile(&node);
        }
    }));
    node.index_builds.reconcile(node);
}

impl IndexBuilds {
    /// Makes the builds that are worked on those that the catalog names.
    fn reconcile(&self, node: &Arc<Node>) {
        let Some(runtime) = self.runtime.lock().clone() else {
            return;
        };
        let catalog = node.replica.store.catalog();
        let mut active = self.active.lock();
        let mut named = HashSet::new();
        for collection in catalog.collections() {
            for build in &collection.builds {
                named.insert(build.id);
                // After a snapshot was fetched it is the same build with nothing known of it.
                let known = active.get(&build.id);
                if known.is_some_and(|known| known.build.is_same(build)) {
                    continue;
                }
                let begun = Arc::new(Active {
                    address: address(collection, build),
                    build: build.clone(),
                    gone: AtomicBool::new(false),
                    registration: worker::register(node, collection, build),
                    votes: Mutex::default(),
                    quorum: Mutex::default(),
                    failure: Mutex::default(),
                });
                if let Some(before) = active.insert(build.id, begun.clone()) {
                    before.gone.store(true, Ordering::Release);
                }
                runtime.spawn(worker::run(Arc::downgrade(node), begun, self.loads.clone()));
            }
        }
        active.retain(|id, build| {
            let stays = named.contains(id);
            if !stays {
                build.gone.store(true, Ordering::Release);
            }
            stays
        });
        drop(active);
        self.tell();
    }

    /// Waits until a build is over; what its end was.
    pub async fn wait(
        &self,
        node: &Arc<Node>,
        begun: &Begun,
        interrupt: &Interrupt,
    ) -> Result<(), CommandError> {
        let mut changed = self.watch();
        let is_first = {
            let mut runtime = self.runtime.lock();
            let is_first = runtime.is_none();
            runtime.get_or_insert_with(Handle::current);
            is_first
        };
        if is_first {
            self.reconcile(node);
        }
        loop {
            let catalog = node.replica.store.catalog();
            let collection = catalog.by_id(begun.address.collection);
            if collection.is_none_or(|known| known.build(&begun.address.build).is_none()) {
                return self.end_of(begun, collection.map(|known| &**known));
            }
            if node.replica.writable_term().is_err() {
                return Err(CommandError::new(
                    ErrorCode::InterruptedDueToReplStateChange,
                    "operation was interrupted",
                ));
            }
            if let Err(error) = interrupt.check().map_err(errors::query) {
                // A client that leaves does not take its build along.
                let asked = matches!(
                    error.code,
                    ErrorCode::Interrupted | ErrorCode::MaxTimeMSExpired
                );
                if asked && begun.own {
                    abort(node, &begun.namespace, &begun.address, error.clone()).await?;
                }
                return Err(error);
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = interrupt.raised() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn end_of(&self, begun: &Begun, collection: Option<&Collection>) -> Result<(), CommandError> {
        if let Some(error) = self.error_of(&begun.address.build) {
            return Err(error);
        }
        let is_there = |id: &IndexId| {
            let collection = collection.as_ref();
            collection.is_some_and(|collection| collection.index_by_id(*id).is_some())
        };
        if begun.indexes.iter().all(is_there) {
            return Ok(());
        }
        let reason = match collection {
            Some(_) => "the build was aborted",
            None => "collection dropped",
        };
        Err(aborted(&begun.address.build, reason))
    }
}

/// Starts to build these indexes. `None`: there are no documents, and the indexes are there already.
/// The caller holds the collection's lock exclusively.
pub async fn start(
    node: &Arc<Node>,
    collection: &Collection,
    specs: &[RawDocumentBuf],
    commit_quorum: Option<RawDocumentBuf>,
    term: u64,
) -> Result<Option<Begun>, CommandError> {
    let options = commit_quorum.unwrap_or_default();
    begin(node, collection, specs, options, Vec::new(), term).await
}

/// Starts to build all indexes of a collection anew; they replace those of the same names. As
/// [`start`].
pub async fn start_again(
    node: &Arc<Node>,
    collection: &Collection,
    term: u64,
) -> Result<Option<Begun>, CommandError> {
    if collection.indexes.is_empty() {
        return Ok(None);
    }
    let specs: Vec<_> = collection.indexes.iter().map(in_newest_format).collect();
    let options = rawdoc! { REBUILDS: true };
    let indexes = collection.indexes.iter();
    let removals = indexes.map(|index| removal(collection, index)).collect();
    begin(node, collection, &specs, options, removals, term).await
}

/// The specification of an index that is made anew, in the format of keys of today.
pub fn in_newest_format(index: &Arc<Index>) -> RawDocumentBuf {
    let mut spec = RawDocumentBuf::new();
    for (name, value) in index.spec.iter().flatten() {
        match name.as_str() {
            "v" => spec.append(name, 2),
            _ => spec.append(name, value),
        }
    }
    spec
}

/// Starts to build an index that replaces the one of its name. As [`start`].
pub async fn start_instead(
    node: &Arc<Node>,
    collection: &Collection,
    spec: RawDocumentBuf,
    term: u64,
) -> Result<Option<Begun>, CommandError> {
    let name = spec.get_str("name").unwrap_or_default();
    let replaced = collection.index(name);
    let removals = replaced.map(|index| removal(collection, index));
    let removals = removals.into_iter().collect();
    let options = rawdoc! { REBUILDS: true };
    begin(node, collection, &[spec], options, removals, term).await
}

/// `replaced`: what takes out the indexes that those of an empty collection replace.
async fn begin(
    node: &Arc<Node>,
    collection: &Collection,
    specs: &[RawDocumentBuf],
    options: RawDocumentBuf,
    replaced: Vec<CatalogChange>,
    term: u64,
) -> Result<Option<Begun>, CommandError> {
    let definition = |spec: &RawDocumentBuf| IndexDefinition {
        id: node.replica.store.allocate_id(),
        spec: spec.clone(),
    };
    let indexes: Vec<IndexDefinition> = specs.iter().map(definition).collect();
    let last = node.replica.store.snapshot().last_record_id(collection.id);
    if last.map_err(errors::storage)?.is_none() {
        let creations = indexes.into_iter().map(|index| CatalogChange::CreateIndex {
            collection: collection.id,
            index,
        });
        let changes: Vec<_> = replaced.into_iter().chain(creations).collect();
        catalog_ops::apply(&node.replica, &changes, term).await?;
        return Ok(None);
    }
    let build = IndexBuildDefinition {
        id: *uuid::Uuid::new_v4().as_bytes(),
        duplicates: node.replica.store.allocate_id(),
        indexes,
        options,
    };
    let begun = Begun {
        address: BuildAddress {
            collection: collection.id,
            build: build.id,
        },
        namespace: collection.namespace.clone(),
        indexes: build.indexes.iter().map(|index| index.id).collect(),
        own: true,
    };
    let change = CatalogChange::StartIndexBuild {
        collection: collection.id,
        build,
    };
    catalog_ops::apply(&node.replica, &[change], term).await?;
    Ok(Some(begun))
}

/// Refuses a change of indexes that are made anew as they were.
pub fn refuse_rebuilds(collection: &Collection) -> Result<(), CommandError> {
    let mut builds = collection.builds.iter();
    match builds.any(|build| rebuilds(build)) {
        true => refuse_builds(collection),
        false => Ok(()),
    }
}

/// Refuses what must not happen to a collection while an index of it is built.
pub fn refuse_builds(collection: &Collection) -> Result<(), CommandError> {
    if collection.builds.is_empty() {
        return Ok(());
    }
    let uuid = uuid::Uuid::from_bytes(collection.uuid);
    Err(CommandError::new(
        ErrorCode::BackgroundOperationInProgressForNamespace,
        format!(
            "cannot perform operation: an index build is currently running for collection with \
             UUID: {uuid}"
        ),
    ))
}
