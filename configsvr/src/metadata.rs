//! The cluster's documents: config.shards, databases, collections, chunks, tags, settings.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use banyan_node::local::Local;
use banyan_sharding::split::chunk_bytes_max;
use banyan_sharding::{Chunk, RoutingTable, Zone, Zones};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use parking_lot::Mutex;

use crate::reader::load_table;

/// A document of config.shards.
#[derive(Debug, Clone)]
pub struct ShardEntry {
    pub id: Arc<str>,
    /// `set/host:port,…` or `host:port`.
    pub host: String,
    pub draining: bool,
    pub zones: BTreeSet<String>,
}

impl ShardEntry {
    fn parse(document: &RawDocument) -> Option<ShardEntry> {
        let tags = document.get_array("tags").ok();
        let zones = tags
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|tag| tag.as_str());
        Some(ShardEntry {
            id: document.get_str("_id").ok()?.into(),
            host: document.get_str("host").ok()?.to_owned(),
            draining: is_true(document, "draining"),
            zones: zones.map(str::to_owned).collect(),
        })
    }
}

/// A document of config.databases.
#[derive(Debug, Clone)]
pub struct DatabaseEntry {
    pub name: String,
    pub primary: Arc<str>,
    pub partitioned: bool,
    pub document: RawDocumentBuf,
}

impl DatabaseEntry {
    fn parse(document: RawDocumentBuf) -> Option<DatabaseEntry> {
        Some(DatabaseEntry {
            name: document.get_str("_id").ok()?.to_owned(),
            primary: document.get_str("primary").ok()?.into(),
            partitioned: is_true(&document, "partitioned"),
            document,
        })
    }
}

pub fn is_true(document: &RawDocument, field: &str) -> bool {
    match document.get(field) {
        Ok(Some(RawBsonRef::Boolean(value))) => value,
        Ok(Some(RawBsonRef::Int32(value))) => value != 0,
        Ok(Some(RawBsonRef::Int64(value))) => value != 0,
        Ok(Some(RawBsonRef::Double(value))) => value != 0.0,
        _ => false,
    }
}

pub fn uuid_binary(uuid: [u8; 16]) -> Binary {
    Binary {
        subtype: BinarySubtype::Uuid,
        bytes: uuid.to_vec(),
    }
}

pub struct Metadata {
    pub local: Local,
    /// Routing tables as last read; each use reads what changed since.
    tables: Mutex<HashMap<String, Arc<RoutingTable>>>,
}

impl Metadata {
    pub fn new(local: Local) -> Metadata {
        Metadata {
            local,
            tables: Mutex::default(),
        }
    }

    pub async fn find(
        &self,
        collection: &str,
        filter: RawDocumentBuf,
    ) -> Result<Vec<RawDocumentBuf>, CommandError> {
        let body = rawdoc! { "find": collection, "filter": filter, "sort": { "_id": 1 } };
        self.local.find("config", body).await
    }

    pub async fn find_one(
        &self,
        collection: &str,
        filter: RawDocumentBuf,
    ) -> Result<Option<RawDocumentBuf>, CommandError> {
        Ok(self.find(collection, filter).await?.into_iter().next())
    }

    /// Writes whole documents by their `_id`, all of them at once or none.
    pub async fn put(
        &self,
        collection: &str,
        documents: &[RawDocumentBuf],
    ) -> Result<(), CommandError> {
        let mut updates = RawArrayBuf::new();
        for document in documents {
            let Ok(Some(id)) = document.get("_id") else {
                return Err(CommandError::new(
                    ErrorCode::InternalError,
                    "a document without _id",
                ));
            };
            updates.push(rawdoc! {
                "q": { "_id": id }, "u": document.clone(), "upsert": true, "multi": false,
            });
        }
        let body = rawdoc! {
            "update": collection,
            "updates": updates,
            "writeConcern": { "w": "majority", "wtimeout": 60_000 },
        };
        self.local.write("config", body).await.map(drop)
    }

    pub async fn insert(
        &self,
        collection: &str,
        document: RawDocumentBuf,
    ) -> Result<(), CommandError> {
        let body = rawdoc! { "insert": collection, "documents": [document] };
        self.local.write("config", body).await.map(drop)
    }

    /// Changes fields of the document with this `_id`.
    pub async fn update(
        &self,
        collection: &str,
        id: &str,
        update: RawDocumentBuf,
        upsert: bool,
    ) -> Result<(), CommandError> {
        let body = rawdoc! {
            "update": collection,
            "updates": [{ "q": { "_id": id }, "u": update, "upsert": upsert }],
        };
        self.local.write("config", body).await.map(drop)
    }

    pub async fn remove(
        &self,
        collection: &str,
        filter: RawDocumentBuf,
    ) -> Result<(), CommandError> {
        let body = rawdoc! { "delete": collection, "deletes": [{ "q": filter, "limit": 0 }] };
        self.local.write("config", body).await.map(drop)
    }

    pub async fn count(
        &self,
        collection: &str,
        filter: RawDocumentBuf,
    ) -> Result<i64, CommandError> {
        let body = rawdoc! { "count": collection, "query": filter };
        let reply = self.local.command("config", body).await?;
        Ok(match reply.get("n") {
            Ok(Some(RawBsonRef::Int32(n))) => i64::from(n),
            Ok(Some(RawBsonRef::Int64(n))) => n,
            Ok(Some(RawBsonRef::Double(n))) => n as i64,
            _ => 0,
        })
    }

    pub async fn shards(&self) -> Result<Vec<ShardEntry>, CommandError> {
        let documents = self.find("shards", rawdoc! {}).await?;
        Ok(documents
            .iter()
            .filter_map(|document| ShardEntry::parse(document))
            .collect())
    }

    pub async fn shard(&self, id: &str) -> Result<ShardEntry, CommandError> {
        let shards = self.shards().await?;
        // Users name a shard by its id or, as old documents have it, by its host.
        shards
            .into_iter()
            .find(|shard| &*shard.id == id || shard.host == id)
            .ok_or_else(|| shard_not_found(id))
    }

    pub async fn database(&self, name: &str) -> Result<Option<DatabaseEntry>, CommandError> {
        let found = self.find_one("databases", rawdoc! { "_id": name }).await?;
        Ok(found.and_then(DatabaseEntry::parse))
    }

    pub async fn databases(&self) -> Result<Vec<DatabaseEntry>, CommandError> {
        let found = self.find("databases", rawdoc! {}).await?;
        Ok(found.into_iter().filter_map(DatabaseEntry::parse).collect())
    }

    /// The names of all sharded collections.
    pub async fn sharded(&self) -> Result<Vec<String>, CommandError> {
        let found = self.find("collections", rawdoc! {}).await?;
        Ok(found
            .iter()
            .filter_map(|c| c.get_str("_id").ok().map(str::to_owned))
            .collect())
    }

    /// The routing table of a collection as of now; `None` if it is not sharded.
    pub async fn table(&self, ns: &str) -> Result<Option<Arc<RoutingTable>>, CommandError> {
        let known = self.tables.lock().get(ns).cloned();
        let table = load_table(&self.local, ns, known.as_deref()).await?;
        let mut tables = self.tables.lock();
        match &table {
            Some(table) => tables.insert(ns.to_owned(), table.clone()),
            None => tables.remove(ns),
        };
        Ok(table)
    }

    pub async fn sharded_table(&self, ns: &str) -> Result<Arc<RoutingTable>, CommandError> {
        self.table(ns).await?.ok_or_else(|| {
            let message = format!("Namespace {ns} is not sharded");
            CommandError::new(ErrorCode::NamespaceNotSharded, message)
        })
    }

    /// Writes changed chunks in one step: the commit of a split or a move.
    pub async fn put_chunks(
        &self,
        table: &RoutingTable,
        chunks: &[Arc<Chunk>],
    ) -> Result<(), CommandError> {
        let documents: Vec<RawDocumentBuf> = chunks
            .iter()
            .map(|chunk| chunk.to_document(table.ns(), table.uuid()))
            .collect();
        self.put("chunks", &documents).await
    }

    pub async fn zones(&self, table: &RoutingTable) -> Result<Zones, CommandError> {
        let documents = self.find("tags", rawdoc! { "ns": table.ns() }).await?;
        let parse = |document: &RawDocumentBuf| Zone::parse(table.pattern(), document);
        let zones: Result<Vec<Zone>, _> = documents.iter().map(parse).collect();
        zones
            .and_then(Zones::new)
            .map_err(|error| CommandError::new(ErrorCode::BadValue, error.to_string()))
    }

    pub async fn setting(&self, id: &str) -> Result<Option<RawDocumentBuf>, CommandError> {
        self.find_one("settings", rawdoc! { "_id": id }).await
    }

    /// The size of a large chunk, as the cluster's settings have it.
    pub async fn chunk_bytes_max(&self, table: &RoutingTable) -> Result<u64, CommandError> {
        if let Some(bytes) = table.entry().chunk_bytes_max {
            return Ok(bytes);
        }
        let setting = self.setting("chunksize").await?;
        Ok(chunk_bytes_max(setting.as_deref()))
    }

    pub async fn cluster_id(&self) -> Result<ObjectId, CommandError> {
        let version = self.find_one("version", rawdoc! {}).await?;
        version
            .and_then(|version| version.get_object_id("clusterId").ok())
            .ok_or_else(|| {
                let message = "the config servers have not been initialized yet";
                CommandError::new(ErrorCode::NotYetInitialized, message)
            })
    }

    /// A time later than every one given out before.
    pub fn tick(&self) -> Timestamp {
        self.local.service().node.replica.clock.tick()
    }
}

pub fn shard_not_found(id: &str) -> CommandError {
    CommandError::new(
        ErrorCode::ShardNotFound,
        format!("Shard {id} does not exist"),
    )
}
