//! The errors by which a shard talks to routers.

use banyan_sharding::ChunkVersion;
use banyan_wire::{CommandError, ErrorCode};
use bson::{cstr, rawdoc};

/// `StaleConfig`: the request was routed by a table that is not this shard's. Without `wanted` the
/// shard does not know yet, or must not say, which one is right.
pub fn stale_config(
    ns: &str,
    received: ChunkVersion,
    wanted: Option<ChunkVersion>,
    shard: &str,
    why: &str,
) -> CommandError {
    let mut info = rawdoc! { "ns": ns, "vReceived": received.to_document() };
    if let Some(wanted) = wanted {
        info.append(cstr!("vWanted"), wanted.to_document());
    }
    info.append(cstr!("shardId"), shard);
    let wanted = wanted.map_or_else(|| "unknown".to_owned(), |wanted| wanted.to_string());
    let message = format!(
        "{why} for collection {ns}: version received {received}, version wanted {wanted}, shard \
         {shard}"
    );
    CommandError::new(ErrorCode::StaleConfig, message).with_extra(info)
}

pub fn bad_value(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(ErrorCode::BadValue, error.to_string())
}

pub fn internal(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(ErrorCode::InternalError, error.to_string())
}

pub fn conflict(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::ConflictingOperationInProgress, message)
}

pub fn not_a_shard() -> CommandError {
    CommandError::new(
        ErrorCode::ShardingStateNotInitialized,
        "this server has not been added to a cluster yet",
    )
}

pub fn not_sharded(ns: &str) -> CommandError {
    let message = format!("Namespace {ns} is not sharded");
    CommandError::new(ErrorCode::NamespaceNotSharded, message)
}
