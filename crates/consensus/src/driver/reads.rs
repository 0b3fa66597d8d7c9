//! Reads that wait to be told an index. All that wait at the same time share one round of messages
//! with the other members; while it is under way, the next ones gather.

use std::time::{Duration, Instant};

use futures::channel::oneshot;

use crate::core::Core;
use crate::log::Disk;
use crate::machine::PeerId;

/// A round that got no answer (its message was lost, or the leader changed) is begun again.
const RETRY: Duration = Duration::from_millis(300);
/// Those who are asked first have so long before everybody is.
const HEAD_START: Duration = Duration::from_millis(5);
const READ_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Waiting {
    pub answer: oneshot::Sender<u64>,
    since: Instant,
}

/// Those who asked since the last round began. Whoever asks while one is under way wakes nobody.
#[derive(Default)]
pub(super) struct Asked {
    waiting: Vec<Waiting>,
    under_way: bool,
}

impl Asked {
    /// True if somebody has to be told to begin a round.
    pub fn ask(&mut self, answer: oneshot::Sender<u64>, now: Instant) -> bool {
        self.waiting.push(Waiting { answer, since: now });
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Those for whom a round is to begin now, if anybody waits.
    pub fn take(&mut self) -> Vec<Waiting> {
        self.under_way = !self.waiting.is_empty();
        std::mem::take(&mut self.waiting)
    }

    /// For those of a round that was given up. Dropping the answer of one that waited too long
    /// tells it so.
    pub fn return_to(&mut self, reads: Vec<Waiting>, now: Instant) {
        self.waiting.extend(reads);
        self.waiting.retain(|read| {
            now.duration_since(read.since) < READ_TIMEOUT && !read.answer.is_canceled()
        });
    }
}

struct Round {
    number: u64,
    begun: Instant,
    asks_everybody: bool,
    reads: Vec<Waiting>,
}

pub(super) struct Reads {
    under_way: Option<Round>,
    next: u64,
}

impl Reads {
    /// Numbers of rounds begin at a random one: an answer to an earlier process means nothing.
    pub fn new(first: u64) -> Reads {
        Reads {
            under_way: None,
            next: first,
        }
    }

    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    pub fn begin<D: Disk>(
        &mut self,
        core: &mut Core<D>,
        own: PeerId,
        now: Instant,
        reads: Vec<Waiting>,
    ) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let mut context = own.to_le_bytes().to_vec();
        context.extend_from_slice(&number.to_le_bytes());
        core.read_index(context);
        self.under_way = Some(Round {
            number,
            begun: now,
            asks_everybody: false,
            reads,
        });
    }

    /// When everybody is to be asked about the round under way.
    pub fn due(&self) -> Option<Instant> {
        let round = self.under_way.as_ref();
        let round = round.filter(|round| !round.asks_everybody);
        round.map(|round| round.begun + HEAD_START)
    }

    pub fn ask_everybody<D: Disk>(&mut self, core: &mut Core<D>, now: Instant) {
        if self.due().is_some_and(|due| due <= now)
            && let Some(round) = &mut self.under_way
        {
            round.asks_everybody = true;
            core.ask_everybody();
        }
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

    /// Gives up a round that takes too long; those who asked for it wait for the next.
    pub fn give_up_late(&mut self, now: Instant) -> Vec<Waiting> {
        let late = |round: &mut Round| now.duration_since(round.begun) >= RETRY;
        let round = self.under_way.take_if(late);
        round.map_or_else(Vec::new, |round| round.reads)
    }

    pub fn fail_all(&mut self) {
        self.under_way = None;
    }
}
