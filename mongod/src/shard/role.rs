//! The shard's answers to the node's questions.

use std::sync::Arc;
use std::time::Duration;

use banyan_execution::ShardFilter;
use banyan_node::commands::table::BoxFuture;
use banyan_node::role::{IndexRules, Role};
use banyan_node::service::NodeService;
use banyan_replication::op_observer::Change;
use banyan_replication::write::shard_rules::{ShardRules, Versions};
use banyan_sharding::ChunkVersion;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use tokio::sync::mpsc;

use super::cluster_parameters;
use super::errors::{bad_value, stale_config};
use super::index_rules::ShardKeyRules;
use super::logged;
use super::metadata::{Filter, Known, Limits, SplitHint, Verdict};
use super::migration::range_deleter;
use super::signing_keys;
use super::split;
use super::state::ShardRole;

/// How often a member that is no shard yet looks whether it has become one (a secondary learns of
/// it through the log), and a shard whether it has become primary.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Chunks that wait to be looked at; hints beyond that are dropped and come again.
const SPLIT_HINTS_MAX: usize = 256;

impl ShardRole {
    /// Gives the node its role and starts what runs in the background. Must be called within a
    /// runtime.
    pub fn start(service: &Arc<NodeService>) -> Arc<ShardRole> {
        let (splits, hints) = mpsc::channel(SPLIT_HINTS_MAX);
        let role = ShardRole::new(service, splits);
        service.node.set_role(role.clone());
        tokio::spawn(watch(role.clone()));
        tokio::spawn(signing_keys::keep(role.clone()));
        tokio::spawn(cluster_parameters::keep(role.clone()));
        tokio::spawn(split::run(role.clone(), hints));
        tokio::spawn(range_deleter::run(role.clone()));
        role
    }
}

/// Learns the identity, and settles old migrations soon after an election.
async fn watch(role: Arc<ShardRole>) {
    let stop = role.node().info.stop.clone();
    let times = role.node().access.times.clone();
    loop {
        if role.identity().is_none() {
            match role.load_identity().await {
                Ok(Some(identity)) => {
                    tracing::info!(shard = &*identity.name, "this server is a shard");
                    role.set_identity(identity);
                }
                Ok(None) => times.set_cluster_missing(true),
                // Not being readable yet is no news.
                Err(_) => {}
            }
        } else {
            // It may have become a shard while that was looked for.
            times.set_cluster_missing(false);
            let term = role.term();
            if term != 0
                && let Err(error) = role.recover_migrations(term).await
            {
                tracing::warn!(%error, "open migrations cannot be settled yet");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

/// The version in a request; `None` if it is to be ignored.
fn received(versions: &Versions<'_>) -> Result<Option<ChunkVersion>, CommandError> {
    let Some(RawBsonRef::Document(version)) = versions.shard else {
        return Ok(None);
    };
    let parsed = ChunkVersion::from_document(version).ok_or_else(|| {
        bad_value("shardVersion must be {e: ObjectId, t: Timestamp, v: Timestamp}")
    })?;
    Ok((!parsed.is_ignored()).then_some(parsed))
}

/// The version of the database, which counts for collections that are not sharded.
fn database_version<'a>(
    versions: &Versions<'a>,
    received: &ChunkVersion,
) -> Option<&'a RawDocument> {
    match versions.database {
        Some(RawBsonRef::Document(version)) if received.is_unsharded() => Some(version),
        _ => None,
    }
}

fn of_version(version: &RawDocument) -> Versions<'_> {
    Versions {
        shard: Some(RawBsonRef::Document(version)),
        database: None,
    }
}

fn is_internal(namespace: &Namespace) -> bool {
    matches!(namespace.database(), "admin" | "config" | "local")
}

impl ShardRules for ShardRole {
    fn check(
        &self,
        namespace: &Namespace,
        versions: Versions<'_>,
        writes: bool,
    ) -> Result<Option<Arc<dyn ShardFilter>>, CommandError> {
        let Some(received) = received(&versions)? else {
            return Ok(None);
        };
        if is_internal(namespace) {
            return Ok(None);
        }
        let identity = self.identified()?;
        let ns = namespace.as_str();
        let stale = |wanted, why| Err(stale_config(ns, received, wanted, &identity.name, why));
        if let Some(version) = database_version(&versions, &received)
            && !self
                .databases
                .agrees(namespace.database(), version, self.term())
        {
            return Err(self.databases.refusal(namespace.database(), version));
        }
        let Some(collection) = self.known_collection(ns) else {
            return stale(None, "the routing table has not been read yet");
        };
        match collection.judge(&received, self.term(), writes, &identity.name) {
            Verdict::Agreed(Some(filter)) => {
                let limits = Limits::parse(&versions, &filter).map_err(bad_value)?;
                Ok(match limits {
                    Some(limits) => Some(Arc::new(limits)),
                    None if filter.owns_all() => None,
                    None => Some(filter),
                })
            }
            Verdict::Agreed(None) => Ok(None),
            Verdict::Stale(wanted) => stale(Some(wanted), "the routing table has changed"),
            Verdict::Blocked => stale(None, "a migration is being committed"),
            Verdict::Unlogged => stale(None, "this secondary has not come to that version"),
            Verdict::Behind => match &collection.state.read().known {
                Known::Unknown => stale(None, "the routing table has not been read yet"),
                Known::Unsharded => stale(
                    Some(ChunkVersion::UNSHARDED),
                    "the collection is not sharded",
                ),
                Known::Sharded(filter) => {
                    let wanted = filter.table.shard_version(&identity.name);
                    stale(Some(wanted), "the routing tables differ")
                }
            },
        }
    }

    fn owned(&self, namespace: &Namespace) -> Option<Arc<dyn ShardFilter>> {
        let filter = self.known_collection(namespace.as_str())?.filter()?;
        (!filter.owns_all()).then_some(filter as Arc<dyn ShardFilter>)
    }

    fn check_change(&self, namespace: &Namespace, change: Change<'_>) -> Result<(), CommandError> {
        let Some(filter) = self
            .known_collection(namespace.as_str())
            .and_then(|c| c.filter())
        else {
            return Ok(());
        };
        let key = |document| shard_key(&filter, document);
        match change {
            Change::Insert { document } => key(document).map(drop),
            Change::Delete { .. } => Ok(()),
            Change::Update { before, after } => {
                let (old, new) = (key(before), key(after)?);
                let stays = old.is_ok_and(|old| old == new)
                    || filter.table.find_encoded(&new).shard == filter.shard;
                if stays {
                    return Ok(());
                }
                Err(CommandError::new(
                    ErrorCode::WouldChangeOwningShard,
                    "the new value of the shard key would move the document to another shard",
                ))
            }
        }
    }

    fn changes_shard_key(
        &self,
        namespace: &Namespace,
        before: &RawDocument,
        after: &RawDocument,
    ) -> bool {
        let collection = self.known_collection(namespace.as_str());
        let Some(filter) = collection.and_then(|collection| collection.filter()) else {
            return false;
        };
        match (shard_key(&filter, before), shard_key(&filter, after)) {
            (Ok(before), Ok(after)) => before != after,
            // What has none any more is refused for that.
            _ => false,
        }
    }
}

fn shard_key(filter: &Filter, document: &RawDocument) -> Result<Vec<u8>, CommandError> {
    let mut key = Vec::with_capacity(48);
    match filter.table.pattern().encode(document, &mut key) {
        Ok(()) => Ok(key),
        Err(error) => Err(CommandError::new(
            ErrorCode::ShardKeyNotFound,
            error.to_string(),
        )),
    }
}

impl Role for ShardRole {
    fn prepare<'a>(
        &'a self,
        namespace: Namespace,
        versions: Versions<'a>,
    ) -> Option<BoxFuture<'a, ()>> {
        let received = received(&versions).ok()??;
        if is_internal(&namespace) {
            return None;
        }
        let Some(identity) = self.identity() else {
            // A secondary learns through the log what it belongs to, perhaps just now.
            return Some(Box::pin(async move {
                if let Ok(Some(identity)) = self.load_identity().await {
                    self.set_identity(identity);
                }
            }));
        };
        let collection = self.collection(namespace.as_str());
        let term = self.term();
        let database = database_version(&versions, &received)
            .filter(|version| !self.databases.agrees(namespace.database(), version, term));
        let judged = collection.judge(&received, term, true, &identity.name);
        let ready = matches!(judged, Verdict::Agreed(_) | Verdict::Stale(_));
        if ready && database.is_none() {
            return None;
        }
        Some(Box::pin(async move {
            if database.is_some()
                && let Err(error) = self.refresh_database(&identity, namespace.database()).await
            {
                tracing::warn!(%namespace, %error, "cannot read a database's entry");
            }
            if !ready {
                self.catch_up(collection, received).await;
            }
        }))
    }

    fn prepare_local<'a>(&'a self, namespace: Namespace) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let version = ChunkVersion::UNSHARDED.to_document();
            if let Some(waiting) = self.prepare(namespace, of_version(&version)) {
                waiting.await;
            }
        })
    }

    fn check_local(&self, namespace: &Namespace) -> Result<(), CommandError> {
        let version = ChunkVersion::UNSHARDED.to_document();
        self.check(namespace, of_version(&version), false).map(drop)
    }

    fn statistics(&self) -> Option<RawDocumentBuf> {
        self.identity()?;
        let mut statistics = RawDocumentBuf::new();
        self.orphans.statistics(&mut statistics);
        Some(statistics)
    }

    fn watches(&self) -> Option<Namespace> {
        Some(logged::namespace())
    }

    fn learned(&self, change: Option<Change<'_>>) {
        self.learn(change);
    }

    fn index_rules(&self, namespace: &Namespace) -> Option<Arc<dyn IndexRules>> {
        let filter = self.known_collection(namespace.as_str())?.filter()?;
        Some(Arc::new(ShardKeyRules::new(filter)))
    }

    fn collection_uuid(&self, namespace: &Namespace) -> Option<[u8; 16]> {
        let filter = self.known_collection(namespace.as_str())?.filter()?;
        Some(filter.table.uuid())
    }

    fn wrote(&self, namespace: &Namespace, change: Change<'_>) {
        let Some(collection) = self.known_collection(namespace.as_str()) else {
            return;
        };
        let state = collection.state.read();
        if let Some(capture) = &state.capture {
            capture.note(change);
        }
        if let Known::Sharded(filter) = &state.known
            && let Some(position) = filter.account(change)
        {
            let hint = SplitHint {
                ns: collection.ns.clone(),
                filter: filter.clone(),
                position,
            };
            if let Err(error) = self.splits.try_send(hint) {
                let hint = error.into_inner();
                hint.filter.checked(hint.position, None);
            }
        }
    }
}
