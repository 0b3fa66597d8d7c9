//! Aborting builds.

use std::sync::Arc;

use banyan_replication::write::catalog_ops;
use banyan_storage::build::BuildAddress;
use banyan_storage::{BuildId, CatalogChange, Collection, IndexBuild, Namespace};
use banyan_wire::{CommandError, ErrorCode};

use crate::node::Node;

/// What a build that was given up answers.
pub fn aborted(build: &BuildId, reason: &str) -> CommandError {
    let uuid = uuid::Uuid::from_bytes(*build);
    CommandError::new(
        ErrorCode::IndexBuildAborted,
        format!("Index build aborted: {uuid}: {reason}"),
    )
}

/// Takes a build back, for the reason that those who wait for it are told.
pub(super) async fn abort(
    node: &Arc<Node>,
    namespace: &Namespace,
    address: &BuildAddress,
    error: CommandError,
) -> Result<(), CommandError> {
    let term = node.replica.writable_term()?;
    let _locks = node.replica.locks.exclusive(&[namespace]).await;
    let catalog = node.replica.store.catalog();
    let Some(collection) = catalog.by_id(address.collection) else {
        return Ok(());
    };
    match collection.build(&address.build) {
        Some(build) if !build.is_committed => {
            abort_latched(
                node,
                collection,
                std::slice::from_ref(build),
                error,
                &[],
                term,
            )
            .await
        }
        _ => Ok(()),
    }
}

/// Takes builds back and makes further changes, in one entry. The caller holds the collection's lock
/// exclusively.
pub async fn abort_latched(
    node: &Arc<Node>,
    collection: &Collection,
    builds: &[Arc<IndexBuild>],
    error: CommandError,
    others: &[CatalogChange],
    term: u64,
) -> Result<(), CommandError> {
    let abortion = |build: &Arc<IndexBuild>| CatalogChange::AbortIndexBuild {
        collection: collection.id,
        build: build.id,
    };
    let mut changes: Vec<CatalogChange> = builds.iter().map(abortion).collect();
    changes.extend_from_slice(others);
    for build in builds {
        node.index_builds.note_aborted(build.id, error.clone());
    }
    let aborted = catalog_ops::abort_builds(&node.replica, &changes, &error, term).await;
    if aborted.is_err() {
        // Nobody knows whether it was; whoever leads next decides.
        let mut noted = node.index_builds.aborted.lock();
        noted.retain(|(id, _)| !builds.iter().any(|build| build.id == *id));
    }
    aborted.map(drop)
}
