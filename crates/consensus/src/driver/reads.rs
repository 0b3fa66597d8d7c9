//! Reads that wait to be told an index. All that wait at the same time share one round of messages
//! with the other members; while it is under way, the next ones gather.

use std::time::{Duration, Instant};

use futures::channel::oneshot;

use crate::core::Core;
use crate::log::Disk;
use crate::machine::PeerId;

/// A round that got no answer (its message was lost, or the leader changed) is begun again.
const RETRY: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Waiting {
    pub answer: oneshot::Sender<u64>,
    since: Instant,
}

struct Round {
    number: u64,
    begun: Instant,
    reads: Vec<Waiting>,
}

pub(super) struct Reads {
    waiting: Vec<Waiting>,
    under_way: Option<Round>,
    next: u64,
}

impl Reads {
    /// Numbers of rounds begin at a random one: an answer to an earlier process means nothing.
    pub fn new(first: u64) -> Reads {
        Reads {
            waiting: Vec::new(),
            under_way: None,
            next: first,
        }
    }

    pub fn ask(&mut self, answer: oneshot::Sender<u64>, now: Instant) {
        self.waiting.push(Waiting { answer, since: now });
    }

    /// Begins a round for those who wait, unless one is under way. True if it did.
    pub fn begin<D: Disk>(&mut self, core: &mut Core<D>, own: PeerId, now: Instant) -> bool {
        if self.under_way.is_some() || self.waiting.is_empty() {
            return false;
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let mut context = own.to_le_bytes().to_vec();
        context.extend_from_slice(&number.to_le_bytes());
        core.read_index(context);
        self.under_way = Some(Round {
            number,
            begun: now,
            reads: std::mem::take(&mut self.waiting),
        });
        true
    }

    /// Those who asked for a round that is answered.
    pub fn answered(&mut self, context: &[u8], own: PeerId) -> Vec<Waiting> {
        let number = context
            .split_first_chunk::<8>()
            .filter(|(id, _)| **id == own.to_le_bytes())
            .and_then(|(_, number)| <[u8; 8]>::try_from(number).ok())
            .map(u64::from_le_bytes);
        match self.under_way.take_if(|round| Some(round.number) == number) {
            Some(round) => round.reads,
            None => Vec::new(),
        }
    }

    /// Gives up a round that takes too long; those who asked for it wait for the next. Dropping the
    /// answer of one that waited too long tells it so.
    pub fn give_up_late(&mut self, now: Instant) {
        let late = |round: &mut Round| now.duration_since(round.begun) >= RETRY;
        if let Some(round) = self.under_way.take_if(late) {
            self.waiting.extend(round.reads);
        }
        self.waiting
            .retain(|read| now.duration_since(read.since) < PATIENCE && !read.answer.is_canceled());
    }

    pub fn fail_all(&mut self) {
        self.waiting.clear();
        self.under_way = None;
    }
}
