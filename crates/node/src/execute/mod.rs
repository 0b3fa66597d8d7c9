//! Running a plan: rows stream out of a snapshot, one at a time, and nothing is held but the
//! snapshot.

pub mod batch;
pub mod config_views;
pub mod find;
pub mod first;
pub mod local;
pub mod source;
pub mod tail;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use banyan_query::QueryError;
use banyan_storage::Record;
use banyan_wire::CommandError;
use bson::{RawDocument, RawDocumentBuf};
use parking_lot::Mutex;

use crate::errors;
use crate::operations::Interrupt;

/// A document on its way to the client: as it is stored, or made on the way.
pub enum Row {
    Record(Record),
    Owned(RawDocumentBuf),
}

impl Deref for Row {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        match self {
            Row::Record(record) => record,
            Row::Owned(document) => document,
        }
    }
}

impl AsRef<RawDocument> for Row {
    fn as_ref(&self) -> &RawDocument {
        self
    }
}

impl Row {
    pub fn into_owned(self) -> RawDocumentBuf {
        match self {
            Row::Record(record) => RawDocument::to_owned(&record),
            Row::Owned(document) => document,
        }
    }
}

/// Rows in order. An iterator of a tailable cursor may yield again after it has said `None`.
pub type Rows = Box<dyn Iterator<Item = Result<Row, CommandError>> + Send>;

/// Which command's interruption a chain of iterators looks at. A cursor outlives the command that
/// opened it, so each `getMore` puts its own handle here.
///
/// It also knows what the chain reads, so that an idle cursor can let its snapshot go.
#[derive(Default)]
pub struct InterruptSlot {
    interrupt: Mutex<Option<Interrupt>>,
    resting: Mutex<Vec<Weak<dyn Rest>>>,
}

/// What reads a snapshot and can go on in another one.
pub trait Rest: Send + Sync {
    /// Keeps the position and lets the snapshot go.
    fn rest(&self);

    /// Whether it holds a snapshot.
    fn holds_snapshot(&self) -> bool;
}

impl fmt::Debug for InterruptSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InterruptSlot")
            .field(&*self.interrupt.lock())
            .finish()
    }
}

impl banyan_query::Interrupt for InterruptSlot {
    fn check(&self) -> Result<(), QueryError> {
        InterruptSlot::check(self).map_err(errors::within_query)
    }
}

impl InterruptSlot {
    pub fn set(&self, interrupt: Option<Interrupt>) {
        *self.interrupt.lock() = interrupt;
    }

    pub fn check(&self) -> Result<(), CommandError> {
        // The check may wait for a turn to compute: the lock is not held meanwhile.
        let interrupt = self.interrupt.lock().clone();
        interrupt.map_or(Ok(()), |interrupt| interrupt.check())
    }

    /// Has `reader` rest when the cursor does, as long as it lives.
    pub fn add_resting(&self, reader: Weak<dyn Rest>) {
        let mut resting = self.resting.lock();
        // A `$lookup` opens one for each document.
        if resting.len() >= RESTING_LOOK && resting.len().is_power_of_two() {
            resting.retain(|reader| reader.strong_count() > 0);
        }
        resting.push(reader);
    }

    fn readers(&self) -> Vec<Arc<dyn Rest>> {
        self.resting
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Lets the snapshots go of everything that can go on without. May be called at any time: who
    /// is reading opens another one.
    pub fn rest(&self) {
        self.readers().iter().for_each(|reader| reader.rest());
    }

    pub fn holds_snapshot(&self) -> bool {
        self.readers().iter().any(|reader| reader.holds_snapshot())
    }
}

/// So many readers are kept before those that are gone are looked for.
const RESTING_LOOK: usize = 64;

/// Looks at the slot once in a while, so that looking costs nothing next to the work.
pub struct Ticker {
    slot: Arc<InterruptSlot>,
    count: usize,
}

impl Ticker {
    const PERIOD: usize = 64;
    /// So many bytes of a document count as one step.
    const BYTES_PER_STEP: usize = 4096;

    pub fn new(slot: Arc<InterruptSlot>) -> Ticker {
        Ticker { slot, count: 0 }
    }

    pub fn tick(&mut self) -> Result<(), CommandError> {
        self.tick_over(0)
    }

    /// One step over so many bytes.
    pub fn tick_over(&mut self, bytes: usize) -> Result<(), CommandError> {
        self.count += 1 + bytes / Self::BYTES_PER_STEP;
        if self.count < Self::PERIOD {
            return Ok(());
        }
        self.count = 0;
        self.slot.check()
    }
}

/// Runs work that mostly waits (for script hosts, for the log), without holding up the other
/// connections that share this worker. It takes no ticket: see [`CommandContext::compute`] for work
/// that computes.
///
/// [`CommandContext::compute`]: crate::context::CommandContext::compute
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
