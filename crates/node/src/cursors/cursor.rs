//! One cursor: the rest of a result, and how its rows come into batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_access::api_version::ApiParameters;
use banyan_access::identity::UserDigest;
use banyan_execution::PlanSummaryStats;
use banyan_execution::{InterruptSlot, Row, Rows};
use banyan_query::query_stats::Recording;
use banyan_wire::{CommandError, SessionId};
use bson::{RawDocumentBuf, Timestamp};

use super::ahead::Ahead;
use super::batch::{BATCH_BYTES_MAX, Batch, Filled};
use crate::errors;

/// So many rows are read at once at most.
const ROWS_READ: usize = 64;

/// The first batch that a client leaves the size of to the server holds so many bytes, and each further
/// one a quarter more: the client has something to do while the next one is read, and little to do
/// alone once the last one is.
const UNSIZED_BATCH_BYTES: usize = 256 << 10;

/// What happens at the end of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The cursor is closed.
    Ends,
    /// The cursor stays, and later rows are found by a later `getMore`.
    Stays,
    /// As [`Tail::Stays`], and a `getMore` waits a while for a row to come.
    Waits,
}

/// What a cursor that follows the log tells beside its rows.
pub trait Following: Send + Sync {
    /// Where a client can go on after this batch. `pending`: the last row that was read did not
    /// fit into it.
    fn resume_token(&self, pending: bool) -> RawDocumentBuf;

    /// There is more to read at once, though it has yielded no row yet.
    fn is_behind(&self) -> bool;

    /// What is left to read is so little that it may be read in place.
    fn is_close(&self) -> bool;

    /// No further row will come, and the client is to know.
    fn is_invalidated(&self) -> bool;
}

/// Whom a cursor was opened by, and how: whoever continues it has to be the same.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opener {
    /// `None` where access is not controlled.
    pub user: Option<UserDigest>,
    pub session: Option<SessionId>,
    /// What the command said of the stable API, if a client sent that.
    pub api: ApiParameters,
}

/// What has been given out of a result.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    pub documents: u64,
    pub batches: u64,
}

/// The rest of a result.
pub struct Cursor {
    pub namespace: String,
    pub opener: Opener,
    pub(super) opened: Instant,
    pub rows: Rows,
    /// Where the rows look for the interruption of the command that reads them.
    pub slot: Arc<InterruptSlot>,
    /// How many rows the request's limit still allows.
    pub remaining: Option<u64>,
    /// Rows that were read and did not fit into the batch.
    pub pending: VecDeque<Row>,
    /// The next batch, if it was read already.
    pub ahead: Option<Ahead>,
    /// What reading ahead ended with, for whoever has asked for all that it read before.
    failed: Option<CommandError>,
    /// How many bytes a row of the last batch has had, in the mean.
    row_bytes: Option<usize>,
    /// How many bytes the next batch holds at most whose size the client leaves to the server.
    unsized_bytes: usize,
    /// The last look found fewer rows than were wanted.
    came_short: bool,
    /// Since when it may hold a snapshot.
    pub(super) awake_since: Instant,
    pub tail: Tail,
    pub following: Option<Arc<dyn Following>>,
    pub no_timeout: bool,
    /// The time limit given with the first command, which later batches without one keep to.
    pub time_left: Option<Duration>,
    /// How long it took to find the rows of the last batch.
    pub(super) batch_took: Duration,
    /// What finding the rows has cost so far, and how much of that has been counted.
    pub stats: Option<Arc<PlanSummaryStats>>,
    /// Every reply tells it, for a read of a certain time.
    pub at_cluster_time: Option<Timestamp>,
    /// The command that opened it.
    pub origin: Option<Arc<RawDocumentBuf>>,
    pub(super) given: Given,
    /// Where its query is counted, if it is.
    pub recording: Option<Arc<Recording>>,
}

impl Cursor {
    pub fn new(namespace: String, rows: Rows, slot: Arc<InterruptSlot>) -> Cursor {
        Cursor {
            namespace,
            opener: Opener::default(),
            opened: Instant::now(),
            rows,
            slot,
            remaining: None,
            pending: VecDeque::new(),
            ahead: None,
            failed: None,
            row_bytes: None,
            unsized_bytes: UNSIZED_BATCH_BYTES,
            came_short: false,
            awake_since: Instant::now(),
            tail: Tail::Ends,
            following: None,
            no_timeout: false,
            time_left: None,
            batch_took: Duration::ZERO,
            stats: None,
            at_cluster_time: None,
            origin: None,
            given: Given::default(),
            recording: None,
        }
    }

    /// A batch of so many documents goes out.
    pub fn note_batch(&mut self, documents: u64) {
        self.given.batches += 1;
        self.given.documents += documents;
    }

    /// Rows of a batch were looked for, for so long.
    pub fn note_time(&mut self, took: Duration) {
        self.batch_took += took;
        if let Some(left) = &mut self.time_left {
            *left = left.saturating_sub(took);
        }
    }

    /// Another batch begins: whatever was found before, it looks again.
    fn begin_batch(&mut self) {
        self.came_short = false;
    }

    /// The next row within the limit, of which so many are wanted now. `None` is the end, for now
    /// or for good.
    fn next_row(&mut self, wanted: u64) -> Result<Option<Row>, CommandError> {
        if self.remaining == Some(0) {
            return Ok(None);
        }
        if self.pending.is_empty() {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.came_short && !self.rows.may_have_more() {
                return Ok(None);
            }
            let most = wanted.min(self.remaining.unwrap_or(u64::MAX));
            let most = usize::try_from(most).map_or(ROWS_READ, |most| most.min(ROWS_READ));
            let read = self.rows.next_batch(most, &mut self.pending);
            read.map_err(errors::query)?;
            self.came_short = self.pending.len() < most;
        }
        let row = self.pending.pop_front();
        if let (Some(remaining), Some(_)) = (&mut self.remaining, &row) {
            *remaining -= 1;
        }
        Ok(row)
    }

    /// Takes rows until the batch is full (`false`) or the rows have ended (`true`).
    pub fn fill(&mut self, batch: &mut Batch, documents: u64) -> Result<bool, CommandError> {
        let filled = self.fill_while(batch, documents, || true)?;
        Ok(filled == Filled::Ended)
    }

    /// The same, for as long as it `goes_on`.
    pub fn fill_while(
        &mut self,
        batch: &mut Batch,
        documents: u64,
        goes_on: impl FnMut() -> bool,
    ) -> Result<Filled, CommandError> {
        self.begin_batch();
        let by_count = usize::try_from(documents).map_or(usize::MAX, |documents| {
            documents.saturating_mul(self.row_bytes.unwrap_or(usize::MAX))
        });
        self.rows.ask_for(by_count.min(batch.bytes_max()));
        let filled = self.fill_on(batch, documents, goes_on);
        if let Some(each) = batch.bytes().checked_div(batch.count() as usize) {
            self.row_bytes = Some(each);
        }
        filled
    }

    fn fill_on(
        &mut self,
        batch: &mut Batch,
        documents: u64,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Filled, CommandError> {
        while batch.count() < documents {
            if self.pending.is_empty() {
                if !goes_on() {
                    return Ok(Filled::Stopped);
                }
                self.take_at_hand(batch, documents);
                if batch.count() == documents {
                    break;
                }
            }
            let Some(row) = self.next_row(documents - batch.count())? else {
                return Ok(Filled::Ended);
            };
            if !batch.has_room_for(&row) {
                self.put_back(row);
                return Ok(Filled::Full);
            }
            batch.push(&row);
        }
        // A limit that is used up needs no further batch to say so.
        match self.remaining {
            Some(0) => Ok(Filled::Ended),
            _ => Ok(Filled::Full),
        }
    }

    /// Puts documents into a batch that need not be read any more.
    fn take_at_hand(&mut self, batch: &mut Batch, documents: u64) {
        if self.failed.is_some() {
            return;
        }
        let remaining = &mut self.remaining;
        self.rows.hand_on(&mut |document| {
            let is_wanted = batch.count() < documents && *remaining != Some(0);
            if !is_wanted || !batch.has_room_for(document) {
                return false;
            }
            batch.push(document);
            if let Some(remaining) = remaining {
                *remaining -= 1;
            }
            true
        });
    }

    /// Has a batch tell what a cursor that follows the log has to say; true if it ends here.
    pub fn conclude(&self, batch: &mut Batch) -> bool {
        let Some(following) = &self.following else {
            return false;
        };
        let invalidated = self.is_invalidated();
        batch.follow(
            following.resume_token(!self.pending.is_empty()),
            invalidated,
        );
        invalidated
    }

    /// There is more to read at once, though it has yielded no row yet.
    pub fn is_behind(&self) -> bool {
        self.following
            .as_ref()
            .is_some_and(|following| following.is_behind())
    }

    /// What is left to read is so little that it may be read in place.
    pub fn is_close(&self) -> bool {
        self.following
            .as_ref()
            .is_some_and(|following| following.is_close())
    }

    /// A client that follows the log has seen the end of what it follows.
    pub fn is_invalidated(&self) -> bool {
        self.pending.is_empty()
            && self
                .following
                .as_ref()
                .is_some_and(|following| following.is_invalidated())
    }

    /// How many bytes the next batch of so many documents holds at most.
    pub fn batch_bytes(&self, documents: u64) -> usize {
        match (documents, self.tail) {
            (u64::MAX, Tail::Ends) => self.unsized_bytes,
            // Of what is tailed nothing is read ahead.
            _ => BATCH_BYTES_MAX,
        }
    }

    /// A batch begins whose size the client leaves to the server: the next one may be larger.
    pub fn grow_batches(&mut self) {
        self.unsized_bytes = (self.unsized_bytes / 4 * 5).min(BATCH_BYTES_MAX);
    }

    /// The batch that was read ahead, if it is what is asked for now. What was read for a batch of
    /// another size comes next, row by row.
    pub fn take_ahead(&mut self, documents: u64) -> Option<Ahead> {
        let ahead = self.ahead.take()?;
        if ahead.documents == documents {
            return Some(ahead);
        }
        self.failed = ahead.filled.err();
        let rows = ahead.batch.into_rows();
        if let Some(remaining) = &mut self.remaining {
            *remaining += rows.len() as u64;
        }
        let later = std::mem::replace(&mut self.pending, rows);
        self.pending.extend(later);
        None
    }

    /// Gives back a row that did not fit.
    fn put_back(&mut self, row: Row) {
        if let Some(remaining) = &mut self.remaining {
            *remaining += 1;
        }
        self.pending.push_front(row);
    }

    /// What waits may wait for long: it keeps no block of the storage engine.
    pub(super) fn detach(&mut self) {
        self.pending.iter_mut().for_each(Row::detach);
    }

    /// Lets its snapshot go, if it can go on in another one.
    pub(super) fn rest(&mut self) {
        self.rows.save();
        self.slot.rest();
    }

    pub(super) fn holds_snapshot(&self) -> bool {
        self.rows.holds_snapshot() || self.slot.holds_snapshot()
    }
}
