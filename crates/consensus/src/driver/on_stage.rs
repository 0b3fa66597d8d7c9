//! The group's work one step at a time, for a simulation that drives it without its threads.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use crate::core::Core;
use crate::log::disk::EngineDisk;
use crate::machine::StateMachine;

impl<S: StateMachine> Shared<S> {
    /// As [`Shared::due`], for whoever drives the group without its threads.
    pub fn due_on_stage(&self, next_tick: Instant) -> Result<bool, Instant> {
        self.due(&self.inbox.lock(), next_tick)
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub fn tick_on_stage(&self) -> Duration {
        self.tick()
    }

    pub fn apply_on_stage(&self) -> bool {
        let mut worked = false;
        self.guarded(|| worked = self.applier.serve_once(self));
        worked
    }

    pub fn keep_up_on_stage(&self, last_durable: &mut Instant) {
        self.guarded(|| {
            self.keep_up_once(last_durable);
        });
    }

    pub fn core_on_stage<R>(&self, look: impl FnOnce(&Core<EngineDisk>) -> R) -> R {
        look(&self.rounds.lock().core)
    }
}
