//! The shards of the cluster, as config.shards lists them, and a client for each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use banyan_wire::{
    CommandError, ErrorCode, PoolOptions, ReadMode, ReplicaSet, ReplicaSetError, RequestOptions,
};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::RwLock;
use tracing::{info, warn};

/// The name under which requests go to the config servers themselves.
pub const CONFIG: &str = "config";

pub struct Shard {
    pub id: Arc<str>,
    /// `set/host:port,…` as config.shards has it.
    pub address: String,
    pub set: ReplicaSet,
    pub draining: bool,
}

/// All shards by id; read again when one is asked for that is not there.
pub struct Shards {
    config: ReplicaSet,
    known: RwLock<Arc<BTreeMap<Arc<str>, Arc<Shard>>>>,
    config_shard: Arc<Shard>,
}

impl Shards {
    pub fn new(config: ReplicaSet, address: &str) -> Shards {
        config.monitor();
        let config_shard = Shard {
            id: CONFIG.into(),
            address: address.to_owned(),
            set: config.clone(),
            draining: false,
        };
        Shards {
            config,
            known: RwLock::default(),
            config_shard: Arc::new(config_shard),
        }
    }

    pub fn config(&self) -> &Arc<Shard> {
        &self.config_shard
    }

    /// What is known now, in order of id.
    pub fn all(&self) -> Arc<BTreeMap<Arc<str>, Arc<Shard>>> {
        self.known.read().clone()
    }

    pub async fn get(&self, id: &str) -> Result<Arc<Shard>, CommandError> {
        if id == CONFIG {
            return Ok(self.config_shard.clone());
        }
        if let Some(shard) = self.known.read().get(id) {
            return Ok(shard.clone());
        }
        self.reload().await?;
        self.known.read().get(id).cloned().ok_or_else(|| {
            CommandError::new(ErrorCode::ShardNotFound, format!("Shard {id} not found"))
        })
    }

    /// Reads config.shards. Shards whose address is the same keep their client.
    pub async fn reload(&self) -> Result<(), CommandError> {
        let documents = find_all(&self.config, "shards", &rawdoc! {}, &rawdoc! {"_id": 1}).await?;
        let before = self.all();
        let mut after = BTreeMap::new();
        for document in &documents {
            match parse(document, &before) {
                Ok(shard) => {
                    after.insert(shard.id.clone(), shard);
                }
                Err(error) => warn!("config.shards holds an entry that can't be used: {error}"),
            }
        }
        for shard in after
            .values()
            .filter(|shard| !before.contains_key(&shard.id))
        {
            info!(shard = &*shard.id, address = shard.address, "shard known");
        }
        *self.known.write() = Arc::new(after);
        Ok(())
    }

    /// `{shard id: address}` of every shard and the config servers, for `getShardMap`.
    pub fn addresses(&self) -> HashMap<String, String> {
        let mut map: HashMap<String, String> = self
            .all()
            .values()
            .map(|shard| (shard.id.to_string(), shard.address.clone()))
            .collect();
        map.insert(CONFIG.to_owned(), self.config_shard.address.clone());
        map
    }
}

fn parse(
    document: &RawDocument,
    before: &BTreeMap<Arc<str>, Arc<Shard>>,
) -> Result<Arc<Shard>, CommandError> {
    let field = |name: &str| {
        document.get_str(name).map_err(|error| {
            CommandError::new(ErrorCode::NoSuchKey, format!("shard entry: {error}"))
        })
    };
    let (id, address) = (field("_id")?, field("host")?);
    let draining = crate::fields::get_flag(document, "draining");
    if let Some(known) = before.get(id)
        && known.address == address
        && known.draining == draining
    {
        return Ok(known.clone());
    }
    let set = match before.get(id).filter(|known| known.address == address) {
        Some(known) => known.set.clone(),
        None => {
            let set = ReplicaSet::parse(address, PoolOptions::default())?;
            set.monitor();
            set
        }
    };
    Ok(Arc::new(Shard {
        id: id.into(),
        address: address.to_owned(),
        set,
        draining,
    }))
}

/// Every document of a config collection that matches, through as many batches as it takes.
pub async fn find_all(
    config: &ReplicaSet,
    collection: &str,
    filter: &RawDocument,
    sort: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, ReplicaSetError> {
    let mut command = rawdoc! {"find": collection};
    command.append(bson::raw::cstr!("filter"), filter);
    command.append(bson::raw::cstr!("sort"), sort);
    command.append(bson::raw::cstr!("batchSize"), 10_000);
    all_of(config, collection, &command).await
}

/// Every document that a pipeline over a config collection makes.
pub async fn aggregate_all(
    config: &ReplicaSet,
    collection: &str,
    stages: impl IntoIterator<Item = RawDocumentBuf>,
) -> Result<Vec<RawDocumentBuf>, ReplicaSetError> {
    let mut command = rawdoc! {"aggregate": collection};
    let pipeline = RawArrayBuf::from_iter(stages);
    command.append(bson::raw::cstr!("pipeline"), pipeline);
    command.append(bson::raw::cstr!("cursor"), rawdoc! {"batchSize": 10_000});
    all_of(config, collection, &command).await
}

async fn all_of(
    config: &ReplicaSet,
    collection: &str,
    command: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, ReplicaSetError> {
    let read = RequestOptions::read(ReadMode::Primary);
    let mut out = Vec::new();
    let mut reply = config.command(read.clone(), "config", command).await?;
    loop {
        let cursor = reply.get_document("cursor").ok();
        let batch = cursor.and_then(|cursor| {
            cursor
                .get_array("firstBatch")
                .or_else(|_| cursor.get_array("nextBatch"))
                .ok()
        });
        for value in batch.into_iter().flatten().flatten() {
            if let RawBsonRef::Document(document) = value {
                out.push(document.to_owned());
            }
        }
        let id = cursor
            .and_then(|cursor| cursor.get_i64("id").ok())
            .unwrap_or_default();
        if id == 0 {
            return Ok(out);
        }
        let more = rawdoc! {"getMore": id, "collection": collection, "batchSize": 10_000};
        reply = config.command(read.clone(), "config", &more).await?;
    }
}
