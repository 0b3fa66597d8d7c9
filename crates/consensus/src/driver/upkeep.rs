//! Keeping the log within its size: the state is made durable now and then, and entries that
//! nobody needs any more are cut off.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use banyan_crash::{Point, pass};
use raft::eraftpb::EntryType;

use super::Shared;
use crate::apply::Listener;
use crate::log::LogError;
use crate::log::disk::sync_newest_file;
use crate::machine::StateMachine;
use crate::surroundings;

const PERIOD: Duration = Duration::from_secs(1);
/// The state is made durable after this long, if it changed: it bounds the replay after a crash.
const DURABLE_EVERY: Duration = Duration::from_secs(60);
/// How far ahead of an entry that does not say when it was written another one is looked for.
const TIMELESS_MAX: u64 = 64;
/// Looked through for damage in one period.
const SCRUB_BYTES: u64 = 4 << 20;

impl<S: StateMachine> Shared<S> {
    pub(super) fn keep_up(&self) {
        let mut last_durable = surroundings::now();
        let mut scrub = Some(Scrub {
            next: 0,
            end: self.commit.load(Ordering::Acquire) + 1,
        });
        while !self.stopped.load(Ordering::Acquire) {
            {
                let mut inbox = self.inbox.lock();
                if !self.stopped.load(Ordering::Acquire) {
                    self.upkeep_wake.wait_for(&mut inbox, PERIOD);
                }
            }
            scrub.take_if(|scrub| self.scrub(scrub));
            if !self.keep_up_once(&mut last_durable) {
                return;
            }
        }
    }

    /// False if the group cannot go on.
    pub(super) fn keep_up_once(&self, last_durable: &mut Instant) -> bool {
        self.note_watermark();
        self.note_oldest();
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
        let mut rounds = self.rounds.lock();
        if rounds.core.take_awaits_durable() {
            return Some(applied);
        }
        rounds
            .core
            .log()
            .surplus(self.keeping.bytes_max())
            .map(|index| index.min(applied))
    }

    fn cut_log(&self) -> Result<(), LogError> {
        let Some(cut) = self.dispensable() else {
            return Ok(());
        };
        let cut = self.old_enough(cut);
        {
            let mut rounds = self.rounds.lock();
            let core = &mut rounds.core;
            let cut = cut.min(core.released());
            if cut <= core.log().base().index {
                return Ok(());
            }
            let before = core.log().bytes();
            core.log_mut().compact(cut)?;
            pass(Point::LogCut);
            let freed = before.saturating_sub(core.log().bytes());
            if !self.keeping.freed(freed, core.log().disk().file_bytes()) {
                return Ok(());
            }
        }
        // What says that the entries were cut must outlive the files that held them.
        sync_newest_file(&self.dir).map_err(|error| LogError::Io(error.to_string()))?;
        pass(Point::LogPurging);
        self.purger.purge()?;
        pass(Point::LogPurged);
        Ok(())
    }
    /// The last index that is too much and that nobody needs.
    fn dispensable(&self) -> Option<u64> {
        let durable = self.machine.durable();
        let applied = self.applier.applied_index();
        let rounds = self.rounds.lock();
        let core = &rounds.core;
        let surplus = core.log().surplus(self.keeping.bytes_max())?;
        let mut cut = surplus.min(durable).min(applied).min(core.released());
        if core.log().bytes() < self.keeping.bytes_bound() {
            let lagging = core
                .progress()
                .into_iter()
                .filter(|peer| peer.recent_active);
            cut = cut.min(lagging.map(|peer| peer.matched).min().unwrap_or(u64::MAX));
            if let Some(held) = self.keeping.held_from() {
                cut = cut.min(held.saturating_sub(1));
            }
        }
        (cut > core.log().base().index).then_some(cut)
    }

    /// The last index up to `cut` whose entry was written long enough ago.
    fn old_enough(&self, cut: u64) -> u64 {
        let min_age_ms = self.keeping.min_age_ms();
        if min_age_ms == 0 {
            return cut;
        }
        let until = surroundings::wall_ms().saturating_sub(min_age_ms);
        let old = |index: u64| self.written_ms(index).is_none_or(|ms| ms <= until);
        // Everything before `low` is old, and nothing from `high` on.
        let (mut low, mut high) = (self.reader.first_index(), cut + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if old(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    /// When the entry at an index, or else the next one that says it, was written.
    fn written_ms(&self, index: u64) -> Option<i64> {
        let end = self
            .commit
            .load(Ordering::Acquire)
            .min(index + TIMELESS_MAX)
            + 1;
        (index..end).find_map(|index| {
            let entry = self.reader.read(index, index + 1, u64::MAX).ok()?.pop()?;
            let plain = entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty();
            plain
                .then(|| self.machine.written_ms(&entry.data))
                .flatten()
        })
    }

    pub(super) fn note_oldest(&self) {
        let first = self.reader.first_index();
        if self
            .keeping
            .oldest()
            .is_none_or(|(index, _)| index != first)
        {
            let oldest = self.written_ms(first).map(|ms| (first, ms));
            self.keeping.note_oldest(oldest);
        }
    }

    /// Reads some of the entries that were there at the start: damage in those that are applied
    /// would show only when another member needs them. True once all were read.
    fn scrub(&self, scrub: &mut Scrub) -> bool {
        let next = scrub.next.max(self.reader.first_index());
        match self.reader.read(next, scrub.end, SCRUB_BYTES) {
            Ok(entries) => match entries.last() {
                Some(last) => scrub.next = last.index + 1,
                None => return true,
            },
            Err(LogError::Cut(_)) => {}
            Err(error) => {
                self.reader.note_damage(&error.to_string());
                return true;
            }
        }
        scrub.next >= scrub.end
    }
}

struct Scrub {
    next: u64,
    end: u64,
}
