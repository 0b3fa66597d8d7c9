//! A write unit: writes that are committed together.
//!
//! What is staged in a unit is in no storage yet. Its own readers see it through a read view, a
//! snapshot with the staged writes laid over it; nobody else does. A unit may live as long as it
//! likes and go through several collections: it keeps their locks until it is dropped, and the
//! latches of what it changes until that is committed.
//!
//! A view shows a statement what those before it have staged, and not what it stages itself: a
//! scan does not meet the documents that it has moved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_storage::{
    Batch, Collection, CollectionId, Index, Namespace, Overlay, OverlayView, Record, RecordId,
    RecordReader, Snapshot, StorageError, WriterId,
};
use banyan_wire::{CommandError, ErrorCode};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinError, JoinHandle};

use super::context::WriteContext;
use crate::entry::EntryBuilder;
use crate::errors;
use crate::incoming::Part;
use crate::latches::{Attempt, Held, LatchKey};
use crate::locks::{Lock, Mode};
use crate::machine::Prepared;
use crate::propose::{Outcome, Placed};
use crate::replica::Replica;
use crate::sessions::SessionStamp;

/// An entry is full with so many bytes. One that is larger gains nothing: its buffers are memory that
/// is fetched from the system each time.
const ENTRY_BYTES_MAX: usize = 2 << 20;
const ENTRY_OPERATIONS_MAX: usize = 2_000;
/// Others wait no longer for what the statements of one command have changed.
const STAGED_MAX: Duration = Duration::from_millis(30);
/// So many records of one state are read until it is worth going on from one to the next.
const READ_SINGLY: u32 = 4;
/// As MongoDB's `maxTransactionLockRequestTimeoutMillis`.
const LOCK_TIMEOUT: Duration = Duration::from_millis(5);

/// What a unit reads, and what happens when somebody else changes that.
pub enum Isolation {
    /// Each statement reads the present state. Whoever else is changing a record is waited for,
    /// and what is staged may be committed in parts.
    ReadCommitted,
    /// Everything is read as of one snapshot and committed at once. What somebody else is changing,
    /// or has changed since, is a conflict.
    Snapshot(Snapshot),
}

pub struct WriteUnit {
    replica: Arc<Replica>,
    isolation: Isolation,
    /// The state that was looked at last, without what is staged.
    latest: Option<Latest>,
    /// It writes all that the unit commits.
    writer: WriterId,
    /// In another term than this what is staged may be void.
    term: u64,
    pub(super) entry: EntryBuilder,
    pub(super) batch: Batch,
    /// Follows the batch once somebody reads what is staged.
    overlay: Option<Overlay>,
    /// What the statement at hand sees of it.
    seen: Option<OverlayView>,
    held: Held,
    /// What is staged for capped collections, which are latched at their ends. The counts are those of
    /// the batch.
    capped: Vec<Part>,
    /// The first so many of the latches belong to what is staged, or about to be.
    claimed: usize,
    /// On the collections that it has written to.
    locks: Vec<Lock>,
    statement_began: Option<Instant>,
    /// When the statement began that staged something first.
    staged_at: Option<Instant>,
    /// What was staged before and is being committed.
    committing: Option<Committing>,
}

/// A state, and what reads many of its records one by one.
struct Latest {
    snapshot: Snapshot,
    records_read: u32,
    reader: Option<(CollectionId, RecordReader)>,
}

/// Makes a proposal on another thread; with what has to be held on to until it is applied.
type Committing = JoinHandle<(Placed, Box<dyn Send>)>;

/// What was staged, ready to be proposed.
struct Ready {
    entry: EntryBuilder,
    prepared: Prepared,
    /// Of those who may build upon it once it has its place in the log.
    turn: Held,
}

impl Latest {
    fn record(
        &mut self,
        collection: CollectionId,
        record: &RecordId,
    ) -> Result<Option<Record>, StorageError> {
        self.records_read = self.records_read.saturating_add(1);
        let reader = self.reader.take_if(|(of, _)| *of == collection);
        self.reader = match reader {
            None if self.records_read > READ_SINGLY => {
                let reader = self.snapshot.record_reader(collection);
                reader.map(|reader| (collection, reader))
            }
            reader => reader,
        };
        match &mut self.reader {
            Some((_, reader)) => reader.read(record),
            None => self.snapshot.record(collection, record),
        }
    }
}

impl WriteUnit {
    /// For a member that may be written to now.
    pub fn begin(replica: &Arc<Replica>, isolation: Isolation) -> Result<WriteUnit, CommandError> {
        Ok(WriteUnit {
            term: replica.writable_term()?,
            writer: replica.store.new_writer(),
            isolation,
            latest: None,
            entry: EntryBuilder::new(),
            batch: Batch::new(),
            overlay: None,
            seen: None,
            held: Held::none(&replica.latches),
            capped: Vec::new(),
            claimed: 0,
            locks: Vec::new(),
            statement_began: None,
            staged_at: None,
            committing: None,
            replica: replica.clone(),
        })
    }

    /// Whether statements may be committed one after another.
    pub fn commits_in_parts(&self) -> bool {
        matches!(self.isolation, Isolation::ReadCommitted)
    }

    pub fn is_clear(&self) -> bool {
        self.entry.is_empty()
    }

    /// Whether a part of it should be committed before more is staged.
    pub fn is_full(&self) -> bool {
        let entry = &self.entry;
        self.commits_in_parts()
            && (entry.bytes() >= ENTRY_BYTES_MAX || entry.operations() >= ENTRY_OPERATIONS_MAX)
    }

    /// How many bytes of documents the entry takes until it is full.
    pub fn room(&self) -> usize {
        match self.commits_in_parts() {
            true => ENTRY_BYTES_MAX.saturating_sub(self.entry.bytes()),
            false => usize::MAX,
        }
    }

    /// Between two statements: whether others may have to wait for too long for what is staged, if
    /// the next statement takes as long as the last one.
    pub(super) fn is_overdue(&mut self) -> bool {
        let now = Instant::now();
        let last = match self.statement_began.replace(now) {
            Some(began) => now - began,
            None => Duration::ZERO,
        };
        if self.is_clear() {
            return false;
        }
        let staged = *self.staged_at.get_or_insert(now - last);
        self.commits_in_parts() && now - staged + last >= STAGED_MAX
    }

    /// From here on views show everything that was staged before.
    pub fn begin_statement(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let overlay = self.overlay.get_or_insert_default();
        self.seen = Some(overlay.view(&self.batch));
    }

    /// What a statement reads.
    pub fn read_view(&mut self) -> Snapshot {
        match &self.isolation {
            Isolation::ReadCommitted => self.present(),
            Isolation::Snapshot(snapshot) => snapshot.clone().with_overlay(self.seen.clone()),
        }
    }

    /// The collection as a plan over the view has to take it.
    pub fn viewed(&self, collection: &Arc<Collection>) -> Result<Arc<Collection>, CommandError> {
        match self.seen {
            None => Ok(collection.clone()),
            Some(_) => self.batch.collection(collection).map_err(errors::storage),
        }
    }

    /// The state of now, which does not change as far as it is latched, with what was staged before
    /// the statement.
    pub fn present(&mut self) -> Snapshot {
        self.latest().with_overlay(self.seen.clone())
    }

    /// Without what is staged. It is taken anew only where somebody has committed something.
    fn latest(&mut self) -> Snapshot {
        self.newest().snapshot.clone()
    }

    fn newest(&mut self) -> &mut Latest {
        let store = &self.replica.store;
        let is_current = |known: &Latest| store.is_current(&known.snapshot);
        let latest = self.latest.take().filter(is_current);
        self.latest.insert(latest.unwrap_or_else(|| Latest {
            snapshot: store.snapshot(),
            records_read: 0,
            reader: None,
        }))
    }

    /// A record of [`WriteUnit::present`].
    pub fn present_record(
        &mut self,
        collection: CollectionId,
        record: &RecordId,
    ) -> Result<Option<Record>, CommandError> {
        let read = match self.seen {
            Some(_) => self.present().record(collection, record),
            None => self.newest().record(collection, record),
        };
        read.map_err(errors::storage)
    }

    /// Whether a view of this statement is the state of now still: what was read in it has not
    /// changed since. That goes on holding for a record for as long as it is latched.
    pub fn is_present(&self, view: &Snapshot) -> bool {
        self.replica.store.is_current(view)
    }

    /// The same of a record that the statement has not changed yet: the unit's own commits are of others.
    pub fn is_present_but_for_own(&self, view: &Snapshot) -> bool {
        self.replica.store.is_current_to(view, self.writer)
    }

    /// The same with what the statement itself has staged.
    pub fn present_with_own(&mut self) -> Snapshot {
        let present = self.latest();
        if self.batch.is_empty() {
            return present;
        }
        let overlay = self.overlay.get_or_insert_default();
        let view = overlay.view(&self.batch);
        present.with_overlay(Some(view))
    }

    /// Locks a collection, to be kept by [`WriteUnit::keep`]. `None`: it is locked already.
    pub(super) async fn lock(
        &self,
        ctx: &WriteContext<'_>,
        namespace: &Namespace,
    ) -> Result<Option<Lock>, CommandError> {
        let locks = &self.replica.locks;
        let collection = locks.collection(namespace);
        let is_held = |lock: &Lock| {
            lock.resource() == collection && lock.mode().covers(Mode::IntentExclusive)
        };
        if self.locks.iter().any(is_held) {
            return Ok(None);
        }
        if let Some(lock) = locks.try_lock(collection, Mode::IntentExclusive) {
            return Ok(Some(lock));
        }
        let lock = locks.lock(collection, Mode::IntentExclusive);
        ctx.lock(lock, self.lock_timeout()).await.map(Some)
    }

    pub(super) fn keep(&mut self, lock: Option<Lock>) {
        self.locks.extend(lock);
    }

    /// How long it waits for a lock: others may be waiting for the locks that it holds.
    pub(super) fn lock_timeout(&self) -> Option<Duration> {
        (!self.locks.is_empty()).then_some(LOCK_TIMEOUT)
    }

    pub fn try_latch(&mut self, key: LatchKey) -> Attempt {
        self.held.try_add(key, self.claimed)
    }

    /// The latches taken since the last claim belong to what is staged.
    pub fn claim(&mut self) {
        self.claimed = self.held.len();
    }

    /// Notes a record that is staged for a capped collection. Its end is latched.
    pub(super) fn note_capped(&mut self, collection: CollectionId, record: &RecordId) {
        let mut parts = self.capped.iter_mut();
        match parts.find(|part| part.collection == collection) {
            Some(part) => part.last = record.clone(),
            None => self.capped.push(Part {
                collection,
                first: record.clone(),
                last: record.clone(),
                documents: 0,
                bytes: 0,
                removed: None,
            }),
        }
    }

    /// Notes that a record is staged to go. If it is one of those that are staged to come, the collection
    /// need not show by them that the unit is committed.
    pub(super) fn note_deleted(&mut self, collection: CollectionId) {
        self.capped.retain(|part| part.collection != collection);
    }

    /// Notes how far the oldest documents of a capped collection are staged to go.
    pub(super) fn note_removed(&mut self, collection: CollectionId, record: &RecordId) {
        let mut parts = self.capped.iter_mut();
        if let Some(part) = parts.find(|part| part.collection == collection) {
            part.removed = Some(record.clone());
        }
    }

    /// Lets go of the latches taken since the last claim.
    pub fn unlatch(&mut self) {
        self.held.shrink_to(self.claimed);
    }

    /// Waits for a latch, holding no other, and keeps it. What was staged is committed already.
    pub(super) async fn wait_for(&mut self, key: LatchKey) {
        self.held.shrink_to(0);
        self.claimed = 0;
        self.latest = None;
        let turn = self.replica.latches.wait(key).await;
        self.held.merge(turn);
    }

    /// Refuses to change a latched record that is not any more what the unit has read.
    pub fn check_record(
        &self,
        collection: CollectionId,
        record: &RecordId,
    ) -> Result<(), CommandError> {
        let Isolation::Snapshot(read) = &self.isolation else {
            return Ok(());
        };
        let version = |snapshot: &Snapshot| {
            let found = snapshot.record(collection, record);
            found.map_err(errors::storage)
        };
        let (read, present) = (version(read)?, version(&self.replica.store.snapshot())?);
        let is_same = match (&read, &present) {
            (Some(read), Some(present)) => read.as_bytes() == present.as_bytes(),
            (read, present) => read.is_none() && present.is_none(),
        };
        match is_same {
            true => Ok(()),
            false => Err(write_conflict()),
        }
    }

    /// The same of a latched key of a unique index.
    pub fn check_key(&self, index: &Index, key: &[u8]) -> Result<(), CommandError> {
        let Isolation::Snapshot(read) = &self.isolation else {
            return Ok(());
        };
        let holder = |snapshot: &Snapshot| {
            let found = snapshot.key_holders(index, key, 2);
            found.map_err(errors::storage)
        };
        match holder(read)? == holder(&self.replica.store.snapshot())? {
            true => Ok(()),
            false => Err(write_conflict()),
        }
    }

    /// Proposes what is staged and waits until it is applied. Where that wait is given up, what
    /// `keep` makes is held on to until it is applied.
    pub async fn commit<K: Send + 'static>(
        &mut self,
        ctx: &WriteContext<'_>,
        session: Option<SessionStamp>,
        keep: impl FnOnce() -> K,
    ) -> Result<(), CommandError> {
        self.settle(ctx).await?;
        let Ready {
            entry,
            prepared,
            turn,
        } = self.take_staged(session);
        let (term, journal) = (self.term, ctx.journal);
        let keep = || (keep(), self.locks_again());
        let began = Instant::now();
        let outcome = match ctx.commit_time_max {
            None => {
                let placed = self.replica.place(entry, prepared, turn, term, journal);
                placed.await?
            }
            Some(limit) => {
                let replica = self.replica.clone();
                let proposal = async move {
                    let placed = replica.place(entry, prepared, turn, term, journal);
                    placed.await
                };
                match propose_within(ctx, limit, proposal, keep).await? {
                    Some(outcome) => outcome,
                    None => return Ok(()),
                }
            }
        };
        ctx.work.commit_wait.add(micros_since(began));
        ctx.operation.wrote(outcome.position.index);
        Ok(())
    }

    /// Has what is staged committed on another thread, and returns at once: what is staged next must
    /// not read it. What was handed over before is committed first; of this, [`WriteUnit::settle`]
    /// tells.
    pub(super) async fn commit_beside<K: Send + 'static>(
        &mut self,
        ctx: &WriteContext<'_>,
        session: Option<SessionStamp>,
        keep: impl FnOnce() -> K,
    ) -> Result<(), CommandError> {
        let has_threads = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if !has_threads || ctx.commit_time_max.is_some() || !self.capped.is_empty() {
            return self.commit(ctx, session, keep).await;
        }
        self.settle(ctx).await?;
        let ready = self.take_staged(session);
        let (term, journal) = (self.term, ctx.journal);
        let replica = self.replica.clone();
        let kept: Box<dyn Send> = Box::new((keep(), self.locks_again()));
        self.committing = Some(tokio::task::spawn_blocking(move || {
            let Ready {
                entry,
                prepared,
                turn,
            } = ready;
            (replica.place(entry, prepared, turn, term, journal), kept)
        }));
        Ok(())
    }

    /// Waits until what was handed over is applied.
    pub(super) async fn settle(&mut self, ctx: &WriteContext<'_>) -> Result<(), CommandError> {
        let Some(committing) = self.committing.take() else {
            return Ok(());
        };
        let began = Instant::now();
        let (placed, _kept) = committing.await.map_err(ended_early)?;
        let outcome = placed.await?;
        ctx.work.commit_wait.add(micros_since(began));
        ctx.operation.wrote(outcome.position.index);
        Ok(())
    }

    fn locks_again(&self) -> Vec<Lock> {
        self.locks.iter().map(Lock::again).collect()
    }

    fn take_staged(&mut self, session: Option<SessionStamp>) -> Ready {
        self.overlay = None;
        self.seen = None;
        self.latest = None;
        self.staged_at = None;
        self.claimed = 0;
        let mut entry = std::mem::take(&mut self.entry);
        entry.session = session;
        let mut latches = std::mem::replace(&mut self.held, Held::none(&self.replica.latches));
        let mut batch = std::mem::take(&mut self.batch);
        batch.set_writer(self.writer);
        if entry.operations() == 0 {
            // What is said of a session alone keeps nobody away from what was looked at.
            latches.shrink_to(0);
        }
        // Who inserts next into a capped collection may do so behind this.
        let mut turn = Held::none(&self.replica.latches);
        let mut parts = std::mem::take(&mut self.capped);
        parts.retain_mut(|part| {
            let known = &self.replica.latches;
            // Who needs to have it applied waits for its first record.
            let first = known.record(part.collection, &part.first);
            if latches.try_add(first, 0) == Attempt::Busy {
                return false;
            }
            (part.documents, part.bytes) = batch.tallied(part.collection);
            turn.merge(latches.take_out(known.capped_end(part.collection)));
            true
        });
        let announced = (!parts.is_empty()).then(|| self.replica.incoming.announce(parts));
        let prepared = Prepared {
            batch,
            latches,
            announced,
        };
        Ready {
            entry,
            prepared,
            turn,
        }
    }
}

/// Waits no longer than the write concern does. A write that is not committed by then is not
/// taken back: it may be committed yet, so what keeps others away from it stays.
async fn propose_within<K: Send + 'static>(
    ctx: &WriteContext<'_>,
    limit: Duration,
    proposal: impl Future<Output = Result<Outcome, CommandError>> + Send + 'static,
    keep: impl FnOnce() -> K,
) -> Result<Option<Outcome>, CommandError> {
    let mut writing = tokio::spawn(proposal);
    match tokio::time::timeout(limit, &mut writing).await {
        Ok(Ok(outcome)) => outcome.map(Some),
        Ok(Err(error)) => Err(ended_early(error)),
        Err(_) => {
            ctx.operation.was_late();
            let kept = keep();
            tokio::spawn(async move {
                // Whoever wrote has been told that it took too long.
                let _ = writing.await;
                drop(kept);
            });
            Ok(None)
        }
    }
}

fn ended_early(error: JoinError) -> CommandError {
    CommandError::new(
        ErrorCode::InternalError,
        format!("a write ended early: {error}"),
    )
}

pub(super) fn micros_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// MongoDB's error 112.
pub fn write_conflict() -> CommandError {
    CommandError::new(
        ErrorCode::WriteConflict,
        "WriteConflict error: this operation conflicted with another operation. Please retry your \
         operation or multi-document transaction.",
    )
}
