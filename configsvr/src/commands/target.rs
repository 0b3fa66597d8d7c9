//! Which chunk a command means: by a document in it (`find`), by its bounds (`bounds`, or `min`
//! and `max`), or by a key (`middle`).

use std::sync::Arc;

use banyan_node::context::CommandContext;
use banyan_query::bounds::{Conjunction, equality_of};
use banyan_query::{Context, Filter};
use banyan_sharding::{Chunk, ChunkRange, CommitError, RoutingTable, ShardKey};
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

/// The chunk that `find`, `bounds` or `middle` names.
pub fn chunk(ctx: &CommandContext<'_>, table: &RoutingTable) -> Result<Arc<Chunk>, CommandError> {
    if let Some(find) = ctx.field("find") {
        let filter = find.document()?;
        let parsed = Filter::parse(filter, &Context::default()).map_err(bad_value)?;
        let conjunction = Conjunction::of(&parsed);
        let key = table
            .pattern()
            .key_of_values(|path| equality_of(&conjunction, path));
        let Some(key) = key else {
            let message = format!("no shard key found in chunk query {filter:?}");
            return Err(CommandError::new(ErrorCode::ShardKeyNotFound, message));
        };
        return Ok(table.find(&key).clone());
    }
    if let Some(middle) = ctx.field("middle") {
        return Ok(table.find(&bound(table, middle.document()?)?).clone());
    }
    if let Some(bounds) = ctx.field("bounds") {
        let bounds = bounds.array()?;
        let end = |n| bounds.get_document(n).map_err(bad_value);
        return exact(table, end(0)?, end(1)?);
    }
    let message = "need to specify find/bounds or middle";
    Err(CommandError::new(ErrorCode::BadValue, message))
}

/// The chunk with exactly these bounds.
fn exact(
    table: &RoutingTable,
    min: &RawDocument,
    max: &RawDocument,
) -> Result<Arc<Chunk>, CommandError> {
    let range = ChunkRange::parse(table.pattern(), min, max).map_err(bad_value)?;
    table.exact(&range).cloned().ok_or_else(|| {
        let message = format!("no chunk found with the shard key bounds {range}");
        CommandError::new(ErrorCode::BadValue, message)
    })
}

/// A key as a chunk's bound: every field, hashed ones as their hash.
pub fn bound(table: &RoutingTable, document: &RawDocument) -> Result<ShardKey, CommandError> {
    table.pattern().key_of_bound(document).map_err(bad_value)
}

pub fn bad_value(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(ErrorCode::BadValue, error.to_string())
}

/// What a refused commit tells a shard.
pub fn refused(error: CommitError) -> CommandError {
    let code = match error {
        CommitError::Epoch { .. } => ErrorCode::StaleEpoch,
        CommitError::NoSuchChunk(..)
        | CommitError::NotOwner { .. }
        | CommitError::ChunkChanged(_)
        | CommitError::AlreadyDone => ErrorCode::ConflictingOperationInProgress,
        CommitError::BadSplitPoint(..)
        | CommitError::NoSplitPoints
        | CommitError::BoundaryValue(_) => ErrorCode::InvalidOptions,
    };
    CommandError::new(code, error.to_string())
}
