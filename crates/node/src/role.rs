//! What a shard or a config server adds to a node, as hooks that the write path and the commands
//! call. A node without a role has none of them set.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

use banyan_replication::op_observer::Change;
use banyan_replication::write::shard_rules::{ShardRules, Versions};
use banyan_storage::{Index, Namespace};
use banyan_wire::CommandError;
use bson::{RawDocument, RawDocumentBuf};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a role demands of a collection's indexes.
pub trait IndexRules: Send + Sync {
    /// Refuses an index that must not be made.
    fn check_new(&self, spec: &RawDocument) -> Result<(), CommandError>;

    /// Whether the index is kept when all of them are dropped.
    fn keeps(&self, index: &Index) -> bool;

    /// Refuses to do without an index where no other one serves for it.
    fn check_loss(
        &self,
        index: &Index,
        others: &[&Index],
        loss: IndexLoss,
    ) -> Result<(), CommandError>;
}

/// How an index is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexLoss {
    Dropped,
    Hidden,
}

/// The role's own commands find it again through `Any`.
pub trait Role: ShardRules + Any {
    /// Asked before a command that carries versions runs, while nothing is held: a shard that
    /// knows less than the request refreshes here, and a critical section is waited for. `None`
    /// when there is nothing to wait for, which is the common case.
    fn prepare<'a>(
        &'a self,
        _namespace: Namespace,
        _versions: Versions<'a>,
    ) -> Option<BoxFuture<'a, ()>> {
        None
    }

    /// As [`Role::prepare`] and [`ShardRules::check`] for another collection that a routed pipeline
    /// reads here: its router takes it to be on this shard alone, and that must be so.
    fn prepare_local<'a>(&'a self, _namespace: Namespace) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn check_local(&self, _namespace: &Namespace) -> Result<(), CommandError> {
        Ok(())
    }

    /// What `serverStatus` shows as `shardingStatistics`.
    fn statistics(&self) -> Option<RawDocumentBuf> {
        None
    }

    /// The collection of whose changes [`Role::learned`] is told.
    fn watches(&self) -> Option<Namespace> {
        None
    }

    /// Called on every member for each change of the collection that the role watches, in the
    /// order of the log: what comes before it can be read by then, and nothing that comes after
    /// it. `None`: the whole state is another one. Must not block.
    fn learned(&self, _change: Option<Change<'_>>) {}

    /// What holds for the collection's indexes; `None` where anything goes.
    fn index_rules(&self, _namespace: &Namespace) -> Option<Arc<dyn IndexRules>> {
        None
    }

    /// The id that the collection goes by on all of its shards, if it is sharded.
    fn collection_uuid(&self, _namespace: &Namespace) -> Option<[u8; 16]> {
        None
    }

    /// Called on the primary for every committed change, in commit order, before the latches of
    /// the write are released. Must not block.
    fn wrote(&self, namespace: &Namespace, change: Change<'_>);
}
