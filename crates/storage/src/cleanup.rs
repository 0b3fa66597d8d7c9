//! Removing what was dropped, in the background.
//!
//! A drop takes a collection or index out of the catalog and leaves a mark in meta, in one batch.
//! A thread then removes the data: whole tables first, what is left key by key in small batches.
//! It starts once no reader holds the catalog entry any more, since a reader takes its snapshot
//! only after it has looked the entry up. Marks that a crash left behind are found on opening.

pub(crate) mod dropped;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use banyan_crash::{Point, pass};

use crate::StorageError;
use crate::engine::Engine;
use crate::keyspaces::{Keyspace, Operation};
use dropped::{Dropped, Kind};

const IN_USE_POLL: Duration = Duration::from_millis(200);

/// The thread that removes. Dropping this ends and joins it; marks stay for the next opening.
pub(crate) struct Cleaner {
    work: Option<Sender<(u64, Vec<Dropped>)>>,
    engine: Weak<Engine>,
    pending: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    pub(crate) fn start(engine: Arc<Engine>, left: Vec<Dropped>) -> io::Result<Cleaner> {
        let (work, arrivals) = mpsc::channel::<(u64, Vec<Dropped>)>();
        let pending = Arc::new(AtomicUsize::new(left.len()));
        let counter = pending.clone();
        let known = Arc::downgrade(&engine);
        let thread = thread::Builder::new()
            .name("storage-cleanup".to_owned())
            .spawn(move || {
                let epoch = engine.epoch.load(Ordering::Acquire);
                let mut waiting: Vec<(u64, Dropped)> =
                    left.into_iter().map(|dropped| (epoch, dropped)).collect();
                loop {
                    let arrived = if waiting.is_empty() {
                        arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected)
                    } else {
                        arrivals.recv_timeout(IN_USE_POLL)
                    };
                    match arrived {
                        Ok((epoch, dropped)) => {
                            waiting.extend(dropped.into_iter().map(|dropped| (epoch, dropped)));
                        }
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    waiting.retain(|(epoch, dropped)| {
                        let void = *epoch != engine.epoch.load(Ordering::Acquire);
                        if !void && dropped.is_in_use() {
                            return true;
                        }
                        if void {
                            // An import has replaced all that there was.
                        } else if let Err(error) = remove(&engine, dropped) {
                            tracing::error!(%error, ?dropped, "cannot remove dropped data");
                        }
                        counter.fetch_sub(1, Ordering::Release);
                        false
                    });
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

fn remove(engine: &Engine, dropped: &Dropped) -> Result<(), StorageError> {
    let keyspace = match dropped.kind {
        Kind::Collection => Keyspace::Records,
        Kind::Index => Keyspace::Indexes,
    };
    engine.remove_all(keyspace, dropped.id)?;
    pass(Point::CleanupEnding);
    let mark = Operation {
        keyspace: Keyspace::Meta,
        key: dropped.meta_key().into(),
        value: None,
    };
    engine.write(vec![mark])
}
