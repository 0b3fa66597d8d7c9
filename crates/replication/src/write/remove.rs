//! Removing records for the process's own reasons: a shard's orphaned documents.
//!
//! As a `deleteMany` does it, but by record id: the records of one batch are latched, read again
//! from one snapshot and go in one entry of the log. An entry before the first batch says which
//! range goes, so that readers who count on it keep the state as of then.

use std::sync::Arc;

use banyan_storage::{Batch, Collection, Namespace, RecordId};
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

use crate::entry::EntryBuilder;
use crate::errors;
use crate::latches::{Attempt, Held};
use crate::locks::{Lock, Mode};
use crate::machine::effects;
use crate::machine::{Prepared, RangeRemoval};
use crate::replica::Replica;

/// What a batch has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    pub documents: u64,
    pub bytes: u64,
    /// Records that somebody was just writing. They are still there.
    pub busy: u64,
}

impl Replica {
    /// Keeps a collection as it is while records of it are removed. `None`: somebody changes it.
    pub fn try_hold(&self, namespace: &Namespace) -> Option<Lock> {
        let collection = self.locks.collection(namespace);
        self.locks.try_lock(collection, Mode::IntentExclusive)
    }

    /// Tells every member that documents of a range are going to be removed. What is proposed once
    /// this has returned comes later in the log.
    pub async fn begin_range_removal(
        &self,
        namespace: &Namespace,
        removal: &RangeRemoval,
        term: u64,
    ) -> Result<(), CommandError> {
        let mut entry = EntryBuilder::new();
        entry.noop(&removal.message(namespace.as_str()));
        self.propose(entry, Prepared::nothing(self), term, false)
            .await
            .map(drop)
    }

    /// Removes those of the records whose documents are to go, as one entry of the log. The caller
    /// holds the lock of the collection, of which `collection` is the present state.
    pub async fn remove_records(
        &self,
        collection: &Arc<Collection>,
        records: &[RecordId],
        is_to_go: impl Fn(&RawDocument) -> bool,
        term: u64,
    ) -> Result<Removed, CommandError> {
        let mut removed = Removed::default();
        let mut latches = Held::none(&self.latches);
        let mut latched = Vec::with_capacity(records.len());
        for record in records {
            match latches.try_add(self.latches.record(collection.id, record), 0) {
                Attempt::Busy => removed.busy += 1,
                Attempt::Taken | Attempt::Own => latched.push(record),
            }
        }
        let mut entry = EntryBuilder::new();
        let mut batch = Batch::new();
        let snapshot = self.store.snapshot();
        for record in latched {
            let found = snapshot
                .record(collection.id, record)
                .map_err(errors::storage)?;
            let Some(document) = found.filter(|document| is_to_go(document)) else {
                continue;
            };
            effects::delete(&mut batch, collection, record, &document).map_err(|error| {
                CommandError::new(ErrorCode::from_code(error.code()), error.to_string())
            })?;
            entry.delete(collection.id, record, &document);
            removed.documents += 1;
            removed.bytes += document.as_bytes().len() as u64;
        }
        if !entry.is_empty() {
            let prepared = Prepared {
                batch,
                latches,
                announced: None,
            };
            self.propose(entry, prepared, term, false).await?;
        }
        Ok(removed)
    }
}
