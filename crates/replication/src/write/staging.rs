//! One write command on one collection, from its latches to its entries.
//!
//! Statements stage their effects here. What is staged becomes one entry when the command ends,
//! when it has grown large, or when the next statement needs a latch that it cannot have at once:
//! whoever holds latches never waits for another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_document::validate::MAX_DOCUMENT_BYTES;
use banyan_execution::ShardFilter;
use banyan_storage::{Batch, Collection, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

use super::catalog_ops;
use super::context::WriteContext;
use crate::clock;
use crate::entry::EntryBuilder;
use crate::errors;
use crate::latches::{Held, LatchKey, NamespaceShared};
use crate::machine::Prepared;
use crate::op_observer::Change;
use crate::propose::Outcome;
use crate::sessions::{
    self, LastWrite, Retryable, SessionRecord, SessionStamp, Statement, StatementOutcome,
};
use crate::virtual_collections;

/// One entry holds no more than this, but for a single document that is larger.
const ENTRY_BYTES_MAX: usize = MAX_DOCUMENT_BYTES;
const ENTRY_OPERATIONS_MAX: usize = 2_000;
/// How often a write looks whether this member has finished a unique index by now.
const UNIQUE_LOOK: Duration = Duration::from_millis(10);

pub struct Staging<'a> {
    pub ctx: WriteContext<'a>,
    pub namespace: Namespace,
    /// `None`: it does not exist, and need not for this command.
    pub collection: Option<Arc<Collection>>,
    pub ownership: Option<Arc<dyn ShardFilter>>,
    shared: Arc<NamespaceShared>,
    term: u64,
    pub entry: EntryBuilder,
    pub batch: Batch,
    held: Held,
    /// The first so many of the latches belong to what is staged, or about to be.
    claimed: usize,
    retry: Option<Retry>,
}

/// What a retryable command knows of its earlier tries.
struct Retry {
    id: Retryable,
    known: Option<SessionRecord>,
    /// Statements whose effects are staged but not proposed.
    fresh: Vec<Statement>,
    /// Keeps other tries of this session away until the command ends.
    held: Arc<Held>,
}

impl<'a> Staging<'a> {
    /// Takes the namespace's latch and makes sure that this member may write to it. `create`: a
    /// collection that is missing is made.
    pub async fn open(
        ctx: WriteContext<'a>,
        collection: &str,
        create: bool,
    ) -> Result<Staging<'a>, CommandError> {
        let replica = ctx.replica;
        let namespace = Namespace::new(ctx.database, collection);
        refuse_reserved(&namespace)?;
        let retry = Retry::begin(&ctx).await?;
        loop {
            let term = replica.writable_term()?;
            let shared = replica.namespaces.shared(&namespace).await;
            let ownership = match ctx.rules {
                Some(rules) => rules.check(&namespace, ctx.versions, true)?,
                None => None,
            };
            let found = replica.store.catalog().find(&namespace).cloned();
            if lacks_unique(found.as_deref()) {
                // No write could be checked against the index.
                drop(shared);
                ctx.check_interrupt()?;
                tokio::time::sleep(UNIQUE_LOOK).await;
                continue;
            }
            if found.is_none() && create {
                drop(shared);
                catalog_ops::create_if_missing(replica, &namespace).await?;
                continue;
            }
            return Ok(Staging {
                ctx,
                namespace,
                collection: found,
                ownership,
                shared: Arc::new(shared),
                term,
                entry: EntryBuilder::new(),
                batch: Batch::new(),
                held: Held::none(&replica.latches),
                claimed: 0,
                retry,
            });
        }
    }

    /// The outcome of a statement that an earlier try has settled. What a router sent and nothing
    /// came of is not: the document may have been on another shard then.
    pub fn settled(&self, statement: i32) -> Option<StatementOutcome> {
        let outcome = self.retry.as_ref()?.known.as_ref()?.find(statement)?;
        let is_routed = self.ctx.versions.shard.is_some();
        (outcome.had_effect() || !is_routed).then(|| outcome.clone())
    }

    /// Records what a staged statement comes to.
    pub fn settle(&mut self, statement: i32, outcome: StatementOutcome) {
        if let Some(retry) = &mut self.retry {
            sessions::push(&mut retry.fresh, Statement::new(statement, outcome));
        }
    }

    pub fn is_retryable(&self) -> bool {
        self.retry.is_some()
    }

    pub fn is_clear(&self) -> bool {
        self.entry.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.entry.bytes() >= ENTRY_BYTES_MAX || self.entry.operations() >= ENTRY_OPERATIONS_MAX
    }

    /// Takes a latch for the statement at hand, if nobody else has it and nothing that was staged
    /// before does.
    pub fn try_latch(&mut self, key: LatchKey) -> bool {
        self.held.try_add_since(key, self.claimed)
    }

    /// The latches taken since the last claim belong to what is staged.
    pub fn claim(&mut self) {
        self.claimed = self.held.len();
    }

    /// Lets go of the latches taken since the last claim.
    pub fn unlatch(&mut self) {
        self.held.shrink_to(self.claimed);
    }

    /// Commits what is staged, then waits for a latch while none is held, and keeps it.
    pub async fn wait_for(&mut self, key: LatchKey) -> Result<(), CommandError> {
        self.flush().await?;
        self.held.shrink_to(0);
        self.claimed = 0;
        let began = Instant::now();
        let turn = self.ctx.replica.latches.wait(key).await;
        self.ctx.work.latch_wait.add(micros_since(began));
        self.held.merge(turn);
        self.ctx.check_interrupt()
    }

    /// Asks the role about a change before it is staged.
    pub fn check_change(&self, change: Change<'_>) -> Result<(), CommandError> {
        match self.ctx.rules {
            Some(rules) => rules.check_change(&self.namespace, change),
            None => Ok(()),
        }
    }

    pub fn owns(&self, document: &RawDocument) -> bool {
        self.ownership
            .as_ref()
            .is_none_or(|ownership| ownership.owns(document))
    }

    /// Proposes what is staged and waits until it is applied.
    pub async fn flush(&mut self) -> Result<(), CommandError> {
        let fresh = self
            .retry
            .as_mut()
            .map(|retry| std::mem::take(&mut retry.fresh));
        let fresh = fresh.unwrap_or_default();
        if self.entry.is_empty() && fresh.is_empty() {
            return Ok(());
        }
        let mut entry = std::mem::take(&mut self.entry);
        if let Some(retry) = self.retry.as_mut().filter(|_| !fresh.is_empty()) {
            let stamp = SessionStamp {
                session: retry.id.session,
                txn_number: retry.id.txn_number,
                statements: fresh,
            };
            let known = retry.known.take();
            let now = LastWrite {
                wall_ms: clock::wall_ms(),
                ..LastWrite::default()
            };
            retry.known = Some(SessionRecord::merge(known, &stamp, now));
            entry.session = Some(stamp);
        }
        let replica = self.ctx.replica;
        let latches = std::mem::replace(&mut self.held, Held::none(&replica.latches));
        self.claimed = 0;
        let batch = std::mem::take(&mut self.batch);
        let prepared = Prepared { batch, latches };
        let (term, journal) = (self.term, self.ctx.journal);
        let began = Instant::now();
        let outcome = match self.ctx.commit_time_max {
            None => replica.propose(&entry, prepared, term, journal).await?,
            Some(limit) => {
                let replica = replica.clone();
                let proposal =
                    async move { replica.propose(&entry, prepared, term, journal).await };
                match self.propose_within(limit, proposal).await? {
                    Some(outcome) => outcome,
                    None => return Ok(()),
                }
            }
        };
        self.ctx.work.commit_wait.add(micros_since(began));
        self.ctx.operation.wrote(outcome.position.index);
        Ok(())
    }

    /// Waits no longer than the write concern does. A write that is not committed by then is not
    /// taken back: it may be committed yet, so what keeps others away from it stays.
    async fn propose_within(
        &self,
        limit: Duration,
        proposal: impl Future<Output = Result<Outcome, CommandError>> + Send + 'static,
    ) -> Result<Option<Outcome>, CommandError> {
        let mut writing = tokio::spawn(proposal);
        match tokio::time::timeout(limit, &mut writing).await {
            Ok(Ok(outcome)) => outcome.map(Some),
            Ok(Err(error)) => Err(CommandError::new(
                ErrorCode::InternalError,
                format!("a write ended early: {error}"),
            )),
            Err(_) => {
                self.ctx.operation.was_late();
                let session = self.retry.as_ref().map(|retry| retry.held.clone());
                let kept = (self.shared.clone(), session);
                tokio::spawn(async move {
                    // Whoever wrote has been told that it took too long.
                    let _ = writing.await;
                    drop(kept);
                });
                Ok(None)
            }
        }
    }

    /// Commits the rest.
    pub async fn finish(mut self) -> Result<(), CommandError> {
        self.flush().await
    }
}

impl Retry {
    async fn begin(ctx: &WriteContext<'_>) -> Result<Option<Retry>, CommandError> {
        let Some(id) = Retryable::parse(ctx.lsid, ctx.txn_number)? else {
            return Ok(None);
        };
        let replica = ctx.replica;
        let latch = replica.latches.session(&id.session);
        let held = replica.latches.wait(latch).await;
        let numbers = &replica.machine.latest_numbers;
        let known = numbers.load(&replica.store, &id.session, id.txn_number);
        let known = known.map_err(errors::storage)?;
        Ok(Some(Retry {
            known: id.check(known)?,
            id,
            fresh: Vec::new(),
            held: Arc::new(held),
        }))
    }
}

fn micros_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Whether a unique index is committed and this member has not loaded all of its keys yet.
fn lacks_unique(collection: Option<&Collection>) -> bool {
    let builds = collection.map_or(&[][..], |collection| &collection.builds);
    let committed = builds.iter().filter(|build| build.is_committed);
    let mut indexes = committed.flat_map(|build| &build.indexes);
    indexes.any(|index| index.unique)
}

/// Names that are views of something else, or nobody's to write to.
fn refuse_reserved(namespace: &Namespace) -> Result<(), CommandError> {
    virtual_collections::refuse_write(namespace)?;
    let is_reserved = namespace.collection().starts_with("system.")
        && !matches!(namespace.database(), "admin" | "config" | "local")
        && !matches!(
            namespace.collection(),
            "system.js" | "system.profile" | "system.users" | "system.views"
        );
    if is_reserved {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid system namespace: {namespace}"),
        ));
    }
    Ok(())
}
