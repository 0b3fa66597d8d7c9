//! `split`: cut a chunk at a given key, or in the middle of its documents.

use std::sync::Arc;

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_sharding::{Chunk, RoutingTable, ShardKey};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::commit_split::split;
use super::target::{bad_value, bound, chunk};
use crate::metadata::is_true;
use crate::role::ConfigRole;
use crate::shards::SHORT;

pub static SPEC: CommandSpec = primary_only("_configsvrSplitChunk", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx.required("_configsvrSplitChunk")?.str()?;
    let table = role.metadata.sharded_table(ns).await?;
    let chunk = chunk(ctx, &table)?;
    let point = match ctx.field("middle") {
        Some(middle) => bound(&table, middle.document()?)?,
        None => median(role, &table, &chunk).await?,
    };
    if point == chunk.range.min {
        let message = format!(
            "new split key {point} is a boundary key of existing chunk {}",
            chunk.range
        );
        return Err(CommandError::new(ErrorCode::CannotSplit, message));
    }
    let epoch = Some(table.version().epoch);
    split(role, ns, &chunk.shard, epoch, &chunk.range, &[point]).await?;
    let shard = role.metadata.shard(&chunk.shard).await?;
    role.tell_shards(ns, [shard.host]).await;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Asks the owner for the key in the middle of the chunk's documents.
async fn median(
    role: &ConfigRole,
    table: &RoutingTable,
    chunk: &Arc<Chunk>,
) -> Result<ShardKey, CommandError> {
    let shard = role.metadata.shard(&chunk.shard).await?;
    let body = rawdoc! {
        "_shardsvrSplitPoints": table.ns(),
        "min": chunk.range.min.document().to_owned(),
        "max": chunk.range.max.document().to_owned(),
        "parts": 2,
    };
    let reply = role.shards.command(&shard.host, &body, SHORT).await?;
    debug_assert!(is_true(&reply, "ok"));
    let points = reply.get_array("points").map_err(bad_value)?;
    match points.get_document(0) {
        Ok(point) => bound(table, point),
        Err(_) => {
            let message = format!(
                "cannot find a split point: chunk {} has too few keys",
                chunk.range
            );
            Err(CommandError::new(ErrorCode::CannotSplit, message))
        }
    }
}
