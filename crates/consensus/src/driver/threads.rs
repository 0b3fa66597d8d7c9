//! The threads of a group: one that drives the core, one that applies, one that looks after the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::Shared;
use crate::error::Error;
use crate::machine::StateMachine;

/// Dropping them ends them.
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
        shared.threaded.store(true, Ordering::Release);
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
            drop(shared.asked.lock().take());
        }
    }
}

impl<S: StateMachine> Drop for Threads<S> {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        self.stop(&shared);
    }
}
