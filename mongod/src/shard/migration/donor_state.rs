//! A move away from this shard: what was asked for, and what is under way.

use std::sync::Arc;

use banyan_sharding::{ChunkRange, ShardKeyPattern};
use bson::oid::ObjectId;
use bson::{RawDocumentBuf, Timestamp};

use super::capture::ChangeCapture;

/// A move away from here that is under way.
pub struct DonorState {
    pub id: ObjectId,
    /// Another primary may have taken writes between two terms of this one, and they would not
    /// have been captured: a migration is of one term.
    pub(super) term: u64,
    pub ns: String,
    pub range: ChunkRange,
    pub pattern: ShardKeyPattern,
    pub capture: Arc<ChangeCapture>,
    /// As the collection's entry had it when the migration began.
    pub(super) indexes_changed: Option<Timestamp>,
}

/// What `_shardsvrMoveRange` asks for.
pub struct MoveRange {
    pub ns: String,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub from_host: String,
    pub to: String,
    pub to_host: String,
    pub epoch: ObjectId,
    pub lastmod: Timestamp,
    pub wait_for_delete: bool,
}
