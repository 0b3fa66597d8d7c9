//! Whether the writes of users are blocked: `setUserWriteBlockMode`.
//!
//! That is a replicated document, so every member knows it, and a member that becomes the primary goes
//! on with it. Databases of the server itself stay open, as does everything to those whose privileges
//! let them go by the block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use banyan_execution::by_id;
use banyan_replication::machine::Machine;
use banyan_replication::op_observer::Change;
use banyan_replication::replica::Replica;
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::RawBsonRef;

use crate::errors;

/// In the database `config`.
pub const COLLECTION: &str = "user_writes_critical_sections";
/// Of the document about all databases.
pub const ID: &str = "";
pub const FIELD: &str = "blockUserWrites";

/// What this process knows of the block.
pub struct UserWrites {
    are_blocked: AtomicBool,
    /// The document has changed since it was read.
    is_stale: Arc<AtomicBool>,
}

impl Default for UserWrites {
    fn default() -> UserWrites {
        UserWrites {
            are_blocked: AtomicBool::new(false),
            is_stale: Arc::new(AtomicBool::new(true)),
        }
    }
}

impl UserWrites {
    /// Has the document read anew when the log changes it.
    pub fn watch(&self, machine: &Machine) {
        let is_stale = self.is_stale.clone();
        let listener = move |_: Option<Change<'_>>| is_stale.store(true, Ordering::Release);
        machine.watch_collection(Namespace::new("config", COLLECTION), Box::new(listener));
    }

    pub fn are_blocked(&self, replica: &Replica) -> bool {
        if self.is_stale.load(Ordering::Acquire) {
            self.is_stale.store(false, Ordering::Release);
            match stored(replica) {
                Ok(blocked) => self.are_blocked.store(blocked, Ordering::Release),
                Err(error) => {
                    tracing::warn!(%error, "cannot read whether writes are blocked");
                    self.is_stale.store(true, Ordering::Release);
                }
            }
        }
        self.are_blocked.load(Ordering::Acquire)
    }
}

fn stored(replica: &Replica) -> Result<bool, CommandError> {
    let (catalog, snapshot) = replica.view();
    let Some(collection) = catalog.get("config", COLLECTION) else {
        return Ok(false);
    };
    let id = RawBsonRef::String(ID);
    let found = by_id::lookup(collection, &snapshot, id).map_err(errors::query)?;
    Ok(found.is_some_and(|document| document.get_bool(FIELD).unwrap_or(false)))
}
