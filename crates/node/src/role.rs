//! What a shard or a config server adds to a node, as hooks that the write path and the commands
//! call. A node without a role has none of them set.

use std::any::Any;
use std::sync::Arc;

use banyan_execution::ShardFilter;
use banyan_storage::{Index, Namespace};
use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::commands::table::BoxFuture;

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

/// What the request says about the routing table that it was routed with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Versions<'a> {
    pub shard: Option<RawBsonRef<'a>>,
    pub database: Option<RawBsonRef<'a>>,
}

/// One document's change, as it was committed.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    Insert {
        document: &'a RawDocument,
    },
    Update {
        before: &'a RawDocument,
        after: &'a RawDocument,
    },
    Delete {
        before: &'a RawDocument,
    },
}

/// The role's own commands find it again through `Any`.
pub trait Role: Any + Send + Sync {
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

    /// Compares the versions of a request with what this shard knows: `StaleConfig` if they
    /// differ, otherwise which documents are its own (`None`: all of them).
    ///
    /// A write calls this while it holds the namespace's latch, so whoever wants the writes of a
    /// collection to cease (a migration's critical section) takes that latch exclusively
    /// ([`crate::write::NamespaceLatches`]), changes what this answers, and lets go.
    fn check(
        &self,
        namespace: &Namespace,
        versions: Versions<'_>,
        writes: bool,
    ) -> Result<Option<Arc<dyn ShardFilter>>, CommandError>;

    /// As [`Role::prepare`] and [`Role::check`] for another collection that a routed pipeline reads
    /// here: its router takes it to be on this shard alone, and that must be so.
    fn prepare_local<'a>(&'a self, _namespace: Namespace) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn check_local(&self, _namespace: &Namespace) -> Result<(), CommandError> {
        Ok(())
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

    /// Called on the primary for every committed change, in commit order, before the latches of
    /// the write are released. Must not block.
    fn wrote(&self, namespace: &Namespace, change: Change<'_>);
}
