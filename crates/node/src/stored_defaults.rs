//! The defaults of [`crate::rw_defaults`], as they lie in this member's state.

use std::sync::Arc;

use banyan_execution::by_id;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawBsonRef;

use crate::errors;
use crate::info::ClusterRole;
use crate::node::Node;
use crate::rw_defaults::{COLLECTION, Defaults, ID};

/// The defaults as this process knows them. Cheap.
pub fn known(node: &Node) -> Arc<Defaults> {
    node.defaults
        .get(node.replica.group.leader_term(), || stored(node))
}

/// Reads what is applied here.
pub fn refresh(node: &Node) -> Result<Arc<Defaults>, CommandError> {
    stored(node).map(|read| node.defaults.note(read))
}

/// What is applied here.
fn stored(node: &Node) -> Result<Defaults, CommandError> {
    if node.info.role == ClusterRole::Shard {
        return Ok(Defaults::default());
    }
    let (catalog, snapshot) = node.replica.view();
    let Some(collection) = catalog.get("config", COLLECTION) else {
        return Ok(Defaults::default());
    };
    match by_id::lookup(collection, &snapshot, RawBsonRef::String(ID)).map_err(errors::query)? {
        Some(record) => Defaults::from_document(&record),
        None => Ok(Defaults::default()),
    }
}

/// Whether this process has defaults of its own.
pub fn check_supported(node: &Node, command: &str) -> Result<(), CommandError> {
    let refuse = |code, kind: &str| {
        Err(CommandError::new(
            ErrorCode::Location(code),
            format!("'{command}' is not supported on {kind} nodes."),
        ))
    };
    if !node.replication.is_replica_set() {
        return refuse(51300, "standalone");
    }
    if node.info.role == ClusterRole::Shard {
        return refuse(51301, "shard");
    }
    Ok(())
}

/// Keeps what is known up to date on members that do not lead; to be called now and then.
pub fn refresh_quietly(node: &Node) {
    if let Err(error) = refresh(node) {
        tracing::warn!(%error, "cannot read the default read and write concern");
    }
}
