//! The operations that are running now: what `currentOp` lists and `killOp` ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::time::{Instant, SystemTime};

use banyan_wire::{CommandError, Connection, ErrorCode, Request};
use bson::RawDocumentBuf;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::account::operation_word;
use crate::commands::table::CommandSpec;
use crate::execute::source::Cost;
use crate::tickets;

/// Running operations are spread over this many locks.
const SHARDS: usize = 16;

/// Why an operation has to end; kept in an atomic so that the running thread only loads a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    Killed = 1,
    CursorKilled = 2,
    Shutdown = 3,
    SteppedDown = 4,
    ClientGone = 5,
}

/// What ends an operation from outside. Cheap to clone and to look at.
#[derive(Debug, Clone)]
pub struct Interrupt {
    raised: Arc<Raised>,
    shutdown: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

#[derive(Debug, Default)]
struct Raised {
    /// A [`Cause`], or 0.
    cause: AtomicU8,
    wake: Notify,
}

impl Interrupt {
    pub fn new(shutdown: Arc<AtomicBool>, deadline: Option<Instant>) -> Interrupt {
        Interrupt {
            raised: Arc::default(),
            shutdown,
            deadline,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The same handle with another end, for a cursor whose `getMore`s each have a time limit.
    pub fn with_deadline(&self, deadline: Option<Instant>) -> Interrupt {
        Interrupt {
            raised: self.raised.clone(),
            shutdown: self.shutdown.clone(),
            deadline,
        }
    }

    pub fn raise(&self, cause: Cause) {
        // The first cause is the one that is told.
        let _ =
            self.raised
                .cause
                .compare_exchange(0, cause as u8, Ordering::AcqRel, Ordering::Relaxed);
        self.raised.wake.notify_waiters();
    }

    /// Resolves once the operation has to end for a [`Cause`].
    pub async fn raised(&self) {
        loop {
            let woken = self.raised.wake.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if self.is_raised() {
                return;
            }
            woken.await;
        }
    }

    pub fn is_raised(&self) -> bool {
        self.raised.cause.load(Ordering::Acquire) != 0
    }

    /// Whether the operation may go on. Looked at in every long loop: here a large operation also
    /// lets others compute once its turn is over ([`crate::tickets`]).
    pub fn check(&self) -> Result<(), CommandError> {
        tickets::breathe();
        match self.raised.cause.load(Ordering::Relaxed) {
            0 => {}
            cause if cause == Cause::CursorKilled as u8 => {
                return Err(CommandError::new(
                    ErrorCode::CursorKilled,
                    "cursor was killed",
                ));
            }
            cause if cause == Cause::SteppedDown as u8 => {
                return Err(CommandError::new(
                    ErrorCode::InterruptedDueToReplStateChange,
                    "operation was interrupted",
                ));
            }
            cause if cause == Cause::Shutdown as u8 => return Err(shutting_down()),
            cause if cause == Cause::ClientGone as u8 => {
                return Err(CommandError::new(
                    ErrorCode::ClientDisconnect,
                    "the client's connection is gone",
                ));
            }
            _ => {
                return Err(CommandError::new(
                    ErrorCode::Interrupted,
                    "operation was interrupted",
                ));
            }
        }
        if self.shutdown.load(Ordering::Relaxed) {
            return Err(shutting_down());
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(CommandError::new(
                ErrorCode::MaxTimeMSExpired,
                "operation exceeded time limit",
            )),
            _ => Ok(()),
        }
    }
}

fn shutting_down() -> CommandError {
    CommandError::new(ErrorCode::InterruptedAtShutdown, "interrupted at shutdown")
}

/// One running operation, as `currentOp` tells it.
pub struct Operation {
    pub id: i32,
    pub connection: Arc<Connection>,
    pub command: &'static str,
    pub writes: bool,
    pub database: String,
    /// The command as it came; copied only when someone asks, since [`Request`] shares its buffer.
    pub body: banyan_wire::Doc,
    pub started: Instant,
    pub started_at: SystemTime,
    pub interrupt: Interrupt,
    /// The plan that it runs, once it runs one.
    plan: Mutex<Option<Arc<Cost>>>,
}

type Shard = Mutex<HashMap<i32, Arc<Operation>>>;

/// All running operations of the process.
pub struct Operations {
    next: AtomicI32,
    shutdown: Arc<AtomicBool>,
    shards: Arc<[Shard]>,
}

/// An operation is listed for as long as this lives.
pub struct Registration {
    operation: Arc<Operation>,
    shards: Arc<[Shard]>,
}

impl Registration {
    pub fn interrupt(&self) -> &Interrupt {
        &self.operation.interrupt
    }

    pub fn id(&self) -> i32 {
        self.operation.id
    }

    /// The operation runs that plan now.
    pub fn show_plan(&self, plan: &Arc<Cost>) {
        *self.operation.plan.lock() = Some(plan.clone());
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        shard(&self.shards, self.operation.id)
            .lock()
            .remove(&self.operation.id);
    }
}

fn shard(shards: &[Shard], id: i32) -> &Shard {
    &shards[id.unsigned_abs() as usize % SHARDS]
}

impl Default for Operations {
    fn default() -> Self {
        Operations::new()
    }
}

impl Operations {
    pub fn new() -> Operations {
        Operations {
            next: AtomicI32::new(1),
            shutdown: Arc::new(AtomicBool::new(false)),
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
        }
    }

    pub fn register(
        &self,
        connection: &Arc<Connection>,
        request: &Request,
        spec: &'static CommandSpec,
        interrupt: Interrupt,
    ) -> Registration {
        let id = self.next.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let operation = Arc::new(Operation {
            id,
            connection: connection.clone(),
            command: spec.name,
            writes: spec.writes,
            database: request.database.clone(),
            body: request.body.clone(),
            started: Instant::now(),
            started_at: SystemTime::now(),
            interrupt,
            plan: Mutex::default(),
        });
        shard(&self.shards, id).lock().insert(id, operation.clone());
        Registration {
            operation,
            shards: self.shards.clone(),
        }
    }

    /// What will end an operation that has not been registered yet.
    pub fn interrupt(&self, deadline: Option<Instant>) -> Interrupt {
        Interrupt::new(self.shutdown.clone(), deadline)
    }

    /// A handle that only a shutdown raises, for work that no client asked for.
    pub fn background(&self) -> Interrupt {
        self.interrupt(None)
    }

    pub fn all(&self) -> Vec<Arc<Operation>> {
        let mut all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>())
            .collect();
        all.sort_by_key(|operation| operation.id);
        all
    }

    /// Whether there was such an operation.
    pub fn kill(&self, id: i32, cause: Cause) -> bool {
        let found = shard(&self.shards, id).lock().get(&id).cloned();
        if let Some(operation) = &found {
            operation.interrupt.raise(cause);
        }
        found.is_some()
    }

    /// Ends what a vanished client was waiting for.
    pub fn connection_closed(&self, connection: u64) {
        for operation in self.all() {
            if operation.connection.id == connection {
                operation.interrupt.raise(Cause::ClientGone);
            }
        }
    }

    pub fn shut_down(&self) {
        self.shutdown.store(true, Ordering::Relaxed);
        // Those who wait for something look at nothing.
        for operation in self.all() {
            operation.interrupt.raise(Cause::Shutdown);
        }
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.load(Ordering::Relaxed)
    }
}

/// The fields of an operation in `currentOp`'s `inprog`.
pub fn describe(operation: &Operation) -> RawDocumentBuf {
    let running = operation.started.elapsed();
    let mut document = bson::rawdoc! {
        "type": "op",
        "desc": format!("conn{}", operation.connection.id),
        "opid": operation.id,
        "active": true,
        "op": operation_word(operation.command),
        "secs_running": i64::try_from(running.as_secs()).unwrap_or(i64::MAX),
        "microsecs_running": i64::try_from(running.as_micros()).unwrap_or(i64::MAX),
        "connectionId": i64::try_from(operation.connection.id).unwrap_or(i64::MAX),
        "client": operation.connection.peer.to_string(),
        "currentOpTime": bson::DateTime::from_system_time(operation.started_at)
            .try_to_rfc3339_string()
            .unwrap_or_default(),
    };
    let collection = match operation.command {
        "getMore" => operation.body.get("collection").ok().flatten(),
        _ => operation
            .body
            .iter()
            .flatten()
            .next()
            .map(|(_, value)| value),
    };
    let namespace = match collection.and_then(|value| value.as_str()) {
        Some(collection) => format!("{}.{collection}", operation.database),
        None => format!("{}.$cmd", operation.database),
    };
    document.append(bson::cstr!("ns"), namespace);
    document.append(
        bson::cstr!("command"),
        bson::RawDocument::to_owned(&operation.body),
    );
    let plan = operation.plan.lock().clone();
    if let Some(plan) = plan {
        document.append(bson::cstr!("planSummary"), plan.summary.to_string());
    }
    document
}
