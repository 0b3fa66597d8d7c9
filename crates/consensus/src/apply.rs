//! Bringing committed entries into the state machine, in order, off the thread that keeps the
//! group alive: a long apply must not look like a dead leader.
//!
//! A group of one that does not wait for the disk applies on the thread that proposed, as long as
//! nothing older waits in the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_crash::{Point, pass};
use futures::channel::oneshot;
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::Message;

use crate::error::ProposeError;
use crate::machine::{Committed, Position, SnapshotMeta, StateMachine};

/// Applied together, at most: one storage batch is built from them in memory.
const BATCH_BYTES_MAX: usize = 8 << 20;

pub(crate) type Answer = oneshot::Sender<Result<Position, ProposeError>>;

/// An entry on its way, and whoever waits for it.
pub(crate) struct Item<P> {
    pub committed: Committed<P>,
    pub answer: Option<Answer>,
    /// The answer waits until the log is synced.
    pub answer_synced: bool,
}

pub(crate) enum Job<P> {
    Entries(Vec<Item<P>>),
    Install {
        meta: SnapshotMeta,
        held: Box<Message>,
    },
}

/// What the applier tells its surroundings.
pub(crate) trait Listener {
    fn applied(&self, position: Position);
    /// Answers that may go out once everything written so far is synced.
    fn after_sync(&self, answers: Vec<(Answer, Position)>);
    fn installed(&self, held: Message, success: bool);
    fn fatal(&self, what: &str);
}

struct Queue<P> {
    jobs: VecDeque<Job<P>>,
    /// What the entries among them hold.
    bytes: usize,
    /// Somebody is applying right now.
    busy: bool,
    stopped: bool,
}

impl<P> Queue<P> {
    fn extend(&mut self, jobs: Vec<Job<P>>) {
        for job in &jobs {
            if let Job::Entries(items) = job {
                self.bytes += size(items);
            }
        }
        self.jobs.extend(jobs);
    }
}

fn size<P>(items: &[Item<P>]) -> usize {
    items.iter().map(|item| item.committed.data.len()).sum()
}

pub(crate) struct Applier<S: StateMachine> {
    machine: Arc<S>,
    queue: Mutex<Queue<S::Prepared>>,
    work: Condvar,
    /// Shared with the log, which offers snapshots at it.
    position: Arc<Mutex<Position>>,
    index: AtomicU64,
    /// Those who wait for an index to be applied.
    waiting: Mutex<Vec<(u64, oneshot::Sender<u64>)>>,
}

impl<S: StateMachine> Applier<S> {
    pub fn new(machine: Arc<S>, position: Arc<Mutex<Position>>) -> Applier<S> {
        let index = position.lock().index;
        Applier {
            machine,
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                bytes: 0,
                busy: false,
                stopped: false,
            }),
            work: Condvar::new(),
            position,
            index: AtomicU64::new(index),
            waiting: Mutex::new(Vec::new()),
        }
    }

    pub fn applied(&self) -> Position {
        *self.position.lock()
    }

    pub fn applied_index(&self) -> u64 {
        self.index.load(Ordering::Acquire)
    }

    pub fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes
    }

    pub fn push(&self, jobs: Vec<Job<S::Prepared>>) {
        let mut queue = self.queue.lock();
        queue.extend(jobs);
        if !queue.busy {
            self.work.notify_one();
        }
    }

    /// Applies on this thread if nothing is before it, and queues otherwise.
    pub fn push_inline(&self, jobs: Vec<Job<S::Prepared>>, listener: &impl Listener) {
        {
            let mut queue = self.queue.lock();
            if queue.busy || !queue.jobs.is_empty() {
                queue.extend(jobs);
                return;
            }
            queue.busy = true;
        }
        for job in jobs {
            self.run(job, listener);
        }
        let mut queue = self.queue.lock();
        queue.busy = false;
        if !queue.jobs.is_empty() {
            self.work.notify_one();
        }
    }

    /// The applying thread.
    pub fn serve(&self, listener: &impl Listener) {
        while let Some(job) = self.next() {
            self.run(job, listener);
            self.queue.lock().busy = false;
        }
    }

    /// Does what waits first, if anything does and nobody else is at it.
    #[cfg(feature = "simulation")]
    pub fn serve_once(&self, listener: &impl Listener) -> bool {
        let job = self.take(&mut self.queue.lock());
        let Some(job) = job else {
            return false;
        };
        self.run(job, listener);
        self.queue.lock().busy = false;
        true
    }

    pub fn stop(&self) {
        self.queue.lock().stopped = true;
        self.work.notify_all();
    }

    /// Resolves once `index` is applied.
    pub fn wait_for(&self, index: u64, answer: oneshot::Sender<u64>) {
        let mut waiting = self.waiting.lock();
        if self.applied_index() >= index {
            // Whoever asked may have left.
            let _ = answer.send(index);
        } else {
            waiting.retain(|(_, answer)| !answer.is_canceled());
            waiting.push((index, answer));
        }
    }

    /// Takes a job, with the entries of those behind it as far as they fit.
    fn next(&self) -> Option<Job<S::Prepared>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(job) = self.take(&mut queue) {
                return Some(job);
            }
            self.work.wait(&mut queue);
        }
    }

    fn take(&self, queue: &mut Queue<S::Prepared>) -> Option<Job<S::Prepared>> {
        if queue.stopped || queue.busy || queue.jobs.is_empty() {
            return None;
        }
        #[cfg(feature = "simulation")]
        if crate::simulated::world::planted(crate::simulated::world::Bug::ApplyOutOfOrder)
            && queue.jobs.len() > 1
        {
            queue.jobs.swap(0, 1);
        }
        queue.busy = true;
        let mut job = queue.jobs.pop_front();
        if let Some(Job::Entries(items)) = &mut job {
            let mut bytes = size(items);
            while let Some(Job::Entries(more)) = queue.jobs.front_mut() {
                let more_bytes = size(more);
                if bytes + more_bytes > BATCH_BYTES_MAX {
                    break;
                }
                bytes += more_bytes;
                items.append(more);
                queue.jobs.pop_front();
            }
            queue.bytes -= bytes;
        }
        job
    }

    fn run(&self, job: Job<S::Prepared>, listener: &impl Listener) {
        match job {
            Job::Entries(items) => self.apply(items, listener),
            Job::Install { meta, held } => {
                let outcome = self.machine.install_snapshot(meta);
                pass(Point::SnapshotInstalled);
                if let Err(error) = &outcome {
                    tracing::warn!(%error, "a snapshot could not be installed");
                }
                self.advance(self.machine.applied(), listener);
                listener.installed(*held, outcome.is_ok());
            }
        }
    }

    fn apply(&self, items: Vec<Item<S::Prepared>>, listener: &impl Listener) {
        let applied = self.applied();
        let mut entries = Vec::with_capacity(items.len());
        let mut answers = Vec::new();
        let mut late_answers = Vec::new();
        for item in items {
            let position = item.committed.position;
            if let Some(answer) = item.answer {
                let list = if item.answer_synced {
                    &mut late_answers
                } else {
                    &mut answers
                };
                list.push((answer, position));
            }
            // A snapshot may have brought the state further than the log.
            let later = position.index > applied.index;
            #[cfg(feature = "simulation")]
            let later =
                later || crate::simulated::world::planted(crate::simulated::world::Bug::ApplyTwice);
            if later {
                entries.push(item.committed);
            }
        }
        if let Some(last) = entries.last().map(|entry| entry.position) {
            pass(Point::Applying);
            if let Err(error) = self.machine.apply(entries) {
                listener.fatal(&format!("entry {} cannot be applied: {error}", last.index));
                return;
            }
            pass(Point::Applied);
            self.advance(last, listener);
        }
        for (answer, position) in answers {
            let _ = answer.send(Ok(position));
        }
        if !late_answers.is_empty() {
            listener.after_sync(late_answers);
        }
    }

    fn advance(&self, position: Position, listener: &impl Listener) {
        *self.position.lock() = position;
        self.index.store(position.index, Ordering::Release);
        listener.applied(position);
        let mut waiting = self.waiting.lock();
        if !waiting.is_empty() {
            let (ready, later) = waiting
                .drain(..)
                .partition(|&(index, _)| index <= position.index);
            *waiting = later;
            let ready: Vec<(u64, oneshot::Sender<u64>)> = ready;
            for (index, answer) in ready {
                let _ = answer.send(index);
            }
        }
    }
}
