//! Keeping the log within its size: the state is made durable now and then, and entries that
//! nobody needs any more are cut off.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use crate::apply::Listener;
use crate::machine::StateMachine;
use crate::surroundings;

const PERIOD: Duration = Duration::from_secs(1);
/// The state is made durable after this long, if it changed: it bounds the replay after a crash.
const DURABLE_EVERY: Duration = Duration::from_secs(60);
/// A member that lags holds the log back up to this many times its size.
const PATIENCE: u64 = 4;

impl<S: StateMachine> Shared<S> {
    pub(super) fn keep_up(&self) {
        let mut last_durable = surroundings::now();
        while !self.stopped.load(Ordering::Acquire) {
            {
                let mut inbox = self.inbox.lock();
                if !self.stopped.load(Ordering::Acquire) {
                    self.upkeep_wake.wait_for(&mut inbox, PERIOD);
                }
            }
            if !self.keep_up_once(&mut last_durable) {
                return;
            }
        }
    }

    /// False if the group cannot go on.
    pub(super) fn keep_up_once(&self, last_durable: &mut Instant) -> bool {
        self.note_watermark();
        let Some(surplus) = self.surplus(*last_durable) else {
            return true;
        };
        if self.machine.durable() < surplus {
            *last_durable = surroundings::now();
            if let Err(error) = self.machine.make_durable() {
                self.fatal(&format!("the state cannot be made durable: {error}"));
                return false;
            }
        }
        if let Err(error) = self.cut_log() {
            self.fatal(&error.to_string());
            return false;
        }
        true
    }

    /// The index that should be durable: the log is too long before it, or it is time.
    fn surplus(&self, last_durable: Instant) -> Option<u64> {
        let applied = self.applier.applied_index();
        let age = surroundings::now().duration_since(last_durable);
        if age >= DURABLE_EVERY && self.machine.durable() < applied {
            return Some(applied);
        }
        let rounds = self.rounds.lock();
        rounds
            .core
            .log()
            .surplus(self.options.log_bytes_max)
            .map(|index| index.min(applied))
    }

    fn cut_log(&self) -> Result<(), crate::log::LogError> {
        let durable = self.machine.durable();
        let applied = self.applier.applied_index();
        {
            let mut rounds = self.rounds.lock();
            let core = &mut rounds.core;
            let Some(surplus) = core.log().surplus(self.options.log_bytes_max) else {
                return Ok(());
            };
            let mut cut = surplus.min(durable).min(applied).min(core.handed_over());
            if core.log().bytes() < PATIENCE * self.options.log_bytes_max {
                let lagging = core
                    .progress()
                    .into_iter()
                    .filter(|peer| peer.recent_active);
                cut = cut.min(lagging.map(|peer| peer.matched).min().unwrap_or(u64::MAX));
            }
            if cut <= core.log().base().index {
                return Ok(());
            }
            core.log_mut().compact(cut)?;
        }
        self.purger.purge()
    }
}
