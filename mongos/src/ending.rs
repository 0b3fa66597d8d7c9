//! What ends the work of a command that the router does itself, or waits for.

use std::sync::Arc;

use banyan_query::{Budget, ErrorKind, Interrupt, Memory, QueryError};
use banyan_wire::{CommandError, Connection, ErrorCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::errors::expired;

/// For whom a pipeline computes: it ends when the time is over or the client has gone. The batches
/// of one cursor may be asked for by several.
#[derive(Debug)]
pub struct Ending {
    asked: Mutex<Asked>,
    memory: Arc<Memory>,
}

#[derive(Clone, Debug)]
struct Asked {
    connection: Arc<Connection>,
    deadline: Option<Instant>,
}

impl Ending {
    pub fn new(
        connection: &Arc<Connection>,
        deadline: Option<Instant>,
        memory: &Arc<Memory>,
    ) -> Arc<Ending> {
        Arc::new(Ending {
            asked: Mutex::new(Asked {
                connection: connection.clone(),
                deadline,
            }),
            memory: memory.clone(),
        })
    }

    /// From now on this is who waits.
    pub fn asked_by(&self, connection: &Arc<Connection>, deadline: Option<Instant>) {
        *self.asked.lock() = Asked {
            connection: connection.clone(),
            deadline,
        };
    }

    /// When the time of who waits is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.asked.lock().deadline
    }

    /// What computing for them may use.
    pub fn budget(self: &Arc<Ending>) -> Budget {
        Budget::interruptible(self.clone(), self.memory.clone())
    }

    /// What the future brings, while the client is there to have it.
    pub async fn while_awaited<T>(
        &self,
        work: impl Future<Output = Result<T, CommandError>>,
    ) -> Result<T, CommandError> {
        let connection = self.asked.lock().connection.clone();
        while_awaited(&connection, work).await
    }
}

impl Interrupt for Ending {
    fn check(&self) -> Result<(), QueryError> {
        let asked = self.asked.lock();
        let ended = if asked.connection.left().is_cancelled() {
            (ErrorKind::ClientDisconnect, gone())
        } else if asked.deadline.is_some_and(|end| Instant::now() >= end) {
            (ErrorKind::MaxTimeMSExpired, expired())
        } else {
            return Ok(());
        };
        Err(QueryError::new(ended.0, ended.1.message))
    }
}

/// What the future brings, while the client is there to have it. What it has asked of shards ends
/// with the connections to them.
pub async fn while_awaited<T>(
    connection: &Connection,
    work: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    tokio::select! {
        biased;
        outcome = work => outcome,
        () = connection.left().cancelled() => Err(gone()),
    }
}

pub fn gone() -> CommandError {
    CommandError::new(
        ErrorCode::ClientDisconnect,
        "the client's connection is gone",
    )
}
