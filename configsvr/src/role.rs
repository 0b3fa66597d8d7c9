//! What makes a member a config server: the state that its commands share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use banyan_execution::ShardFilter;
use banyan_node::context::CommandContext;
use banyan_node::local::Local;
use banyan_node::role::Role;
use banyan_node::service::NodeService;
use banyan_replication::op_observer::Change;
use banyan_replication::write::shard_rules::{ShardRules, Versions};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawDocumentBuf, rawdoc};

use crate::changelog::Changelog;
use crate::locks::{NamedLocks, NamedRwLocks, Slots};
use crate::metadata::Metadata;
use crate::shards::Shards;

pub struct ConfigRole {
    pub metadata: Metadata,
    pub shards: Shards,
    /// One change of a collection's chunks at a time.
    pub namespaces: NamedLocks,
    /// One change of a collection's definition at a time: sharding it, its indexes, dropping it.
    pub definitions: NamedLocks,
    /// Held by the moves of a collection's chunks, and alone by a change of its indexes.
    pub moves: NamedRwLocks,
    /// One creation or drop in a database at a time.
    pub databases: NamedLocks,
    /// Two changes of config.shards at once would each see the other's absence.
    pub membership: tokio::sync::Mutex<()>,
    /// Held by every change of collections that a client has asked for, and alone by who waits for
    /// those that have begun.
    pub user_changes: Arc<tokio::sync::RwLock<()>>,
    initializing: tokio::sync::Mutex<()>,
    pub slots: Arc<Slots>,
    pub changelog: Changelog,
    pub balancer_rounds: AtomicU64,
    pub balancer_in_round: AtomicBool,
    address: String,
}

impl ConfigRole {
    /// Gives the node its role. What a primary does on its own is [`crate::primary`]'s.
    pub fn assign(service: &Arc<NodeService>) -> Arc<ConfigRole> {
        let role = Arc::new(ConfigRole {
            metadata: Metadata::new(Local::new(service)),
            shards: Shards::default(),
            namespaces: NamedLocks::default(),
            definitions: NamedLocks::default(),
            moves: NamedRwLocks::default(),
            databases: NamedLocks::default(),
            membership: tokio::sync::Mutex::default(),
            user_changes: Arc::default(),
            initializing: tokio::sync::Mutex::default(),
            slots: Arc::default(),
            changelog: Changelog::new(service.node.info.address.clone()),
            balancer_rounds: AtomicU64::new(0),
            balancer_in_round: AtomicBool::new(false),
            address: service.node.info.address.clone(),
        });
        service.node.set_role(role.clone());
        role
    }

    /// The role of the process that runs a command.
    pub fn of<'a>(ctx: &CommandContext<'a>) -> Result<&'a ConfigRole, CommandError> {
        ctx.node.role_as().ok_or_else(|| not_here(ctx))
    }

    /// As [`ConfigRole::of`], for work that outlives the command.
    pub fn shared(ctx: &CommandContext<'_>) -> Result<Arc<ConfigRole>, CommandError> {
        ctx.node.shared_role().ok_or_else(|| not_here(ctx))
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn is_primary(&self) -> bool {
        self.metadata.local.service().node.replica.is_primary()
    }

    /// The config servers as a shard is told to reach them.
    pub async fn connection_string(&self) -> Result<String, CommandError> {
        let hello = self
            .metadata
            .local
            .command("admin", rawdoc! { "hello": 1 })
            .await?;
        let hosts = hello.get_array("hosts").ok();
        let hosts: Vec<&str> = hosts
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|h| h.as_str())
            .collect();
        match hello.get_str("setName") {
            Ok(set) if !hosts.is_empty() => Ok(format!("{set}/{}", hosts.join(","))),
            _ => Ok(self.address.clone()),
        }
    }

    /// Tells shards to read a collection's routing table again. A shard that misses this finds
    /// out by itself when a request comes that was routed by a newer table.
    pub async fn tell_shards(&self, ns: &str, shards: impl IntoIterator<Item = String>) {
        let body = rawdoc! { "_flushRoutingTableCacheUpdates": ns, "syncFromConfig": true };
        for host in shards {
            if let Err(error) = self
                .shards
                .command(&host, &body, Duration::from_secs(10))
                .await
            {
                tracing::warn!(ns, host, %error, "a shard could not be told of a new table");
            }
        }
    }

    pub async fn note(&self, what: &str, ns: &str, details: RawDocumentBuf) {
        let log = &self.changelog;
        log.note(&self.metadata, what, ns, details).await;
    }

    /// Writes what every config database has. A command that comes before the background task got
    /// round to it does it itself.
    pub async fn initialize(&self) -> Result<(), CommandError> {
        let _turn = self.initializing.lock().await;
        let metadata = &self.metadata;
        if metadata.find_one("version", rawdoc! {}).await?.is_some() {
            return Ok(());
        }
        create_indexes(metadata).await?;
        // Last, because its presence says that the rest is there.
        let version = rawdoc! {
            "_id": 1,
            "minCompatibleVersion": 5,
            "currentVersion": 6,
            "clusterId": ObjectId::new(),
        };
        metadata.insert("version", version).await
    }
}

fn not_here(ctx: &CommandContext<'_>) -> CommandError {
    let message = format!("{} can only be run on config servers", ctx.spec.name);
    CommandError::new(ErrorCode::IllegalOperation, message)
}

impl ShardRules for ConfigRole {
    /// A config server's collections are never sharded.
    fn check(
        &self,
        _: &Namespace,
        _: Versions<'_>,
        _: bool,
    ) -> Result<Option<Arc<dyn ShardFilter>>, CommandError> {
        Ok(None)
    }
}

impl Role for ConfigRole {
    fn wrote(&self, _: &Namespace, _: Change<'_>) {}
}

async fn create_indexes(metadata: &Metadata) -> Result<(), CommandError> {
    let chunks = [
        (rawdoc! { "uuid": 1, "min": 1 }, "uuid_1_min_1", true),
        (
            rawdoc! { "uuid": 1, "shard": 1, "min": 1 },
            "uuid_1_shard_1_min_1",
            false,
        ),
        (
            rawdoc! { "uuid": 1, "lastmod": 1 },
            "uuid_1_lastmod_1",
            true,
        ),
        (rawdoc! { "ns": 1, "min": 1 }, "ns_1_min_1", false),
    ];
    let tags = [
        (rawdoc! { "ns": 1, "min": 1 }, "ns_1_min_1", true),
        (rawdoc! { "ns": 1, "tag": 1 }, "ns_1_tag_1", false),
    ];
    let shards = [(rawdoc! { "host": 1 }, "host_1", true)];
    for (collection, indexes) in [
        ("chunks", &chunks[..]),
        ("tags", &tags),
        ("shards", &shards),
    ] {
        let mut specs = bson::RawArrayBuf::new();
        for (key, name, unique) in indexes {
            specs.push(rawdoc! { "key": key.clone(), "name": *name, "unique": *unique });
        }
        let body = rawdoc! { "createIndexes": collection, "indexes": specs };
        metadata.local.command("config", body).await?;
    }
    Ok(())
}
