//! What one stage holds.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::consumer::{Consumer, Max};
use super::limits::Limit;
use crate::budget::Budget;
use crate::error::QueryError;

/// Bytes are reserved by this many at once.
const PORTION: usize = 256 * 1024;
/// A stage that holds no more than this is never asked to make room for others.
const SMALL: usize = 1024 * 1024;

/// What the executions have together that each see a part of one input. A stage's limit holds for the
/// holdings of all of them.
#[derive(Debug, Default)]
pub struct Together {
    reserved: AtomicUsize,
    holdings: AtomicUsize,
    /// Of the pipelines inside a stage, by their numbers.
    inner: Mutex<BTreeMap<usize, Arc<Together>>>,
    /// What stages have made once for all, by their addresses.
    made: Mutex<BTreeMap<usize, Arc<dyn Any + Send + Sync>>>,
}

impl Together {
    /// Of the executions of one of the pipelines inside a stage.
    pub(crate) fn within(&self, pipeline: usize) -> Arc<Together> {
        self.inner.lock().entry(pipeline).or_default().clone()
    }

    /// What the executions of one stage make only once; empty at first.
    pub(crate) fn made<S, T>(&self, stage: &Arc<S>) -> Arc<T>
    where
        T: Any + Default + Send + Sync,
    {
        let mut made = self.made.lock();
        let known = made
            .entry(Arc::as_ptr(stage).addr())
            .or_insert_with(|| Arc::new(T::default()));
        // No stage makes two kinds of things.
        known.clone().downcast().unwrap_or_default()
    }
}

/// What a stage holds, given back when it is dropped.
#[derive(Debug)]
pub struct Holding {
    together: Option<Arc<Together>>,
    budget: Budget,
    consumer: &'static Consumer,
    bytes: usize,
    /// What is reserved of the operation and the process.
    reserved: usize,
    max: usize,
    peak: usize,
}

impl Budget {
    /// An account for what one stage holds.
    pub fn holding(&self, consumer: &'static Consumer) -> Holding {
        Holding::new(self.clone(), consumer)
    }
}

impl Holding {
    fn new(budget: Budget, consumer: &'static Consumer) -> Holding {
        Holding {
            max: match consumer.max {
                Max::Parameter(limit) => budget.memory().limit(limit),
                Max::Bytes(bytes) => bytes,
            },
            together: None,
            budget,
            consumer,
            bytes: 0,
            reserved: 0,
            peak: 0,
        }
    }

    /// Counts with others of the stage from now on; it holds nothing yet.
    pub(crate) fn join(&mut self, together: &Arc<Together>) {
        together.holdings.fetch_add(1, Ordering::Relaxed);
        self.together = Some(together.clone());
    }

    /// The stage holds so many bytes now; fails if that is too much.
    pub fn set(&mut self, bytes: usize) -> Result<(), QueryError> {
        match self.fits(bytes) {
            true => Ok(()),
            false => Err(self.exceeded()),
        }
    }

    pub fn add(&mut self, bytes: usize) -> Result<(), QueryError> {
        self.set(self.bytes.saturating_add(bytes))
    }

    /// The stage holds so many bytes now: whether it may.
    #[inline]
    pub fn fits(&mut self, bytes: usize) -> bool {
        self.bytes = bytes;
        if bytes <= self.reserved && self.reserved - bytes <= 2 * PORTION {
            return bytes <= self.max;
        }
        self.reserve()
    }

    #[inline]
    pub fn fits_more(&mut self, bytes: usize) -> bool {
        self.fits(self.bytes.saturating_add(bytes))
    }

    /// What to fail with when the stage does not fit.
    pub fn exceeded(&self) -> QueryError {
        let max = match self.bytes > self.max {
            true => self.max,
            false => self.budget.memory().limit(Limit::Operation),
        };
        (self.consumer.exceeded)(max, self.bytes)
    }

    #[cold]
    fn reserve(&mut self) -> bool {
        self.peak = self.peak.max(self.bytes);
        let wanted = self.bytes.div_ceil(PORTION).saturating_mul(PORTION);
        let within = self.budget.reserve(self.reserved, wanted);
        let fits = self.fits_together(wanted) && self.bytes <= self.max;
        self.reserved = wanted;
        fits && (within || self.bytes <= SMALL)
    }

    /// Whether the stage may hold what all of its holdings have. Where that is too much, those
    /// with a small part of it go on: one of the others makes room, or fails.
    fn fits_together(&self, wanted: usize) -> bool {
        let Some(together) = &self.together else {
            return true;
        };
        let change = wanted.wrapping_sub(self.reserved);
        let before = together.reserved.fetch_add(change, Ordering::Relaxed);
        let holdings = together.holdings.load(Ordering::Relaxed);
        before.wrapping_add(change) <= self.max || self.bytes <= self.max / (4 * holdings.max(1))
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that it has held.
    pub fn peak(&self) -> usize {
        self.peak.max(self.bytes)
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.budget.reserve(self.reserved, 0);
        if let Some(together) = &self.together {
            together
                .reserved
                .fetch_sub(self.reserved, Ordering::Relaxed);
            together.holdings.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
