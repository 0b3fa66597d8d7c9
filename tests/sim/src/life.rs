//! One life of a member, from a start to a crash: it decides about everything that the member does
//! to its disk, its state and its network, and can end between any two of these.

use std::io;

use banyan_consensus::simulated::{Effect, Fate, Outcome};
use parking_lot::Mutex;

use crate::random::Random;

/// What is wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The operation after so many others fails.
    Fails(u64),
    /// Nothing can be written any more.
    Full,
}

struct Inner {
    random: Random,
    dead: bool,
    /// Effects that are left until it dies.
    fuse: Option<u64>,
    trouble: Option<Trouble>,
    /// An operation has failed in a way that nobody can go on from.
    has_failed: bool,
    /// The simulation looks, and must not be noticed.
    observed: bool,
    /// How long a sync takes, at most.
    sync_micros: u64,
    /// Time that the disk has taken since it was last asked.
    spent_micros: u64,
    effects: u64,
}

pub struct Life(Mutex<Inner>);

impl Life {
    pub fn new(seed: u64, sync_micros: u64) -> Life {
        Life(Mutex::new(Inner {
            random: Random::new(seed),
            dead: false,
            fuse: None,
            trouble: None,
            has_failed: false,
            observed: false,
            sync_micros,
            spent_micros: 0,
            effects: 0,
        }))
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    pub fn has_failed(&self) -> bool {
        self.0.lock().has_failed
    }

    pub fn end(&self) {
        self.0.lock().dead = true;
    }

    /// It dies after so many effects.
    pub fn light_fuse(&self, effects: u64) {
        self.0.lock().fuse.get_or_insert(effects);
    }

    pub fn trouble(&self, trouble: Option<Trouble>) {
        self.0.lock().trouble = trouble;
    }

    pub fn set_sync_micros(&self, micros: u64) {
        self.0.lock().sync_micros = micros;
    }

    /// What the disk has taken since the last call.
    pub fn take_spent(&self) -> u64 {
        std::mem::take(&mut self.0.lock().spent_micros)
    }

    pub fn spent(&self) -> u64 {
        self.0.lock().spent_micros
    }

    pub fn effects(&self) -> u64 {
        self.0.lock().effects
    }

    /// Looks at the member without touching its fate.
    pub fn observe<R>(&self, look: impl FnOnce() -> R) -> R {
        self.0.lock().observed = true;
        let seen = look();
        self.0.lock().observed = false;
        seen
    }

    /// Something other than a disk operation is about to happen; false if it does not any more.
    pub fn lives_on(&self) -> bool {
        let mut inner = self.0.lock();
        inner.burn();
        !inner.dead
    }
}

impl Inner {
    /// True if this is the effect that it dies over.
    fn burn(&mut self) -> bool {
        if self.dead {
            return false;
        }
        self.effects += 1;
        match &mut self.fuse {
            Some(0) => {
                self.dead = true;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn strikes(&mut self, effect: Effect) -> Option<io::ErrorKind> {
        match self.trouble {
            Some(Trouble::Full) => match effect {
                Effect::Write(_) | Effect::Create => Some(io::ErrorKind::StorageFull),
                _ => None,
            },
            Some(Trouble::Fails(0)) => {
                self.trouble = None;
                Some(io::ErrorKind::Other)
            }
            Some(Trouble::Fails(left)) => {
                self.trouble = Some(Trouble::Fails(left - 1));
                None
            }
            None => None,
        }
    }
}

impl Fate for Life {
    fn strike(&self, effect: Effect) -> Outcome {
        let mut inner = self.0.lock();
        if inner.observed {
            return Outcome::Done;
        }
        if inner.dead {
            return Outcome::Ignored;
        }
        // A read changes nothing, and hints about the size of a file may fail without harm.
        if matches!(effect, Effect::Read | Effect::Write(0)) {
            return Outcome::Done;
        }
        if inner.burn() {
            return match effect {
                Effect::Write(bytes) => {
                    Outcome::Torn(inner.random.below(bytes as u64 + 1) as usize)
                }
                _ if inner.random.once_in(2) => Outcome::Done,
                _ => Outcome::Ignored,
            };
        }
        if let Some(kind) = inner.strikes(effect) {
            // An old file that cannot get a new name is not used again: a fresh one is.
            let harmless = kind == io::ErrorKind::StorageFull || effect == Effect::Rename;
            inner.has_failed |= !harmless;
            return Outcome::Fails(kind);
        }
        if effect == Effect::Sync {
            let limit = inner.sync_micros;
            inner.spent_micros += inner.random.between(limit / 4, limit);
        }
        Outcome::Done
    }
}
