//! `$listClusterCatalog`: what the collections of the cluster are, and on which shards.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use banyan_query::cluster_catalog::{self, Options, Placement, STAGE, Sharding};
use banyan_sharding::routing::CollectionEntry;
use banyan_sharding::split::chunk_bytes_max;
use banyan_wire::{CommandError, ErrorCode, Outgoing, ReplicaSet};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::{forward, own_sources};
use crate::context::{CommandResult, Context};
use crate::errors::query_error;
use crate::fields;
use crate::merge::{Merge, Shape};
use crate::shards::{aggregate_all, find_all};

const MEGABYTE: u64 = 1 << 20;

/// Whether the pipeline begins with the stage.
pub fn is_asked_for(stages: &[&RawDocument]) -> bool {
    let first = stages.first();
    first.is_some_and(|stage| fields::get(stage, STAGE).is_some())
}

/// Answers the pipeline with a document for each collection of the database, or, for `admin`, of all
/// databases.
pub async fn run(context: &Context<'_>, stages: &[&RawDocument]) -> CommandResult {
    let argument = stages.first().and_then(|stage| fields::get(stage, STAGE));
    let Some(RawBsonRef::Document(argument)) = argument else {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            format!("the argument of {STAGE} must be an object"),
        ));
    };
    let options = Options::parse(argument).map_err(query_error)?;
    if matches!(context.request.first_value(), Some(RawBsonRef::String(_))) {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("{STAGE} must be run against a database with {{aggregate: 1}}"),
        ));
    }
    let sharded = Sharded::read(context).await?;
    let mut documents = Vec::new();
    for database in databases(context).await? {
        documents.extend(of_database(context, &database, &sharded, options).await?);
    }
    own_sources::piped(context, &stages[1..], documents).await
}

/// In order.
async fn databases(context: &Context<'_>) -> Result<BTreeSet<String>, CommandError> {
    let asked = &context.request.database;
    if asked != "admin" {
        return Ok([asked.clone()].into());
    }
    let config = &context.router.config;
    let entries = find_all(config, "databases", &rawdoc! {}, &rawdoc! {"_id": 1}).await?;
    let names = entries.iter().filter_map(|entry| entry.get_str("_id").ok());
    let own = ["admin", "config"];
    Ok(names.chain(own).map(str::to_owned).collect())
}

/// The sharded collections, with the shards that own a part of each.
struct Sharded {
    collections: HashMap<String, (CollectionEntry, Vec<Arc<str>>)>,
    /// Of a large chunk, where a collection says nothing of it.
    chunk_bytes: u64,
}

impl Sharded {
    async fn read(context: &Context<'_>) -> Result<Sharded, CommandError> {
        let config = &context.router.config;
        let setting = rawdoc! { "_id": "chunksize" };
        let setting = find_all(config, "settings", &setting, &rawdoc! {"_id": 1}).await?;
        let entries = find_all(config, "collections", &rawdoc! {}, &rawdoc! {"_id": 1}).await?;
        let is_sharded = |entry: &&RawDocumentBuf| {
            !fields::get_flag(entry, "dropped") && !fields::get_flag(entry, "unsplittable")
        };
        let mut owners = owners(config).await?;
        let mut collections = HashMap::new();
        for entry in entries.iter().filter(is_sharded) {
            let entry = CollectionEntry::parse(entry).map_err(|error| {
                CommandError::new(
                    ErrorCode::FailedToParse,
                    format!("config.collections: {error}"),
                )
            })?;
            let shards = owners.remove(&entry.uuid).unwrap_or_default();
            let shards = shards.into_iter().collect();
            collections.insert(entry.ns.clone(), (entry, shards));
        }
        Ok(Sharded {
            collections,
            chunk_bytes: chunk_bytes_max(setting.first().map(|setting| &**setting)),
        })
    }

    fn placement(&self, ns: &str, home: &Arc<str>) -> Placement {
        let Some((entry, shards)) = self.collections.get(ns) else {
            return Placement {
                shards: vec![home.clone()],
                sharding: None,
            };
        };
        let bytes = entry.chunk_bytes_max.unwrap_or(self.chunk_bytes);
        Placement {
            shards: shards.clone(),
            sharding: Some(Sharding {
                key: entry.pattern.document().to_owned(),
                is_balanced: entry.balanced,
                chunk_megabytes: i32::try_from(bytes / MEGABYTE).unwrap_or(i32::MAX),
            }),
        }
    }
}

/// The shards that own chunks, by the collection's UUID: the config servers know without handing out the
/// chunks themselves.
async fn owners(
    config: &ReplicaSet,
) -> Result<BTreeMap<[u8; 16], BTreeSet<Arc<str>>>, CommandError> {
    let owned = rawdoc! { "$group": { "_id": { "uuid": "$uuid", "shard": "$shard" } } };
    let mut owners = BTreeMap::<_, BTreeSet<Arc<str>>>::new();
    for found in aggregate_all(config, "chunks", [owned]).await? {
        let owned = found.get_document("_id");
        let owned =
            owned.and_then(|owned| Ok((owned.get_binary("uuid")?, owned.get_str("shard")?)));
        if let Ok((uuid, shard)) = owned
            && let Ok(uuid) = uuid.bytes.try_into()
        {
            owners.entry(uuid).or_default().insert(shard.into());
        }
    }
    Ok(owners)
}

async fn of_database(
    context: &Context<'_>,
    name: &str,
    sharded: &Sharded,
    options: Options,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let router = context.router;
    let Some(database) = router.catalog.database(name).await? else {
        return Ok(Vec::new());
    };
    let home = &database.primary;
    let list = Outgoing::command(name, &rawdoc! { "listCollections": 1 });
    let answer = router
        .send(home, context.request_options(false), &list)
        .await;
    let remotes = forward::open_all(context, vec![answer]).await?;
    let mut listed = Merge::new(remotes, Shape::default());
    let mut documents = Vec::new();
    while let Some(described) = listed.next().await? {
        let ns = format!("{name}.{}", described.get_str("name").unwrap_or_default());
        let placement = sharded.placement(&ns, home);
        let document = cluster_catalog::document(name, &described, &placement, options);
        documents.push(document);
    }
    Ok(documents)
}
