//! What keeps two writes from working on the same thing at the same time.
//!
//! A latch is a 64-bit hash of what it stands for (a record, a unique key, a session); two things
//! with one hash only wait for each other needlessly. Waiting is asynchronous and first come,
//! first served. To be free of deadlocks whoever holds latches never waits for another: it tries,
//! and when that fails releases (or finishes with) what it holds, and waits then.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;

use banyan_storage::{CollectionId, IndexId, RecordId};
use banyan_wire::SessionId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

const SHARDS: usize = 64;

/// Names one latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatchKey(u64);

/// For keys that are hashes already.
#[derive(Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Waiters = VecDeque<oneshot::Sender<Held>>;
type Shard = HashMap<LatchKey, Waiters, BuildHasherDefault<AsIs>>;

pub struct Latches {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

impl Default for Latches {
    fn default() -> Self {
        Latches {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Latches {
    pub fn record(&self, collection: CollectionId, record: &RecordId) -> LatchKey {
        LatchKey(self.hasher.hash_one((b'r', collection, record)))
    }

    /// Where the next documents of a capped collection go.
    pub fn capped_end(&self, collection: CollectionId) -> LatchKey {
        LatchKey(self.hasher.hash_one((b'e', collection)))
    }

    pub fn unique_key(&self, index: IndexId, key: &[u8]) -> LatchKey {
        LatchKey(self.hasher.hash_one((b'k', index, key)))
    }

    pub fn session(&self, session: &SessionId) -> LatchKey {
        LatchKey(self.hasher.hash_one((b's', session)))
    }

    /// Takes the latch if it is free.
    fn try_take(&self, key: LatchKey) -> bool {
        let mut shard = self.shard(key).lock();
        if shard.contains_key(&key) {
            return false;
        }
        shard.insert(key, Waiters::new());
        true
    }

    /// Waits for the latch, behind all who came before. The caller must hold no other.
    pub async fn wait(self: &Arc<Self>, key: LatchKey) -> Held {
        let turn = {
            let mut shard = self.shard(key).lock();
            match shard.get_mut(&key) {
                None => {
                    shard.insert(key, Waiters::new());
                    return Held {
                        latches: self.clone(),
                        keys: vec![key],
                    };
                }
                Some(waiters) => {
                    let (sender, receiver) = oneshot::channel();
                    waiters.push_back(sender);
                    receiver
                }
            }
        };
        match turn.await {
            Ok(held) => held,
            // Unreachable while the table lives: a waiter is only removed by being served.
            Err(_) => Held {
                latches: self.clone(),
                keys: Vec::new(),
            },
        }
    }

    fn release(self: &Arc<Self>, key: LatchKey) {
        loop {
            let next = {
                let mut shard = self.shard(key).lock();
                match shard.get_mut(&key).and_then(VecDeque::pop_front) {
                    Some(waiter) => waiter,
                    None => {
                        shard.remove(&key);
                        return;
                    }
                }
            };
            match next.send(Held {
                latches: self.clone(),
                keys: vec![key],
            }) {
                Ok(()) => return,
                // The waiter has given up. Take the latch back and look for another.
                Err(mut returned) => returned.keys.clear(),
            }
        }
    }

    fn shard(&self, key: LatchKey) -> &Mutex<Shard> {
        &self.shards[key.0 as usize % SHARDS]
    }
}

/// What came of an attempt to take a latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    Taken,
    /// It was held already.
    Own,
    /// Somebody else has it.
    Busy,
}

/// Latches that are held, until this is dropped.
pub struct Held {
    latches: Arc<Latches>,
    keys: Vec<LatchKey>,
}

impl Held {
    pub fn none(latches: &Arc<Latches>) -> Held {
        Held {
            latches: latches.clone(),
            keys: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn holds(&self, key: LatchKey) -> bool {
        self.keys.contains(&key)
    }

    /// Takes one more if it is free. One that is held already is [`Attempt::Own`] if it is among
    /// the first `since`.
    pub fn try_add(&mut self, key: LatchKey, since: usize) -> Attempt {
        if self.latches.try_take(key) {
            self.keys.push(key);
            return Attempt::Taken;
        }
        match self.keys.iter().rposition(|held| *held == key) {
            None => Attempt::Busy,
            Some(at) if at < since => Attempt::Own,
            Some(_) => Attempt::Taken,
        }
    }

    /// One of those that are held, to be let go of earlier than the others.
    pub fn take_out(&mut self, key: LatchKey) -> Held {
        let at = self.keys.iter().position(|held| *held == key);
        Held {
            latches: self.latches.clone(),
            keys: at.map(|at| self.keys.remove(at)).into_iter().collect(),
        }
    }

    /// Takes over what another holds.
    pub fn merge(&mut self, mut other: Held) {
        self.keys.append(&mut other.keys);
    }

    /// What is held, to be let go of by somebody else.
    pub fn hand_over(&mut self) -> Held {
        Held {
            latches: self.latches.clone(),
            keys: std::mem::take(&mut self.keys),
        }
    }

    /// Nobody will get these any more.
    pub fn keep_forever(mut self) {
        self.keys.clear();
    }

    /// Lets go of all that were taken after the first `count`.
    pub fn shrink_to(&mut self, count: usize) {
        for key in self.keys.drain(count.min(self.keys.len())..) {
            self.latches.release(key);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_latch_is_handed_over_in_order_and_past_those_who_left() {
        let latches = Arc::new(Latches::default());
        let key = latches.record(1, &RecordId::number(1));
        let mut holder = Held::none(&latches);
        assert_eq!(holder.try_add(key, 0), Attempt::Taken);
        assert_eq!(holder.try_add(key, 0), Attempt::Taken, "harmless");
        assert_eq!(holder.try_add(key, 1), Attempt::Own);
        assert_eq!(Held::none(&latches).try_add(key, 0), Attempt::Busy);
        let mut first = Box::pin(latches.wait(key));
        let mut second = Box::pin(latches.wait(key));
        let mut third = Box::pin(latches.wait(key));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        drop(holder);
        let held = second.as_mut().now_or_never().expect("its turn");
        assert!(held.holds(key));
        assert!(third.as_mut().now_or_never().is_none());
        drop(held);
        drop(third.as_mut().now_or_never().expect("its turn"));
        assert_eq!(Held::none(&latches).try_add(key, 0), Attempt::Taken);
    }

    #[test]
    fn a_latch_that_was_granted_to_a_dropped_waiter_goes_on() {
        let latches = Arc::new(Latches::default());
        let key = latches.session(&SessionId::shared([7; 16]));
        let mut holder = Held::none(&latches);
        assert_eq!(holder.try_add(key, 0), Attempt::Taken);
        let mut waiter = Box::pin(latches.wait(key));
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(holder); // granted, but never polled again
        drop(waiter);
        assert_eq!(Held::none(&latches).try_add(key, 0), Attempt::Taken);
    }
}
