//! The operations that are running now: what `currentOp` lists and `killOp` ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Instant;

use banyan_execution::PlanSummaryStats;
use banyan_execution::{Cause, Interrupt};
use banyan_wire::{Connection, Request, SessionId};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;

use banyan_access::identity::Owner;
use banyan_access::redaction;

/// Running operations are spread over this many locks.
const SHARDS: usize = 16;

/// One running operation, as `currentOp` tells it.
pub struct Operation {
    pub id: i32,
    /// `None`: the process's own.
    pub connection: Option<Arc<Connection>>,
    description: String,
    pub command: &'static str,
    pub writes: bool,
    pub database: String,
    /// Whose it is; `None`: the process's own, or users do not count.
    pub owner: Option<Arc<Owner>>,
    /// The command as it came; copied only when someone asks, since [`Request`] shares its buffer.
    pub body: banyan_wire::Doc,
    pub started: Instant,
    pub interrupt: Interrupt,
    /// The plan that it runs, once it runs one.
    plan: Mutex<Option<Arc<PlanSummaryStats>>>,
    progress: Mutex<Option<Progress>>,
    /// For a lock.
    waits: AtomicBool,
}

/// How far an operation has come.
#[derive(Debug, Clone)]
pub struct Progress {
    /// What it does at the moment.
    pub message: &'static str,
    /// How much of how much.
    pub counted: Option<(u64, u64)>,
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

    /// The operation waits for a lock, or does so no longer.
    pub fn show_waiting(&self, waits: bool) {
        self.operation.waits.store(waits, Ordering::Relaxed);
    }

    pub fn show_progress(&self, progress: Progress) {
        *self.operation.progress.lock() = Some(progress);
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
        owner: Option<Arc<Owner>>,
        interrupt: Interrupt,
    ) -> Registration {
        self.list(Operation {
            id: self.next_id(),
            connection: Some(connection.clone()),
            description: format!("conn{}", connection.id),
            command,
            writes,
            database: request.database.clone(),
            owner,
            body: request.body.clone(),
            started: Instant::now(),
            interrupt,
            plan: Mutex::default(),
            progress: Mutex::default(),
            waits: AtomicBool::new(false),
        })
    }

    /// Lists what the process does by itself, as if it were that command.
    pub fn register_own(
        &self,
        description: String,
        command: &'static str,
        database: &str,
        body: RawDocumentBuf,
        interrupt: Interrupt,
    ) -> Registration {
        self.list(Operation {
            id: self.next_id(),
            connection: None,
            description,
            command,
            // It goes on when this member leads no more.
            writes: false,
            database: database.to_owned(),
            owner: None,
            body: body.into(),
            started: Instant::now(),
            interrupt,
            plan: Mutex::default(),
            progress: Mutex::default(),
            waits: AtomicBool::new(false),
        })
    }

    fn next_id(&self) -> i32 {
        self.next.fetch_add(1, Ordering::Relaxed) & i32::MAX
    }

    fn list(&self, operation: Operation) -> Registration {
        let (id, operation) = (operation.id, Arc::new(operation));
        shard(&self.shards, id).lock().insert(id, operation.clone());
        // Whoever left before this was listed is told of only once.
        let connection = operation.connection.as_ref();
        if connection.is_some_and(|connection| connection.left().is_cancelled()) {
            operation.interrupt.raise(Cause::ClientGone);
        }
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

    /// Whether a client waits for an answer.
    pub fn has_clients(&self) -> bool {
        let all = self.all();
        all.iter().any(|operation| operation.connection.is_some())
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
            let own = operation.connection.as_ref();
            if own.is_some_and(|own| own.id == connection) {
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

/// The fields of an operation in `currentOp`'s `inprog`. `host`: the member's own address.
pub fn describe(operation: &Operation, host: &str) -> RawDocumentBuf {
    let running = operation.started.elapsed();
    let mut document = bson::rawdoc! {
        "type": "op",
        "host": host,
        "desc": operation.description.as_str(),
    };
    if let Some(connection) = &operation.connection {
        append_client(&mut document, connection);
    }
    append_state(&mut document, true, operation.owner.as_deref());
    document.append(bson::cstr!("opid"), operation.id);
    if let Some(session) = session_of(operation) {
        document.append(bson::cstr!("lsid"), session.document());
    }
    let seconds = i64::try_from(running.as_secs()).unwrap_or(i64::MAX);
    document.append(bson::cstr!("secs_running"), seconds);
    let micros = i64::try_from(running.as_micros()).unwrap_or(i64::MAX);
    document.append(bson::cstr!("microsecs_running"), micros);
    document.append(bson::cstr!("op"), operation_word(operation.command));
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
    let command = redaction::shown(&operation.body);
    document.append(
        bson::cstr!("command"),
        command.unwrap_or_else(|| bson::RawDocument::to_owned(&operation.body)),
    );
    let waits = operation.waits.load(Ordering::Relaxed);
    document.append(bson::cstr!("waitingForLock"), waits);
    let progress = operation.progress.lock().clone();
    if let Some(progress) = progress {
        append_progress(&mut document, &progress);
    }
    let plan = operation.plan.lock().clone();
    if let Some(plan) = plan {
        document.append(bson::cstr!("planSummary"), plan.summary.to_string());
    }
    document
}

/// A connection that asks for nothing at the moment, among the operations.
pub fn describe_idle(connection: &Connection, owner: &Owner, host: &str) -> RawDocumentBuf {
    let mut document = rawdoc! {
        "type": "op",
        "host": host,
        "desc": format!("conn{}", connection.id),
    };
    append_client(&mut document, connection);
    append_state(&mut document, false, Some(owner));
    document
}

fn append_state(document: &mut RawDocumentBuf, active: bool, owner: Option<&Owner>) {
    document.append(bson::cstr!("active"), active);
    let now = bson::DateTime::now().try_to_rfc3339_string();
    document.append(bson::cstr!("currentOpTime"), now.unwrap_or_default());
    if let Some(owner) = owner.filter(|owner| !owner.is_nobody()) {
        let users: RawArrayBuf = owner
            .names()
            .iter()
            .map(|name| rawdoc! { "user": name.user.as_str(), "db": name.database.as_str() })
            .collect();
        document.append(bson::cstr!("effectiveUsers"), users);
    }
    document.append(bson::cstr!("threaded"), true);
}

/// Who asks, and what it has said of itself.
fn append_client(document: &mut RawDocumentBuf, connection: &Connection) {
    let id = i64::try_from(connection.id).unwrap_or(i64::MAX);
    document.append(bson::cstr!("connectionId"), id);
    document.append(bson::cstr!("client"), connection.peer.to_string());
    if let Some(name) = application_name(connection) {
        document.append(bson::cstr!("appName"), name);
    }
    if let Some(metadata) = connection.metadata() {
        document.append(bson::cstr!("clientMetadata"), &**metadata);
    }
}

/// What a client calls its application.
pub fn application_name(connection: &Connection) -> Option<&str> {
    let application = connection.metadata()?.get_document("application").ok()?;
    application.get_str("name").ok()
}

/// The session that the command names.
fn session_of(operation: &Operation) -> Option<SessionId> {
    let id = operation.body.get_document("lsid").ok()?.get("id").ok()??;
    let RawBsonRef::Binary(id) = id else {
        return None;
    };
    Some(SessionId {
        id: id.bytes.try_into().ok()?,
        user: operation.owner.as_ref().map(|owner| owner.digest()),
    })
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

/// As MongoDB words it: `Index Build: scanning collection Index Build: scanning collection: 1/4 25%`.
fn append_progress(document: &mut RawDocumentBuf, progress: &Progress) {
    let Some((done, total)) = progress.counted else {
        document.append(bson::cstr!("msg"), progress.message);
        return;
    };
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
    let message = progress.message;
    let message = format!("{message} {message}: {done}/{total} {percent}%");
    document.append(bson::cstr!("msg"), message);
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let progress = bson::rawdoc! { "done": number(done), "total": number(total) };
    document.append(bson::cstr!("progress"), progress);
}
