//! What sessions have done on another shard, taken in and handed out.

use banyan_wire::CommandError;
use bson::rawdoc;

use crate::clock;
use crate::entry::EntryBuilder;
use crate::errors;
use crate::latches::{Attempt, Held};
use crate::machine::Prepared;
use crate::replica::Replica;
use crate::sessions::SessionId;
use crate::sessions::histories::{self, History, Page};

/// One log entry takes no more than this, but for a single history that is larger.
const ENTRY_HISTORIES_MAX: usize = 1_000;
const ENTRY_BYTES_MAX: usize = 4 << 20;

impl Replica {
    /// The same over the present state.
    pub fn histories_since(
        &self,
        from: u64,
        after: Option<SessionId>,
        bytes_max: usize,
    ) -> Result<Page, CommandError> {
        let snapshot = self.store.snapshot();
        let as_of = self.machine.time_of(&snapshot).map_err(errors::storage)?;
        histories::since(&snapshot, clock::to_bits(as_of), from, after, bytes_max)
            .map_err(errors::storage)
    }

    /// Writes what sessions did on another shard to this one's log and state. How many of them
    /// were news.
    pub async fn adopt_histories(&self, histories: Vec<History>) -> Result<usize, CommandError> {
        let term = self.writable_term()?;
        let mut news = 0;
        let mut taken = Adoption::new(self);
        for history in histories {
            let latch = self.latches.session(&history.session);
            if taken.latches.try_add(latch, 0) == Attempt::Busy {
                taken.propose(self, term).await?;
                taken.latches = self.latches.wait(latch).await;
            }
            let numbers = &self.machine.latest_numbers;
            let known = numbers.load(&self.store, &history.session, history.txn_number);
            let known = known.map_err(errors::storage)?;
            if known.is_some_and(|record| history.is_known_to(&record)) {
                continue;
            }
            news += 1;
            taken.add(history);
            if taken.is_full() {
                taken.propose(self, term).await?;
            }
        }
        taken.propose(self, term).await?;
        Ok(news)
    }
}

/// Histories that go into one entry, and the latches of their sessions.
struct Adoption {
    histories: Vec<History>,
    bytes: usize,
    latches: Held,
}

impl Adoption {
    fn new(replica: &Replica) -> Adoption {
        Adoption {
            histories: Vec::new(),
            bytes: 0,
            latches: Held::none(&replica.latches),
        }
    }

    fn add(&mut self, history: History) {
        self.bytes += history.encode().len();
        self.histories.push(history);
    }

    fn is_full(&self) -> bool {
        self.histories.len() >= ENTRY_HISTORIES_MAX || self.bytes >= ENTRY_BYTES_MAX
    }

    /// Afterwards nothing is held.
    async fn propose(&mut self, replica: &Replica, term: u64) -> Result<(), CommandError> {
        let taken = std::mem::replace(self, Adoption::new(replica));
        if taken.histories.is_empty() {
            return Ok(());
        }
        let mut entry = EntryBuilder::new();
        entry.noop(&rawdoc! { "msg": "what sessions did on another shard" });
        entry.histories = taken.histories;
        let prepared = Prepared {
            latches: taken.latches,
            ..Prepared::nothing(replica)
        };
        let proposed = replica.propose(entry, prepared, term, false);
        proposed.await.map(drop)
    }
}
