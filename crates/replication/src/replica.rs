//! What one member has: its state, its log, and what keeps writes to them apart.

use std::sync::Arc;

use banyan_consensus::Group;
use banyan_storage::{Catalog, Snapshot, Store};
use banyan_wire::{CommandError, ErrorCode};

use crate::clock::Clock;
use crate::incoming::Incoming;
use crate::latches::Latches;
use crate::locks::LockManager;
use crate::machine::Machine;
use crate::sessions::attempts::Attempts;
use crate::time_series::OpenBuckets;

/// A member's copy of the data and its end of the log.
pub struct Replica {
    pub store: Store,
    pub machine: Arc<Machine>,
    pub group: Group<Machine>,
    pub clock: Arc<Clock>,
    /// Held by writes on the records and unique keys they change.
    pub latches: Arc<Latches>,
    /// What inserts into capped collections are to reckon with.
    pub incoming: Arc<Incoming>,
    /// Where the next measurements of time-series collections may go.
    pub open_buckets: Arc<OpenBuckets>,
    /// The last tries of numbered writes that may be carried out on several shards.
    pub attempts: Attempts,
    /// Held by writes and by whoever changes what exists.
    pub locks: Arc<LockManager>,
}

impl Replica {
    pub fn new(
        store: Store,
        machine: Arc<Machine>,
        group: Group<Machine>,
        clock: Arc<Clock>,
    ) -> Replica {
        Replica {
            store,
            machine,
            group,
            clock,
            latches: Arc::default(),
            incoming: Arc::default(),
            open_buckets: Arc::default(),
            attempts: Attempts::default(),
            locks: Arc::default(),
        }
    }

    /// The catalog first, then the snapshot: every index of the one is complete in the other.
    pub fn view(&self) -> (Arc<Catalog>, Snapshot) {
        let catalog = self.store.catalog();
        (catalog, self.store.snapshot())
    }

    /// The term in which this member may take writes.
    pub fn writable_term(&self) -> Result<u64, CommandError> {
        match self.group.leader_term() {
            0 => Err(CommandError::new(
                ErrorCode::NotWritablePrimary,
                "not primary",
            )),
            term => Ok(term),
        }
    }

    pub fn is_primary(&self) -> bool {
        self.group.leader_term() != 0
    }
}
