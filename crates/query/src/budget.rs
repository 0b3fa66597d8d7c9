//! What an operation may use: time, until somebody ends it, and memory.
//!
//! A budget is handed to whatever runs documents or evaluates expressions: it comes with the
//! [`Context`](crate::Context) that a request is parsed in, and what is parsed keeps it. Work is
//! counted in units (about ten nanoseconds each); once in a while the operation's
//! [`Interrupt`] is asked whether it has to end. What is held is counted in bytes, for each stage
//! and for the whole operation.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::error::{ErrorKind, QueryError};

/// What one blocking stage may hold.
pub const STAGE_BYTES_MAX: usize = 100 * 1024 * 1024;
/// What all stages of one operation may hold together.
pub const OPERATION_BYTES_MAX: usize = 5 * STAGE_BYTES_MAX;

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
    held: AtomicUsize,
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
    fn new(limit: Limit) -> Budget {
        Budget(Arc::new(Account {
            limit,
            held: AtomicUsize::new(0),
        }))
    }

    /// For work that is short by nature. Memory is bounded all the same.
    pub fn unlimited() -> Budget {
        Budget::new(Limit::Unlimited)
    }

    /// For an operation that can be ended.
    pub fn interruptible(interrupt: Arc<dyn Interrupt>) -> Budget {
        Budget::new(Limit::Interrupt(interrupt))
    }

    /// Fails once `units` are spent, and ever after.
    pub fn allowance(units: u32) -> Budget {
        Budget::new(Limit::Allowance {
            units,
            spent: AtomicU32::new(0),
        })
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

    /// An account for what one stage holds.
    pub fn holding(&self, stage: &'static str) -> Holding {
        Holding {
            budget: self.clone(),
            stage,
            bytes: 0,
            kind: ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed,
        }
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

/// What a stage holds, given back when it is dropped.
#[derive(Debug)]
pub struct Holding {
    budget: Budget,
    stage: &'static str,
    bytes: usize,
    /// What holding too much is.
    kind: ErrorKind,
}

impl Holding {
    /// The stage holds so many bytes now.
    pub fn set(&mut self, bytes: usize) -> Result<(), QueryError> {
        let held = &self.budget.0.held;
        let before = std::mem::replace(&mut self.bytes, bytes);
        let total = if bytes >= before {
            held.fetch_add(bytes - before, Ordering::Relaxed) + (bytes - before)
        } else {
            held.fetch_sub(before - bytes, Ordering::Relaxed) - (before - bytes)
        };
        let max = if bytes > STAGE_BYTES_MAX {
            STAGE_BYTES_MAX
        } else if total > OPERATION_BYTES_MAX {
            OPERATION_BYTES_MAX
        } else {
            return Ok(());
        };
        Err(QueryError::new(
            self.kind,
            format!("Exceeded memory limit for {}: {max} bytes", self.stage),
        ))
    }

    /// The same account, with an error of the stage's own.
    pub fn fails_with(mut self, code: u32) -> Holding {
        self.kind = ErrorKind::Location(code);
        self
    }

    pub fn add(&mut self, bytes: usize) -> Result<(), QueryError> {
        self.set(self.bytes.saturating_add(bytes))
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let budget = Budget::interruptible(looks.clone());
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
        let budget = Budget::unlimited();
        let mut stages: Vec<_> = (0..6).map(|_| budget.holding("$group")).collect();
        assert!(stages[0].set(STAGE_BYTES_MAX + 1).is_err());
        for stage in &mut stages[..5] {
            stage.set(STAGE_BYTES_MAX).unwrap();
        }
        assert!(stages[5].set(1).is_err());
        stages.remove(0);
        assert!(stages[4].set(2).is_ok());
        drop(stages);
        assert_eq!(budget.0.held.load(Ordering::Relaxed), 0);
    }
}
