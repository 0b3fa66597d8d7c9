//! Locks on databases and collections, in MongoDB's modes.
//!
//! A write of documents locks its collection [`Mode::IntentExclusive`], so that the collection, its
//! indexes and what a shard says of it stay what they are until the write is done. Who changes a
//! collection locks it [`Mode::Exclusive`], below an intent lock on its database; who drops a
//! database locks that exclusively, and with it every collection that it has. Reads lock nothing:
//! they have their snapshot.
//!
//! Waiting is asynchronous and first come, first served: who comes after one that waits for an
//! incompatible lock waits behind it. To be free of deadlocks, several locks are taken in one
//! order: databases before collections, each by their number. A write unit that goes from collection
//! to collection cannot keep to that, so it gives up after a short while.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use banyan_storage::Namespace;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::latches::AsIs;

const SHARDS: usize = 64;
/// So many locks of a shard are remembered though nobody holds them: most are taken again.
const UNUSED_MAX: usize = 16;
/// How long writes queue up behind whoever gives way to them.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// So many times they do not wait longer than that.
const SHORT_ATTEMPTS: u32 = 250;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    IntentShared,
    IntentExclusive,
    Shared,
    Exclusive,
}

impl Mode {
    const ALL: [Mode; 4] = [
        Mode::IntentShared,
        Mode::IntentExclusive,
        Mode::Shared,
        Mode::Exclusive,
    ];

    /// As MongoDB writes it.
    pub fn short_name(self) -> &'static str {
        match self {
            Mode::IntentShared => "IS",
            Mode::IntentExclusive => "IX",
            Mode::Shared => "S",
            Mode::Exclusive => "X",
        }
    }

    /// Whether two may hold a lock in these modes at once.
    pub fn is_compatible_with(self, other: Mode) -> bool {
        use Mode::{Exclusive, IntentExclusive, IntentShared, Shared};
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => false,
            (IntentShared, _) | (_, IntentShared) => true,
            (IntentExclusive, IntentExclusive) | (Shared, Shared) => true,
            (IntentExclusive, Shared) | (Shared, IntentExclusive) => false,
        }
    }

    /// Whether who holds this needs not ask for the other.
    pub fn covers(self, other: Mode) -> bool {
        match self {
            Mode::Exclusive => true,
            Mode::IntentExclusive | Mode::Shared => self == other || other == Mode::IntentShared,
            Mode::IntentShared => other == Mode::IntentShared,
        }
    }
}

/// What is locked, as a hash of its name: two of one hash only wait for each other needlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    level: Level,
    number: u64,
}

impl Resource {
    pub fn is_database(&self) -> bool {
        self.level == Level::Database
    }

    pub fn number(&self) -> u64 {
        self.number
    }
}

/// What is locked at a moment: the modes in which it is held, once for each holder, and those that are
/// waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLock {
    pub resource: Resource,
    pub granted: Vec<Mode>,
    pub waiting: Vec<Mode>,
}

impl Hash for Resource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.number);
    }
}

/// In the order in which locks are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Database,
    Collection,
}

#[derive(Default)]
struct Head {
    /// How many hold it, by mode.
    granted: [u32; 4],
    waiting: VecDeque<Request>,
}

struct Request {
    id: u64,
    mode: Mode,
    granted: oneshot::Sender<()>,
}

impl Head {
    fn admits(&self, mode: Mode) -> bool {
        let mut held = Mode::ALL.iter().zip(self.granted);
        held.all(|(held, count)| count == 0 || mode.is_compatible_with(*held))
    }

    fn is_unused(&self) -> bool {
        self.waiting.is_empty() && self.granted == [0; 4]
    }

    /// Serves those in front for as long as that goes.
    fn grant_next(&mut self) {
        while self
            .waiting
            .front()
            .is_some_and(|front| self.admits(front.mode))
        {
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            // Who has given up meanwhile takes nothing.
            if request.granted.send(()).is_ok() {
                self.granted[request.mode as usize] += 1;
            }
        }
    }
}

type Shard = HashMap<Resource, Head, BuildHasherDefault<AsIs>>;

pub struct LockManager {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    next_request: AtomicU64,
}

/// A lock that is held until this is dropped.
pub struct Lock {
    manager: Arc<LockManager>,
    resource: Resource,
    mode: Mode,
}

impl Default for LockManager {
    fn default() -> Self {
        LockManager {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            next_request: AtomicU64::new(0),
        }
    }
}

impl LockManager {
    pub fn collection(&self, namespace: &Namespace) -> Resource {
        Resource {
            level: Level::Collection,
            number: self.hasher.hash_one(('c', namespace.as_str())),
        }
    }

    pub fn database(&self, name: &str) -> Resource {
        Resource {
            level: Level::Database,
            number: self.hasher.hash_one(('d', name)),
        }
    }

    /// Everything that is held or waited for, in the order in which locks are taken. Each shard as of
    /// when it was looked at.
    pub fn listing(&self) -> Vec<HeldLock> {
        let mut held = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let used = shard.iter().filter(|(_, head)| !head.is_unused());
            held.extend(used.map(|(resource, head)| {
                let granted = Mode::ALL.into_iter().zip(head.granted);
                let granted =
                    granted.flat_map(|(mode, count)| std::iter::repeat_n(mode, count as usize));
                HeldLock {
                    resource: *resource,
                    granted: granted.collect(),
                    waiting: head.waiting.iter().map(|request| request.mode).collect(),
                }
            }));
        }
        held.sort_by_key(|lock| lock.resource);
        held
    }

    /// The lock, if it can be had at once and nobody waits for it.
    pub fn try_lock(self: &Arc<Self>, resource: Resource, mode: Mode) -> Option<Lock> {
        let mut shard = self.shard(resource).lock();
        let head = shard.entry(resource).or_default();
        if !head.waiting.is_empty() || !head.admits(mode) {
            return None;
        }
        head.granted[mode as usize] += 1;
        Some(self.held(resource, mode))
    }

    /// Waits for its turn. Dropped before that, it leaves the line.
    pub async fn lock(self: &Arc<Self>, resource: Resource, mode: Mode) -> Lock {
        let mut turn = {
            let mut shard = self.shard(resource).lock();
            let head = shard.entry(resource).or_default();
            if head.waiting.is_empty() && head.admits(mode) {
                head.granted[mode as usize] += 1;
                return self.held(resource, mode);
            }
            let (sender, receiver) = oneshot::channel();
            let id = self.next_request.fetch_add(1, Ordering::Relaxed);
            head.waiting.push_back(Request {
                id,
                mode,
                granted: sender,
            });
            Turn {
                manager: self,
                resource,
                mode,
                id,
                granted: receiver,
                is_over: false,
            }
        };
        // A request leaves the line by being served, or with its turn.
        let _ = (&mut turn.granted).await;
        turn.is_over = true;
        self.held(resource, mode)
    }

    /// For whoever changes these collections, or makes them. Waits for the writes that have begun.
    pub async fn exclusive(self: &Arc<Self>, namespaces: &[&Namespace]) -> Vec<Lock> {
        let databases = namespaces
            .iter()
            .map(|name| (self.database(name.database()), Mode::IntentExclusive));
        let collections = namespaces
            .iter()
            .map(|name| (self.collection(name), Mode::Exclusive));
        self.all(databases.chain(collections).collect()).await
    }

    /// For whoever drops a database. Nobody makes a collection in it from then on; `namespaces`
    /// says which ones there are by then.
    pub async fn database_exclusive(
        self: &Arc<Self>,
        name: &str,
        namespaces: impl FnOnce() -> Vec<Namespace>,
    ) -> Vec<Lock> {
        let mut locks = vec![self.lock(self.database(name), Mode::Exclusive).await];
        let collections = namespaces();
        let collections = collections
            .iter()
            .map(|name| (self.collection(name), Mode::Exclusive));
        locks.append(&mut self.all(collections.collect()).await);
        locks
    }

    /// As [`LockManager::exclusive`], for a caller that can wait longer than the writes that would queue
    /// up behind it: while a long write is under way, it lets them pass again and again, though less
    /// readily as time goes by.
    pub async fn exclusive_giving_way(self: &Arc<Self>, namespaces: &[&Namespace]) -> Vec<Lock> {
        let mut wait_max = WAIT_MAX;
        for attempt in 1_u32.. {
            let locked = tokio::time::timeout(wait_max, self.exclusive(namespaces)).await;
            if let Ok(locks) = locked {
                return locks;
            }
            tokio::time::sleep(WAIT_MAX).await;
            if attempt > SHORT_ATTEMPTS {
                wait_max *= 2;
            }
        }
        self.exclusive(namespaces).await
    }

    async fn all(self: &Arc<Self>, mut wanted: Vec<(Resource, Mode)>) -> Vec<Lock> {
        wanted.sort_unstable_by_key(|(resource, _)| *resource);
        wanted.dedup_by_key(|(resource, _)| *resource);
        let mut locks = Vec::with_capacity(wanted.len());
        for (resource, mode) in wanted {
            locks.push(self.lock(resource, mode).await);
        }
        locks
    }

    fn held(self: &Arc<Self>, resource: Resource, mode: Mode) -> Lock {
        Lock {
            manager: self.clone(),
            resource,
            mode,
        }
    }

    fn release(&self, resource: Resource, mode: Mode) {
        let mut shard = self.shard(resource).lock();
        if let Some(head) = shard.get_mut(&resource) {
            let held = &mut head.granted[mode as usize];
            *held = held.saturating_sub(1);
            head.grant_next();
            if head.is_unused() && shard.len() > UNUSED_MAX {
                shard.remove(&resource);
            }
        }
    }

    fn shard(&self, resource: Resource) -> &Mutex<Shard> {
        &self.shards[resource.number as usize % SHARDS]
    }
}

impl Lock {
    pub fn resource(&self) -> Resource {
        self.resource
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The same lock once more: it is free when both are dropped.
    #[must_use]
    pub fn again(&self) -> Lock {
        let mut shard = self.manager.shard(self.resource).lock();
        if let Some(head) = shard.get_mut(&self.resource) {
            head.granted[self.mode as usize] += 1;
        }
        self.manager.held(self.resource, self.mode)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.manager.release(self.resource, self.mode);
    }
}

/// A place in the line.
struct Turn<'a> {
    manager: &'a LockManager,
    resource: Resource,
    mode: Mode,
    id: u64,
    granted: oneshot::Receiver<()>,
    is_over: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut shard = self.manager.shard(self.resource).lock();
        if let Some(head) = shard.get_mut(&self.resource) {
            head.waiting.retain(|request| request.id != self.id);
            // It may have been served and not come to know.
            if self.granted.try_recv().is_ok() {
                let held = &mut head.granted[self.mode as usize];
                *held = held.saturating_sub(1);
            }
            head.grant_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive, IntentExclusive, IntentShared, Shared};
    use futures::FutureExt;

    fn manager() -> (Arc<LockManager>, Resource) {
        let manager = Arc::new(LockManager::default());
        let resource = manager.collection(&Namespace::new("db", "c"));
        (manager, resource)
    }

    fn is_clean(manager: &LockManager) -> bool {
        let mut shards = manager.shards.iter().map(|shard| shard.lock());
        shards.all(|shard| shard.values().all(Head::is_unused))
    }

    #[test]
    fn modes_get_along_as_in_mongodbs_manual() {
        let table = [
            (IntentShared, [true, true, true, false]),
            (IntentExclusive, [true, true, false, false]),
            (Shared, [true, false, true, false]),
            (Exclusive, [false, false, false, false]),
        ];
        for (held, expected) in table {
            for (asked, expected) in Mode::ALL.into_iter().zip(expected) {
                let (manager, resource) = manager();
                let first = manager.try_lock(resource, held);
                let second = manager.try_lock(resource, asked);
                assert_eq!(second.is_some(), expected, "{asked:?} beside {held:?}");
                drop((first, second));
                assert!(is_clean(&manager));
            }
        }
    }

    #[test]
    fn collections_do_not_wait_for_each_other() {
        let manager = Arc::new(LockManager::default());
        let names: Vec<_> = (0..5000)
            .map(|n| Namespace::new("db", &format!("c{n}")))
            .collect();
        let lock = |name, mode| manager.try_lock(manager.collection(name), mode);
        let changing = lock(&names[0], Exclusive).unwrap();
        let writers = names[1..].iter().map(|name| lock(name, IntentExclusive));
        let writers: Vec<_> = writers.flatten().collect();
        assert_eq!(writers.len(), 4999);
        drop((changing, writers));
        assert!(is_clean(&manager));
        let remembered = manager.shards.iter().map(|shard| shard.lock().len());
        assert!(remembered.max() <= Some(UNUSED_MAX));
    }

    #[test]
    fn the_line_is_kept() {
        let (manager, resource) = manager();
        let writer = manager.try_lock(resource, IntentExclusive).unwrap();
        let mut change = Box::pin(manager.lock(resource, Exclusive));
        assert!(change.as_mut().now_or_never().is_none());
        // Though it would get along with the first one.
        let mut late = Box::pin(manager.lock(resource, IntentExclusive));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(manager.try_lock(resource, IntentShared).is_none());
        drop(writer);
        let changing = change.as_mut().now_or_never().expect("its turn");
        assert!(late.as_mut().now_or_never().is_none());
        drop(changing);
        drop(late.as_mut().now_or_never().expect("its turn"));
        drop((change, late));
        assert!(is_clean(&manager));
    }

    #[test]
    fn who_leaves_the_line_holds_up_nobody() {
        let (manager, resource) = manager();
        let writer = manager.try_lock(resource, IntentExclusive).unwrap();
        let mut change = Box::pin(manager.lock(resource, Exclusive));
        assert!(change.as_mut().now_or_never().is_none());
        let mut late = Box::pin(manager.lock(resource, IntentExclusive));
        assert!(late.as_mut().now_or_never().is_none());
        drop(change);
        drop(late.as_mut().now_or_never().expect("nobody is before it"));
        drop((writer, late));
        assert!(is_clean(&manager));
    }

    #[test]
    fn a_lock_that_was_granted_to_nobody_is_free() {
        let (manager, resource) = manager();
        let changing = manager.try_lock(resource, Exclusive).unwrap();
        let mut next = Box::pin(manager.lock(resource, Shared));
        assert!(next.as_mut().now_or_never().is_none());
        drop(changing); // granted, but never polled again
        assert!(manager.try_lock(resource, Exclusive).is_none());
        drop(next);
        assert!(is_clean(&manager));
        assert!(manager.try_lock(resource, Exclusive).is_some());
    }

    #[test]
    fn a_lock_held_twice_is_free_when_both_are_gone() {
        let (manager, resource) = manager();
        let first = manager.try_lock(resource, IntentExclusive).unwrap();
        let second = first.again();
        drop(first);
        assert!(manager.try_lock(resource, Exclusive).is_none());
        drop(second);
        assert!(manager.try_lock(resource, Exclusive).is_some());
    }

    #[test]
    fn who_drops_a_database_waits_for_who_makes_a_collection_in_it() {
        let manager = Arc::new(LockManager::default());
        let (old, new) = (Namespace::new("db", "old"), Namespace::new("db", "new"));
        let other = Namespace::new("other", "c");
        let names = [&new];
        let making = manager.exclusive(&names).now_or_never().expect("free");
        let dropping = manager.database_exclusive("db", || vec![old.clone()]);
        let mut dropping = Box::pin(dropping);
        assert!(dropping.as_mut().now_or_never().is_none());
        // Writers go on until it is known which collections there are.
        let write = |name| manager.try_lock(manager.collection(name), IntentExclusive);
        assert!(write(&old).is_some());
        drop(making);
        let dropping = dropping.as_mut().now_or_never().expect("its turn");
        assert!(write(&old).is_none());
        assert!(manager.exclusive(&names).now_or_never().is_none());
        assert!(manager.exclusive(&[&other]).now_or_never().is_some());
        drop(dropping);
        assert!(is_clean(&manager));
    }

    /// Everybody locks two of a few collections, in whatever order they are named.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_locks_at_once_come_to_an_end() {
        let manager = Arc::new(LockManager::default());
        let names: Vec<_> = (0..4)
            .map(|n| Namespace::new("db", &n.to_string()))
            .collect();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8_usize {
            let (manager, names) = (manager.clone(), names.clone());
            tasks.spawn(async move {
                for round in 0..200 {
                    let first = &names[(task + round) % 4];
                    let second = &names[(task * round + 1) % 4];
                    let locks = manager.exclusive(&[first, second]).await;
                    tokio::task::yield_now().await;
                    drop(locks);
                    let written = manager.collection(first);
                    drop(manager.lock(written, IntentExclusive).await);
                }
            });
        }
        let all = tasks.join_all();
        let ended = tokio::time::timeout(Duration::from_secs(60), all).await;
        assert!(ended.is_ok(), "a deadlock");
        assert!(is_clean(&manager));
    }
}
