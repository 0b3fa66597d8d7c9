//! One write command on one collection, from its latches to its entries.
//!
//! Statements stage their effects in a write unit, and see through it what those before them have
//! staged. What is staged becomes one entry when the command ends, when it has grown large, when
//! others may be waiting for it, or when the next statement needs a latch that it cannot have at
//! once: whoever holds latches never waits for another.

use std::sync::Arc;
use std::time::Instant;

use banyan_document::time_series::visible_name;
use banyan_execution::{ShardFilter, tickets};
use banyan_query::view;
use banyan_storage::{Collection, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, rawdoc};

use super::catalog_ops;
use super::context::WriteContext;
use super::routed::Routed;
use super::turnover::Turnover;
use super::unit::{Isolation, WriteUnit, micros_since, write_conflict};
use super::validation::Validation;
use crate::clock;
use crate::errors;
use crate::latches::{Held, LatchKey};
use crate::locks::Lock;
use crate::op_observer::Change;
use crate::replica::Replica;
use crate::sessions::{
    self, LastWrite, Retryable, SessionRecord, SessionStamp, Statement, StatementOutcome,
};
use crate::{views, virtual_collections};

pub struct Staging<'a> {
    pub ctx: WriteContext<'a>,
    pub namespace: Namespace,
    /// `None`: it does not exist, and need not for this command.
    pub collection: Option<Arc<Collection>>,
    pub ownership: Option<Arc<dyn ShardFilter>>,
    pub unit: WriteUnit,
    /// Of a capped collection, since something was inserted into it and not committed.
    pub(super) turnover: Option<Turnover>,
    /// Which step of a statement is asked for that may be carried out on any of several shards.
    pub routed: Option<Routed<'a>>,
    validation: Option<Validation>,
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
    /// What is staged is a part of a write that a test has already let through.
    is_let_through: bool,
}

impl<'a> Staging<'a> {
    /// Locks the collection and makes sure that this member may write to it. `create`: a
    /// collection that is missing is made. What is staged is committed when the command ends.
    pub async fn open(
        ctx: WriteContext<'a>,
        collection: &str,
        create: bool,
    ) -> Result<Staging<'a>, CommandError> {
        let namespace = Namespace::new(ctx.database, collection);
        refuse_reserved(ctx.replica, &namespace)?;
        let retry = Retry::begin(&ctx).await?;
        let unit = WriteUnit::begin(ctx.replica, Isolation::ReadCommitted)?;
        let mut staging = Staging::hold(ctx, unit, namespace, create).await?;
        staging.retry = retry;
        staging.routed = Routed::of(&ctx.versions)?;
        Ok(staging)
    }

    /// The same for a command whose writes belong to a unit that goes on after it.
    pub async fn within(
        ctx: WriteContext<'a>,
        mut unit: WriteUnit,
        collection: &str,
        create: bool,
    ) -> Result<Staging<'a>, CommandError> {
        let namespace = Namespace::new(ctx.database, collection);
        refuse_reserved(ctx.replica, &namespace)?;
        unit.begin_statement();
        Staging::hold(ctx, unit, namespace, create).await
    }

    /// Under locks that the caller holds already, an exclusive one of the collection among them. What
    /// a shard says of the collection does not count.
    pub async fn under(
        ctx: WriteContext<'a>,
        locks: Vec<Lock>,
        namespace: Namespace,
    ) -> Result<Staging<'a>, CommandError> {
        let mut unit = WriteUnit::begin(ctx.replica, Isolation::ReadCommitted)?;
        for lock in locks {
            unit.keep(Some(lock));
        }
        let ctx = WriteContext { rules: None, ..ctx };
        Staging::hold(ctx, unit, namespace, false).await
    }

    async fn hold(
        ctx: WriteContext<'a>,
        mut unit: WriteUnit,
        namespace: Namespace,
        create: bool,
    ) -> Result<Staging<'a>, CommandError> {
        let replica = ctx.replica;
        loop {
            let lock = unit.lock(&ctx, &namespace).await?;
            let ownership = match ctx.rules {
                Some(rules) => rules.check(&namespace, ctx.versions, true)?,
                None => None,
            };
            let found = replica.store.catalog().find(&namespace).cloned();
            if lacks_unique(found.as_deref()) {
                // No write could be checked against the index.
                drop(lock);
                ctx.wait(unique_is_loaded(replica, &namespace)).await?;
                continue;
            }
            if found.is_none() {
                views::refuse(replica, &namespace)?;
            }
            if found.is_none() && create {
                drop(lock);
                let timeout = unit.lock_timeout();
                catalog_ops::create_if_missing(&ctx, &namespace, timeout).await?;
                continue;
            }
            unit.keep(lock);
            let validation = match &found {
                Some(collection) => Validation::of(&ctx, collection)?,
                None => None,
            };
            return Ok(Staging {
                ctx,
                namespace,
                collection: found,
                ownership,
                unit,
                turnover: None,
                routed: None,
                validation,
                retry: None,
            });
        }
    }

    /// From here on what is read shows everything that was staged before.
    pub(super) fn begin_statement(&mut self) {
        self.unit.begin_statement();
        self.turnover = None;
    }

    /// The outcome of a statement that an earlier try has settled. What a router sent and nothing
    /// came of is not: the document may have been on another shard then.
    pub fn settled(&self, statement: i32) -> Option<StatementOutcome> {
        let outcome = self.retry.as_ref()?.known.as_ref()?.find(statement)?;
        let is_routed = self.ctx.versions.shard.is_some();
        (outcome.had_effect() || !is_routed).then(|| outcome.clone())
    }

    /// Where a router begins to look for what a numbered statement is to change.
    pub(super) fn begin_attempt(&self) -> Result<(), CommandError> {
        let attempt = self.routed.and_then(|routed| routed.attempt);
        let (Some(retry), Some(attempt)) = (&self.retry, attempt) else {
            return Ok(());
        };
        let term = self.ctx.replica.writable_term()?;
        let now = clock::wall_ms().saturating_mul(1_000);
        let attempts = &self.ctx.replica.attempts;
        let begun = attempts.begin(retry.id, term, attempt, now);
        begun.map_err(|later| another_try().with_extra(rawdoc! { "attempt": later }))
    }

    /// Before a numbered statement is carried out for which a router has looked: refuses it if the
    /// look was another primary's, or another try has begun since.
    pub(super) fn check_attempt(&self) -> Result<(), CommandError> {
        let (Some(retry), Some(routed)) = (&self.retry, &self.routed) else {
            return Ok(());
        };
        let term = self.ctx.replica.writable_term()?;
        let attempts = &self.ctx.replica.attempts;
        let is_last = |attempt| attempts.is_last(retry.id, term, attempt);
        match routed.attempt.is_some_and(is_last) {
            true => Ok(()),
            false => Err(another_try()),
        }
    }

    /// Whether an upsert may insert.
    pub fn may_insert(&self) -> bool {
        self.routed.is_none_or(|routed| routed.may_insert())
    }

    /// Records what a staged statement comes to. One that changed nothing is carried out again when it
    /// is tried again, as if the first try had never been: no entry of the log is written for it.
    pub fn settle(&mut self, statement: i32, outcome: StatementOutcome) {
        if let Some(retry) = &mut self.retry
            && outcome.had_effect()
        {
            sessions::push(&mut retry.fresh, Statement::new(statement, outcome));
        }
    }

    pub fn is_retryable(&self) -> bool {
        self.retry.is_some()
    }

    /// Before each of several statements: commits what is staged if that fills an entry, or if
    /// others may be waiting for what it changes. The next statement sees what is left.
    pub async fn next_statement(&mut self) -> Result<(), CommandError> {
        let unit = &mut self.unit;
        let is_overdue = unit.is_overdue();
        let gives_way = !unit.is_clear() && unit.commits_in_parts() && tickets::turn_is_over();
        if unit.is_full() || is_overdue || gives_way {
            self.flush().await?;
        }
        // It may take long to find what the next one changes.
        tickets::hurry(false);
        Ok(())
    }

    /// Waits for a latch while none is held, and keeps it; what is staged is committed before.
    /// A unit that is committed at once cannot wait.
    pub async fn wait_for(&mut self, key: LatchKey) -> Result<(), CommandError> {
        if !self.unit.commits_in_parts() {
            return Err(write_conflict());
        }
        self.flush().await?;
        let began = Instant::now();
        let waited = self.ctx.wait(self.unit.wait_for(key)).await;
        self.ctx.work.latch_wait.add(micros_since(began));
        waited?;
        self.ctx.check_interrupt()
    }

    /// Asks the role about a change before it is staged.
    pub fn check_change(&self, change: Change<'_>) -> Result<(), CommandError> {
        match self.ctx.rules {
            Some(rules) => rules.check_change(&self.namespace, change),
            None => Ok(()),
        }
    }

    /// Before a change of a numbered statement is staged: a test may have it fail.
    pub(super) fn pass_fail_point(&self) -> Result<(), CommandError> {
        match &self.retry {
            Some(Retry {
                id,
                is_let_through: false,
                ..
            }) => {
                let operation = self.ctx.operation;
                operation.before_numbered_write(&id.session, id.txn_number)
            }
            _ => Ok(()),
        }
    }

    /// Several documents are about to be inserted as one write, as far as a test is concerned. If it has
    /// that fail, each of them is tried by itself, as MongoDB does.
    pub fn begin_together(&mut self) {
        let passes = self.pass_fail_point().is_ok();
        if let Some(retry) = &mut self.retry {
            retry.is_let_through = passes;
        }
    }

    /// What follows is a write of its own again.
    pub fn end_together(&mut self) {
        if let Some(retry) = &mut self.retry {
            retry.is_let_through = false;
        }
    }

    /// Refuses a change of the shard key by a statement that may change many documents.
    pub fn check_shared_change(
        &self,
        before: &RawDocument,
        after: &RawDocument,
    ) -> Result<(), CommandError> {
        match self.ctx.rules {
            Some(rules) if rules.changes_shard_key(&self.namespace, before, after) => {
                Err(CommandError::new(
                    ErrorCode::InvalidOptions,
                    "Multi-update operations are not allowed when updating the shard key field.",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a document that the collection's validator does not accept. `before`: what an update
    /// makes it of.
    pub fn check_document(
        &self,
        before: Option<&RawDocument>,
        after: &RawDocument,
    ) -> Result<(), CommandError> {
        match &self.validation {
            Some(validation) => validation.check(&self.namespace, before, after),
            None => Ok(()),
        }
    }

    /// Whatever the request says, other shards' documents are not touched.
    pub fn leave_to_owners(&mut self) {
        let rules = self.ctx.rules;
        self.ownership = rules.and_then(|rules| rules.owned(&self.namespace));
    }

    pub fn owns(&self, document: &RawDocument) -> bool {
        self.ownership
            .as_ref()
            .is_none_or(|ownership| ownership.owns(document))
    }

    /// Commits what is staged, unless all of the unit is to be committed at once.
    pub async fn flush(&mut self) -> Result<(), CommandError> {
        if !self.unit.commits_in_parts() {
            return Ok(());
        }
        self.unit.settle(&self.ctx).await?;
        self.turnover = None;
        let stamp = self.retry.as_mut().and_then(Retry::stamp);
        if self.unit.is_clear() && stamp.is_none() {
            return Ok(());
        }
        let retry = &self.retry;
        let keep = || retry.as_ref().map(|retry| retry.held.clone());
        self.unit.commit(&self.ctx, stamp, keep).await
    }

    /// Has what is staged committed while the command stages what follows, which must not read it. What
    /// comes of it tells the next flush.
    pub async fn flush_beside(&mut self) -> Result<(), CommandError> {
        if self.unit.is_clear() || !self.unit.commits_in_parts() {
            return self.flush().await;
        }
        self.turnover = None;
        let stamp = self.retry.as_mut().and_then(Retry::stamp);
        let retry = &self.retry;
        let keep = || retry.as_ref().map(|retry| retry.held.clone());
        self.unit.commit_beside(&self.ctx, stamp, keep).await
    }

    /// Waits until what was handed over is applied.
    pub async fn wait_until_applied(&mut self) -> Result<(), CommandError> {
        self.unit.settle(&self.ctx).await
    }

    /// Before the command fails: what it has handed over is applied or refused.
    pub async fn give_up(mut self) {
        // The error that led here is the one to tell.
        let _ = self.unit.settle(&self.ctx).await;
    }

    /// The command ends, the unit goes on.
    pub fn into_unit(self) -> WriteUnit {
        self.unit
    }

    /// Commits the rest of a unit that ends with the command.
    pub async fn finish(mut self) -> Result<(), CommandError> {
        debug_assert!(self.unit.commits_in_parts(), "the unit goes on");
        self.flush().await
    }
}

fn another_try() -> CommandError {
    CommandError::new(
        ErrorCode::WriteConflict,
        "Another try of this statement has begun",
    )
}

impl Retry {
    async fn begin(ctx: &WriteContext<'_>) -> Result<Option<Retry>, CommandError> {
        let Some(id) = Retryable::parse(ctx.session, ctx.txn_number)? else {
            return Ok(None);
        };
        let replica = ctx.replica;
        let latch = replica.latches.session(&id.session);
        let held = ctx.wait(replica.latches.wait(latch)).await?;
        let numbers = &replica.machine.latest_numbers;
        numbers.begin(id)?;
        let known = numbers.load(&replica.store, &id.session, id.txn_number);
        let known = known.map_err(errors::storage)?;
        Ok(Some(Retry {
            known: id.check(known)?,
            id,
            fresh: Vec::new(),
            held: Arc::new(held),
            is_let_through: false,
        }))
    }

    /// What goes into the entry, if statements are staged. From here on it is known.
    fn stamp(&mut self) -> Option<SessionStamp> {
        if self.fresh.is_empty() {
            return None;
        }
        let stamp = SessionStamp {
            session: self.id.session,
            txn_number: self.id.txn_number,
            statements: std::mem::take(&mut self.fresh),
        };
        let now = LastWrite {
            wall_ms: clock::wall_ms(),
            ..LastWrite::default()
        };
        self.known = Some(SessionRecord::merge(self.known.take(), &stamp, now));
        Some(stamp)
    }
}

/// Whether a unique index is committed and this member has not loaded all of its keys yet.
fn lacks_unique(collection: Option<&Collection>) -> bool {
    let builds = collection.map_or(&[][..], |collection| &collection.builds);
    let committed = builds.iter().filter(|build| build.is_committed);
    let mut indexes = committed.flat_map(|build| &build.indexes);
    indexes.any(|index| index.unique)
}

/// Waits until this member has loaded the keys of the collection's unique indexes.
async fn unique_is_loaded(replica: &Replica, namespace: &Namespace) {
    let mut changed = replica.machine.definitions_watch();
    let lacks = || {
        let catalog = replica.store.catalog();
        lacks_unique(catalog.find(namespace).map(|found| &**found))
    };
    while lacks() {
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Names that are views of something else, or nobody's to write to.
pub fn refuse_reserved(replica: &Replica, namespace: &Namespace) -> Result<(), CommandError> {
    virtual_collections::refuse_write(namespace)?;
    if namespace.collection() == view::COLLECTION {
        let why = format!("cannot write to {namespace}");
        return Err(CommandError::new(ErrorCode::InvalidNamespace, why));
    }
    let is_reserved = namespace.collection().starts_with("system.")
        && !matches!(namespace.database(), "admin" | "config" | "local")
        && !matches!(namespace.collection(), "system.js" | "system.users");
    let is_there = || replica.store.catalog().find(namespace).is_some();
    let is_buckets = || visible_name(namespace.collection()).is_some() && is_there();
    if is_reserved && !is_buckets() {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid system namespace: {namespace}"),
        ));
    }
    Ok(())
}
