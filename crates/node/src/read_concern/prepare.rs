//! Waiting until this member can honour a read concern.

use std::time::{Duration, Instant};

use banyan_replication::clock;
use banyan_replication::machine::SNAPSHOT_POINT;
use banyan_replication::snapshots::PointInTime;
use banyan_wire::{CommandError, ErrorCode};
use bson::{Timestamp, rawdoc};

use super::concern::{Level, ReadConcern, invalid};
use super::support::check_command;
use crate::context::CommandContext;
use crate::node::Node;

/// Waits until this member can honour a command's read concern. What it then reads, if that is a
/// certain state.
pub async fn prepare(ctx: &CommandContext<'_>) -> Result<Option<PointInTime>, CommandError> {
    let (concern, document) = match ctx.generic.read_concern {
        Some(document) => (ReadConcern::parse(document)?, document),
        None => return Ok(None),
    };
    check_command(&concern, document, ctx.spec)?;
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
    let now = node.replica.clock.now();
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
    let term = node.replica.group.leader_term();
    if term == 0 {
        return Err(not_primary());
    }
    let mut topology = node.replication.topology_watch();
    let mut confirmed = std::pin::pin!(node.replica.group.read_index());
    loop {
        topology.borrow_and_update();
        if node.replica.group.leader_term() != term {
            return Err(not_primary());
        }
        tokio::select! {
            biased;
            outcome = &mut confirmed => {
                // One that lost its place meanwhile has no word on what is newest.
                return match outcome {
                    Ok(_) if node.replica.group.leader_term() == term => Ok(()),
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
    if clock::to_bits(node.replica.machine.operation_time()) >= target {
        return Ok(());
    }
    let mut applied = node.replica.machine.applied_watch();
    let mut ask_at = Instant::now();
    let mut pause = NOTE_AFTER;
    if !node.replica.is_primary() {
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
) -> Result<PointInTime, CommandError> {
    let node = ctx.node;
    let catalog = node.replica.store.catalog();
    let named = ctx.collection().ok();
    let named = named.and_then(|name| catalog.get(ctx.database(), name));
    if ctx.database() == "local" || named.is_some_and(|named| named.is_capped) {
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
    node.snapshots.at(&node.replica, time, keep)
}

/// A snapshot whose time a later read can name at any member: the primary writes a no-op entry, and
/// every member keeps the state as of it. Without a primary this member alone keeps one.
async fn new_snapshot(
    ctx: &CommandContext<'_>,
    keep: Duration,
) -> Result<PointInTime, CommandError> {
    let node = ctx.node;
    let asked = Instant::now();
    let has_others = node.replication.config().is_some_and(|config| {
        let holders = config.members.iter().filter(|member| !member.arbiter_only);
        holders.count() > 1
    });
    if !has_others {
        return node.snapshots.take(&node.replica, keep);
    }
    // One entry at a time; whoever has waited for it may use it.
    let mut last = node.snapshots.pointing().await;
    let newest = node.snapshots.newest_point().filter(|view| {
        last.is_some_and(|begun| begun >= asked)
            || view.time == node.replica.machine.operation_time()
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
            node.snapshots.take(&node.replica, keep)
        }
    }
}

/// How long a primary may take for a no-op entry before a snapshot is taken without it.
const POINT_TIMEOUT: Duration = Duration::from_secs(1);

async fn bring_point(ctx: &CommandContext<'_>) -> Result<PointInTime, CommandError> {
    let node = ctx.node;
    let message = rawdoc! { "msg": SNAPSHOT_POINT };
    let late = || CommandError::new(ErrorCode::ExceededTimeLimit, "no no-op entry in time");
    if node.replica.is_primary() {
        let written = tokio::time::timeout(POINT_TIMEOUT, node.replica.write_noop(&message));
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
