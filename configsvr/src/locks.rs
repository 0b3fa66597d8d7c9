//! Who may change what at once, on this config primary.
//!
//! Changes of one collection's metadata run one after another under the namespace's lock; a shard
//! takes part in at most one migration at a time. Definitions (what exists, which indexes it has)
//! change one after another as well, each under its namespace's lock for them, and indexes only
//! while no chunk of the collection moves. Whoever needs more than one takes them in this order: the
//! database's, the definitions', the moves', the namespace's.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{
    Mutex as AsyncMutex, Notify, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard,
    RwLock,
};

/// Names that nobody holds or waits for are forgotten beyond this many.
const NAMES_KEPT: usize = 10_000;

/// Locks by name, made when first used.
#[derive(Default)]
pub struct NamedLocks {
    locks: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
}

impl NamedLocks {
    pub async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            // Names that nobody holds or waits for are forgotten now and then.
            if locks.len() > NAMES_KEPT {
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            locks.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}

/// As [`NamedLocks`], to be had by many readers at once.
#[derive(Default)]
pub struct NamedRwLocks {
    locks: Mutex<HashMap<String, Arc<RwLock<()>>>>,
}

impl NamedRwLocks {
    pub async fn read(&self, name: &str) -> OwnedRwLockReadGuard<()> {
        self.named(name).read_owned().await
    }

    pub async fn write(&self, name: &str) -> OwnedRwLockWriteGuard<()> {
        self.named(name).write_owned().await
    }

    fn named(&self, name: &str) -> Arc<RwLock<()>> {
        let mut locks = self.locks.lock();
        if locks.len() > NAMES_KEPT {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        locks.entry(name.to_owned()).or_default().clone()
    }
}

/// The shards that take part in a migration.
#[derive(Default)]
pub struct Slots {
    busy: Mutex<BTreeSet<Arc<str>>>,
    freed: Notify,
}

/// Two shards, free again when this is dropped.
pub struct Pair {
    slots: Arc<Slots>,
    shards: [Arc<str>; 2],
}

impl Slots {
    pub fn busy(&self) -> BTreeSet<Arc<str>> {
        self.busy.lock().clone()
    }

    pub fn try_take(self: &Arc<Self>, from: &Arc<str>, to: &Arc<str>) -> Option<Pair> {
        let mut busy = self.busy.lock();
        if from == to || busy.contains(from) || busy.contains(to) {
            return None;
        }
        busy.insert(from.clone());
        busy.insert(to.clone());
        Some(Pair {
            slots: self.clone(),
            shards: [from.clone(), to.clone()],
        })
    }

    /// Waits until both shards are free.
    pub async fn take(
        self: &Arc<Self>,
        from: &Arc<str>,
        to: &Arc<str>,
        patience: Duration,
    ) -> Option<Pair> {
        let waiting = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(pair) = self.try_take(from, to) {
                    return pair;
                }
                freed.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.ok()
    }

    /// Waits until no migration runs.
    pub async fn wait_until_idle(&self, patience: Duration) -> bool {
        let waiting = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if self.busy.lock().is_empty() {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.is_ok()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let mut busy = self.slots.busy.lock();
        for shard in &self.shards {
            busy.remove(shard);
        }
        drop(busy);
        self.slots.freed.notify_waiters();
    }
}
