//! Giving the core its clock, its disk and its network.
//!
//! One thread takes everything that waits (messages, proposals, changes of the membership, the clock) and lets the
//! core make of it one append, one sync and one round of messages. Whatever arrives meanwhile
//! waits for the next round: that is the group commit.
//!
//! A group of one that does not wait for the disk needs no thread: whoever proposes first drives
//! the core, for everybody who proposes meanwhile (flat combining). The same goes for what touches
//! no disk, in any group: the questions and answers that a read waits for. A thread that is woken
//! for each of them would cost more than all the rest.

mod inbox;
mod keeping;
mod lead;
mod leadership;
mod reads;
mod round;
mod rounds;
#[cfg(feature = "simulation")]
mod simulated;
mod threads;
mod timing;
mod upkeep;

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::channel::oneshot;
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::Message;

use crate::apply::{Answer, Applier, Listener};
use crate::core::{Core, Settings, plain};
use crate::error::{Error, ProposeError};
use crate::log::disk::{EngineDisk, Kept, Purger, sync_newest_file};
use crate::log::watermark::Watermark;
use crate::log::{LogError, LogReader};
use crate::machine::{Committed, PeerId, Position, StateMachine, Transport};
use crate::message;
use crate::options::{Options, SyncMode};
use crate::status::{LeaderWatch, Status};
use crate::surroundings;
use inbox::Inbox;
pub(crate) use inbox::{Control, Proposal};
pub(crate) use keeping::Keeping;
pub use keeping::LogHold;
use reads::Asked;
use rounds::Rounds;
pub(crate) use threads::Threads;
use timing::Timing;

/// Proposals wait in memory; beyond this much they are refused.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// Messages of a member that floods us are dropped beyond this many: Raft repeats itself.
const WAITING_MESSAGES_MAX: usize = 16_384;
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(10);
/// Read from the log at once, at most.
const READ_BYTES_MAX: u64 = 64 << 20;

/// The term that the core leads in, if it does; its user may be served once an entry of that term
/// is applied.
#[derive(Default)]
struct Leadership {
    core_term: u64,
}

pub(crate) struct Shared<S: StateMachine> {
    options: Options,
    dir: PathBuf,
    machine: Arc<S>,
    transport: Arc<dyn Transport>,
    rounds: Mutex<Rounds<S>>,
    inbox: Mutex<Inbox<S::Prepared>>,
    wake: Condvar,
    upkeep_wake: Condvar,
    /// Proposals may be driven by their callers.
    inline: AtomicBool,
    /// Entries wait in the log for room in the applier's queue.
    holding_back: AtomicBool,
    /// There are threads to which what is not light can be left.
    threaded: AtomicBool,
    pub applier: Applier<S>,
    leadership: Mutex<Leadership>,
    pub leader_term: AtomicU64,
    commit: AtomicU64,
    last_index: AtomicU64,
    /// Entries up to here are on disk for certain.
    synced: AtomicU64,
    watermark: Mutex<Watermark>,
    waiting_bytes: AtomicUsize,
    timing: Timing,
    pub keeping: Arc<Keeping>,
    pub reader: LogReader<EngineDisk>,
    asked: Mutex<Asked>,
    /// No other member has a vote: nobody needs to be asked.
    sole: AtomicBool,
    apply_delay_ms: AtomicU64,
    published: Mutex<Status>,
    pub watchers: Mutex<Vec<LeaderWatch>>,
    contacts: Mutex<HashMap<PeerId, Instant>>,
    /// When the log last told of a message that was refused for its entries.
    refused_entries: Mutex<Option<Instant>>,
    purger: Purger,
    stopped: AtomicBool,
    failed: AtomicBool,
}

fn apply_again<S: StateMachine>(
    machine: &S,
    entries: Vec<(Position, Bytes)>,
) -> Result<(), LogError> {
    let committed = entries.into_iter().map(|(position, data)| Committed {
        position,
        data,
        prepared: None,
        membership: None,
    });
    let applied = machine.apply(committed.collect());
    applied.map_err(|error| LogError::Apply(error.to_string()))
}

impl<S: StateMachine> Shared<S> {
    pub fn open(
        dir: &Path,
        options: Options,
        machine: Arc<S>,
        transport: Arc<dyn Transport>,
    ) -> Result<Shared<S>, Error> {
        if options.id == 0 {
            return Err(Error::Open("zero is not the id of a member".into()));
        }
        let opening = |error: crate::log::LogError| Error::Open(error.to_string());
        let (disk, kept) = EngineDisk::open(dir, options.log_bytes_max).map_err(opening)?;
        let position = Arc::new(Mutex::new(machine.applied()));
        let timing = Timing::new(options.heartbeat, options.election_timeout);
        let settings = Settings {
            id: options.id,
            heartbeat_ticks: timing.heartbeat_ticks(),
            election_ticks: timing::ELECTION_TICKS as usize,
            seed: surroundings::random(),
        };
        let watermark = Watermark::read(dir).map_err(|error| Error::Open(error.to_string()))?;
        let committed = watermark.index(disk.generation());
        let apply = |entries| apply_again(&*machine, entries);
        let opened = Core::open(disk, settings, position.clone(), committed, apply);
        let mut core = match (opened, kept) {
            (Ok(core), kept) => {
                if let Some(kept) = kept {
                    kept.discard();
                }
                core
            }
            (Err(error), kept) => {
                kept.map_or(Ok(()), Kept::put_back).map_err(opening)?;
                return Err(opening(error));
            }
        };
        let state = machine.clone();
        core.ask_for_durable(Box::new(move || state.durable()));
        let purger = core.log().disk().purger();
        let reader = core.log().reader();
        let held_from = core.log().held_from();
        let apply_delay_ms = timing::millis(options.apply_delay);
        core.set_delayed(apply_delay_ms > 0);
        core.set_witness(options.witness);
        let rounds = Rounds::new(core);
        let status = rounds.status(options.id);
        Ok(Shared {
            dir: dir.to_owned(),
            applier: Applier::new(machine.clone(), position),
            machine,
            transport,
            commit: AtomicU64::new(status.commit),
            last_index: AtomicU64::new(status.last_index),
            synced: AtomicU64::new(0),
            watermark: Mutex::new(watermark),
            published: Mutex::new(status),
            rounds: Mutex::new(rounds),
            inbox: Mutex::new(Inbox::new()),
            wake: Condvar::new(),
            upkeep_wake: Condvar::new(),
            holding_back: AtomicBool::new(false),
            threaded: AtomicBool::new(false),
            inline: AtomicBool::new(false),
            leadership: Mutex::default(),
            leader_term: AtomicU64::new(0),
            waiting_bytes: AtomicUsize::new(0),
            timing,
            keeping: Arc::new(Keeping::new(options.log_bytes_max, held_from)),
            reader,
            asked: Mutex::default(),
            sole: AtomicBool::new(false),
            apply_delay_ms: AtomicU64::new(apply_delay_ms),
            watchers: Mutex::default(),
            contacts: Mutex::default(),
            refused_entries: Mutex::default(),
            purger,
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            options,
        })
    }

    /// To be called once, before anything is applied beyond what the log says that the state has reached.
    pub fn keep_state_behind(self: &Arc<Self>) {
        let barrier = self.rounds.lock().core.log().disk().barrier();
        let shared = Arc::downgrade(self);
        self.machine.keep_behind_log(Box::new(move |index| {
            barrier(index).inspect_err(|error| {
                // What a failed sync has left of the log is not known.
                if let Some(shared) = shared.upgrade() {
                    shared.fatal(&format!("the log cannot be synced: {error}"));
                }
            })
        }));
    }

    pub fn bootstrap(self: &Arc<Self>, address: &str) -> Result<(), Error> {
        if address.len() > 1024 {
            return Err(Error::Refused("the address is too long".into()));
        }
        {
            let mut rounds = self.rounds.lock();
            if !rounds.core.bootstrap(address) {
                return Err(Error::Refused("the log is not empty".into()));
            }
            let work = self.inbox.lock().take();
            self.round(&mut rounds, work, false);
        }
        self.wake.notify_one();
        Ok(())
    }

    pub fn propose(&self, proposal: Proposal<S::Prepared>, placed: impl FnOnce()) {
        let size = proposal.data.len();
        if self.stopped.load(Ordering::Acquire) {
            let _ = proposal.answer.send(Err(ProposeError::Stopped));
            return;
        }
        if self.waiting_bytes.fetch_add(size, Ordering::AcqRel) > WAITING_BYTES_MAX {
            self.waiting_bytes.fetch_sub(size, Ordering::AcqRel);
            let _ = proposal.answer.send(Err(ProposeError::Busy));
            return;
        }
        self.inbox.lock().proposals.push(proposal);
        placed();
        if self.inline.load(Ordering::Acquire) {
            self.combine();
        } else {
            self.wake.notify_one();
        }
    }

    /// Reads a message and looks at its entries on the thread on which it arrives: the one that
    /// drives the group, and everybody who waits for it, need not.
    pub fn receive(&self, frame: &[u8]) {
        let Some(frame) = message::decode(frame) else {
            return;
        };
        let check = |data: &[u8]| self.machine.check(data);
        if let Err(reason) = message::check_entries(&frame.message, check) {
            let now = surroundings::now();
            let mut last = self.refused_entries.lock();
            // A flood of them does not become one of lines in the log.
            if last.is_none_or(|last| now.duration_since(last) >= REFUSALS_TOLD_EVERY) {
                *last = Some(now);
                let from = frame.message.from;
                tracing::warn!(from, reason, "entries that cannot be applied were refused");
            }
            return;
        }
        self.control(Control::Message(Box::new(frame)));
    }

    pub fn control(&self, control: Control) {
        let light = control.is_light(self.last_index.load(Ordering::Acquire));
        let mut inbox = self.inbox.lock();
        let message = matches!(control, Control::Message(_));
        if message && inbox.controls.len() >= WAITING_MESSAGES_MAX {
            return;
        }
        inbox.push(control, light);
        drop(inbox);
        if light && self.threaded.load(Ordering::Acquire) {
            self.hurry();
        } else {
            self.wake.notify_one();
        }
    }

    /// Drives the core on this thread if only what is light waits, and nobody else drives it. What
    /// is left is for the driving thread.
    fn hurry(&self) {
        if self.stopped.load(Ordering::Acquire) {
            return;
        }
        if let Some(mut rounds) = self.rounds.try_lock()
            && !rounds.core.is_holding_back()
        {
            let work = self.inbox.lock().take_light();
            if let Some(work) = work {
                self.guarded(|| self.round(&mut rounds, work, false));
            }
        }
        if !self.inbox.lock().is_empty() {
            self.wake.notify_one();
        }
    }

    /// Drives the core on this thread for as long as proposals wait and nobody else drives it.
    fn combine(&self) {
        while !self.inbox.lock().proposals.is_empty() {
            // Whoever holds it looks at the inbox again after releasing it.
            let Some(mut rounds) = self.rounds.try_lock() else {
                return;
            };
            let work = self.inbox.lock().take();
            self.guarded(|| self.round(&mut rounds, work, false));
        }
    }

    /// There is room again for what was held back.
    fn go_on_handing_over(&self) {
        if self.holding_back.load(Ordering::Acquire)
            && self.applier.queued_bytes() <= self.options.apply_queue_bytes_max / 4
            && self.holding_back.swap(false, Ordering::AcqRel)
        {
            self.control(Control::Room);
        }
    }

    /// A panic in here would leave the core in a state that nobody has thought of.
    fn guarded(&self, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.fatal(&panic_text(panic.as_ref()));
        }
    }

    /// The driving thread.
    fn drive(&self) {
        let mut next_tick = surroundings::now() + self.tick();
        while !self.stopped.load(Ordering::Acquire) {
            let sync_due = self.wait_for_work(next_tick);
            self.turn(sync_due, &mut next_tick);
        }
    }

    /// What the driving thread does whenever there is something to do.
    pub fn turn(&self, sync_due: bool, next_tick: &mut Instant) {
        let now = surroundings::now();
        if sync_due {
            self.sync_log();
        }
        let ticking = now >= *next_tick;
        let late = now.saturating_duration_since(*next_tick);
        if ticking {
            // A process that slept does not catch up on its ticks.
            *next_tick = now + self.tick();
        }
        let mut rounds = self.rounds.lock();
        self.note_delay(&mut rounds, "its thread did not get to run", late);
        let work = self.inbox.lock().take();
        self.guarded(|| self.round(&mut rounds, work, ticking));
        drop(rounds);
        if self.inline.load(Ordering::Acquire) {
            self.combine();
        }
    }

    /// Waits until there is something to do; true if the log is to be synced.
    fn wait_for_work(&self, next_tick: Instant) -> bool {
        let mut inbox = self.inbox.lock();
        loop {
            match self.due(&inbox, next_tick) {
                Ok(sync_due) => return sync_due,
                Err(deadline) => {
                    inbox.slept_until = Some(deadline);
                    self.wake.wait_until(&mut inbox, deadline);
                    inbox.slept_until = None;
                }
            }
        }
    }

    /// Whether there is something to do, and the log to be synced for it; if not, until when.
    fn due(&self, inbox: &Inbox<S::Prepared>, next_tick: Instant) -> Result<bool, Instant> {
        let interval = match self.options.sync {
            SyncMode::Interval(interval) => interval,
            SyncMode::EveryEntry => Duration::ZERO,
        };
        let sync_at = inbox.unsynced_since.map(|since| since + interval);
        let now = surroundings::now();
        let sync_due = !inbox.after_sync.is_empty() || sync_at.is_some_and(|at| at <= now);
        let deadlines = [Some(next_tick), sync_at, inbox.rounds_due];
        let deadline = deadlines.into_iter().flatten().min().unwrap_or(next_tick);
        let work = !inbox.is_empty();
        let stopped = self.stopped.load(Ordering::Acquire);
        if sync_due || work || stopped || deadline <= now {
            Ok(sync_due)
        } else {
            Err(deadline)
        }
    }

    fn sync_log(&self) {
        let answers = {
            let mut inbox = self.inbox.lock();
            inbox.unsynced_since = None;
            std::mem::take(&mut inbox.after_sync)
        };
        let written = self.last_index.load(Ordering::Acquire);
        match sync_newest_file(&self.dir) {
            Ok(()) => {
                self.synced.store(written, Ordering::Release);
                for (answer, position) in answers {
                    let _ = answer.send(Ok(position));
                }
            }
            Err(error) => self.fatal(&format!("the log cannot be synced: {error}")),
        }
    }

    fn tick(&self) -> Duration {
        self.timing.tick()
    }

    pub fn set_timing(&self, heartbeat: Option<Duration>, election_timeout: Duration) {
        self.timing.set(heartbeat, election_timeout);
    }

    pub fn set_apply_delay(&self, delay: Duration) {
        let delay_ms = timing::millis(delay);
        self.apply_delay_ms.store(delay_ms, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// In a group whose only voter this is, the answer is known: nobody else can have decided
    /// anything. That another member gets a vote is seen here before that member can use it.
    pub fn read_index(&self, answer: oneshot::Sender<u64>) {
        #[cfg(feature = "simulation")]
        if crate::simulated::world::planted(crate::simulated::world::Bug::StaleRead) {
            self.applier
                .wait_for(self.commit.load(Ordering::Acquire), answer);
            return;
        }
        if self.stopped.load(Ordering::Acquire) {
            return;
        }
        if self.sole.load(Ordering::Acquire) && self.leader_term.load(Ordering::Acquire) != 0 {
            let commit = self.commit.load(Ordering::Acquire);
            self.applier.wait_for(commit, answer);
        } else {
            let first = self.asked.lock().ask(answer, surroundings::now());
            if first {
                self.control(Control::Reads);
            }
        }
    }

    fn note_watermark(&self) {
        let (certain, generation) = {
            let rounds = self.rounds.lock();
            let synced = self.synced.load(Ordering::Acquire);
            let log = rounds.core.log();
            let certain = rounds.core.commit().min(synced).min(log.last());
            (certain, log.disk().generation())
        };
        if let Err(error) = self.watermark.lock().write(certain, generation) {
            tracing::warn!(%error, "cannot note how far the log is complete");
        }
    }

    /// Looks at the roles as they were last published, without copying them.
    pub fn look<R>(&self, look: impl FnOnce(&Status) -> R) -> R {
        look(&self.published.lock())
    }

    pub fn status(&self) -> Status {
        let mut status = self.published.lock().clone();
        status.commit = self.commit.load(Ordering::Acquire);
        status.last_index = self.last_index.load(Ordering::Acquire);
        status.applied = self.applier.applied();
        status.leader_ready = self.leader_term.load(Ordering::Acquire) != 0;
        let oldest = self.keeping.oldest();
        status.oldest_ms = oldest
            .filter(|&(index, _)| index >= status.first_index)
            .map(|(_, written_ms)| written_ms);
        status.damage = self.reader.damage();
        let contacts = self.contacts.lock();
        for peer in &mut status.peers {
            peer.last_contact = contacts.get(&peer.id).copied();
        }
        status
    }

    pub fn entries(&self, from: u64, bytes_max: u64) -> Result<Vec<(Position, Bytes)>, Error> {
        let high = self.commit.load(Ordering::Acquire) + 1;
        let bytes_max = bytes_max.min(READ_BYTES_MAX);
        loop {
            let low = from.max(self.reader.first_index());
            let entries = match self.reader.read(low, high, bytes_max) {
                Ok(entries) => entries,
                // It was cut off meanwhile: what follows is read.
                Err(LogError::Cut(_)) => continue,
                Err(LogError::Damaged(what)) => {
                    self.reader.note_damage(&what);
                    return Err(Error::Damaged(what));
                }
                Err(error) => return Err(Error::Refused(error.to_string())),
            };
            return Ok(entries.into_iter().map(plain).collect());
        }
    }

    fn notify(&self) {
        let status = self.status();
        for watcher in self.watchers.lock().iter() {
            watcher(&status);
        }
    }
}

impl<S: StateMachine> Listener for Shared<S> {
    fn applied(&self, _position: Position) {
        self.go_on_handing_over();
        // Only the first entry of a term can change who leads.
        if self.leader_term.load(Ordering::Acquire) == 0 {
            self.refresh_leadership(None);
        }
    }

    fn after_sync(&self, mut answers: Vec<(Answer, Position)>) {
        self.inbox.lock().after_sync.append(&mut answers);
        self.wake.notify_one();
    }

    fn installed(&self, held: Message, success: bool) {
        self.control(Control::Installed(Box::new(held), success));
    }

    fn fatal(&self, what: &str) {
        self.stopped.store(true, Ordering::Release);
        self.leader_term.store(0, Ordering::Release);
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!("{what}");
            (self.options.on_fatal)(what);
        }
        self.wake.notify_all();
        self.applier.stop();
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!(
        "consensus failed: {}",
        text.unwrap_or("for an unknown reason")
    )
}
