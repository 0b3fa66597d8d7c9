//! What a running command can see: the node, the connection, the request, and the fields that any
//! command may carry (session, deadlines, concerns), picked out once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use banyan_document::{elements, field, first_value};
use banyan_execution::work::Work;
use banyan_execution::{Interrupt, InterruptSlot};
use banyan_query::Budget;
use banyan_replication::locks::Lock;
use banyan_replication::set::write_concern::WriteConcern;
use banyan_replication::snapshots::PointInTime;
use banyan_replication::write::context::{Operation, WriteContext};
use banyan_replication::write::shard_rules::{ShardRules, Versions};
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::{CommandError, Connection, ErrorCode, ReadMode, ReadPreference, Request};
use bson::{RawBsonRef, RawDocument, Timestamp};

use crate::commands::table::{CommandSpec, Table};
use crate::errors;
use crate::node::Node;
use crate::operations::Registration;
use crate::params;
use crate::read_concern::concern::Level;
use banyan_execution::PlanSummaryStats;

/// The fields that every command takes, as they stand in the request.
#[derive(Debug, Default, Clone, Copy)]
pub struct Generic<'a> {
    pub lsid: Option<&'a RawDocument>,
    pub txn_number: Option<i64>,
    pub autocommit: Option<bool>,
    pub start_transaction: Option<bool>,
    pub stmt_id: Option<i32>,
    pub stmt_ids: Option<RawBsonRef<'a>>,
    pub max_time_ms: Option<u64>,
    pub read_concern: Option<&'a RawDocument>,
    pub write_concern: Option<&'a RawDocument>,
    pub read_preference: Option<ReadMode>,
    pub cluster_time: Option<RawBsonRef<'a>>,
    pub comment: Option<RawBsonRef<'a>>,
    pub shard_version: Option<RawBsonRef<'a>>,
    pub database_version: Option<RawBsonRef<'a>>,
    /// The legacy OP_QUERY bit, given to commands as `$readPreference`'s absence.
    pub secondary_ok: bool,
}

impl<'a> Generic<'a> {
    /// Walks the command's fields once: the generic ones are parsed, the command's own are checked
    /// against the table, anything else is refused.
    pub fn parse(request: &'a Request, spec: &CommandSpec) -> Result<Generic<'a>, CommandError> {
        let mut generic = Generic::default();
        // The first one is the command's own name, which was found already.
        for element in elements(&request.body).skip(1) {
            let name = element.name();
            // It was read when the message came in.
            if name == "$db" {
                continue;
            }
            if !generic.take(name, element.value(), spec)? && !spec.accepts(name) {
                return Err(CommandError::new(
                    ErrorCode::Location(40415),
                    format!(
                        "BSON field '{}.{name}' is an unknown field.",
                        spec.parsed_as
                    ),
                ));
            }
        }
        Ok(generic)
    }

    /// Whether the field is one of the generic ones; its value is kept if so.
    fn take(
        &mut self,
        name: &'a str,
        value: RawBsonRef<'a>,
        spec: &CommandSpec,
    ) -> Result<bool, CommandError> {
        let field = params::Field {
            command: spec.parsed_as,
            name,
            value,
        };
        match name {
            "$audit"
            | "$client"
            | "$configServerState"
            | "$oplogQueryData"
            | "$replData"
            | "$configTime"
            | "$topologyTime"
            | "$gleStats"
            | "apiVersion"
            | "apiStrict"
            | "apiDeprecationErrors"
            | "allowImplicitCollectionCreation"
            | "clientOperationKey"
            | "maxTimeMSOpOnly"
            | "mayBypassWriteBlocking"
            | "coordinator"
            | "helpCommand"
            | "help" => {}
            "lsid" => self.lsid = Some(session_field(field).document()?),
            "txnNumber" => {
                let RawBsonRef::Int64(number) = value else {
                    return Err(session_field(field).wrong_type("type 'long'"));
                };
                self.txn_number = Some(number);
            }
            "autocommit" => self.autocommit = Some(field.bool()?),
            "startTransaction" => self.start_transaction = Some(field.bool()?),
            "stmtId" => self.stmt_id = Some(field.i32()?),
            "stmtIds" => self.stmt_ids = Some(value),
            "maxTimeMS" => self.max_time_ms = Some(max_time_ms(field)?),
            "readConcern" => {
                self.read_concern = Some(value.as_document().ok_or_else(|| {
                    CommandError::new(
                        ErrorCode::FailedToParse,
                        "readConcern field should be an object",
                    )
                })?);
            }
            "writeConcern" => self.write_concern = field.document_or_null()?,
            // Which member it's sent to is decided by now: only the mode still says something. On
            // a write it says nothing at all.
            "$readPreference" if !spec.writes => {
                self.read_preference = Some(ReadPreference::parse(value)?.mode);
            }
            "$queryOptions" if !spec.writes => {
                // The 2.x shell and mongos pack the read preference one level down.
                let inner = field.document()?.get("$readPreference").ok().flatten();
                let parsed = inner.map(ReadPreference::parse).transpose()?;
                self.read_preference = parsed.map(|preference| preference.mode);
            }
            "$readPreference" | "$queryOptions" => {}
            "$clusterTime" => self.cluster_time = Some(value),
            "comment" => self.comment = Some(value),
            "shardVersion" => self.shard_version = Some(value),
            "databaseVersion" => self.database_version = Some(value),
            "slaveOk" | "secondaryOk" | "$secondaryOk" => self.secondary_ok = field.bool()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The client takes the answer of a secondary.
    pub fn may_read_secondary(&self) -> bool {
        self.secondary_ok || self.read_preference.unwrap_or_default() != ReadMode::Primary
    }
}

/// A field of the session's part of a command, by the name that messages know it by.
fn session_field(field: params::Field<'_>) -> params::Field<'_> {
    params::Field {
        command: "OperationSessionInfo",
        ..field
    }
}

fn max_time_ms(field: params::Field<'_>) -> Result<u64, CommandError> {
    let milliseconds = field
        .i64()
        .map_err(|_| CommandError::new(ErrorCode::BadValue, "maxTimeMS must be a number"))?;
    if let RawBsonRef::Double(value) = field.value
        && value.fract() != 0.0
    {
        let text = "maxTimeMS has non-integral value";
        return Err(CommandError::new(ErrorCode::BadValue, text));
    }
    if !(0..=i64::from(i32::MAX)).contains(&milliseconds) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            format!("{milliseconds} value for maxTimeMS is out of range"),
        ));
    }
    Ok(milliseconds.unsigned_abs())
}

/// The connection of a process with itself; none from outside has this id.
pub const OWN_CONNECTION_ID: u64 = 0;

/// What is remembered of a connection from one command to the next.
#[derive(Debug, Default)]
struct Client {
    /// The index of its last write in the log.
    last_write: AtomicU64,
}

/// One command while it runs.
pub struct CommandContext<'a> {
    pub node: &'a Arc<Node>,
    pub conn: &'a Arc<Connection>,
    pub request: &'a Request,
    pub spec: &'static CommandSpec,
    pub table: &'a Arc<Table>,
    pub generic: Generic<'a>,
    pub started: Instant,
    /// When `maxTimeMS` ends.
    pub deadline: Option<Instant>,
    pub concern: WriteConcern,
    /// What it reads, where that is not simply the newest state.
    pub view: Option<PointInTime>,
    /// The index of its last write in the log; 0 if it has not written.
    last_write: AtomicU64,
    /// Something it wrote was not committed within its write concern's time.
    late: AtomicBool,
    /// How long it has waited because it was asked to.
    waited_micros: AtomicU64,
    /// What ends it, whether or not it is listed.
    handle: OnceLock<Interrupt>,
    /// Where what it runs looks whether it has to end.
    slot: OnceLock<Arc<InterruptSlot>>,
    budget: OnceLock<Budget>,
    /// What it has done so far.
    pub work: Work,
    /// The entry in `currentOp`, made for commands that may take a while.
    operation: OnceLock<Registration>,
}

impl<'a> CommandContext<'a> {
    pub fn new(
        node: &'a Arc<Node>,
        conn: &'a Arc<Connection>,
        request: &'a Request,
        spec: &'static CommandSpec,
        table: &'a Arc<Table>,
        generic: Generic<'a>,
    ) -> CommandContext<'a> {
        let started = Instant::now();
        let deadline = generic
            .max_time_ms
            .filter(|milliseconds| *milliseconds > 0)
            .map(|milliseconds| started + Duration::from_millis(milliseconds));
        CommandContext {
            node,
            conn,
            request,
            spec,
            table,
            generic,
            started,
            deadline,
            concern: WriteConcern::default(),
            view: None,
            last_write: AtomicU64::new(0),
            late: AtomicBool::new(false),
            waited_micros: AtomicU64::new(0),
            work: Work::default(),
            handle: OnceLock::new(),
            slot: OnceLock::new(),
            budget: OnceLock::new(),
            operation: OnceLock::new(),
        }
    }

    /// The context of a command that runs as a part of this one; `handle` ends it.
    pub fn part<'b>(
        &'b self,
        request: &'b Request,
        spec: &'static CommandSpec,
        deadline: Option<Instant>,
        handle: Interrupt,
    ) -> Result<CommandContext<'b>, CommandError> {
        let generic = Generic::parse(request, spec)?;
        let mut part =
            CommandContext::new(self.node, self.conn, request, spec, self.table, generic);
        part.deadline = deadline;
        part.handle = OnceLock::from(handle);
        Ok(part)
    }

    /// Takes note of time that passed because the client wants to wait.
    pub fn note_wait(&self, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.waited_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// A plan begins to run for this command, or goes on: its work is counted and shown.
    pub fn run_plan(&self, stats: &Arc<PlanSummaryStats>) {
        self.work.begin(stats);
        if let Some(registration) = self.operation.get() {
            registration.show_plan(stats);
        }
    }

    /// How long it has taken so far, without what it has waited.
    pub fn busy(&self) -> Duration {
        let waited = Duration::from_micros(self.waited_micros.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(waited)
    }

    /// What the command has written lies in the log up to here.
    pub fn note_write(&self, index: u64) {
        self.last_write.fetch_max(index, Ordering::Relaxed);
        if let Some(client) = self.conn.extension(Client::default) {
            client.last_write.fetch_max(index, Ordering::Relaxed);
        }
    }

    /// Takes what was written before on this connection for its own.
    pub fn recall_writes(&self) {
        let client = self.conn.extension(Client::default);
        let before = client.map_or(0, |client| client.last_write.load(Ordering::Relaxed));
        self.last_write.fetch_max(before, Ordering::Relaxed);
    }

    pub fn last_write(&self) -> Option<u64> {
        Some(self.last_write.load(Ordering::Relaxed)).filter(|index| *index > 0)
    }

    pub fn note_late(&self) {
        self.late.store(true, Ordering::Relaxed);
    }

    pub fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// The state that the command reads: every index of the catalog is complete in the snapshot.
    pub fn view(&self) -> (Arc<Catalog>, Snapshot) {
        match &self.view {
            Some(view) => (view.catalog.clone(), view.snapshot.clone()),
            None => self.node.view(),
        }
    }

    /// What the reply tells of the time of the state that was read, if that is to be told.
    pub fn at_cluster_time(&self) -> Option<Timestamp> {
        self.view.as_ref().map(|view| view.time)
    }

    /// Whether the request comes from a router that wants it held against what this shard owns.
    /// A read of what is `available` on a secondary takes orphaned documents for the others'.
    pub fn is_routed(&self) -> bool {
        let is_available = || {
            let level = self
                .generic
                .read_concern
                .map(|concern| concern.get_str("level"));
            matches!(level, Some(Ok(level)) if level == Level::Available.name())
        };
        self.generic.shard_version.is_some() && (!is_available() || self.node.is_primary())
    }

    /// What the request says about how it was routed.
    pub fn versions(&self) -> Versions<'a> {
        Versions {
            shard: self.generic.shard_version,
            database: self.generic.database_version,
        }
    }

    pub fn database(&self) -> &'a str {
        &self.request.database
    }

    pub fn body(&self) -> &'a RawDocument {
        &self.request.body
    }

    /// A field of the command, ready to be read as a type.
    pub fn field(&self, name: &'static str) -> Option<params::Field<'a>> {
        let value = field(self.body(), name)?;
        Some(params::Field {
            command: self.spec.name,
            name,
            value,
        })
    }

    /// A field that has to be there.
    pub fn required(&self, name: &'static str) -> Result<params::Field<'a>, CommandError> {
        self.field(name).ok_or_else(|| {
            CommandError::new(
                ErrorCode::Location(40414),
                format!(
                    "BSON field '{}.{name}' is missing but a required field",
                    self.spec.name
                ),
            )
        })
    }

    /// The value of the command's own field, as in `{find: "posts"}`.
    pub fn argument(&self) -> Option<RawBsonRef<'a>> {
        first_value(self.body())
    }

    /// The collection that the command's own field names.
    pub fn collection(&self) -> Result<&'a str, CommandError> {
        match self.argument() {
            Some(value) => {
                let name = collection_name(value)?;
                check_collection_name(self.database(), name)?;
                Ok(name)
            }
            None => Err(CommandError::new(ErrorCode::FailedToParse, "empty command")),
        }
    }

    /// The full name of the collection that the command's own field names.
    pub fn namespace(&self) -> Result<String, CommandError> {
        Ok(format!("{}.{}", self.database(), self.collection()?))
    }

    /// The handle by which `killOp`, `maxTimeMS` and a shutdown end this command. It can be taken
    /// to another thread; look at it in every long loop.
    pub fn interrupt(&self) -> &Interrupt {
        let registration = self.operation.get_or_init(|| {
            let handle = self.handle().clone();
            let operations = &self.node.operations;
            let listed = operations.register(
                self.conn,
                self.request,
                self.spec.name,
                self.spec.writes,
                handle,
            );
            // It may have run a plan for a while before it was worth listing.
            if let Some(plan) = self.work.plan() {
                listed.show_plan(&plan);
            }
            listed
        });
        registration.interrupt()
    }

    /// The same handle, for a command that may be over before anybody could list it. Whoever turns
    /// out to take longer calls [`CommandContext::interrupt`].
    pub fn handle(&self) -> &Interrupt {
        self.handle
            .get_or_init(|| self.node.operations.interrupt(self.deadline))
    }

    /// Where everything that this command runs looks whether it has to end. A cursor takes it
    /// along and puts the handles of its `getMore`s there.
    pub fn slot(&self) -> &Arc<InterruptSlot> {
        self.slot.get_or_init(|| {
            let slot = Arc::new(InterruptSlot::default());
            slot.set(Some(self.handle().clone()));
            slot
        })
    }

    /// What parsing and running documents and expressions for this command may use.
    pub fn budget(&self) -> Budget {
        let budget = self.budget.get_or_init(|| {
            let memory = self.node.parameters.memory.clone();
            Budget::interruptible(self.slot().clone(), memory)
        });
        budget.clone()
    }

    /// Whether it has written to disk what did not fit into memory.
    pub fn used_disk(&self) -> bool {
        self.budget.get().is_some_and(Budget::used_disk)
    }

    /// What a write that this command makes has to know of it.
    pub fn write_context(&self) -> WriteContext<'_> {
        WriteContext {
            operation: self,
            replica: &self.node.replica,
            tickets: &self.node.tickets,
            work: &self.work,
            database: self.database(),
            lsid: self.generic.lsid,
            txn_number: self.generic.txn_number,
            rules: self.node.role().map(|role| &**role as &dyn ShardRules),
            versions: self.versions(),
            journal: self.concern.journal(),
            commit_time_max: self.concern.commit_time_max(),
        }
    }

    /// Locks collections to change what they are.
    pub async fn lock_exclusive(
        &self,
        namespaces: &[&Namespace],
    ) -> Result<Vec<Lock>, CommandError> {
        let locks = self.node.locks.exclusive(namespaces);
        self.write_context().lock(locks, None).await
    }

    /// Runs what may compute for long, or read from a disk, where it holds up nobody else: with a
    /// ticket (see [`tickets`]), and beside the connections that share this worker.
    pub async fn compute<T>(
        &self,
        work: impl FnOnce() -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let work = async { work() };
        let outcome = self.node.tickets.run(self.interrupt(), work).await;
        outcome.map_err(errors::query)?
    }

    pub fn check_interrupt(&self) -> Result<(), CommandError> {
        self.interrupt().check().map_err(errors::query)
    }
}

impl Operation for CommandContext<'_> {
    fn interrupt(&self) -> &Interrupt {
        CommandContext::interrupt(self)
    }

    fn slot(&self) -> &Arc<InterruptSlot> {
        CommandContext::slot(self)
    }

    fn run_plan(&self, stats: &Arc<PlanSummaryStats>) {
        CommandContext::run_plan(self, stats);
    }

    fn wrote(&self, index: u64) {
        self.note_write(index);
    }

    fn waits_for_lock(&self, waits: bool) {
        self.interrupt();
        if let Some(listed) = self.operation.get() {
            listed.show_waiting(waits);
        }
    }

    fn was_late(&self) {
        self.note_late();
    }
}

/// A command's own value where it has to be a collection's name.
pub fn collection_name(value: RawBsonRef<'_>) -> Result<&str, CommandError> {
    match value {
        RawBsonRef::String(name) => Ok(name),
        other => Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!(
                "collection name has invalid type {}",
                banyan_document::kind::name(&other)
            ),
        )),
    }
}

const NAMESPACE_BYTES_MAX: usize = 255;

/// What MongoDB refuses as a collection's name.
pub fn check_collection_name(database: &str, name: &str) -> Result<(), CommandError> {
    let invalid = |message: String| Err(CommandError::new(ErrorCode::InvalidNamespace, message));
    if name.is_empty() || name.starts_with('.') || name.contains('\0') {
        return invalid(format!("Invalid namespace specified '{database}.{name}'"));
    }
    if name.contains('$') && name != "$cmd.aggregate" && name != "oplog.$main" {
        return invalid(format!(
            "Invalid collection name specified '{database}.{name}'"
        ));
    }
    if database.len() + 1 + name.len() > NAMESPACE_BYTES_MAX {
        return invalid(format!(
            "Fully qualified namespace is too long. Namespace: {database}.{name} Max: \
             {NAMESPACE_BYTES_MAX}"
        ));
    }
    check_database_name(database)
}

/// What MongoDB refuses as a database's name.
pub fn check_database_name(name: &str) -> Result<(), CommandError> {
    let bad = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0');
    if name.is_empty() || name.len() > 63 || (name.contains(bad) && name != "$external") {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid database name: '{name}'"),
        ));
    }
    Ok(())
}
