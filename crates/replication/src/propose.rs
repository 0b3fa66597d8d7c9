//! From effects to a committed entry.

use banyan_consensus::{Position, ProposeError, ProposeOptions};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, rawdoc};
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};

use crate::clock;
use crate::entry::EntryBuilder;
use crate::latches::Held;
use crate::machine::Prepared;
use crate::replica::Replica;

/// The outcome of a write that has been committed and applied.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub position: Position,
}

/// An entry on its way: what becomes of it.
pub type Placed = BoxFuture<'static, Result<Outcome, CommandError>>;

impl Prepared {
    /// An entry whose effects are computed when it is applied.
    pub fn nothing(replica: &Replica) -> Prepared {
        Prepared {
            batch: banyan_storage::Batch::new(),
            latches: Held::none(&replica.latches),
            announced: None,
        }
    }
}

impl Replica {
    /// Proposes an entry and waits until it is applied here. `term` is the one in which the
    /// effects were computed: in another they may be void.
    pub async fn propose(
        &self,
        entry: EntryBuilder,
        prepared: Prepared,
        term: u64,
        journal: bool,
    ) -> Result<Outcome, CommandError> {
        let turn = Held::none(&self.latches);
        self.place(entry, prepared, turn, term, journal).await
    }

    /// The same for an entry that those who wait for `turn` build upon: it opens once the entry has its
    /// place before theirs. The proposal is made by the call, not by polling the future.
    pub fn place(
        &self,
        entry: EntryBuilder,
        prepared: Prepared,
        turn: Held,
        term: u64,
        journal: bool,
    ) -> Placed {
        let bytes = entry.encode(clock::wall_ms());
        let options = ProposeOptions {
            sync: journal,
            term,
        };
        let turn = || drop(turn);
        let proposed = self.group.propose_then(bytes, prepared, options, turn);
        let outcome = proposed.map_ok(|position| Outcome { position });
        outcome.map_err(refused).boxed()
    }

    /// Makes this the replica set's configuration.
    pub async fn write_set_config(&self, configuration: &RawDocument) -> Result<(), CommandError> {
        let mut entry = EntryBuilder::new();
        entry.set_config(configuration);
        let term = self.writable_term()?;
        self.propose(entry, Prepared::nothing(self), term, true)
            .await
            .map(drop)
    }

    /// Waits until everything that was written before is on disk.
    pub async fn sync_log(&self) -> Result<(), CommandError> {
        let mut entry = EntryBuilder::new();
        entry.noop(&rawdoc! { "msg": "sync" });
        let term = self.writable_term()?;
        self.propose(entry, Prepared::nothing(self), term, true)
            .await
            .map(drop)
    }

    /// An entry that changes nothing.
    pub async fn write_noop(&self, message: &RawDocument) -> Result<Outcome, CommandError> {
        let mut entry = EntryBuilder::new();
        entry.noop(message);
        let term = self.writable_term()?;
        self.propose(entry, Prepared::nothing(self), term, false)
            .await
    }
}

fn refused(error: ProposeError) -> CommandError {
    let code = match &error {
        ProposeError::NotLeader { .. } => ErrorCode::NotWritablePrimary,
        ProposeError::Unknown => ErrorCode::InterruptedDueToReplStateChange,
        ProposeError::Stopped => ErrorCode::InterruptedAtShutdown,
        ProposeError::TooLarge => ErrorCode::BSONObjectTooLarge,
        // The client may try again, as after a failover.
        ProposeError::Busy => ErrorCode::InterruptedDueToReplStateChange,
    };
    CommandError::new(code, error.to_string())
}
