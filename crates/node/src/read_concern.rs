//! Read concern: what a read has to see, and what it may not see.
//!
//! What is applied here is committed: no election takes it back. So `local`, `available` and
//! `majority` are the same, and each read is of one storage snapshot (but a routed read of what is
//! `available` does not ask a secondary what its shard owns). What is left to do:
//!
//! - `linearizable` asks a majority whether this is still the primary, and waits until everything
//!   acknowledged by then is applied.
//! - `afterClusterTime` waits until that time is applied. If nobody wrote at that time, nothing
//!   would ever come: the primary writes a no-op entry, and a secondary
//!   asks it to.
//! - `snapshot` reads from a snapshot whose time the client is told and can name again
//!   ([`banyan_replication::snapshots`]).

use std::time::{Duration, Instant};

use banyan_document::kind;
use banyan_replication::clock::{self, Clock};
use banyan_replication::machine::SNAPSHOT_POINT;
use banyan_replication::set::write_concern::Provenance;
use banyan_replication::snapshots::View;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};

use crate::commands::table::CommandSpec;
use crate::context::CommandContext;
use crate::errors;
use crate::node::Node;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Local,
    Available,
    Majority,
    Linearizable,
    Snapshot,
}

impl Level {
    pub fn from_name(name: &str) -> Option<Level> {
        match name {
            "local" => Some(Level::Local),
            "available" => Some(Level::Available),
            "majority" => Some(Level::Majority),
            "linearizable" => Some(Level::Linearizable),
            "snapshot" => Some(Level::Snapshot),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Local => "local",
            Level::Available => "available",
            Level::Majority => "majority",
            Level::Linearizable => "linearizable",
            Level::Snapshot => "snapshot",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadConcern {
    pub level: Option<Level>,
    pub after: Option<Timestamp>,
    pub at: Option<Timestamp>,
    pub has_provenance: bool,
}

/// What a command can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    /// Any level.
    All,
    /// Any but `snapshot`.
    Consistent,
    /// `local` and `available`.
    Weak,
    /// `local` only.
    Local,
    /// `local` only, and no time: it looks at no data.
    Nothing,
    /// A command among members, which knows what it does.
    Internal,
}

impl Support {
    fn of(spec: &CommandSpec) -> Support {
        match spec.name {
            "find" | "aggregate" | "distinct" => Support::All,
            // It goes on with what the first command was given.
            "getMore" => Support::All,
            "count" => Support::Consistent,
            "mapReduce" => Support::Weak,
            _ if spec.lenient || spec.name.starts_with('_') => Support::Internal,
            "ping" | "hello" | "buildInfo" | "serverStatus" | "whatsmyuri" => Support::Nothing,
            _ => Support::Local,
        }
    }

    fn allows(self, level: Level) -> bool {
        match self {
            Support::All | Support::Internal => true,
            Support::Consistent => level != Level::Snapshot,
            Support::Weak => matches!(level, Level::Local | Level::Available),
            Support::Local | Support::Nothing => level == Level::Local,
        }
    }
}

fn invalid(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InvalidOptions, text)
}

fn wrong_type(name: &str, expected: &str, value: RawBsonRef<'_>) -> CommandError {
    CommandError::new(
        ErrorCode::TypeMismatch,
        format!(
            "\"{name}\" had the wrong type. Expected {expected}, found {}",
            kind::name(&value)
        ),
    )
}

fn timestamp(name: &str, value: RawBsonRef<'_>) -> Result<Timestamp, CommandError> {
    let RawBsonRef::Timestamp(time) = value else {
        return Err(wrong_type(name, "timestamp", value));
    };
    if clock::to_bits(time) == 0 {
        return Err(invalid(format!("{name} cannot be a null timestamp")));
    }
    Ok(time)
}

impl ReadConcern {
    pub fn parse(document: &RawDocument) -> Result<ReadConcern, CommandError> {
        let mut parsed = ReadConcern::default();
        for (name, value) in document.iter().flatten() {
            match name.as_str() {
                "level" => {
                    let RawBsonRef::String(name) = value else {
                        return Err(wrong_type("level", "string", value));
                    };
                    parsed.level = Some(Level::from_name(name).ok_or_else(unknown_level)?);
                }
                "afterClusterTime" => parsed.after = Some(timestamp("afterClusterTime", value)?),
                "atClusterTime" => parsed.at = Some(timestamp("atClusterTime", value)?),
                "provenance" => {
                    parsed.has_provenance = true;
                    check_provenance(value)?;
                }
                "$tenant" => {}
                name => {
                    return Err(invalid(format!(
                        "Unrecognized option in readConcern: {name}"
                    )));
                }
            }
        }
        parsed.check()?;
        Ok(parsed)
    }

    /// What contradicts itself, whatever the command.
    fn check(&self) -> Result<(), CommandError> {
        if self.at.is_some() && self.after.is_some() {
            return Err(invalid(
                "Specifying a timestamp for readConcern snapshot in a causally consistent session \
                 is not allowed. See \
                 https://docs.mongodb.com/manual/core/read-isolation-consistency-recency/\
                 #causal-consistency",
            ));
        }
        let weak = matches!(self.level, Some(Level::Available | Level::Linearizable));
        if self.after.is_some() && weak {
            return Err(invalid(
                "afterClusterTime field can be set only if level is equal to majority, local, or \
                 snapshot",
            ));
        }
        if self.at.is_some() && self.level != Some(Level::Snapshot) {
            return Err(invalid(
                "atClusterTime field can be set only if level is equal to snapshot",
            ));
        }
        Ok(())
    }

    fn check_command(
        &self,
        document: &RawDocument,
        spec: &CommandSpec,
    ) -> Result<(), CommandError> {
        let support = Support::of(spec);
        let level = self.level.unwrap_or(Level::Local);
        if !support.allows(level) {
            let reason = match (support, level) {
                (Support::Consistent, _) => "read concern snapshot not supported",
                _ => "read concern not supported",
            };
            return Err(invalid(format!(
                "Command {} does not support {} :: caused by :: {reason}",
                spec.name,
                shown(document)
            )));
        }
        if self.after.is_some() && support == Support::Nothing {
            return Err(invalid("afterClusterTime is not allowed for this command"));
        }
        Ok(())
    }

    /// What only a member of a set can promise.
    fn check_standalone(&self) -> Result<(), CommandError> {
        let refuse = |code, text: &str| Err(CommandError::new(code, text));
        match self.level {
            Some(Level::Linearizable) => refuse(
                ErrorCode::NotAReplicaSet,
                "node needs to be a replica set member to use read concern",
            ),
            Some(Level::Snapshot) => refuse(
                ErrorCode::NotAReplicaSet,
                "node needs to be a replica set member to use readConcern: snapshot",
            ),
            _ if self.after.is_some() => refuse(
                ErrorCode::IllegalOperation,
                "Cannot specify afterClusterTime readConcern without replication enabled",
            ),
            _ => Ok(()),
        }
    }
}

/// What a pipeline writes is no longer only a read.
pub fn check_output(ctx: &CommandContext<'_>, stage: &str) -> Result<(), CommandError> {
    let Some(document) = ctx.generic.read_concern else {
        return Ok(());
    };
    if ReadConcern::parse(document)?.level != Some(Level::Linearizable) {
        return Ok(());
    }
    Err(invalid(format!(
        "Command {} does not support {} :: caused by :: {stage} cannot be used with a \
         'linearizable' read concern level",
        ctx.spec.name,
        shown(document)
    )))
}

/// A read concern as messages show it.
fn shown(document: &RawDocument) -> String {
    let mut shown = RawDocument::to_owned(document);
    if document
        .get("provenance")
        .is_ok_and(|field| field.is_none())
    {
        shown.append(cstr!("provenance"), "clientSupplied");
    }
    let shown = rawdoc! { "readConcern": shown };
    errors::shown(RawBsonRef::Document(&shown))
}

fn check_provenance(value: RawBsonRef<'_>) -> Result<(), CommandError> {
    let name = value.as_str().unwrap_or_default();
    match Provenance::from_name(name) {
        Some(_) => Ok(()),
        None => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Enumeration value '{name}' for field 'ReadConcernArgs::parse.provenance' is not a \
                 valid value."
            ),
        )),
    }
}

pub fn unknown_level() -> CommandError {
    CommandError::new(
        ErrorCode::FailedToParse,
        "readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or \
         'snapshot'",
    )
}

/// Waits until this member can honour a command's read concern. What it then reads, if that is a
/// certain state.
pub async fn prepare(ctx: &CommandContext<'_>) -> Result<Option<View>, CommandError> {
    let (concern, document) = match ctx.generic.read_concern {
        Some(document) => (ReadConcern::parse(document)?, document),
        None => return Ok(None),
    };
    concern.check_command(document, ctx.spec)?;
    if !ctx.node.replication.is_replica_set() {
        concern.check_standalone()?;
        return Ok(None);
    }
    if ctx.spec.name == "getMore" {
        return Ok(None);
    }
    if let Some(after) = concern.after {
        check_known(ctx.node, "afterClusterTime", after)?;
        wait_until_applied(ctx, after).await?;
    }
    match concern.level {
        Some(Level::Linearizable) => linearize(ctx).await.map(|()| None),
        Some(Level::Snapshot) => snapshot_view(ctx, concern.at).await.map(Some),
        _ => Ok(None),
    }
}

/// A time that nobody has given out yet cannot be waited for.
fn check_known(node: &Node, name: &str, time: Timestamp) -> Result<(), CommandError> {
    let now = node.clock.now();
    if clock::to_bits(time) <= clock::to_bits(now) {
        return Ok(());
    }
    let shown = |time: Timestamp| format!("{{ ts: Timestamp({}, {}) }}", time.time, time.increment);
    Err(invalid(format!(
        "readConcern {name} value must not be greater than the current clusterTime. Requested \
         clusterTime: {}; current clusterTime: {}",
        shown(time),
        shown(now)
    )))
}

/// The time limit of the command, as a moment to sleep until.
async fn out_of_time(ctx: &CommandContext<'_>) {
    match ctx.deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Asks a majority whether this is still the primary, and waits until everything that was
/// committed by then is applied here.
async fn linearize(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let not_primary = || {
        CommandError::new(
            ErrorCode::NotWritablePrimary,
            "cannot satisfy linearizable read concern on non-primary node",
        )
    };
    let node = ctx.node;
    let term = node.group.leader_term();
    if term == 0 {
        return Err(not_primary());
    }
    let mut topology = node.replication.topology_watch();
    let mut confirmed = std::pin::pin!(node.group.read_index());
    loop {
        topology.borrow_and_update();
        if node.group.leader_term() != term {
            return Err(not_primary());
        }
        tokio::select! {
            biased;
            outcome = &mut confirmed => {
                // One that lost its place meanwhile has no word on what is newest.
                return match outcome {
                    Ok(_) if node.group.leader_term() == term => Ok(()),
                    _ => Err(not_primary()),
                };
            }
            _ = topology.changed() => {}
            () = out_of_time(ctx) => return Err(max_time_expired()),
            () = ctx.conn.closed().cancelled() => return Err(interrupted()),
            () = node.info.stop.cancelled() => {
                return Err(CommandError::new(
                    ErrorCode::InterruptedAtShutdown,
                    "interrupted at shutdown",
                ));
            }
        }
    }
}

fn max_time_expired() -> CommandError {
    CommandError::new(ErrorCode::MaxTimeMSExpired, "operation exceeded time limit")
}

fn interrupted() -> CommandError {
    CommandError::new(ErrorCode::Interrupted, "operation was interrupted")
}

/// How long a time may take to arrive by itself before the primary is asked for a no-op
/// entry.
const NOTE_AFTER: Duration = Duration::from_millis(20);
const NOTE_PAUSE_MAX: Duration = Duration::from_secs(1);

pub async fn wait_until_applied(
    ctx: &CommandContext<'_>,
    time: Timestamp,
) -> Result<(), CommandError> {
    let node = ctx.node;
    let target = clock::to_bits(time);
    if clock::to_bits(node.machine.operation_time()) >= target {
        return Ok(());
    }
    let mut applied = node.machine.applied_watch();
    let mut ask_at = Instant::now();
    let mut pause = NOTE_AFTER;
    if !node.is_primary() {
        ask_at += NOTE_AFTER;
    }
    loop {
        if *applied.borrow_and_update() >= target {
            return Ok(());
        }
        ctx.check_interrupt()?;
        if ask_at <= Instant::now() {
            node.ask_for_noop(time);
            pause = (pause * 2).min(NOTE_PAUSE_MAX);
            ask_at = Instant::now() + pause;
        }
        tokio::select! {
            _ = applied.changed() => {}
            () = tokio::time::sleep_until(ask_at.into()) => {}
            () = out_of_time(ctx) => {}
            () = ctx.conn.closed().cancelled() => return Err(interrupted()),
        }
    }
}

async fn snapshot_view(
    ctx: &CommandContext<'_>,
    at: Option<Timestamp>,
) -> Result<View, CommandError> {
    let node = ctx.node;
    if ctx.database() == "local" {
        return Err(CommandError::new(
            ErrorCode::SnapshotUnavailable,
            "Reading from capped collections with readConcern snapshot is not supported",
        ));
    }
    let keep = node.parameters.snapshot_window();
    let Some(time) = at else {
        return new_snapshot(ctx, keep).await;
    };
    if let Some(view) = node.snapshots.find(time, keep) {
        return Ok(view);
    }
    check_known(node, "atClusterTime", time)?;
    wait_until_applied(ctx, time).await?;
    node.snapshots.at(node, time, keep)
}

/// A snapshot whose time a later read can name at any member: the primary writes a no-op entry, and
/// every member keeps the state as of it. Without a primary this member alone keeps one.
async fn new_snapshot(ctx: &CommandContext<'_>, keep: Duration) -> Result<View, CommandError> {
    let node = ctx.node;
    let asked = Instant::now();
    let has_others = node.replication.config().is_some_and(|config| {
        let holders = config.members.iter().filter(|member| !member.arbiter_only);
        holders.count() > 1
    });
    if !has_others {
        return node.snapshots.take(node, keep);
    }
    // One entry at a time; whoever has waited for it may use it.
    let mut last = node.snapshots.pointing().await;
    let newest = node.snapshots.newest_point().filter(|view| {
        last.is_some_and(|begun| begun >= asked) || view.time == node.machine.operation_time()
    });
    if let Some(view) = newest {
        return Ok(view);
    }
    *last = Some(Instant::now());
    match bring_point(ctx).await {
        Ok(view) => Ok(view),
        Err(error) => {
            *last = None;
            ctx.check_interrupt()?;
            tracing::debug!(%error, "a snapshot that only this member keeps");
            node.snapshots.take(node, keep)
        }
    }
}

/// How long a primary may take for a no-op entry before a snapshot is taken without it.
const POINT_TIMEOUT: Duration = Duration::from_secs(1);

async fn bring_point(ctx: &CommandContext<'_>) -> Result<View, CommandError> {
    let node = ctx.node;
    let message = rawdoc! { "msg": SNAPSHOT_POINT };
    let late = || CommandError::new(ErrorCode::ExceededTimeLimit, "no no-op entry in time");
    if node.is_primary() {
        let written = tokio::time::timeout(POINT_TIMEOUT, node.write_noop(&message));
        written.await.map_err(|_| late())??;
    } else {
        let request = rawdoc! { "appendOplogNote": 1, "data": message };
        let reply = node
            .replication
            .ask_primary(&request, POINT_TIMEOUT)
            .await?;
        let time = reply.get_timestamp("operationTime").map_err(|_| late())?;
        let applied = tokio::time::timeout(POINT_TIMEOUT, wait_until_applied(ctx, time));
        applied.await.map_err(|_| late())??;
    }
    node.snapshots.newest_point().ok_or_else(late)
}

/// Refuses a `$clusterTime` that cannot be one, and takes note of what it says.
pub fn observe(node: &Node, gossip: RawBsonRef<'_>) -> Result<(), CommandError> {
    let RawBsonRef::Document(gossip) = gossip else {
        return Err(CommandError::new(
            ErrorCode::Location(10065),
            "invalid parameter: expected an object ($clusterTime)",
        ));
    };
    let missing = |name: &str| {
        CommandError::new(
            ErrorCode::NoSuchKey,
            format!("Missing expected field \"{name}\""),
        )
    };
    let field = |name: &str| gossip.get(name).ok().flatten();
    let time = match field("clusterTime") {
        Some(RawBsonRef::Timestamp(time)) => time,
        Some(value) => return Err(wrong_type("clusterTime", "timestamp", value)),
        None => return Err(missing("clusterTime")),
    };
    match field("signature") {
        Some(RawBsonRef::Document(_)) => {}
        Some(value) => return Err(wrong_type("signature", "object", value)),
        None => return Err(missing("signature")),
    }
    let drift = node.parameters.value("maxAcceptableLogicalClockDriftSecs");
    let wall = Clock::wall_seconds();
    if u64::from(time.time) > wall.saturating_add(drift.max(0).unsigned_abs()) {
        return Err(CommandError::new(
            ErrorCode::ClusterTimeFailsRateLimiter,
            format!(
                "New $clusterTime, {}, is too far from this node's wall clock time, {wall}.",
                time.time
            ),
        ));
    }
    node.clock.observe(time);
    Ok(())
}

/// What members of a set append to every reply: how far time has come.
pub fn attach_time(node: &Node, reply: &mut RawDocumentBuf) {
    if !node.replication.is_replica_set() {
        return;
    }
    let applied = node.machine.operation_time();
    let now = node.clock.now();
    if clock::to_bits(now) == 0 {
        return;
    }
    reply.append(cstr!("$clusterTime"), gossip(now));
    reply.append(cstr!("operationTime"), applied);
}

/// A `$clusterTime`. The signature is the one of a deployment without keys.
pub fn gossip(time: Timestamp) -> RawDocumentBuf {
    let hash = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
    rawdoc! { "clusterTime": time, "signature": signature }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{count, distinct, find};

    fn time(seconds: u32) -> Timestamp {
        Timestamp {
            time: seconds,
            increment: 1,
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let refused = [
            (rawdoc! { "level": "strong" }, 9),
            (rawdoc! { "level": 5 }, 14),
            (rawdoc! { "what": 1 }, 72),
            (rawdoc! { "afterClusterTime": 5 }, 14),
            (rawdoc! { "afterClusterTime": clock::from_bits(0) }, 72),
            (rawdoc! { "atClusterTime": time(1) }, 72),
            (
                rawdoc! { "level": "majority", "atClusterTime": time(1) },
                72,
            ),
            (
                rawdoc! { "level": "available", "afterClusterTime": time(1) },
                72,
            ),
            (
                rawdoc! { "level": "snapshot", "afterClusterTime": time(1), "atClusterTime": time(1) },
                72,
            ),
        ];
        for (document, code) in refused {
            let error = ReadConcern::parse(&document).unwrap_err();
            assert_eq!(error.code.code(), code, "{document:?}: {error}");
        }
        let concern = rawdoc! { "level": "snapshot", "atClusterTime": time(7) };
        assert_eq!(ReadConcern::parse(&concern).unwrap().at, Some(time(7)));
    }

    #[test]
    fn a_command_is_asked_for_what_it_can_do() {
        let allowed = |spec: &CommandSpec, level: &str| {
            let document = rawdoc! { "level": level };
            let concern = ReadConcern::parse(&document).unwrap();
            concern.check_command(&document, spec).is_ok()
        };
        for level in ["local", "available", "majority", "linearizable", "snapshot"] {
            assert!(allowed(&find::SPEC, level) && allowed(&distinct::SPEC, level));
            assert_eq!(allowed(&count::SPEC, level), level != "snapshot");
            assert_eq!(
                allowed(&crate::commands::explain::SPEC, level),
                level == "local"
            );
        }
        let document = rawdoc! { "level": "snapshot" };
        let concern = ReadConcern::parse(&document).unwrap();
        let error = concern.check_command(&document, &count::SPEC).unwrap_err();
        assert_eq!(
            error.message,
            "Command count does not support { readConcern: { level: \"snapshot\", provenance: \
             \"clientSupplied\" } } :: caused by :: read concern snapshot not supported"
        );
    }
}
