//! `moveChunk` and `moveRange`, and the way in which the balancer's moves are carried out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::commands::table::{CommandResult, CommandSpec};
use banyan_node::context::CommandContext;
use banyan_sharding::{ChunkRange, RoutingTable};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::target::{bad_value, bound, chunk};
use super::{boxed, primary_only};
use crate::index_changes;
use crate::metadata::uuid_binary;
use crate::role::ConfigRole;

pub static SPEC: CommandSpec = primary_only("_configsvrMoveRange", |ctx| boxed(run(ctx)));

/// How long one move may take; the donor gives up long before.
const MOVE_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long an operator's move waits for the balancer's moves of the same shards.
const SLOT_PATIENCE: Duration = Duration::from_secs(300);

/// How long a move waits for a change of the collection's indexes; both shards wait with it.
const DEFINITION_PATIENCE: Duration = Duration::from_secs(5);

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx.required("_configsvrMoveRange")?.str()?;
    let to = match ctx.field("to") {
        Some(to) => to.str()?,
        None => ctx.required("toShard")?.str()?,
    };
    let to = role.metadata.shard(to).await?.id;
    let mut wait_for_delete = false;
    for name in ["_waitForDelete", "waitForDelete"] {
        if let Some(field) = ctx.field(name) {
            wait_for_delete = field.bool()?;
        }
    }
    let started = Instant::now();
    loop {
        let table = role.metadata.sharded_table(ns).await?;
        let (range, from) = source(ctx, &table)?;
        if from == to {
            // Where it should be already.
            return Ok(rawdoc! { "millis": millis(started), "ok": 1.0 });
        }
        let Some(_pair) = role.slots.take(&from, &to, SLOT_PATIENCE).await else {
            let message = "Unable to start new balancer operation because this shard is currently \
                           donating or receiving a chunk";
            return Err(CommandError::new(
                ErrorCode::ConflictingOperationInProgress,
                message,
            ));
        };
        // The wait may have been long: the chunk may be another one now.
        let table = role.metadata.sharded_table(ns).await?;
        if source(ctx, &table)? != (range.clone(), from.clone()) {
            continue;
        }
        let order = MoveOrder {
            ns: ns.to_owned(),
            range,
            from,
            to,
            wait_for_delete,
        };
        carry_out(role, &order).await?;
        return Ok(rawdoc! { "millis": millis(started), "ok": 1.0 });
    }
}

fn millis(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// The range that is meant and who owns it.
fn source(
    ctx: &CommandContext<'_>,
    table: &RoutingTable,
) -> Result<(ChunkRange, Arc<str>), CommandError> {
    let (min, max) = (ctx.field("min"), ctx.field("max"));
    let (Some(min), Some(max)) = (min, max) else {
        // `moveRange` may give one bound and means the chunk that starts or ends there.
        if let Some(min) = min {
            let chunk = table.find(&bound(table, min.document()?)?);
            return Ok((chunk.range.clone(), chunk.shard.clone()));
        }
        let chunk = chunk(ctx, table)?;
        return Ok((chunk.range.clone(), chunk.shard.clone()));
    };
    let range = ChunkRange::parse(table.pattern(), min.document()?, max.document()?);
    let range = range.map_err(bad_value)?;
    let owner = table.find(&range.min);
    if !owner.range.covers(&range) {
        let message = format!(
            "range {range} is not within one chunk; it begins in {}",
            owner.range
        );
        return Err(CommandError::new(ErrorCode::BadValue, message));
    }
    Ok((range, owner.shard.clone()))
}

/// A move that is decided; the caller holds both shards' slots.
#[derive(Debug, Clone)]
pub struct MoveOrder {
    pub ns: String,
    pub range: ChunkRange,
    pub from: Arc<str>,
    pub to: Arc<str>,
    pub wait_for_delete: bool,
}

/// Has the donor move the range. The donor commits; this only waits for it.
pub async fn carry_out(role: &ConfigRole, order: &MoveOrder) -> Result<(), CommandError> {
    let busy = || {
        let message = format!("the indexes of {} are being changed", order.ns);
        CommandError::new(ErrorCode::ConflictingOperationInProgress, message)
    };
    let waiting = tokio::time::timeout(DEFINITION_PATIENCE, role.moves.read(&order.ns));
    let _indexes_stay = waiting.await.map_err(|_| busy())?;
    if index_changes::is_open(role, &order.ns).await? {
        return Err(busy());
    }
    let started = Instant::now();
    let from = role.metadata.shard(&order.from).await?;
    let to = role.metadata.shard(&order.to).await?;
    let table = role.metadata.sharded_table(&order.ns).await?;
    let chunk = table.find(&order.range.min);
    let min = order.range.min.document().to_owned();
    let max = order.range.max.document().to_owned();
    let body = rawdoc! {
        "_shardsvrMoveRange": order.ns.as_str(),
        "uuid": uuid_binary(table.uuid()),
        "min": min.clone(),
        "max": max.clone(),
        "fromShard": &*order.from,
        "fromShardHost": from.host.as_str(),
        "toShard": &*order.to,
        "toShardHost": to.host.as_str(),
        "epoch": table.version().epoch,
        "lastmod": chunk.lastmod,
        "waitForDelete": order.wait_for_delete,
    };
    let route = rawdoc! { "min": min, "max": max, "from": &*order.from, "to": &*order.to };
    role.note("moveChunk.start", &order.ns, route.clone()).await;
    let outcome = role
        .shards
        .command_once(&from.host, &body, MOVE_TIMEOUT)
        .await;
    let mut details = route;
    details.append(bson::cstr!("millis"), millis(started));
    match outcome {
        Ok(_) => {
            details.append(bson::cstr!("note"), "success");
            role.note("moveChunk.from", &order.ns, details).await;
            Ok(())
        }
        Err(error) => {
            details.append(bson::cstr!("note"), "aborted");
            details.append(bson::cstr!("errmsg"), error.message.as_str());
            role.note("moveChunk.error", &order.ns, details.clone())
                .await;
            // Status pages count by what the donor says at its end.
            role.note("moveChunk.from", &order.ns, details).await;
            Err(error)
        }
    }
}
