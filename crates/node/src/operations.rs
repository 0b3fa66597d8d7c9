//! The operations that are running now: what `currentOp` lists and `killOp` ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Instant, SystemTime};

use banyan_execution::{Cause, Interrupt};
use banyan_wire::{Connection, Request};
use bson::RawDocumentBuf;
use parking_lot::Mutex;

use banyan_execution::PlanSummaryStats;

/// Running operations are spread over this many locks.
const SHARDS: usize = 16;

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
    plan: Mutex<Option<Arc<PlanSummaryStats>>>,
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
    pub fn show_plan(&self, plan: &Arc<PlanSummaryStats>) {
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
        command: &'static str,
        writes: bool,
        interrupt: Interrupt,
    ) -> Registration {
        let id = self.next.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let operation = Arc::new(Operation {
            id,
            connection: connection.clone(),
            command,
            writes,
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

/// What MongoDB's `currentOp` and log call an operation.
pub fn operation_word(command: &str) -> &'static str {
    match command {
        "find" => "query",
        "getMore" => "getmore",
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        _ => "command",
    }
}
