//! `moveChunk` and `moveRange`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_sharding::{ChunkRange, RoutingTable};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::target::{bad_value, bound, chunk};
use crate::migrations::{MoveOrder, carry_out, millis};
use crate::role::ConfigRole;

pub static SPEC: CommandSpec = primary_only("_configsvrMoveRange", |ctx| boxed(run(ctx)));

/// How long an operator's move waits for the balancer's moves of the same shards.
const SLOT_TIMEOUT: Duration = Duration::from_secs(300);

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
        let Some(_pair) = role.slots.take(&from, &to, SLOT_TIMEOUT).await else {
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
            to: to.clone(),
            wait_for_delete,
        };
        let outcome = carry_out(role, &order).await;
        if let Err(error) = &outcome
            && error.code == ErrorCode::ConflictingOperationInProgress
        {
            // A split that was under way may have come first: then it is the chunk of now that moves.
            let table = role.metadata.sharded_table(ns).await?;
            if source(ctx, &table)? != (order.range.clone(), order.from.clone()) {
                continue;
            }
        }
        outcome?;
        return Ok(rawdoc! { "millis": millis(started), "ok": 1.0 });
    }
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
