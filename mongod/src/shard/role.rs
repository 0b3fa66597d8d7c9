//! The shard's state, and its answers to the node's questions.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use banyan_configsvr::RemoteConfig;
use banyan_configsvr::locks::NamedLocks;
use banyan_execution::ShardFilter;
use banyan_node::commands::table::BoxFuture;
use banyan_node::context::CommandContext;
use banyan_node::local::Local;
use banyan_node::node::Node;
use banyan_node::role::{IndexRules, Role};
use banyan_node::service::NodeService;
use banyan_replication::op_observer::Change;
use banyan_replication::write::shard_rules::{ShardRules, Versions};
use banyan_sharding::ChunkVersion;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode, PoolOptions, ReplicaSet};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;

use super::databases::Databases;
use super::errors::{bad_value, not_a_shard, stale_config};
use super::index_rules::ShardKeyRules;
use super::logged;
use super::metadata::{Collection, Collections, Known, Limits, Verdict};
use super::migration::donor::Donation;
use super::migration::orphans::{self, Orphans};
use super::migration::recipient::Reception;
use super::split::{self, SplitHint};

/// How often a member that is no shard yet looks whether it has become one (a secondary learns of
/// it through the log), and a shard whether it has become primary.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Chunks that wait to be looked at; hints beyond that are dropped and come again.
const SPLIT_HINTS_MAX: usize = 256;

/// Who this shard is, from the document that `addShard` wrote.
pub struct Identity {
    pub name: Arc<str>,
    pub cluster: ObjectId,
    pub config: RemoteConfig,
}

impl Identity {
    pub fn parse(document: &RawDocument) -> Result<Identity, CommandError> {
        let config = document
            .get_str("configsvrConnectionString")
            .map_err(bad_value)?;
        Ok(Identity {
            name: document.get_str("shardName").map_err(bad_value)?.into(),
            cluster: document.get_object_id("clusterId").map_err(bad_value)?,
            config: RemoteConfig {
                set: ReplicaSet::parse(config, PoolOptions::default())?,
            },
        })
    }
}

pub struct ShardRole {
    /// For what is started by the role and outlives the call.
    itself: Weak<ShardRole>,
    pub local: Local,
    identity: RwLock<Option<Arc<Identity>>>,
    pub(super) collections: Collections,
    pub databases: Databases,
    splits: mpsc::Sender<SplitHint>,
    pub orphans: Orphans,
    /// A chunk is not cut while it begins to move, nor does it begin to move while it is cut.
    pub chunk_changes: tokio::sync::Mutex<()>,
    /// At most one of each at a time.
    pub donation: Mutex<Option<Arc<Donation>>>,
    pub reception: Mutex<Option<Arc<Reception>>>,
    /// The term in which the migrations of earlier primaries have been settled.
    pub recovered_term: AtomicU64,
    pub recovering: tokio::sync::Mutex<()>,
    /// One change of a collection's indexes at a time.
    pub index_changes: NamedLocks,
    peers: Mutex<HashMap<String, ReplicaSet>>,
}

impl ShardRole {
    /// Gives the node its role and starts what runs in the background. Must be called within a
    /// runtime.
    pub fn start(service: &Arc<NodeService>) -> Arc<ShardRole> {
        let (splits, hints) = mpsc::channel(SPLIT_HINTS_MAX);
        let role = Arc::new_cyclic(|itself| ShardRole {
            itself: itself.clone(),
            local: Local::new(service),
            identity: RwLock::default(),
            collections: Collections::default(),
            databases: Databases::default(),
            splits,
            orphans: Orphans::default(),
            chunk_changes: tokio::sync::Mutex::default(),
            donation: Mutex::default(),
            reception: Mutex::default(),
            recovered_term: AtomicU64::new(0),
            recovering: tokio::sync::Mutex::default(),
            index_changes: NamedLocks::default(),
            peers: Mutex::default(),
        });
        service.node.set_role(role.clone());
        tokio::spawn(watch(role.clone()));
        tokio::spawn(split::run(role.clone(), hints));
        tokio::spawn(orphans::run(role.clone()));
        role
    }

    /// The role of the process that runs a command.
    pub fn of(ctx: &CommandContext<'_>) -> Result<Arc<ShardRole>, CommandError> {
        ctx.node.shared_role().ok_or_else(|| {
            let message = format!("{} can only be run on shards", ctx.spec.name);
            CommandError::new(ErrorCode::NoShardingEnabled, message)
        })
    }

    pub(super) fn strong(&self) -> Result<Arc<ShardRole>, CommandError> {
        self.itself.upgrade().ok_or_else(|| {
            CommandError::new(
                ErrorCode::InterruptedAtShutdown,
                "the server is shutting down",
            )
        })
    }

    pub fn node(&self) -> &Arc<Node> {
        &self.local.service().node
    }

    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.read().clone()
    }

    pub fn identified(&self) -> Result<Arc<Identity>, CommandError> {
        self.identity().ok_or_else(not_a_shard)
    }

    pub fn set_identity(&self, identity: Identity) {
        *self.identity.write() = Some(Arc::new(identity));
    }

    /// The term in which this member is primary; 0 if it is not.
    pub fn term(&self) -> u64 {
        self.node().group.leader_term()
    }

    pub fn collection(&self, ns: &str) -> Arc<Collection> {
        self.collections.get_or_new(ns)
    }

    fn known_collection(&self, ns: &str) -> Option<Arc<Collection>> {
        self.collections.get(ns)
    }

    /// What is believed of each collection that is known to be sharded.
    pub fn versions(&self) -> Vec<(String, ChunkVersion)> {
        self.collections.look_at_all(|collection| {
            let filter = collection.filter()?;
            Some((
                collection.ns.clone(),
                filter.table.shard_version(&filter.shard),
            ))
        })
    }

    /// Waits until every write of the collection that has begun is over.
    pub async fn drain_writes(&self, ns: &str) {
        if let Some(namespace) = Namespace::parse(ns) {
            drop(self.node().namespaces.exclusive(&[&namespace]).await);
        }
    }

    /// Another shard, by its connection string.
    pub fn peer(&self, host: &str) -> Result<ReplicaSet, CommandError> {
        let mut peers = self.peers.lock();
        if let Some(set) = peers.get(host) {
            return Ok(set.clone());
        }
        let set = ReplicaSet::parse(host, PoolOptions::default())?;
        peers.insert(host.to_owned(), set.clone());
        Ok(set)
    }

    /// Reads the identity that the data holds, if it does.
    pub async fn load_identity(&self) -> Result<Option<Identity>, CommandError> {
        let body = rawdoc! {
            "find": "system.version",
            "filter": { "_id": "shardIdentity" },
            "limit": 1_i64,
            "singleBatch": true,
            "$readPreference": { "mode": "primaryPreferred" },
        };
        let found = self.local.find("admin", body).await?;
        found
            .first()
            .map(|document| Identity::parse(document))
            .transpose()
    }
}

/// Learns the identity, and settles old migrations soon after an election.
async fn watch(role: Arc<ShardRole>) {
    let stop = role.node().info.stop.clone();
    loop {
        if role.identity().is_none() {
            // Not being readable yet is no news.
            if let Ok(Some(identity)) = role.load_identity().await {
                tracing::info!(shard = &*identity.name, "this server is a shard");
                role.set_identity(identity);
            }
        } else {
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

    fn check_change(&self, namespace: &Namespace, change: Change<'_>) -> Result<(), CommandError> {
        let Some(filter) = self
            .known_collection(namespace.as_str())
            .and_then(|c| c.filter())
        else {
            return Ok(());
        };
        let key = |document: &RawDocument| {
            let mut key = Vec::with_capacity(48);
            match filter.table.pattern().encode(document, &mut key) {
                Ok(()) => Ok(key),
                Err(error) => Err(CommandError::new(
                    ErrorCode::ShardKeyNotFound,
                    error.to_string(),
                )),
            }
        };
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
