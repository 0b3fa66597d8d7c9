//! Which documents are in use: a few at a time, each for a while, so that no history grows too long
//! to be judged.

use std::sync::atomic::{AtomicU64, Ordering};

pub struct Keys {
    turns: AtomicU64,
    at_once: u64,
    uses: u64,
    pub count: u32,
}

impl Keys {
    pub fn new(count: u32, at_once: u64, uses: u64) -> Self {
        Self {
            turns: AtomicU64::new(0),
            at_once,
            uses,
            count,
        }
    }

    fn of_turn(&self, turn: u64) -> u32 {
        let window = turn / (self.at_once * self.uses);
        ((window * self.at_once + turn % self.at_once) % u64::from(self.count)) as u32
    }

    /// The key of the next operation.
    pub fn next(&self) -> u32 {
        self.of_turn(self.turns.fetch_add(1, Ordering::Relaxed))
    }

    /// One that is in use.
    pub fn current(&self) -> u32 {
        self.of_turn(self.turns.load(Ordering::Relaxed))
    }

    /// All that have been in use.
    pub fn used(&self) -> std::ops::Range<u32> {
        let turns = self.turns.load(Ordering::Relaxed);
        let used = (turns / (self.at_once * self.uses) + 1) * self.at_once;
        0..u32::try_from(used).unwrap_or(u32::MAX).min(self.count)
    }
}
