//! What a shard holds in memory.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use banyan_configsvr::RemoteConfig;
use banyan_configsvr::locks::NamedLocks;
use banyan_node::context::CommandContext;
use banyan_node::local::Local;
use banyan_node::node::Node;
use banyan_node::service::NodeService;
use banyan_replication::locks::Mode;
use banyan_sharding::ChunkVersion;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode, PoolOptions, ReplicaSet};
use bson::oid::ObjectId;
use bson::{RawDocument, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;

use super::databases::Databases;
use super::errors::{bad_value, not_a_shard};
use super::metadata::{Collection, Collections, SplitHint};
use super::migration::donor_state::DonorState;
use super::migration::orphans::Orphans;
use super::migration::recipient_state::RecipientState;

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
    pub(super) splits: mpsc::Sender<SplitHint>,
    pub orphans: Orphans,
    /// A chunk is not cut while it begins to move, nor does it begin to move while it is cut.
    pub chunk_changes: tokio::sync::Mutex<()>,
    /// At most one of each at a time.
    pub donor: Mutex<Option<Arc<DonorState>>>,
    pub recipient: Mutex<Option<Arc<RecipientState>>>,
    /// The term in which the migrations of earlier primaries have been settled.
    pub recovered_term: AtomicU64,
    pub recovering: tokio::sync::Mutex<()>,
    /// One change of a collection's indexes at a time.
    pub index_changes: NamedLocks,
    peers: Mutex<HashMap<String, ReplicaSet>>,
}

impl ShardRole {
    /// `splits` takes the chunks that seem to have grown.
    pub(super) fn new(
        service: &Arc<NodeService>,
        splits: mpsc::Sender<SplitHint>,
    ) -> Arc<ShardRole> {
        Arc::new_cyclic(|itself| ShardRole {
            itself: itself.clone(),
            local: Local::new(service),
            identity: RwLock::default(),
            collections: Collections::default(),
            databases: Databases::default(),
            splits,
            orphans: Orphans::default(),
            chunk_changes: tokio::sync::Mutex::default(),
            donor: Mutex::default(),
            recipient: Mutex::default(),
            recovered_term: AtomicU64::new(0),
            recovering: tokio::sync::Mutex::default(),
            index_changes: NamedLocks::default(),
            peers: Mutex::default(),
        })
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
        self.node().access.times.set_cluster_missing(false);
    }

    /// The term in which this member is primary; 0 if it is not.
    pub fn term(&self) -> u64 {
        self.node().replica.group.leader_term()
    }

    pub fn collection(&self, ns: &str) -> Arc<Collection> {
        self.collections.get_or_new(ns)
    }

    pub(super) fn known_collection(&self, ns: &str) -> Option<Arc<Collection>> {
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
            let locks = &self.node().replica.locks;
            let collection = locks.collection(&namespace);
            drop(locks.lock(collection, Mode::Shared).await);
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
