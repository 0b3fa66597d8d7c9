//! What a command runs with: it sees the node, the connection, the request and the fields that any
//! command may carry ([`CommandContext`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use banyan_access::api_version::ApiParameters;
use banyan_access::identity::{Client, Owner};
use banyan_access::impersonation;
use banyan_document::{field, first_value};
use banyan_execution::PlanSummaryStats;
use banyan_execution::work::Work;
use banyan_execution::{Interrupt, InterruptSlot};
use banyan_query::Budget;
use banyan_replication::locks::Lock;
use banyan_replication::set::write_concern::WriteConcern;
use banyan_replication::snapshots::PointInTime;
use banyan_replication::write::context::{Operation, WriteContext};
use banyan_replication::write::shard_rules::{ShardRules, Versions};
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::fail_points::Failing;
use banyan_wire::{CommandError, Connection, ErrorCode, Request, SessionId};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use parking_lot::Mutex;

use crate::errors;
use crate::generic::Generic;
use crate::names::{check_collection_name, check_outline, collection_name};
use crate::node::Node;
use crate::operations::Registration;
use crate::params;
use crate::profiler::Notes;
use crate::query_notes::QueryNotes;
use crate::read_concern::concern::Level;
use crate::role::BoxFuture;
use crate::specification::{self, Specification};
pub use crate::specification::{CheckForm, Needs, TakesConcern};

/// What a command answers: the reply without `operationTime` and `$clusterTime`, which the service
/// adds. `ok: 1` is part of it.
pub type CommandResult = Result<RawDocumentBuf, CommandError>;

/// How a command is run.
#[derive(Clone, Copy)]
pub enum Run {
    /// On the connection's task, without waiting for anything: commands that only look at memory.
    Inline(for<'a> fn(&'a CommandContext<'a>) -> CommandResult),
    /// Anything that waits or scans.
    Future(for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>),
    /// First the inline attempt, which declines with `None` when the request turns out to be more
    /// than a point operation; then the future.
    Either(
        for<'a> fn(&'a CommandContext<'a>) -> Option<CommandResult>,
        for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>,
    ),
}

/// A command's line in the table.
pub type CommandSpec = Specification<Run>;
/// The commands of this process by every spelling.
pub type Table = specification::Table<Run>;

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
    /// Whom belongs what it opens; `None` while users do not count.
    pub owner: Option<Arc<Owner>>,
    /// The logical session that it is a part of.
    pub session: Option<SessionId>,
    /// What it says of the stable API.
    pub api: ApiParameters,
    /// What it reads, where that is not simply the newest state.
    pub view: Option<PointInTime>,
    /// The index of its last write in the log; 0 if it has not written.
    last_write: AtomicU64,
    /// Something it wrote was not committed within its write concern's time.
    late: AtomicBool,
    /// A test has had one of its statements fail.
    tested_failure: AtomicBool,
    /// How long it has waited because it was asked to.
    waited_micros: AtomicU64,
    /// What ends it, whether or not it is listed.
    handle: OnceLock<Interrupt>,
    /// Where what it runs looks whether it has to end.
    slot: OnceLock<Arc<InterruptSlot>>,
    budget: OnceLock<Budget>,
    /// The labels that a fail point gives its reply, in place of the server's own.
    pub labels: OnceLock<RawArrayBuf>,
    /// What it has done so far.
    pub work: Work,
    /// What the profiler is to know beside that.
    pub notes: Mutex<Notes>,
    /// What it has because of its shape, if it queries.
    pub query: QueryNotes,
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
        let deadline = match spec.name {
            // Here it is how long to wait for more: what waits for nothing else may take longer.
            "getMore" => None,
            _ => node.fail_points.deadline(started, generic.time_max()),
        };
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
            owner: None,
            session: None,
            api: ApiParameters::default(),
            view: None,
            last_write: AtomicU64::new(0),
            late: AtomicBool::new(false),
            tested_failure: AtomicBool::new(false),
            waited_micros: AtomicU64::new(0),
            labels: OnceLock::new(),
            work: Work::default(),
            notes: Mutex::default(),
            query: QueryNotes::default(),
            handle: OnceLock::new(),
            slot: OnceLock::new(),
            budget: OnceLock::new(),
            operation: OnceLock::new(),
        }
    }

    /// Whom a router has sent this for, in the form in which another process is told of it
    /// ([`banyan_wire::behalf`]).
    pub fn client(&self) -> Option<Arc<RawDocumentBuf>> {
        // Without an owner it was not looked at who sends it.
        let audit = self.generic.audit.filter(|_| self.owner.is_some())?;
        let metadata = audit.as_document()?.to_owned();
        let may_bypass = self.generic.may_bypass_write_blocking.unwrap_or(false);
        Some(Arc::new(impersonation::fields(metadata, may_bypass)))
    }

    /// The context of a command that runs as a part of this one; `handle` ends it.
    pub fn part<'b>(
        &'b self,
        request: &'b Request,
        spec: &'static CommandSpec,
        deadline: Option<Instant>,
        handle: Interrupt,
    ) -> Result<CommandContext<'b>, CommandError> {
        let generic = spec.generic(request)?;
        let mut part =
            CommandContext::new(self.node, self.conn, request, spec, self.table, generic);
        part.deadline = deadline;
        part.owner.clone_from(&self.owner);
        part.session = self.session.filter(|_| part.generic.lsid.is_some());
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
        if let Some(client) = Client::of(self.conn) {
            client.last_write.fetch_max(index, Ordering::Relaxed);
        }
    }

    /// Takes what was written before on this connection for its own.
    pub fn recall_writes(&self) {
        let client = Client::of(self.conn);
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

    pub fn has_tested_failure(&self) -> bool {
        self.tested_failure.load(Ordering::Relaxed)
    }

    /// The state that the command reads: every index of the catalog is complete in the snapshot.
    pub fn view(&self) -> (Arc<Catalog>, Snapshot) {
        match &self.view {
            Some(view) => (view.catalog.clone(), view.snapshot.clone()),
            None => self.node.replica.view(),
        }
    }

    /// The command as a fail point sees it.
    pub fn failing(&self) -> Failing<'_> {
        Failing {
            points: &self.node.fail_points,
            connection: self.conn,
            request: self.request,
            name: self.spec.name,
            aliases: self.spec.aliases,
        }
    }

    /// What the reply tells of the time of the state that was read, if that is to be told.
    pub fn at_cluster_time(&self) -> Option<Timestamp> {
        self.view.as_ref().map(|view| view.time)
    }

    /// Whether the request comes from a router that wants it checked against what this shard owns.
    /// A read of what is `available` on a secondary takes orphaned documents for the others'.
    pub fn is_routed(&self) -> bool {
        let is_available = || {
            let level = self
                .generic
                .read_concern
                .map(|concern| concern.get_str("level"));
            matches!(level, Some(Ok(level)) if level == Level::Available.name())
        };
        self.generic.shard_version.is_some() && (!is_available() || self.node.replica.is_primary())
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
        let name = self.named()?;
        check_collection_name(self.database(), name)?;
        Ok(name)
    }

    /// The collection that the command's own field names, where it has to exist: a name that none
    /// can have is that of one that does not.
    pub fn existing_collection(&self) -> Result<&'a str, CommandError> {
        let name = self.named()?;
        check_outline(self.database(), name)?;
        Ok(name)
    }

    /// The text of the command's own field.
    pub fn named(&self) -> Result<&'a str, CommandError> {
        match self.argument() {
            // A command without a parser of its own has another code for what is no text.
            Some(value) if self.spec.lenient => collection_name(value),
            Some(RawBsonRef::String(name)) => Ok(name),
            Some(value) => Err(CommandError::new(
                ErrorCode::BadValue,
                format!(
                    "collection name has invalid type {}",
                    banyan_document::kind::name(&value)
                ),
            )),
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
                self.owner.clone(),
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
            session: self.session,
            txn_number: self.generic.txn_number,
            rules: self.node.role().map(|role| &**role as &dyn ShardRules),
            versions: self.versions(),
            bypass_validation: false,
            journal: self.concern.journal(),
            commit_time_max: self.concern.commit_time_max(),
        }
    }

    /// Locks collections to change what they are.
    pub async fn lock_exclusive(
        &self,
        namespaces: &[&Namespace],
    ) -> Result<Vec<Lock>, CommandError> {
        let locks = self.node.replica.locks.exclusive(namespaces);
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

    fn before_numbered_write(&self, session: &SessionId, number: i64) -> Result<(), CommandError> {
        let points = &self.node.fail_points;
        let passed = points.before_numbered_write(self.conn, session, number);
        if passed.is_err() {
            self.tested_failure.store(true, Ordering::Relaxed);
        }
        passed
    }

    fn was_late(&self) {
        self.note_late();
    }
}
