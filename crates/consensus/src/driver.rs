//! Giving the core its clock, its disk and its network.
//!
//! One thread takes everything that waits (messages, proposals, wishes, the clock) and lets the
//! core make of it one append, one sync and one round of messages. Whatever arrives meanwhile
//! waits for the next round: that is the group commit.
//!
//! A group of one that does not wait for the disk needs no thread: whoever proposes first drives
//! the core, for everybody who proposes meanwhile (flat combining).

mod rounds;
mod upkeep;

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::channel::oneshot;
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::Message;

use crate::apply::{Answer, Applier, Listener};
use crate::core::{Core, Settings};
use crate::group::{Change, Error, LeaderWatch, Options, ProposeError, ProposeOptions};
use crate::group::{Status, SyncMode};
use crate::log::disk::{EngineDisk, Kept, Purger, sync_newest_file};
use crate::log::watermark::Watermark;
use crate::machine::{Membership, PeerId, Position, StateMachine, Transport};
use crate::surroundings;
use rounds::Rounds;

/// Proposals wait in memory; beyond this much they are refused.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// Messages of a member that floods us are dropped beyond this many: Raft repeats itself.
const WAITING_MESSAGES_MAX: usize = 16_384;
const HEARTBEAT_TICKS: u32 = 2;

pub(crate) struct Proposal<P> {
    pub data: Vec<u8>,
    pub prepared: P,
    pub options: ProposeOptions,
    pub answer: Answer,
}

pub(crate) enum Control {
    Message(Bytes),
    Installed(Box<Message>, bool),
    Change(Change, oneshot::Sender<Result<Membership, Error>>),
    ReadIndex(oneshot::Sender<u64>),
    Transfer(PeerId),
    StepDown,
    Electable(bool),
}

struct Inbox<P> {
    proposals: Vec<Proposal<P>>,
    controls: Vec<Control>,
    /// Answers that go out after the next sync.
    after_sync: Vec<(Answer, Position)>,
    /// When the oldest entry was written that is not synced (sync mode `Interval`).
    unsynced_since: Option<Instant>,
}

impl<P> Inbox<P> {
    fn new() -> Inbox<P> {
        Inbox {
            proposals: Vec::new(),
            controls: Vec::new(),
            after_sync: Vec::new(),
            unsynced_since: None,
        }
    }
}

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
    pub applier: Applier<S>,
    leadership: Mutex<Leadership>,
    pub leader_term: AtomicU64,
    commit: AtomicU64,
    last_index: AtomicU64,
    /// Entries up to here are on disk for certain.
    synced: AtomicU64,
    watermark: Mutex<Watermark>,
    waiting_bytes: AtomicUsize,
    /// How many ticks make an election timeout; fixed, so the length of a tick is what changes.
    election_ticks: u32,
    tick_micros: AtomicU64,
    published: Mutex<Status>,
    pub watchers: Mutex<Vec<LeaderWatch>>,
    contacts: Mutex<HashMap<PeerId, Instant>>,
    purger: Purger,
    stopped: AtomicBool,
    failed: AtomicBool,
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
        let tick = tick_length(&options);
        let election_ticks = options.election_timeout.as_nanos() / tick.as_nanos().max(1);
        let election_ticks = (election_ticks as u32).clamp(HEARTBEAT_TICKS * 2, 10_000);
        let settings = Settings {
            id: options.id,
            heartbeat_ticks: HEARTBEAT_TICKS as usize,
            election_ticks: election_ticks as usize,
            seed: surroundings::random(),
        };
        let watermark = Watermark::read(dir).map_err(|error| Error::Open(error.to_string()))?;
        let opened = Core::open(disk, settings, position.clone(), watermark.index());
        let core = match (opened, kept) {
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
        let purger = core.log().disk().purger();
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
            inline: AtomicBool::new(false),
            leadership: Mutex::default(),
            leader_term: AtomicU64::new(0),
            waiting_bytes: AtomicUsize::new(0),
            election_ticks,
            tick_micros: AtomicU64::new(tick.as_micros() as u64),
            watchers: Mutex::default(),
            contacts: Mutex::default(),
            purger,
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            options,
        })
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
            self.round(&mut rounds, false);
        }
        self.wake.notify_one();
        Ok(())
    }

    pub fn propose(&self, proposal: Proposal<S::Prepared>) {
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
        if self.inline.load(Ordering::Acquire) {
            self.combine();
        } else {
            self.wake.notify_one();
        }
    }

    pub fn control(&self, control: Control) {
        let mut inbox = self.inbox.lock();
        let message = matches!(control, Control::Message(_));
        if message && inbox.controls.len() >= WAITING_MESSAGES_MAX {
            return;
        }
        inbox.controls.push(control);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Drives the core on this thread for as long as proposals wait and nobody else drives it.
    fn combine(&self) {
        while !self.inbox.lock().proposals.is_empty() {
            // Whoever holds it looks at the inbox again after letting go of it.
            let Some(mut rounds) = self.rounds.try_lock() else {
                return;
            };
            self.guarded(|| self.round(&mut rounds, false));
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
        if ticking {
            // A process that slept does not catch up on its ticks.
            *next_tick = now + self.tick();
        }
        let mut rounds = self.rounds.lock();
        self.guarded(|| self.round(&mut rounds, ticking));
        drop(rounds);
        if self.inline.load(Ordering::Acquire) {
            self.combine();
        }
    }

    /// Waits until there is something to do; true if the log is to be synced.
    fn wait_for_work(&self, next_tick: Instant) -> bool {
        let commit_due = self.rounds.lock().commit_due;
        let mut inbox = self.inbox.lock();
        loop {
            match self.due(&inbox, next_tick, commit_due) {
                Ok(sync_due) => return sync_due,
                Err(deadline) => self.wake.wait_until(&mut inbox, deadline),
            };
        }
    }

    /// Whether there is something to do, and the log to be synced for it; if not, until when.
    fn due(
        &self,
        inbox: &Inbox<S::Prepared>,
        next_tick: Instant,
        commit_due: Option<Instant>,
    ) -> Result<bool, Instant> {
        let interval = match self.options.sync {
            SyncMode::Interval(interval) => interval,
            SyncMode::EveryEntry => Duration::ZERO,
        };
        let sync_at = inbox.unsynced_since.map(|since| since + interval);
        let now = surroundings::now();
        let sync_due = !inbox.after_sync.is_empty() || sync_at.is_some_and(|at| at <= now);
        let deadlines = [Some(next_tick), sync_at, commit_due];
        let deadline = deadlines.into_iter().flatten().min().unwrap_or(next_tick);
        let work = !inbox.proposals.is_empty() || !inbox.controls.is_empty();
        let stopped = self.stopped.load(Ordering::Acquire);
        if sync_due || work || stopped || deadline <= now {
            Ok(sync_due)
        } else {
            Err(deadline)
        }
    }

    /// As [`Shared::due`], for whoever drives the group without its threads.
    #[cfg(feature = "simulation")]
    pub fn due_on_stage(&self, next_tick: Instant) -> Result<bool, Instant> {
        let commit_due = self.rounds.lock().commit_due;
        self.due(&self.inbox.lock(), next_tick, commit_due)
    }

    #[cfg(feature = "simulation")]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    #[cfg(feature = "simulation")]
    pub fn tick_on_stage(&self) -> Duration {
        self.tick()
    }

    #[cfg(feature = "simulation")]
    pub fn apply_on_stage(&self) -> bool {
        let mut worked = false;
        self.guarded(|| worked = self.applier.serve_once(self));
        worked
    }

    #[cfg(feature = "simulation")]
    pub fn keep_up_on_stage(&self, last_durable: &mut Instant) {
        self.guarded(|| {
            self.keep_up_once(last_durable);
        });
    }

    #[cfg(feature = "simulation")]
    pub fn core_on_stage<R>(&self, look: impl FnOnce(&Core<EngineDisk>) -> R) -> R {
        look(&self.rounds.lock().core)
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
        Duration::from_micros(self.tick_micros.load(Ordering::Relaxed))
    }

    pub fn set_election_timeout(&self, timeout: Duration) {
        let tick = (timeout / self.election_ticks).max(Duration::from_millis(1));
        self.tick_micros
            .store(tick.as_micros() as u64, Ordering::Relaxed);
    }

    fn note_watermark(&self) {
        let certain = self
            .commit
            .load(Ordering::Acquire)
            .min(self.synced.load(Ordering::Acquire));
        if let Err(error) = self.watermark.lock().write(certain) {
            tracing::warn!(%error, "cannot note how far the log is complete");
        }
    }

    pub fn status(&self) -> Status {
        let mut status = self.published.lock().clone();
        status.commit = self.commit.load(Ordering::Acquire);
        status.last_index = self.last_index.load(Ordering::Acquire);
        status.applied = self.applier.applied();
        status.leader_ready = self.leader_term.load(Ordering::Acquire) != 0;
        let contacts = self.contacts.lock();
        for peer in &mut status.peers {
            peer.last_contact = contacts.get(&peer.id).copied();
        }
        status
    }

    pub fn entries(&self, from: u64, bytes_max: u64) -> Result<Vec<(Position, Bytes)>, Error> {
        let rounds = self.rounds.lock();
        let log = rounds.core.log();
        let low = from.max(log.base().index + 1);
        let high = (rounds.core.commit() + 1).min(log.last() + 1);
        let entries = log
            .read(low, high, bytes_max)
            .map_err(|error| Error::Refused(error.to_string()))?;
        let position = |entry: &raft::eraftpb::Entry| Position {
            term: entry.term,
            index: entry.index,
        };
        let plain = raft::eraftpb::EntryType::EntryNormal;
        Ok(entries
            .into_iter()
            .map(|entry| {
                let data = if entry.get_entry_type() == plain {
                    entry.data.clone()
                } else {
                    Bytes::new()
                };
                (position(&entry), data)
            })
            .collect())
    }

    /// Leader in name becomes leader in fact once an entry of its term is applied.
    fn refresh_leadership(&self, core_term: Option<u64>) {
        let mut leadership = self.leadership.lock();
        if let Some(term) = core_term {
            leadership.core_term = term;
        }
        let term = leadership.core_term;
        let serving = if term != 0 && self.applier.applied().term == term {
            term
        } else {
            0
        };
        if self.leader_term.swap(serving, Ordering::AcqRel) != serving {
            self.notify();
        }
    }

    /// Whoever saw that this member leads, or does not, sees after this that the watchers know.
    pub fn settle(&self) {
        drop(self.leadership.lock());
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

fn tick_length(options: &Options) -> Duration {
    (options.heartbeat / HEARTBEAT_TICKS).max(Duration::from_millis(1))
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

/// The threads of a group; dropping them ends them.
pub(crate) struct Threads<S: StateMachine> {
    shared: Arc<Shared<S>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl<S: StateMachine> Threads<S> {
    pub fn none(shared: &Arc<Shared<S>>) -> Threads<S> {
        Threads {
            shared: shared.clone(),
            handles: Mutex::new(Vec::new()),
        }
    }

    pub fn start(shared: &Arc<Shared<S>>) -> Result<Threads<S>, Error> {
        let threads = Threads::none(shared);
        threads.spawn("raft", |shared| shared.drive())?;
        threads.spawn("apply", |shared| {
            shared.guarded(|| shared.applier.serve(shared.as_ref()));
        })?;
        threads.spawn("log upkeep", |shared| shared.guarded(|| shared.keep_up()))?;
        Ok(threads)
    }

    fn spawn(&self, name: &str, work: fn(&Arc<Shared<S>>)) -> Result<(), Error> {
        let shared = self.shared.clone();
        let handle = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&shared))
            .map_err(|error| Error::Open(format!("no thread can be started: {error}")))?;
        self.handles.lock().push(handle);
        Ok(())
    }

    pub fn stop(&self, shared: &Arc<Shared<S>>) {
        shared.stopped.store(true, Ordering::Release);
        {
            // Taking the lock makes sure that a thread about to wait sees the flag.
            let _inbox = shared.inbox.lock();
            shared.wake.notify_all();
            shared.upkeep_wake.notify_all();
        }
        shared.applier.stop();
        let handles = std::mem::take(&mut *self.handles.lock());
        let first = !handles.is_empty();
        for handle in handles {
            if handle.thread().id() != std::thread::current().id() {
                // A panic was reported by the thread itself.
                let _ = handle.join();
            }
        }
        if first && !shared.failed.load(Ordering::Acquire) {
            shared.sync_log();
            shared.note_watermark();
            shared.rounds.lock().fail_all();
        }
    }
}

impl<S: StateMachine> Drop for Threads<S> {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        self.stop(&shared);
    }
}
