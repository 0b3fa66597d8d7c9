//! Removing what was dropped, in the background.
//!
//! A drop takes a collection or index out of the catalog and leaves a mark in meta, in one batch.
//! A thread then removes the data: whole tables first, what is left key by key in small batches.
//! It starts once no reader holds the catalog entry any more, since a reader takes its snapshot
//! only after it has looked the entry up. Marks that a crash left behind are found on opening.

use std::any::Any;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use banyan_crash::{Point, pass};
use fjall::{AbstractTree, Readable};

use crate::StorageError;
use crate::batch::{Keyspace, Operation};
use crate::build::IndexBuild;
use crate::catalog::{Collection, Index};
use crate::keys::{self, IndexId};
use crate::store::Engine;

const BATCH_KEYS: usize = 500;
const IN_USE_POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Collection,
    Index,
}

/// Something that is to be removed.
#[derive(Debug, Clone)]
pub(crate) struct Dropped {
    kind: Kind,
    id: u32,
    reader: Option<Weak<dyn Any + Send + Sync>>,
}

impl Dropped {
    /// A collection's records and each of its indexes.
    pub(crate) fn collection(collection: &Arc<Collection>) -> Vec<Dropped> {
        let counters: Arc<dyn Any + Send + Sync> = collection.counters.clone();
        let reader = Some(Arc::downgrade(&counters));
        let records = Dropped {
            kind: Kind::Collection,
            id: collection.id,
            reader,
        };
        let mut dropped = vec![records];
        dropped.extend(collection.indexes.iter().map(Dropped::index));
        let builds = collection.builds.iter();
        dropped.extend(builds.flat_map(Dropped::build));
        dropped
    }

    /// The indexes of a build that comes to nothing, and what was in their way.
    pub(crate) fn build(build: &Arc<IndexBuild>) -> Vec<Dropped> {
        let mut dropped: Vec<Dropped> = build.indexes.iter().map(Dropped::index).collect();
        let held: Arc<dyn Any + Send + Sync> = build.building.clone();
        dropped.push(Dropped {
            kind: Kind::Index,
            id: build.building.duplicates,
            reader: Some(Arc::downgrade(&held)),
        });
        dropped
    }

    /// One index, ready or still loaded. With a build's last index goes the build.
    pub(crate) fn index_of(collection: &Collection, id: IndexId) -> Vec<Dropped> {
        let is_last =
            |build: &&Arc<IndexBuild>| matches!(&build.indexes[..], [only] if only.id == id);
        if let Some(build) = collection.builds.iter().find(is_last) {
            return Dropped::build(build);
        }
        let index = collection.written_by_id(id);
        index.map(Dropped::index).into_iter().collect()
    }

    pub(crate) fn index(index: &Arc<Index>) -> Dropped {
        let held: Arc<dyn Any + Send + Sync> = index.clone();
        Dropped {
            kind: Kind::Index,
            id: index.id,
            reader: Some(Arc::downgrade(&held)),
        }
    }

    pub(crate) fn meta_key(&self) -> [u8; 6] {
        let kind = match self.kind {
            Kind::Collection => b'c',
            Kind::Index => b'i',
        };
        let mut key = [keys::DROPPED, kind, 0, 0, 0, 0];
        key[2..].copy_from_slice(&self.id.to_be_bytes());
        key
    }

    pub(crate) fn parse(key: &[u8]) -> Option<Dropped> {
        let (kind, id) = match key {
            [keys::DROPPED, b'c', id @ ..] => (Kind::Collection, id),
            [keys::DROPPED, b'i', id @ ..] => (Kind::Index, id),
            _ => return None,
        };
        Some(Dropped {
            kind,
            id: u32::from_be_bytes(id.try_into().ok()?),
            reader: None,
        })
    }

    fn is_in_use(&self) -> bool {
        self.reader
            .as_ref()
            .is_some_and(|reader| reader.strong_count() > 0)
    }
}

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
    let keyspaces = engine.keyspaces();
    let (keyspace, tree) = match dropped.kind {
        Kind::Collection => (Keyspace::Records, &keyspaces.records),
        Kind::Index => (Keyspace::Indexes, &keyspaces.indexes),
    };
    let start = dropped.id.to_be_bytes().to_vec();
    let end = keys::end_of_id(dropped.id);
    let bounds = (Bound::Included(start.clone()), end.clone());
    // Takes out the tables that hold nothing else.
    tree.tree
        .drop_range::<Vec<u8>, _>(bounds)
        .map_err(fjall::Error::from)?;
    let mut from = Bound::Included(start);
    let epoch = engine.epoch.load(Ordering::Acquire);
    while engine.epoch.load(Ordering::Acquire) == epoch {
        let view = engine.database.snapshot();
        let mut operations = Vec::with_capacity(BATCH_KEYS);
        for guard in view
            .range::<Vec<u8>, _>(tree, (from.clone(), end.clone()))
            .take(BATCH_KEYS)
        {
            operations.push(Operation {
                keyspace,
                key: guard.key()?,
                value: None,
            });
        }
        let Some(last) = operations.last() else { break };
        from = Bound::Excluded(last.key.to_vec());
        engine.write(operations)?;
        pass(Point::CleanupPart);
    }
    pass(Point::CleanupEnding);
    let mark = Operation {
        keyspace: Keyspace::Meta,
        key: dropped.meta_key().into(),
        value: None,
    };
    engine.write(vec![mark])
}
