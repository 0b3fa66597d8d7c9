//! The group's work one step at a time, for a simulation that drives it without its threads.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use crate::core::Core;
use crate::log::disk::EngineDisk;
use crate::machine::StateMachine;

impl<S: StateMachine> Shared<S> {
    /// As [`Shared::due`], for whoever drives the group without its threads.
    pub fn simulated_due(&self, next_tick: Instant) -> Result<bool, Instant> {
        self.due(&self.inbox.lock(), next_tick)
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub fn simulated_tick(&self) -> Duration {
        self.tick()
    }

    pub fn simulated_apply(&self) -> bool {
        let mut worked = false;
        self.guarded(|| worked = self.applier.serve_once(self));
        worked
    }

    pub fn simulated_upkeep(&self, last_durable: &mut Instant) {
        self.guarded(|| {
            self.keep_up_once(last_durable);
        });
    }

    pub fn simulated_core<R>(&self, look: impl FnOnce(&Core<EngineDisk>) -> R) -> R {
        look(&self.rounds.lock().core)
    }
}
