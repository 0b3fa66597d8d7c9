//! One plan on all cores.
//!
//! What a large scan finds is taken in by sinks: a count, the groups of a `$group`. The scan is divided among workers ([`crate::shares`]), each with operators and a sink of its own for
//! every share that it reads; the sinks are handed back in the order of the collection, to be put
//! together.
//!
//! The thread that runs the operation is the first worker. The others are there while tickets are
//! free ([`tickets::assistant`]): as soon as somebody waits for one they leave what they have not
//! begun to whoever goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use banyan_query::{ErrorKind, QueryError};
use banyan_storage::Snapshot;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;

use crate::interrupt::{InterruptSlot, Ticker};
use crate::operators::{Examined, Member, Progress, Run, Stage};
use crate::row::Row;
use crate::shares::{Share, Shares};
use crate::tickets;

/// So many members are read at once.
const BATCH_MEMBERS: usize = 64;
/// How often a worker that waits for the others looks at its interrupt.
const LOOK: Duration = Duration::from_millis(5);

/// What becomes of the rows of a share.
pub trait Sink: Send + 'static {
    fn take(&mut self, row: Row) -> Result<(), QueryError>;
}

/// How many there are.
#[derive(Debug, Default)]
pub struct Counter(pub u64);

impl Sink for Counter {
    fn take(&mut self, _: Row) -> Result<(), QueryError> {
        self.0 += 1;
        Ok(())
    }
}

/// What one worker has done with one share.
pub struct Part<S> {
    start: u64,
    pub sink: S,
    /// The operators that have read it.
    pub stage: Stage,
    pub examined: Examined,
    /// Which worker it was; the operation's own thread is 0.
    pub worker: usize,
}

/// What all workers of an operation share.
struct Team<M, S> {
    shares: Arc<Shares>,
    snapshot: Snapshot,
    slot: Arc<InterruptSlot>,
    make: M,
    /// Somebody has failed, or the operation ends.
    stopped: AtomicBool,
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
pub fn run<M, S>(
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
        state: Mutex::new(State {
            parts: Vec::new(),
            failed: None,
            assistants: 0,
            is_over: false,
        }),
        left: Condvar::new(),
    });
    team.clone().recruit(&seed, &own);
    let mut share = Some(own);
    while let Some(own) = share {
        team.work(&seed, own, 0);
        share = team.rest();
    }
    team.finish()
}

/// As many as there are cores.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
                    while !tickets::is_waited_for()
                        && let Some(share) = team.next()
                    {
                        team.work(&seed, share, others);
                    }
                });
            });
        }
    }

    fn next(&self) -> Option<Share> {
        match self.stopped.load(Ordering::Relaxed) {
            true => None,
            false => self.shares.take(),
        }
    }

    /// What is left for the first worker, once the others have nothing that it could have.
    fn rest(&self) -> Option<Share> {
        loop {
            if let Some(share) = self.next() {
                return Some(share);
            }
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

    /// Reads a share, or as much of it as a worker may that others wait for.
    fn work(&self, seed: &Stage, share: Share, worker: usize) {
        match self.read(seed, &share, worker) {
            Ok(part) => self.state.lock().parts.push(part),
            Err(error) => self.fail(error),
        }
    }

    fn read(&self, seed: &Stage, share: &Share, worker: usize) -> Result<Part<S>, QueryError> {
        let mut stage = seed.part(share).ok_or_else(broken)?;
        let mut sink = (self.make)()?;
        let mut ticker = Ticker::new(self.slot.clone());
        let mut examined = Examined::default();
        let mut out: Vec<Member> = Vec::with_capacity(BATCH_MEMBERS);
        loop {
            let mut run = Run::new(&self.snapshot, &mut ticker, &mut examined, u64::MAX);
            let progress = stage.next(&mut run, BATCH_MEMBERS, &mut out)?;
            for member in out.drain(..) {
                if let Some(row) = member.row {
                    sink.take(row)?;
                }
            }
            if progress == Progress::End || self.stopped.load(Ordering::Relaxed) {
                break;
            }
            if worker > 0 && tickets::is_waited_for() {
                share.leave();
            }
        }
        Ok(Part {
            start: share.start,
            sink,
            stage,
            examined,
            worker,
        })
    }

    fn fail(&self, error: QueryError) {
        self.stopped.store(true, Ordering::Relaxed);
        self.state.lock().failed.get_or_insert(error);
    }

    fn finish(&self) -> Result<Option<Vec<Part<S>>>, QueryError> {
        let mut state = self.state.lock();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let mut parts = std::mem::take(&mut state.parts);
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
mod tests {
    use super::*;
    use crate::fixture::{Fixture, request};
    use crate::interrupt::{Cause, Interrupt};
    use crate::tickets::Tickets;
    use bson::{RawDocumentBuf, rawdoc};

    const DOCUMENTS: i32 = 20_000;

    /// The ids that a part has seen, in its order.
    #[derive(Default)]
    struct Ids(Vec<i32>);

    impl Sink for Ids {
        fn take(&mut self, row: Row) -> Result<(), QueryError> {
            self.0.push(row.get_i32("_id").unwrap());
            Ok(())
        }
    }

    fn collection(fixture: &Fixture) -> Arc<banyan_storage::Collection> {
        let document = |id| rawdoc! { "_id": id, "a": id % 7 };
        let documents: Vec<RawDocumentBuf> = (0..DOCUMENTS).map(document).collect();
        fixture.collection("c", &documents, &[])
    }

    fn interrupt() -> Interrupt {
        Interrupt::new(Arc::default(), None)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_document_is_seen_once_and_in_order() {
        let fixture = Fixture::new();
        let collection = collection(&fixture);
        let work = async || {
            let mut executor =
                fixture.open(&collection, &request(&rawdoc! {"a": {"$lt": 3}}, None));
            let parts = executor.divide(|| Ok(Ids::default())).unwrap().unwrap();
            let ids = parts.into_iter().flat_map(|part| part.0);
            assert!(ids.eq((0..DOCUMENTS).filter(|id| id % 7 < 3)));
            assert!(executor.next_record().unwrap().is_none(), "it has ended");
            let run = executor.explain_run();
            assert_eq!(run.get_i32("docsExamined").unwrap(), DOCUMENTS);
            let mut executor = fixture.open(&collection, &request(&rawdoc! {"a": 3}, None));
            assert_eq!(executor.count_up_to(u64::MAX).unwrap(), 2857);
        };
        // With tickets for more threads than one, and for one alone.
        for total in [8, 1] {
            Tickets::new(total).run(&interrupt(), work()).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all_workers_end_with_the_operation() {
        let fixture = Fixture::new();
        let collection = collection(&fixture);
        let work = async {
            let killed = interrupt();
            killed.raise(Cause::Killed);
            let slot = Arc::new(InterruptSlot::default());
            slot.set(Some(killed));
            let request = request(&rawdoc! {}, None);
            let mut executor = fixture.open_in(&collection, &request, None, &slot);
            let outcome = executor.divide(|| Ok(Ids::default()));
            assert!(matches!(outcome, Err(error) if error.kind == ErrorKind::Interrupted));
            // The executor's own handle and this one are left.
            while Arc::strong_count(&slot) > 2 {
                tokio::task::yield_now().await;
            }
        };
        Tickets::new(8).run(&interrupt(), work).await.unwrap();
    }
}
