//! What an operation may use: time, until somebody ends it, and memory.
//!
//! A budget is handed to whatever runs documents or evaluates expressions: it comes with the
//! [`Context`](crate::Context) that a request is parsed in, and what is parsed keeps it. Work is
//! counted in units (about ten nanoseconds each); once in a while the operation's
//! [`Interrupt`] is asked whether it has to end. What its stages hold is counted in bytes
//! ([`crate::memory`]).

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::error::{ErrorKind, QueryError};
use crate::memory::{self, Limit as MemoryLimit, Memory};
use crate::spill::file::SpillFile;

/// Bytes that are copied or compared in about one unit.
const BYTES_PER_UNIT: usize = 64;
/// What reading one part of a request costs.
const UNITS_PER_PART: usize = 16;
/// Units between two looks at the interrupt: some tens of microseconds.
const UNITS_PER_LOOK: u32 = 2048;

thread_local! {
    /// What this thread has spent since it last looked. Threads that work on one operation would
    /// take a common count out of each other's caches with every step.
    static SPENT: Cell<u32> = const { Cell::new(0) };
}

/// Says whether an operation has to end: killed, out of time, its client gone.
pub trait Interrupt: Send + Sync + fmt::Debug {
    fn check(&self) -> Result<(), QueryError>;
}

/// Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: Limit,
    memory: Arc<Memory>,
    /// What its stages have reserved of the memory.
    reserved: AtomicUsize,
    disk: AtomicBool,
    used_disk: AtomicBool,
}

#[derive(Debug)]
enum Limit {
    Unlimited,
    Interrupt(Arc<dyn Interrupt>),
    Allowance { units: u32, spent: AtomicU32 },
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::unlimited()
    }
}

impl Budget {
    fn new(limit: Limit, memory: Arc<Memory>) -> Budget {
        Budget(Arc::new(Account {
            limit,
            reserved: AtomicUsize::new(0),
            disk: AtomicBool::new(memory.disk_by_default()),
            used_disk: AtomicBool::new(false),
            memory,
        }))
    }

    /// For work that is short by nature. Memory is bounded all the same.
    pub fn unlimited() -> Budget {
        Budget::with_memory(Memory::detached())
    }

    /// For work that is short by nature, with the memory of a process.
    pub fn with_memory(memory: Arc<Memory>) -> Budget {
        Budget::new(Limit::Unlimited, memory)
    }

    /// For an operation that can be ended.
    pub fn interruptible(interrupt: Arc<dyn Interrupt>, memory: Arc<Memory>) -> Budget {
        Budget::new(Limit::Interrupt(interrupt), memory)
    }

    /// The same for what needs next to no memory.
    pub fn ended_by(interrupt: Arc<dyn Interrupt>) -> Budget {
        Budget::interruptible(interrupt, Memory::detached())
    }

    /// Fails once `units` are spent, and ever after.
    pub fn allowance(units: u32) -> Budget {
        let limit = Limit::Allowance {
            units,
            spent: AtomicU32::new(0),
        };
        Budget::new(limit, Memory::detached())
    }

    /// What was spent of an allowance.
    pub(crate) fn spent(&self) -> u32 {
        match &self.0.limit {
            Limit::Allowance { spent, .. } => spent.load(Ordering::Relaxed),
            Limit::Unlimited | Limit::Interrupt(_) => 0,
        }
    }

    /// Whether an allowance is used up.
    pub fn is_exhausted(&self) -> bool {
        matches!(&self.0.limit, Limit::Allowance { units, spent }
            if spent.load(Ordering::Relaxed) >= *units)
    }

    /// Counts work. Call it in every loop over a document's or a request's parts.
    #[inline]
    pub fn spend(&self, units: usize) -> Result<(), QueryError> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        match &self.0.limit {
            Limit::Unlimited => Ok(()),
            Limit::Interrupt(interrupt) => {
                let spent = SPENT.get().saturating_add(units);
                if spent < UNITS_PER_LOOK {
                    SPENT.set(spent);
                    return Ok(());
                }
                SPENT.set(0);
                interrupt.check()
            }
            Limit::Allowance { units: max, spent } => {
                let spent = add(spent, units);
                if spent < *max { Ok(()) } else { used_up() }
            }
        }
    }

    /// Whether the operation has to end, asked by who waits for others and so spends nothing.
    pub fn look(&self) -> Result<(), QueryError> {
        match &self.0.limit {
            Limit::Interrupt(interrupt) => interrupt.check(),
            Limit::Unlimited | Limit::Allowance { .. } => Ok(()),
        }
    }

    /// Counts one part of a request: call it in every loop over what was asked.
    #[inline]
    pub fn spend_part(&self) -> Result<(), QueryError> {
        self.spend(UNITS_PER_PART)
    }

    /// Counts a step that goes over so many bytes.
    #[inline]
    pub fn spend_bytes(&self, bytes: usize) -> Result<(), QueryError> {
        self.spend(1 + bytes / BYTES_PER_UNIT)
    }

    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Whether the operation's stages may use the disk (`allowDiskUse`).
    pub fn allow_disk(&self, allowed: bool) {
        if !allowed {
            memory::count(&self.0.memory.figures.disk_refused, 1);
        }
        self.0.disk.store(allowed, Ordering::Relaxed);
    }

    /// Whether one of its stages has used the disk.
    pub fn used_disk(&self) -> bool {
        self.0.used_disk.load(Ordering::Relaxed)
    }

    /// Whether a stage that does not fit may go on on the disk.
    pub(crate) fn may_spill(&self) -> bool {
        self.0.disk.load(Ordering::Relaxed) && self.0.memory.store().is_some()
    }

    pub(crate) fn spill_file(&self) -> Result<Box<dyn SpillFile>, QueryError> {
        let Some(store) = self.0.memory.store() else {
            return Err(QueryError::new(
                ErrorKind::InternalError,
                "there is no place to spill to",
            ));
        };
        self.0.used_disk.store(true, Ordering::Relaxed);
        store.create()
    }

    /// Changes what a stage has reserved; whether the operation and the process are within their
    /// limits.
    pub(crate) fn reserve(&self, before: usize, wanted: usize) -> bool {
        let (operation, process) = (&self.0.reserved, &self.0.memory.held);
        if wanted <= before {
            let less = before - wanted;
            let operation = operation.fetch_sub(less, Ordering::Relaxed) - less;
            let process = process.fetch_sub(less, Ordering::Relaxed) - less;
            return self.is_within(operation, process);
        }
        let more = wanted - before;
        let operation = operation
            .fetch_add(more, Ordering::Relaxed)
            .saturating_add(more);
        let process = process
            .fetch_add(more, Ordering::Relaxed)
            .saturating_add(more);
        self.is_within(operation, process)
    }

    fn is_within(&self, operation: usize, process: usize) -> bool {
        let memory = &self.0.memory;
        operation <= memory.limit(MemoryLimit::Operation)
            && process <= memory.limit(MemoryLimit::Process)
    }
}

/// Two threads may lose some of each other's units: an allowance is no exact measure.
fn add(spent: &AtomicU32, units: u32) -> u32 {
    let total = spent.load(Ordering::Relaxed).saturating_add(units);
    spent.store(total, Ordering::Relaxed);
    total
}

#[cold]
fn used_up() -> Result<(), QueryError> {
    Err(QueryError::new(
        ErrorKind::ExceededMemoryLimit,
        "the allowance for this work is used up",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::consumer;

    #[derive(Debug, Default)]
    struct Looks(AtomicUsize);

    impl Interrupt for Looks {
        fn check(&self) -> Result<(), QueryError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn the_interrupt_is_asked_by_the_work_done() {
        let looks = Arc::new(Looks::default());
        let budget = Budget::interruptible(looks.clone(), Memory::detached());
        for _ in 0..UNITS_PER_LOOK * 10 {
            budget.clone().spend(1).unwrap();
        }
        assert_eq!(looks.0.load(Ordering::Relaxed), 10);
        // One large step counts as many small ones.
        budget.spend_bytes(16 * 1024 * 1024).unwrap();
        assert_eq!(looks.0.load(Ordering::Relaxed), 11);
    }

    #[test]
    fn an_allowance_stays_used_up() {
        let budget = Budget::allowance(10);
        assert!(budget.spend(9).is_ok() && !budget.is_exhausted());
        assert!(budget.spend(1).is_err() && budget.is_exhausted());
        assert!(budget.spend(0).is_err());
    }

    #[test]
    fn stages_count_alone_and_together() {
        const STAGE: usize = 100 << 20;
        let memory = Arc::new(Memory::new(None, usize::MAX));
        let budget = Budget::with_memory(memory.clone());
        let mut stages: Vec<_> = (0..6).map(|_| budget.holding(&consumer::GROUP)).collect();
        assert!(stages[0].set(STAGE + 1).is_err());
        stages[0].set(0).unwrap();
        for stage in &mut stages[..5] {
            stage.set(STAGE).unwrap();
        }
        // What is small does not count.
        assert!(stages[5].set(1).is_ok());
        assert!(stages[5].set(STAGE).is_err());
        stages.remove(0);
        assert!(stages[4].set(STAGE).is_ok());
        let error = stages[4].set(STAGE + 1).unwrap_err();
        assert_eq!(error.kind.code(), 292);
        drop(stages);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn operations_share_the_memory_of_the_process() {
        let memory = Arc::new(Memory::new(None, 64 << 20));
        let one = Budget::with_memory(memory.clone());
        let other = Budget::with_memory(memory.clone());
        let mut holding = one.holding(&consumer::SORT);
        holding.set(60 << 20).unwrap();
        let mut second = other.holding(&consumer::SORT);
        assert!(second.set(10 << 20).is_err());
        drop(holding);
        second.set(10 << 20).unwrap();
        assert!(memory.set_parameter("queryMemoryMaxBytes", 5 << 20));
        assert!(second.set(11 << 20).is_err());
        assert!(!memory.set_parameter("nope", 1));
    }
}
