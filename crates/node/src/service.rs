//! From a request to a reply: what holds for every command, whichever it is.
//!
//! 1. The command is found in the table, its generic fields are parsed, unknown ones are refused.
//! 2. The member's state is checked against what the command needs, and the read concern against
//!    what this member can honour ([`crate::read_concern`]).
//! 3. The command runs, unless a test has it fail ([`crate::failing`]): inline if it only looks something up, as a future otherwise; what is not
//!    clearly small does so with a ticket, where it holds up no other connection
//!    ([`tickets`]).
//! 4. The write concern is waited for ([`banyan_replication::set::write_concern`]).
//! 5. The cluster time is attached, the command is counted, and logged if it was slow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_replication::set::write_concern::{self, Awaited, WriteConcern};
use banyan_replication::write::context::Operation as _;
use banyan_security::{Action, Resource};
use banyan_storage::Namespace;
use banyan_wire::fail_points::fail_command;
use banyan_wire::session_id;
use banyan_wire::{
    CommandError, Connection, ErrorCode, OWN_CONNECTION_ID, Reply, Request, Service, StrangerLimits,
};
use bson::{RawBsonRef, RawDocumentBuf, rawdoc};
use tokio::sync::OwnedRwLockReadGuard;

use crate::account;
use crate::audited_changes::{self, Before};
use crate::blocked_writes;
use crate::commands::BUILT_IN;
use crate::commands::table::{CommandResult, CommandSpec, Needs, Run, Table};
use crate::commands::write_report;
use crate::context::{CommandContext, TakesConcern};
use crate::errors;
use crate::failing;
use crate::generic::{Generic, refused_concern};
use crate::info::ClusterRole;
use crate::light;
use crate::node::Node;
use crate::query_shapes;
use crate::read_concern;
use crate::refusal;
use crate::stored_defaults;
use banyan_access::api_version::{ApiParameters, REQUIRE_PARAMETER};
use banyan_access::audit::{self, Actor};
use banyan_access::audit_config;
use banyan_access::check::{self, Check};
use banyan_access::identity::{self, Identity, Owner};
use banyan_access::impersonation;
use banyan_access::reads_and_writes;
use banyan_access::sessions::Naming;

/// Answers the requests of one process.
pub struct NodeService {
    pub node: Arc<Node>,
    table: Arc<Table>,
}

impl NodeService {
    /// `extra` are the commands of the process's role.
    pub fn new(node: Arc<Node>, extra: &[&'static CommandSpec]) -> NodeService {
        let tests = node.parameters.flag("enableTestCommands");
        NodeService {
            node,
            table: Arc::new(Table::new(BUILT_IN, extra, tests)),
        }
    }

    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    async fn answer(&self, conn: &Arc<Connection>, request: &Request) -> CommandResult {
        let Some((place, spec)) = self.table.locate(&request.name) else {
            account::refused(self.node.counters.local(), false);
            return Err(CommandError::new(
                ErrorCode::CommandNotFound,
                format!("no such command: '{}'", request.name),
            ));
        };
        let refused = |error| {
            account::refused(self.node.counters.local(), true);
            error
        };
        if audit_config::is_in_force() {
            self.node.cluster_parameters.keep_up(&self.node.replica);
        }
        let required = self.node.parameters.flag(REQUIRE_PARAMETER);
        let api = match conn.is_internal() {
            true => ApiParameters::default(),
            false => ApiParameters::check(request, spec.name, required).map_err(refused)?,
        };
        let generic = spec.generic(request).map_err(|error| {
            // Who has not logged in is not told what is wrong with a command.
            refused(
                self.admit_stranger(conn, request, spec)
                    .err()
                    .unwrap_or(error),
            )
        })?;
        let admitted = match self.admit(conn, request, spec, &generic) {
            Ok(owner) => self
                .admit_state(conn, request, spec, &generic)
                .await
                .map(|()| owner),
            Err(error) => Err(error),
        };
        let owner =
            admitted.map_err(|error| refused(refusal::label(error, spec, &generic, false)))?;
        let mut ctx = CommandContext::new(&self.node, conn, request, spec, &self.table, generic);
        ctx.owner = owner;
        if let Some(limit) = self.read_time_max(conn, &ctx)? {
            ctx.deadline = Some(ctx.started + limit);
        }
        ctx.api = api;
        let before = Before::of(&ctx).await.map_err(refused)?;
        let (result, failed_by_test) = match failing::before(&ctx).await {
            Ok(()) => (self.run(&mut ctx).await, false),
            Err(error) => (Err(error), true),
        };
        let result = failing::after(&ctx, result);
        if let Some(before) = before {
            audited_changes::settle(&ctx, &before, &result);
        }
        account::settle(&ctx, place, &result);
        if let Some(labels) = ctx.labels.get() {
            return match result {
                Ok(reply) => Ok(fail_command::labelled_reply(reply, labels)),
                Err(error) => Err(fail_command::labelled(error, labels)),
            };
        }
        match result {
            Ok(reply) if spec.writes => {
                let replication = &self.node.replication;
                Ok(refusal::mark_concern(reply, spec, &generic, replication))
            }
            Ok(reply) => Ok(reply),
            Err(error) => Err(refusal::label(error, spec, &generic, failed_by_test)),
        }
    }

    async fn run(&self, ctx: &mut CommandContext<'_>) -> CommandResult {
        let is_over = |deadline| deadline <= Instant::now();
        if ctx.deadline.is_some_and(is_over) {
            ctx.check_interrupt()?;
        }
        self.enter_session(ctx)?;
        ctx.concern = self.write_concern(ctx)?;
        if ctx.generic.read_concern.is_some() {
            ctx.view = read_concern::prepare(ctx).await?;
        }
        let _passed = self.pass_write_gate(ctx).await?;
        if let Some(refused) = blocked_writes::refusal(ctx) {
            return refused;
        }
        self.prepare_role(ctx).await;
        ctx.query = query_shapes::note(ctx)?;
        let result = match ctx.spec.run {
            Run::Either(inline, run) => match inline(ctx) {
                Some(result) => result,
                None => self.run_rest(ctx, Run::Future(run)).await,
            },
            run => self.run_rest(ctx, run).await,
        };
        self.settle(ctx, result).await
    }

    /// Waits while an operator holds up writes. What members tell each other is none.
    async fn pass_write_gate(
        &self,
        ctx: &CommandContext<'_>,
    ) -> Result<Option<OwnedRwLockReadGuard<()>>, CommandError> {
        let is_internal = ctx.spec.name.starts_with('_');
        let writes = ctx.spec.writes
            || reads_and_writes::has_output(ctx.spec.name, ctx.body())
            || reads_and_writes::writes_output(ctx.body());
        if is_internal || !writes {
            return Ok(None);
        }
        let gate = &self.node.write_gate;
        if let Some(passed) = gate.try_enter(ctx.conn.id) {
            return Ok(Some(passed));
        }
        ctx.waits_for_lock(true);
        let entering = ctx.interrupt().within(gate.enter(ctx.conn.id)).await;
        ctx.waits_for_lock(false);
        entering.map(Some).map_err(errors::query)
    }

    /// Runs what is more than a point operation.
    async fn run_rest(&self, ctx: &CommandContext<'_>, run: Run) -> CommandResult {
        let work = async {
            match run {
                Run::Inline(run) => run(ctx),
                Run::Future(run) | Run::Either(_, run) => run(ctx).await,
            }
        };
        if ctx.spec.computes && !light::is_light(ctx.request) {
            let outcome = self.node.tickets.run(ctx.interrupt(), work).await;
            outcome.map_err(errors::query)?
        } else {
            work.await
        }
    }

    /// Lets the role catch up with what a routed request knows.
    async fn prepare_role(&self, ctx: &CommandContext<'_>) {
        if !ctx.is_routed() {
            return;
        }
        let Some(role) = self.node.role() else { return };
        let collection = match ctx.argument() {
            Some(RawBsonRef::String(collection)) => collection,
            // `explain` names the collection in the command that it explains.
            Some(RawBsonRef::Document(inner)) => match inner.iter().next() {
                Some(Ok((_, RawBsonRef::String(collection)))) => collection,
                _ => return,
            },
            _ => return,
        };
        let namespace = Namespace::new(ctx.database(), collection);
        if let Some(waiting) = role.prepare(namespace, ctx.versions()) {
            match ctx.deadline {
                // Having waited too long is noticed when the command runs.
                Some(deadline) => drop(tokio::time::timeout_at(deadline.into(), waiting).await),
                None => waiting.await,
            }
        }
    }

    /// What can be said against a request without looking at data, and whose it is.
    fn admit(
        &self,
        conn: &Connection,
        request: &Request,
        spec: &CommandSpec,
        generic: &Generic<'_>,
    ) -> Result<Option<Arc<Owner>>, CommandError> {
        if spec.admin_only && request.database != "admin" {
            return Err(CommandError::new(
                ErrorCode::Unauthorized,
                format!("{} may only be run against the admin database.", spec.name),
            ));
        }
        let owner = match self.node.access.is_enforced() && conn.id != OWN_CONNECTION_ID {
            true => Some(self.authorize(conn, request, spec, generic)?),
            false => None,
        };
        Ok(owner)
    }

    /// Whether the member is in a state to answer. What the client tells of the time is heard.
    async fn admit_state(
        &self,
        conn: &Connection,
        request: &Request,
        spec: &CommandSpec,
        generic: &Generic<'_>,
    ) -> Result<(), CommandError> {
        if self.node.operations.is_shutting_down() {
            return Err(CommandError::new(
                ErrorCode::InterruptedAtShutdown,
                "interrupted at shutdown",
            ));
        }
        if generic.autocommit.is_some() || generic.start_transaction.is_some() {
            let invalid = |why: &str| Err(CommandError::new(ErrorCode::InvalidOptions, why));
            if generic.txn_number.is_none() {
                return invalid(
                    "'autocommit' field requires a transaction number to also be specified",
                );
            }
            if generic.lsid.is_none() {
                return invalid("Transaction number requires a session ID to also be specified");
            }
            let alone = !self.node.replication.is_replica_set();
            if alone && self.node.info.role == ClusterRole::None {
                // By this many applications tell that they have to do without.
                return Err(CommandError::new(
                    ErrorCode::IllegalOperation,
                    "Transaction numbers are only allowed on a replica set member or mongos",
                ));
            }
            if generic.autocommit == Some(true) {
                return invalid("Specifying autocommit=true is not allowed.");
            }
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                "multi-document transactions are not supported",
            ));
        }
        if !self.node.replication.is_replica_set() {
            return Ok(());
        }
        if let Some(gossip) = generic.cluster_time {
            read_concern::observe(&self.node, conn, gossip).await?;
        }
        let replication = &self.node.replication;
        if spec.needs != Needs::Any {
            replication.check_quiescing()?;
        }
        match spec.needs {
            Needs::Any => Ok(()),
            Needs::Primary if self.node.replica.is_primary() => Ok(()),
            Needs::Primary => Err(CommandError::new(
                ErrorCode::NotWritablePrimary,
                "not primary",
            )),
            // What is local to the member can be read in any state.
            Needs::Readable | Needs::Data if request.database == "local" => Ok(()),
            Needs::Readable if self.node.replica.is_primary() => Ok(()),
            Needs::Readable if !generic.may_read_secondary() => Err(CommandError::new(
                ErrorCode::NotPrimaryNoSecondaryOk,
                "not primary and secondaryOk=false",
            )),
            Needs::Readable | Needs::Data if replication.is_readable() => Ok(()),
            Needs::Readable | Needs::Data => Err(CommandError::new(
                ErrorCode::NotPrimaryOrSecondary,
                "node is not in primary or recovering state",
            )),
        }
    }

    /// Whether who has not logged in may run such a command at all.
    fn admit_stranger(
        &self,
        conn: &Connection,
        request: &Request,
        spec: &CommandSpec,
    ) -> Result<(), CommandError> {
        if !self.node.access.is_enforced() || conn.id == OWN_CONNECTION_ID {
            return Ok(());
        }
        let identity = self.node.users().identity(conn)?;
        let check = Check::new(&identity, self.is_first(conn, &identity), request);
        check::admit_stranger(&check, spec.access, request)
    }

    /// Whether nobody could be asked who the client is, as there are no users yet.
    fn is_first(&self, conn: &Connection, identity: &Identity) -> bool {
        !identity.is_authenticated()
            && self.node.parameters.flag("enableLocalhostAuthBypass")
            && self.node.users().is_localhost_exception(conn)
    }

    /// Whether the client may do this, and whom it does it for.
    fn authorize(
        &self,
        conn: &Connection,
        request: &Request,
        spec: &CommandSpec,
        generic: &Generic<'_>,
    ) -> Result<Arc<Owner>, CommandError> {
        let users = self.node.users();
        let identity = users.identity(conn)?;
        let check = Check::new(&identity, self.is_first(conn, &identity), request);
        let admitted = check::admit(&check, spec.access, request);
        let owner = admitted.and_then(|()| {
            if generic.may_bypass_write_blocking.is_some()
                && !identity.allows(Action::Internal, Resource::Cluster)
            {
                return Err(impersonation::bypass_refused());
            }
            let own = identity.owner();
            match generic.audit {
                None => Ok(own.clone()),
                Some(_) if !identity.allows(Action::Impersonate, Resource::Cluster) => {
                    Err(impersonation::refused())
                }
                Some(client) => {
                    let client = impersonation::spoken_for(conn, client)?;
                    Ok(client.unwrap_or_else(|| own.clone()))
                }
            }
        });
        if audit::is_on() {
            let refused = owner.as_ref().err();
            let parameter = || self.node.parameters.flag(audit::SUCCESS_PARAMETER);
            let is_noted = || audit_config::notes_successes(parameter);
            // What only tells and asks who somebody is is not worth a line.
            if refused.is_some() || (!spec.vital && is_noted()) {
                let owner = owner.as_deref().ok();
                let actor = Actor::behind(&identity, owner, generic.audit);
                audit::authorization(conn, &actor, request, refused);
            }
        }
        owner
    }

    /// The session that the command names is in use.
    fn enter_session(&self, ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
        if let Some(lsid) = ctx.generic.lsid {
            let session = ctx.own_session(session_id::parse(lsid)?, Naming::Members)?;
            ctx.node.use_session(ctx.owner.as_deref(), session)?;
            ctx.session = Some(session);
        }
        if ctx.generic.txn_number.is_none() || ctx.spec.lenient {
            return Ok(());
        }
        self.check_numbered(ctx).or_else(|error| {
            // What is wrong with a batch is told before.
            write_report::check_batch(ctx)?;
            Err(error)
        })
    }

    /// What can be said against a transaction number.
    fn check_numbered(&self, ctx: &CommandContext<'_>) -> Result<(), CommandError> {
        let spec = ctx.spec;
        if !spec.retryable && !spec.writes && spec.needs != Needs::Readable {
            return Err(CommandError::new(
                ErrorCode::Location(50889),
                "It is illegal to provide a txnNumber for this command",
            ));
        }
        if ctx.generic.lsid.is_none() {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "Transaction number requires a session ID to also be specified",
            ));
        }
        // A shard may be a single server, as in 2012; its router takes numbers from clients.
        let alone = !self.node.replication.is_replica_set();
        if alone && self.node.info.role == ClusterRole::None {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "Transaction numbers are only allowed on a replica set member or mongos",
            ));
        }
        if spec.retryable {
            return Ok(());
        }
        Err(CommandError::new(
            ErrorCode::NotARetryableWriteCommand,
            format!(
                "txnNumber may only be provided for multi-document transactions and retryable write \
                 commands. autocommit:false was not provided, and {} is not a retryable write \
                 command.",
                spec.name
            ),
        ))
    }

    /// How long a client's read may take that names no time.
    fn read_time_max(
        &self,
        conn: &Connection,
        ctx: &CommandContext<'_>,
    ) -> Result<Option<Duration>, CommandError> {
        let node = &self.node;
        let Some(limit) = node.cluster_parameters.read_time_max(&node.replica) else {
            return Ok(None);
        };
        // A router has said it for its client.
        let is_asked = ctx.generic.max_time_ms.is_some()
            || ctx.generic.shard_version.is_some()
            || conn.id == OWN_CONNECTION_ID;
        if is_asked || !reads_and_writes::is_timed_read(ctx.spec.name, ctx.body()) {
            return Ok(None);
        }
        let may_bypass = node.access.is_enforced() && {
            let identity = node.users().identity(conn)?;
            identity.allows(Action::BypassDefaultMaxTimeMS, Resource::Cluster)
        };
        Ok((!may_bypass).then_some(limit))
    }

    /// What has to hold of the command's writes before its reply leaves.
    fn write_concern(&self, ctx: &CommandContext<'_>) -> Result<WriteConcern, CommandError> {
        let (spec, given) = (ctx.spec, ctx.generic.write_concern);
        let may_write = spec.writes
            || match spec.takes_concern {
                TakesConcern::Never => false,
                TakesConcern::Always => true,
                TakesConcern::WithOutput => reads_and_writes::has_output(spec.name, ctx.body()),
            };
        let is_internal = spec.name.starts_with('_');
        if !may_write {
            return match given {
                Some(_) if !is_internal => Err(refused_concern()),
                _ => Ok(WriteConcern::default()),
            };
        }
        if !self.node.replication.is_replica_set() {
            let concern = WriteConcern::of(given, &WriteConcern::default())?;
            concern.check_standalone()?;
            return Ok(concern);
        }
        // What the process writes for itself is not what the operator's default is about.
        let is_own = ctx.conn.id == OWN_CONNECTION_ID;
        match &stored_defaults::known(&self.node).write {
            Some(default) if !is_own => WriteConcern::of(given, default),
            _ => WriteConcern::of(given, &WriteConcern::default()),
        }
    }

    /// Waits for the write concern, whether the command went well or not: what it found may be
    /// somebody else's write.
    async fn settle(&self, ctx: &CommandContext<'_>, result: CommandResult) -> CommandResult {
        let wrote = ctx.spec.writes
            || ctx.last_write().is_some()
            || reads_and_writes::has_output(ctx.spec.name, ctx.body());
        if !wrote {
            return result;
        }
        let began = Instant::now();
        let settled = self.settle_concern(ctx, result).await;
        let waited = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        ctx.work.concern_wait.add(waited);
        settled
    }

    async fn settle_concern(
        &self,
        ctx: &CommandContext<'_>,
        result: CommandResult,
    ) -> CommandResult {
        match result {
            Ok(reply) => Ok(match wait_for_concern(ctx).await {
                Some(failure) => write_concern::with_failure(&reply, failure),
                None => reply,
            }),
            Err(error) if write_report::ends_command(ctx, &error) => Err(error),
            Err(error) => Err(match wait_for_concern(ctx).await {
                Some(failure) => {
                    let mut extra = rawdoc! { "writeConcernError": failure };
                    for (name, value) in error.extra.iter().flat_map(|e| e.iter().flatten()) {
                        extra.append(name, value);
                    }
                    error.with_extra(extra)
                }
                None => error,
            }),
        }
    }
}

async fn wait_for_concern(ctx: &CommandContext<'_>) -> Option<RawDocumentBuf> {
    let awaited = Awaited {
        index: ctx.last_write(),
        is_late: ctx.is_late(),
        deadline: ctx.deadline,
        is_interrupted: &|| ctx.interrupt().is_raised(),
        client_gone: ctx.conn.closed(),
    };
    let node = ctx.node;
    ctx.concern
        .wait(&node.replica, &node.replication, awaited)
        .await
}

impl Service for NodeService {
    async fn call(self: &Arc<Self>, conn: &Arc<Connection>, request: Request) -> Reply {
        let mut body = match self.answer(conn, &request).await {
            Ok(body) => body,
            Err(error) => {
                tracing::debug!(connection = conn.id, command = %request.name, %error, "refused");
                refusal::reply(error, conn, &request, &self.node.replication)
            }
        };
        read_concern::attach_time(&self.node, conn, &mut body);
        body.into()
    }

    fn is_vital(&self, name: &str) -> bool {
        self.table.find(name).is_some_and(|spec| spec.vital)
    }

    fn stranger_limits(&self, conn: &Connection) -> Option<StrangerLimits> {
        let controls = self.node.access.is_enforced();
        (controls && !identity::is_authenticated(conn)).then_some(StrangerLimits::LOGIN)
    }

    fn left(&self, conn: &Connection) {
        self.node.operations.connection_closed(conn.id);
    }

    fn closed(&self, conn: &Connection) {
        audit::closed(conn);
        self.node.operations.connection_closed(conn.id);
    }
}
