//! What a shard demands of requests and writes.

use std::sync::Arc;

use banyan_execution::ShardFilter;
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument};

use crate::op_observer::Change;

/// What the request says about the routing table that it was routed with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Versions<'a> {
    pub shard: Option<RawBsonRef<'a>>,
    pub database: Option<RawBsonRef<'a>>,
}

pub trait ShardRules: Send + Sync {
    /// Compares the versions of a request with what this shard knows: `StaleConfig` if they
    /// differ, otherwise which documents are its own (`None`: all of them).
    ///
    /// A write calls this while it holds its collection's lock, so whoever wants the writes of a
    /// collection to cease (a migration's critical section) changes what this answers, and then
    /// takes a lock ([`crate::locks`]) beside which nobody writes.
    fn check(
        &self,
        namespace: &Namespace,
        versions: Versions<'_>,
        writes: bool,
    ) -> Result<Option<Arc<dyn ShardFilter>>, CommandError>;

    /// Which documents are this shard's own, as far as it knows: for what it does by itself.
    fn owned(&self, _namespace: &Namespace) -> Option<Arc<dyn ShardFilter>> {
        None
    }

    /// Refuses a change that this shard may not make although the versions agree: a document
    /// without a full shard key, a changed shard key. Called before the write is proposed.
    fn check_change(
        &self,
        _namespace: &Namespace,
        _change: Change<'_>,
    ) -> Result<(), CommandError> {
        Ok(())
    }

    /// Whether the collection is sharded by a key that the two do not share: what changes several
    /// documents changes no shard key.
    fn changes_shard_key(
        &self,
        _namespace: &Namespace,
        _before: &RawDocument,
        _after: &RawDocument,
    ) -> bool {
        false
    }
}
