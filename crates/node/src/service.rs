//! From a request to a reply: what holds for every command, whichever it is.
//!
//! 1. The command is found in the table, its generic fields are parsed, unknown ones are refused.
//! 2. The member's state is checked against what the command needs, and the read concern against
//!    what this member can honour.
//! 3. The command runs: inline if it only looks something up, as a future otherwise.
//! 4. The cluster time is attached, the command is counted, and logged if it was slow.

use std::sync::Arc;
use std::time::Duration;

use banyan_storage::Namespace;
use banyan_wire::{CommandError, Connection, ErrorCode, Reply, Request, Service};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocumentBuf, Timestamp, cstr, rawdoc};

use crate::clock::{self, Clock};
use crate::commands::table::{CommandResult, CommandSpec, Needs, Run, Table};
use crate::context::{CommandContext, Generic};
use crate::node::Node;
use crate::role::Versions;

/// Answers the requests of one process.
pub struct NodeService {
    pub node: Arc<Node>,
    table: Arc<Table>,
}

impl NodeService {
    /// `extra` are the commands of the process's role.
    pub fn new(node: Arc<Node>, extra: &[&'static CommandSpec]) -> NodeService {
        NodeService {
            node,
            table: Arc::new(Table::new(extra)),
        }
    }

    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    async fn answer(&self, conn: &Arc<Connection>, request: &Request) -> CommandResult {
        let Some(spec) = self.table.find(&request.name) else {
            return Err(CommandError::new(
                ErrorCode::CommandNotFound,
                format!("no such command: '{}'", request.name),
            ));
        };
        let generic = Generic::parse(request, spec)?;
        self.admit(request, spec, &generic)
            .map_err(|error| label(error, &generic))?;
        self.count(spec);
        let ctx = CommandContext::new(&self.node, conn, request, spec, &self.table, generic);
        if let Some(concern) = generic.read_concern {
            self.wait_for_read_concern(&ctx, concern).await?;
        }
        self.prepare_role(&ctx).await;
        let result = match spec.run {
            Run::Inline(run) => run(&ctx),
            Run::Future(run) => run(&ctx).await,
            Run::Either(inline, run) => match inline(&ctx) {
                Some(result) => result,
                None => run(&ctx).await,
            },
        };
        self.note_slow(&ctx, &result);
        result.map_err(|error| label(error, &generic))
    }

    /// Lets the role catch up with what a routed request knows.
    async fn prepare_role(&self, ctx: &CommandContext<'_>) {
        let generic = &ctx.generic;
        let Some(version) = generic.shard_version else {
            return;
        };
        let Some(role) = self.node.role() else { return };
        let Some(collection) = ctx.argument().and_then(|value| value.as_str()) else {
            return;
        };
        let namespace = Namespace::new(ctx.database(), collection);
        let versions = Versions {
            shard: Some(version),
            database: generic.database_version,
        };
        if let Some(waiting) = role.prepare(namespace, versions) {
            waiting.await;
        }
    }

    /// What can be said against a request without looking at data.
    fn admit(
        &self,
        request: &Request,
        spec: &CommandSpec,
        generic: &Generic<'_>,
    ) -> Result<(), CommandError> {
        if spec.admin_only && request.database != "admin" {
            return Err(CommandError::new(
                ErrorCode::Unauthorized,
                format!("{} may only be run against the admin database.", spec.name),
            ));
        }
        if self.node.operations.is_shutting_down() {
            return Err(CommandError::new(
                ErrorCode::InterruptedAtShutdown,
                "interrupted at shutdown",
            ));
        }
        if generic.autocommit.is_some() || generic.start_transaction.is_some() {
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                "multi-document transactions are not supported",
            ));
        }
        if !self.node.replication.is_replica_set() {
            return Ok(());
        }
        if let Some(time) = generic
            .cluster_time
            .and_then(|d| d.get_timestamp("clusterTime").ok())
        {
            self.observe(time)?;
        }
        match spec.needs {
            Needs::Any => Ok(()),
            Needs::Primary if self.node.is_primary() => Ok(()),
            Needs::Primary => Err(CommandError::new(
                ErrorCode::NotWritablePrimary,
                "not primary",
            )),
            Needs::Readable => self.admit_read(request, generic),
        }
    }

    fn admit_read(&self, request: &Request, generic: &Generic<'_>) -> Result<(), CommandError> {
        if self.node.is_primary() {
            return Ok(());
        }
        if !generic.secondary_ok && generic.read_mode() == "primary" {
            return Err(CommandError::new(
                ErrorCode::NotPrimaryNoSecondaryOk,
                "not primary and secondaryOk=false",
            ));
        }
        // What is local to the member can be read in any state.
        if request.database != "local" && !self.node.replication.is_readable() {
            return Err(CommandError::new(
                ErrorCode::NotPrimaryOrSecondary,
                "node is not in primary or recovering state",
            ));
        }
        Ok(())
    }

    fn observe(&self, time: Timestamp) -> Result<(), CommandError> {
        if Clock::is_implausible(time) {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "$clusterTime is further ahead of this server's clock than a clock can be wrong",
            ));
        }
        self.node.clock.observe(time);
        Ok(())
    }

    async fn wait_for_read_concern(
        &self,
        ctx: &CommandContext<'_>,
        concern: &bson::RawDocument,
    ) -> Result<(), CommandError> {
        let set = self.node.replication.is_replica_set();
        for (name, value) in concern.iter().flatten() {
            match (name.as_str(), value) {
                ("level", RawBsonRef::String("local" | "available" | "majority")) => {}
                // Every read is of one snapshot of what is committed.
                ("level", RawBsonRef::String("snapshot")) if set => {}
                ("level", RawBsonRef::String("linearizable" | "snapshot")) if !set => {
                    return Err(CommandError::new(
                        ErrorCode::NotAReplicaSet,
                        "node needs to be a replica set member to use read concern",
                    ));
                }
                ("level", RawBsonRef::String("linearizable")) => self.linearize().await?,
                ("level", _) => {
                    return Err(CommandError::new(
                        ErrorCode::FailedToParse,
                        "readConcern.level must be either 'local', 'majority', 'linearizable', \
                         'available', or 'snapshot'",
                    ));
                }
                ("afterClusterTime", RawBsonRef::Timestamp(time)) => {
                    if !set {
                        return Err(CommandError::new(
                            ErrorCode::IllegalOperation,
                            "Cannot specify afterClusterTime readConcern without replication \
                             enabled",
                        ));
                    }
                    self.wait_until_applied(ctx, time).await?;
                }
                ("provenance" | "$tenant", _) => {}
                ("atClusterTime", _) => {
                    return Err(CommandError::new(
                        ErrorCode::NotImplemented,
                        "readConcern atClusterTime is not supported",
                    ));
                }
                (name, _) => {
                    return Err(CommandError::new(
                        ErrorCode::InvalidOptions,
                        format!("Unrecognized option in readConcern: {name}"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Asks a majority whether this is still the primary, and waits until everything that was
    /// committed by then is applied here.
    async fn linearize(&self) -> Result<(), CommandError> {
        self.node
            .group
            .read_index()
            .await
            .map(drop)
            .map_err(|error| {
                CommandError::new(
                    ErrorCode::NotWritablePrimary,
                    format!("cannot read linearizably: {error}"),
                )
            })
    }

    async fn wait_until_applied(
        &self,
        ctx: &CommandContext<'_>,
        time: Timestamp,
    ) -> Result<(), CommandError> {
        if Clock::is_implausible(time) {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "readConcern afterClusterTime value must not be greater than the current \
                 clusterTime",
            ));
        }
        let target = clock::to_bits(time);
        while clock::to_bits(self.node.machine.operation_time()) < target {
            ctx.check_interrupt()?;
            // Only a lagging secondary, or a time that nobody wrote at, comes here.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    fn count(&self, spec: &CommandSpec) {
        let counters = &self.node.counters;
        match spec.name {
            "find" => counters.query.add(1),
            "getMore" => counters.getmore.add(1),
            // Writes are counted by document, where they are made.
            "insert" | "update" | "delete" => {}
            _ => counters.command.add(1),
        }
    }

    fn note_slow(&self, ctx: &CommandContext<'_>, result: &CommandResult) {
        let elapsed = ctx.started.elapsed();
        let limit_ms = self.node.parameters.slow_ms();
        if i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX) < limit_ms || limit_ms < 0 {
            return;
        }
        // Drivers ask to be answered when something has changed.
        if ctx.spec.name == "hello" {
            return;
        }
        self.node.counters.slow_commands.add(1);
        // The cursor's own name says enough; the whole command may hold the client's data.
        let namespace = ctx
            .argument()
            .and_then(|value| value.as_str().map(str::to_owned));
        tracing::info!(
            connection = ctx.conn.id,
            command = ctx.spec.name,
            database = ctx.database(),
            collection = namespace.unwrap_or_default(),
            milliseconds = elapsed.as_millis() as u64,
            error = result.as_ref().err().map(|error| error.code.code()),
            "slow command"
        );
    }

    /// Members of a set tell every client how far time has come.
    fn attach_time(&self, reply: &mut RawDocumentBuf) {
        if !self.node.replication.is_replica_set() {
            return;
        }
        let applied = self.node.machine.operation_time();
        let now = self.node.clock.now();
        if clock::to_bits(now) == 0 {
            return;
        }
        let hash = Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0; 20],
        };
        let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
        reply.append(
            cstr!("$clusterTime"),
            rawdoc! { "clusterTime": now, "signature": signature },
        );
        reply.append(cstr!("operationTime"), applied);
    }
}

/// A driver retries a write once if the error says that it may.
fn label(error: CommandError, generic: &Generic<'_>) -> CommandError {
    const RETRYABLE: &str = "RetryableWriteError";
    let may_retry =
        error.code.is_not_primary() || error.code.is_shutdown() || error.code.is_network();
    if generic.txn_number.is_some() && may_retry && !error.labels.contains(&RETRYABLE) {
        return error.with_label(RETRYABLE);
    }
    error
}

impl Service for NodeService {
    async fn call(self: &Arc<Self>, conn: &Arc<Connection>, request: Request) -> Reply {
        let mut body = match self.answer(conn, &request).await {
            Ok(body) => body,
            Err(error) => {
                self.node.counters.user_errors.add(1);
                tracing::debug!(connection = conn.id, command = %request.name, %error, "refused");
                let mut reply = error.to_reply();
                let about_state = error.code.is_not_primary() || error.code.is_shutdown();
                if about_state && self.node.replication.is_replica_set() {
                    let version = self.node.replication.topology_version();
                    reply.append(cstr!("topologyVersion"), version);
                }
                reply
            }
        };
        self.attach_time(&mut body);
        body.into()
    }

    fn closed(&self, conn: &Connection) {
        self.node.operations.connection_closed(conn.id);
    }
}
