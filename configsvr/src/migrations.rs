//! Moves of ranges from shard to shard, an operator's and the balancer's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_sharding::ChunkRange;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::index_changes;
use crate::metadata::uuid_binary;
use crate::role::ConfigRole;

/// How long one move may take; the donor gives up long before.
const MOVE_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long a move waits for a change of the collection's indexes; both shards wait with it.
const DEFINITION_TIMEOUT: Duration = Duration::from_secs(5);

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
    let waiting = tokio::time::timeout(DEFINITION_TIMEOUT, role.moves.read(&order.ns));
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

pub fn millis(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
}
