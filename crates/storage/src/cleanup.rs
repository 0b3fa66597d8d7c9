//! Removing what was dropped, in the background.
//!
//! A drop takes a collection or index out of the catalog and leaves a mark in meta, in one batch.
//! A thread then removes the data. It starts once no reader holds the catalog entry any more, since
//! a reader takes its snapshot only after it has looked the entry up.
//!
//! Tables of the engine that hold nothing but what was dropped go as a whole. What shares a table
//! with something else, or is in memory still, waits: the memory becomes a table some day, and
//! neighbours are dropped as well. Only after a while is the rest removed key by key, which costs as
//! much as writing it did, and has the engine merge tables that would not have to be merged. Marks
//! that a crash left behind are found on opening.

mod dead;
pub(crate) mod dropped;
mod removal;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::engine::Engine;
use dropped::Dropped;
use removal::Removal;

/// The thread that removes. Dropping this ends and joins it; marks stay for the next opening.
pub(crate) struct Cleaner {
    work: Option<Sender<(u64, Vec<Dropped>)>>,
    engine: Weak<Engine>,
    pending: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// `delay`: see [`crate::StoreOptions::removal_delay`].
    pub(crate) fn start(
        engine: Arc<Engine>,
        left: Vec<Dropped>,
        delay: Duration,
    ) -> io::Result<Cleaner> {
        let (work, arrivals) = mpsc::channel::<(u64, Vec<Dropped>)>();
        let pending = Arc::new(AtomicUsize::new(left.len()));
        let counter = pending.clone();
        let known = Arc::downgrade(&engine);
        let thread = thread::Builder::new()
            .name("storage-cleanup".to_owned())
            .spawn(move || {
                let epoch = engine.epoch.load(Ordering::Acquire);
                let mut removal = Removal::new(engine, delay, counter);
                removal.add(epoch, left);
                loop {
                    removal.look();
                    let arrived = match removal.pause() {
                        None => arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
                        Some(pause) => arrivals.recv_timeout(pause),
                    };
                    match arrived {
                        Ok((epoch, dropped)) => removal.add(epoch, dropped),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    for (epoch, dropped) in arrivals.try_iter() {
                        removal.add(epoch, dropped);
                    }
                }
            })?;
        Ok(Cleaner {
            work: Some(work),
            engine: known,
            pending,
            thread: Some(thread),
        })
    }

    pub(crate) fn remove(&self, dropped: Vec<Dropped>) {
        self.pending.fetch_add(dropped.len(), Ordering::Release);
        if let (Some(work), Some(engine)) = (&self.work, self.engine.upgrade()) {
            // The thread ends only with this value.
            let _ = work.send((engine.epoch.load(Ordering::Acquire), dropped));
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
