//! What a write takes from the operation that it is a part of.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use banyan_execution::PlanSummaryStats;
use banyan_execution::tickets::Tickets;
use banyan_execution::work::Work;
use banyan_execution::{Interrupt, InterruptSlot};
use banyan_wire::{CommandError, ErrorCode, SessionId};

use super::shard_rules::{ShardRules, Versions};
use crate::errors;
use crate::replica::Replica;

/// An operation of a client, or of the process itself.
pub trait Operation: Sync {
    /// What ends it. From now on it is listed among those that run.
    fn interrupt(&self) -> &Interrupt;

    /// Where what it runs looks whether it has to end.
    fn slot(&self) -> &Arc<InterruptSlot>;

    /// A plan begins to run for it.
    fn run_plan(&self, stats: &Arc<PlanSummaryStats>);

    /// What it has written lies in the log up to here.
    fn wrote(&self, index: u64);

    /// It waits for a lock, or does so no longer.
    fn waits_for_lock(&self, waits: bool);

    /// It is about to write a statement that its session has numbered; a test may have that fail.
    fn before_numbered_write(&self, session: &SessionId, number: i64) -> Result<(), CommandError>;

    /// Something it wrote was not committed within its write concern's time.
    fn was_late(&self);
}

#[derive(Clone, Copy)]
pub struct WriteContext<'a> {
    pub operation: &'a dyn Operation,
    pub replica: &'a Arc<Replica>,
    pub tickets: &'a Tickets,
    pub work: &'a Work,
    pub database: &'a str,
    pub session: Option<SessionId>,
    pub txn_number: Option<i64>,
    /// What is to hold of the write on a shard.
    pub rules: Option<&'a dyn ShardRules>,
    pub versions: Versions<'a>,
    /// Documents need not be what their collection's validator asks for.
    pub bypass_validation: bool,
    /// Each entry has to be on disk here before it counts.
    pub journal: bool,
    /// How long an entry may take to be committed before the client is told that it takes too long.
    pub commit_time_max: Option<Duration>,
}

impl WriteContext<'_> {
    /// Runs what may compute for long, or read from a disk, where it holds up nobody else.
    pub async fn compute<T>(
        &self,
        work: impl FnOnce() -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let work = async { work() };
        let outcome = self.tickets.run(self.operation.interrupt(), work).await;
        outcome.map_err(errors::query)?
    }

    /// Waits for another write, unless the operation has to end before.
    pub async fn wait<T>(&self, wait: impl Future<Output = T>) -> Result<T, CommandError> {
        let mut wait = pin!(wait);
        // Mostly there is nothing to wait for.
        if let Poll::Ready(outcome) = futures::poll!(wait.as_mut()) {
            return Ok(outcome);
        }
        let waited = self.operation.interrupt().within(wait).await;
        waited.map_err(errors::query)
    }

    /// Waits for locks, for no longer than `limit` where others are held.
    pub async fn lock<T>(
        &self,
        wait: impl Future<Output = T>,
        limit: Option<Duration>,
    ) -> Result<T, CommandError> {
        let mut wait = pin!(wait);
        if let Poll::Ready(locked) = futures::poll!(wait.as_mut()) {
            return Ok(locked);
        }
        self.operation.waits_for_lock(true);
        let locked = match limit {
            None => self.wait(wait).await,
            Some(limit) => match self.wait(tokio::time::timeout(limit, wait)).await {
                Ok(locked) => locked.map_err(|_| {
                    let text = format!("Unable to acquire lock within {}ms", limit.as_millis());
                    CommandError::new(ErrorCode::LockTimeout, text)
                }),
                Err(error) => Err(error),
            },
        };
        self.operation.waits_for_lock(false);
        locked
    }

    pub fn check_interrupt(&self) -> Result<(), CommandError> {
        let checked = self.operation.interrupt().check();
        checked.map_err(errors::query)
    }
}
