//! One plan on all cores.
//!
//! What a large scan finds is taken in by sinks: a count, the groups of a `$group`, a sort. The scan
//! is divided among workers ([`crate::shares`]), each with operators of its own for every share
//! that it reads, and with a sink for each, or one for all where that knows the shares apart
//! ([`Sink::begin`]). The sinks are handed back in the order of the collection, to be put together.
//!
//! The thread that runs the operation is the first worker. The others are there while tickets are
//! free ([`tickets::assistant`]): as soon as somebody waits for one they leave what they have not
//! begun to whoever goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use banyan_query::{ErrorKind, QueryError};
use banyan_storage::Snapshot;
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;

use crate::interrupt::{InterruptSlot, Ticker};
use crate::operators::{Examined, Member, MemberRef, Progress, Run, Stage};
use crate::plan::explain::clamp;
use crate::shares::{Share, Shares};
use crate::tickets;

/// So many are counted at once.
const COUNTED_AT_ONCE: u64 = 4096;
/// How often a worker that waits for the others looks at its interrupt.
const LOOK: Duration = Duration::from_millis(5);

/// What becomes of what is found in a share.
pub trait Sink: Send + 'static {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError>;

    /// Whether it keeps members as they are, so that each is to be made for it.
    fn keeps_members(&self) -> bool {
        false
    }

    fn keep(&mut self, member: Member) -> Result<(), QueryError> {
        member.by_ref().map_or(Ok(()), |member| self.take(member))
    }

    /// So many are found that are not taken one by one. False if each is wanted.
    fn count(&mut self, _found: u64) -> bool {
        false
    }

    /// What comes next was found in another share, which begins at `start`. False if the sink
    /// cannot tell shares apart: each has one of its own then.
    fn begin(&mut self, _start: u64) -> bool {
        false
    }

    /// Whether nothing more is to be taken in for now, by this sink and all others.
    fn is_full(&mut self) -> bool {
        false
    }

    /// How many are to be read for it at once, of so many at most.
    fn wanted(&self, most: usize) -> usize {
        most
    }

    /// No more will come. Called on the thread of its worker, for what is left to do.
    fn seal(&mut self) -> Result<(), QueryError> {
        Ok(())
    }
}

/// How many there are.
#[derive(Debug, Default)]
pub struct Counter(pub u64);

impl Sink for Counter {
    fn take(&mut self, _: MemberRef<'_>) -> Result<(), QueryError> {
        self.0 += 1;
        Ok(())
    }

    /// It may have no document.
    fn keep(&mut self, _: Member) -> Result<(), QueryError> {
        self.0 += 1;
        Ok(())
    }

    fn count(&mut self, found: u64) -> bool {
        self.0 += found;
        true
    }

    fn begin(&mut self, _: u64) -> bool {
        true
    }
}

/// What each worker of an operator has done, if there were several.
#[derive(Debug, Default)]
pub struct Workers(Vec<Examined>);

impl Workers {
    fn note(&mut self, worker: usize, examined: &Examined) {
        if self.0.len() <= worker {
            self.0.resize(worker + 1, Examined::default());
        }
        self.0[worker].add(examined);
    }

    /// As `explain` shows it.
    pub fn describe(&self, stage: &mut RawDocumentBuf) {
        if self.0.len() < 2 {
            return;
        }
        let workers = self.0.iter().map(|worker| {
            rawdoc! {
                "keysExamined": clamp(worker.keys),
                "docsExamined": clamp(worker.documents),
            }
        });
        stage.append(cstr!("workers"), workers.collect::<RawArrayBuf>());
    }
}

/// Has all that is left of a plan taken in by sinks, on as many cores as are free, and hands those
/// back in the order of what they have seen. What the workers have done counts as the plan's.
/// `None`: it is not much, or it cannot be divided.
pub fn gather<M, S>(
    plan: &mut Stage,
    snapshot: &Snapshot,
    slot: &Arc<InterruptSlot>,
    examined: &mut Examined,
    workers: &mut Workers,
    make: M,
) -> Result<Option<Vec<S>>, QueryError>
where
    M: Fn() -> Result<S, QueryError> + Send + Sync + 'static,
    S: Sink,
{
    if self::workers() < 2 {
        return Ok(None);
    }
    let Some(shares) = plan.shares(snapshot)? else {
        return Ok(None);
    };
    let parts = read(plan, &shares, snapshot, slot, examined, workers, make)?;
    Ok(parts.map(|parts| parts.into_iter().map(|(_, sink)| sink).collect()))
}

/// The same for these shares of what a plan reads. Each sink comes with where its first share
/// begins. What nobody has read is left in the shares, if sinks were full.
pub fn read<M, S>(
    plan: &mut Stage,
    shares: &Arc<Shares>,
    snapshot: &Snapshot,
    slot: &Arc<InterruptSlot>,
    examined: &mut Examined,
    workers: &mut Workers,
    make: M,
) -> Result<Option<Vec<(u64, S)>>, QueryError>
where
    M: Fn() -> Result<S, QueryError> + Send + Sync + 'static,
    S: Sink,
{
    let Some(parts) = run(plan, shares.clone(), snapshot, slot, make)? else {
        return Ok(None);
    };
    for part in &parts {
        plan.absorb(&part.stage);
        examined.add(&part.examined);
        workers.note(part.worker, &part.examined);
    }
    let sinks = parts.into_iter().map(|part| (part.start, part.sink));
    Ok(Some(sinks.collect()))
}

/// What one worker has done with one share, or with several.
struct Part<S> {
    start: u64,
    sink: S,
    /// The operators that have read it.
    stage: Stage,
    examined: Examined,
    /// Which worker it was; the operation's own thread is 0.
    worker: usize,
}

/// What all workers of an operation share.
struct Team<M, S> {
    shares: Arc<Shares>,
    snapshot: Snapshot,
    slot: Arc<InterruptSlot>,
    make: M,
    /// Somebody has failed, or the operation ends.
    stopped: AtomicBool,
    /// A sink is full: what is not claimed is left.
    full: AtomicBool,
    state: Mutex<State<S>>,
    /// A worker has left.
    left: Condvar,
}

struct State<S> {
    parts: Vec<Part<S>>,
    failed: Option<QueryError>,
    /// Workers beside the first.
    assistants: usize,
    /// Whoever has not begun is not waited for.
    is_over: bool,
}

/// Runs a plan over `shares`. `plan` makes the operators for a share; `None`: it cannot be divided.
fn run<M, S>(
    plan: &Stage,
    shares: Arc<Shares>,
    snapshot: &Snapshot,
    slot: &Arc<InterruptSlot>,
    make: M,
) -> Result<Option<Vec<Part<S>>>, QueryError>
where
    M: Fn() -> Result<S, QueryError> + Send + Sync + 'static,
    S: Sink,
{
    let Some(own) = shares.take() else {
        return Ok(None);
    };
    let Some(seed) = plan.part(&own) else {
        return Ok(None);
    };
    let team = Arc::new(Team {
        shares,
        snapshot: snapshot.clone(),
        slot: slot.clone(),
        make,
        stopped: AtomicBool::new(false),
        full: AtomicBool::new(false),
        state: Mutex::new(State {
            parts: Vec::new(),
            failed: None,
            assistants: 0,
            is_over: false,
        }),
        left: Condvar::new(),
    });
    team.clone().recruit(&seed, &own);
    let (mut share, mut part) = (Some(own), None);
    while let Some(own) = share {
        team.work(&seed, own, 0, &mut part);
        share = team.rest(&mut part);
    }
    team.finish()
}

/// As many as there are cores.
pub fn workers() -> usize {
    // Asking reads files.
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

impl<M, S> Team<M, S>
where
    M: Fn() -> Result<S, QueryError> + Send + Sync + 'static,
    S: Sink,
{
    /// As many more as there are cores and tickets.
    fn recruit(self: Arc<Self>, seed: &Stage, own: &Share) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut others = 0;
        while others + 1 < workers()
            && let Some(seed) = seed.part(own)
            && let Some(assistant) = tickets::assistant()
        {
            others += 1;
            let team = self.clone();
            runtime.spawn_blocking(move || {
                let Some(presence) = Presence::begin(team) else {
                    return;
                };
                let team = &presence.0;
                assistant.run(|| {
                    let mut part = None;
                    while !tickets::is_waited_for()
                        && let Some(share) = team.next()
                    {
                        team.work(&seed, share, others, &mut part);
                    }
                    team.hand_in(&mut part);
                });
            });
        }
    }

    fn next(&self) -> Option<Share> {
        let has_ended = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        match has_ended(&self.stopped) || has_ended(&self.full) {
            true => None,
            false => self.shares.take(),
        }
    }

    /// What is left for the first worker, once the others have nothing that it could have.
    fn rest(&self, part: &mut Option<Part<S>>) -> Option<Share> {
        loop {
            if let Some(share) = self.next() {
                return Some(share);
            }
            self.hand_in(part);
            let mut state = self.state.lock();
            if state.assistants == 0 {
                // The last one may have left something.
                let left = self.next();
                state.is_over = left.is_none();
                return left;
            }
            self.left.wait_for(&mut state, LOOK);
            drop(state);
            if let Err(error) = self.slot.check() {
                self.fail(error);
            }
        }
    }

    /// Reads a share, or as much of it as a worker may that others wait for, into what it has of
    /// others if that goes on.
    fn work(&self, seed: &Stage, share: Share, worker: usize, part: &mut Option<Part<S>>) {
        if let Some(known) = part
            && !known.sink.begin(share.start)
        {
            self.hand_in(part);
        }
        if let Err(error) = self.read(seed, &share, worker, part) {
            self.fail(error);
        }
    }

    /// What a worker has is complete.
    fn hand_in(&self, part: &mut Option<Part<S>>) {
        let Some(mut part) = part.take() else { return };
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        match part.sink.seal() {
            Ok(()) => self.state.lock().parts.push(part),
            Err(error) => self.fail(error),
        }
    }

    fn read(
        &self,
        seed: &Stage,
        share: &Share,
        worker: usize,
        part: &mut Option<Part<S>>,
    ) -> Result<(), QueryError> {
        let mut stage = seed.part(share).ok_or_else(broken)?;
        let part = match part {
            Some(part) => part,
            None => {
                let mut sink = (self.make)()?;
                sink.begin(share.start);
                part.insert(Part {
                    start: share.start,
                    sink,
                    stage: seed.part(share).ok_or_else(broken)?,
                    examined: Examined::default(),
                    worker,
                })
            }
        };
        let mut ticker = Ticker::new(self.slot.clone());
        let batch = stage.batch_members();
        let mut out: Vec<Member> = Vec::new();
        let counts = part.sink.count(0);
        let keeps_members = part.sink.keeps_members();
        loop {
            let mut run = Run::new(&self.snapshot, &mut ticker, &mut part.examined, u64::MAX);
            let mut reached = None;
            let progress = if counts {
                let (found, progress) = stage.pass(&mut run, COUNTED_AT_ONCE)?;
                part.sink.count(found);
                progress
            } else if keeps_members {
                let progress = stage.next(&mut run, part.sink.wanted(batch), &mut out)?;
                for member in out.drain(..) {
                    reached = member.record.as_number();
                    part.sink.keep(member)?;
                }
                progress
            } else {
                let (wanted, sink) = (part.sink.wanted(batch), &mut part.sink);
                stage.visit(&mut run, wanted, &mut |member| {
                    reached = member.record.as_number();
                    sink.take(member)
                })?
            };
            if part.sink.is_full() {
                self.full.store(true, Ordering::Relaxed);
                match reached.filter(|_| progress == Progress::More) {
                    Some(reached) => {
                        share.give_back(reached.saturating_add(1));
                        break;
                    }
                    // What was claimed has to be read.
                    None => share.leave(),
                }
            }
            if progress == Progress::End || self.stopped.load(Ordering::Relaxed) {
                break;
            }
            if worker > 0 && tickets::is_waited_for() {
                share.leave();
            }
        }
        part.stage.absorb(&stage);
        Ok(())
    }

    fn fail(&self, error: QueryError) {
        self.stopped.store(true, Ordering::Relaxed);
        self.state.lock().failed.get_or_insert(error);
    }

    fn finish(&self) -> Result<Option<Vec<Part<S>>>, QueryError> {
        let mut state = self.state.lock();
        let mut parts = std::mem::take(&mut state.parts);
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        parts.sort_by_key(|part| part.start);
        Ok(Some(parts))
    }
}

fn broken() -> QueryError {
    QueryError::new(ErrorKind::InternalError, "a worker of the operation failed")
}

/// An assistant at work; it has left when this is gone.
struct Presence<M, S>(Arc<Team<M, S>>);

impl<M, S> Presence<M, S> {
    fn begin(team: Arc<Team<M, S>>) -> Option<Presence<M, S>> {
        let mut state = team.state.lock();
        if state.is_over {
            return None;
        }
        state.assistants += 1;
        drop(state);
        Some(Presence(team))
    }
}

impl<M, S> Drop for Presence<M, S> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.assistants -= 1;
        if std::thread::panicking() {
            self.0.stopped.store(true, Ordering::Relaxed);
            state.failed.get_or_insert_with(broken);
        }
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests;
