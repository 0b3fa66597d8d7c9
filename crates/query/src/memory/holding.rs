//! What one stage holds.

use super::consumer::{Consumer, Max};
use super::limits::Limit;
use crate::budget::Budget;
use crate::error::QueryError;

/// Bytes are reserved by this many at once.
const PORTION: usize = 256 * 1024;
/// A stage that holds no more than this is never asked to make room for others.
const SMALL: usize = 1024 * 1024;

/// What a stage holds, given back when it is dropped.
#[derive(Debug)]
pub struct Holding {
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
            budget,
            consumer,
            bytes: 0,
            reserved: 0,
            peak: 0,
        }
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
        self.reserved = wanted;
        self.bytes <= self.max && (within || self.bytes <= SMALL)
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
    }
}
