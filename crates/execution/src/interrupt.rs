//! What ends an operation from outside: `killOp`, its deadline, a shutdown, a client that left.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use banyan_query::{ErrorKind, QueryError};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Why an operation has to end; kept in an atomic so that the running thread only loads a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    Killed = 1,
    CursorKilled = 2,
    Shutdown = 3,
    SteppedDown = 4,
    ClientGone = 5,
}

thread_local! {
    static GIVE_WAY: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// What every check on this thread calls first from now on: it may wait while others compute.
pub(crate) fn give_way_with(give_way: Option<fn()>) {
    GIVE_WAY.set(give_way);
}

/// What ends an operation from outside. Cheap to clone and to look at.
#[derive(Debug, Clone)]
pub struct Interrupt {
    raised: Arc<Raised>,
    shutdown: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

#[derive(Debug, Default)]
struct Raised {
    /// A [`Cause`], or 0.
    cause: AtomicU8,
    wake: Notify,
}

impl Interrupt {
    pub fn new(shutdown: Arc<AtomicBool>, deadline: Option<Instant>) -> Interrupt {
        Interrupt {
            raised: Arc::default(),
            shutdown,
            deadline,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The same handle with another end, for a cursor whose `getMore`s each have a time limit.
    pub fn with_deadline(&self, deadline: Option<Instant>) -> Interrupt {
        Interrupt {
            raised: self.raised.clone(),
            shutdown: self.shutdown.clone(),
            deadline,
        }
    }

    /// A handle on another operation of the same process.
    pub fn anew(&self, deadline: Option<Instant>) -> Interrupt {
        Interrupt::new(self.shutdown.clone(), deadline)
    }

    pub fn raise(&self, cause: Cause) {
        // The first cause is the one that is told.
        let _ =
            self.raised
                .cause
                .compare_exchange(0, cause as u8, Ordering::AcqRel, Ordering::Relaxed);
        self.raised.wake.notify_waiters();
    }

    /// Resolves once the operation has to end for a [`Cause`].
    pub async fn raised(&self) {
        loop {
            let woken = self.raised.wake.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if self.is_raised() {
                return;
            }
            woken.await;
        }
    }

    /// Resolves once the operation has to end, also for its deadline.
    pub async fn ended(&self) {
        let deadline = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.raised() => {}
            () = deadline => {}
        }
    }

    /// Waits for something, unless the operation has to end before.
    pub async fn within<T>(&self, wait: impl Future<Output = T>) -> Result<T, QueryError> {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                biased;
                outcome = &mut wait => return Ok(outcome),
                () = self.ended() => self.check()?,
            }
        }
    }

    pub fn is_raised(&self) -> bool {
        self.raised.cause.load(Ordering::Acquire) != 0
    }

    /// Whether the operation may go on. Looked at in every long loop: here a large operation also
    /// lets others compute once its turn is over ([`give_way_with`]).
    pub fn check(&self) -> Result<(), QueryError> {
        if let Some(give_way) = GIVE_WAY.get() {
            give_way();
        }
        match self.raised.cause.load(Ordering::Relaxed) {
            0 => {}
            cause if cause == Cause::CursorKilled as u8 => {
                return Err(QueryError::new(
                    ErrorKind::CursorKilled,
                    "cursor was killed",
                ));
            }
            cause if cause == Cause::SteppedDown as u8 => {
                return Err(QueryError::new(
                    ErrorKind::InterruptedDueToReplStateChange,
                    "operation was interrupted",
                ));
            }
            cause if cause == Cause::Shutdown as u8 => return Err(shutting_down()),
            cause if cause == Cause::ClientGone as u8 => {
                return Err(QueryError::new(
                    ErrorKind::ClientDisconnect,
                    "the client's connection is gone",
                ));
            }
            _ => {
                return Err(QueryError::new(
                    ErrorKind::Interrupted,
                    "operation was interrupted",
                ));
            }
        }
        if self.shutdown.load(Ordering::Relaxed) {
            return Err(shutting_down());
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(QueryError::new(
                ErrorKind::MaxTimeMSExpired,
                "operation exceeded time limit",
            )),
            _ => Ok(()),
        }
    }
}

fn shutting_down() -> QueryError {
    QueryError::new(ErrorKind::InterruptedAtShutdown, "interrupted at shutdown")
}

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
        InterruptSlot::check(self)
    }
}

impl InterruptSlot {
    pub fn set(&self, interrupt: Option<Interrupt>) {
        *self.interrupt.lock() = interrupt;
    }

    pub fn check(&self) -> Result<(), QueryError> {
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

    pub fn slot(&self) -> &Arc<InterruptSlot> {
        &self.slot
    }

    pub fn tick(&mut self) -> Result<(), QueryError> {
        self.tick_over(0)
    }

    /// One step over so many bytes.
    pub fn tick_over(&mut self, bytes: usize) -> Result<(), QueryError> {
        self.count += 1 + bytes / Self::BYTES_PER_STEP;
        if self.count < Self::PERIOD {
            return Ok(());
        }
        self.count = 0;
        self.slot.check()
    }
}
