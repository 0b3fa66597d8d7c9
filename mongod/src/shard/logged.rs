//! What the shard's log says of the ranges that this shard owns.
//!
//! The primary reads routing tables from the config servers. Before it puts one in force it writes
//! the version into `config.cache.collections`, and a donor marks the collection there as
//! `refreshing` before it commits a migration. Secondaries learn of both in the order of the log:
//! after the documents that a recipient has received, before the orphans that a donor removes. They
//! answer a read whose version is the one that the log has come to, and no other: an older one is
//! stale, for a newer one they wait.

use banyan_sharding::{ChunkVersion, RoutingTable};
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::CommandError;
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use super::errors::{bad_value, internal};

/// In the database `config` of the shard itself.
pub(super) const COLLECTION: &str = "cache.collections";

pub const NAMESPACE: &str = "config.cache.collections";

/// An entry of `config.cache.collections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// Of the collection, when this shard's version last changed.
    pub collection: ChunkVersion,
    /// Of this shard.
    pub shard: ChunkVersion,
    /// A migration away from here may have been committed: nobody knows what the shard owns.
    pub refreshing: bool,
}

impl Logged {
    pub fn of(table: &RoutingTable, shard: &str) -> Logged {
        Logged {
            collection: table.version(),
            shard: table.shard_version(shard),
            refreshing: false,
        }
    }

    pub(super) fn parse(document: &RawDocument) -> Result<Logged, CommandError> {
        let collection = ChunkVersion {
            epoch: document.get_object_id("epoch").map_err(bad_value)?,
            timestamp: document.get_timestamp("timestamp").map_err(bad_value)?,
            major: 0,
            minor: 0,
        };
        let version = |name| -> Result<Timestamp, CommandError> {
            document.get_timestamp(name).map_err(bad_value)
        };
        Ok(Logged {
            collection: collection
                .with_lastmod(version("lastRefreshedCollectionMajorMinorVersion")?),
            shard: collection.with_lastmod(version("lastRefreshedShardMajorMinorVersion")?),
            refreshing: document.get_bool("refreshing").unwrap_or(false),
        })
    }

    pub(super) fn to_document(self, table: &RoutingTable) -> RawDocumentBuf {
        let uuid = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: table.uuid().to_vec(),
        };
        rawdoc! {
            "_id": table.ns(),
            "uuid": uuid,
            "key": table.pattern().document().to_owned(),
            "unique": table.is_unique(),
            "epoch": self.collection.epoch,
            "timestamp": self.collection.timestamp,
            "lastRefreshedCollectionMajorMinorVersion": self.collection.lastmod(),
            "lastRefreshedShardMajorMinorVersion": self.shard.lastmod(),
            "refreshing": self.refreshing,
        }
    }
}

/// What a member knows of a collection's entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Log {
    #[default]
    Unread,
    /// `None`: the collection is not sharded.
    Says(Option<Logged>),
}

/// The entry in a state of this member.
pub fn read(
    catalog: &Catalog,
    snapshot: &Snapshot,
    ns: &str,
) -> Result<Option<Logged>, CommandError> {
    let found = catalog.get("config", COLLECTION);
    let Some((collection, index)) = found.and_then(|c| Some((c, c.id_index()?))) else {
        return Ok(None);
    };
    let mut key = Vec::with_capacity(ns.len() + 8);
    banyan_document::key::encode(bson::RawBsonRef::String(ns), &mut key);
    let Some(record) = snapshot.unique_lookup(index, &key).map_err(internal)? else {
        return Ok(None);
    };
    let document = snapshot.record(collection.id, &record).map_err(internal)?;
    document
        .map(|document| Logged::parse(&document))
        .transpose()
}

/// Where the entries are.
pub fn namespace() -> Namespace {
    Namespace::new("config", COLLECTION)
}
