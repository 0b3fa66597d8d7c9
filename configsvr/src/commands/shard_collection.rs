//! `shardCollection`: an ordinary collection, or one yet to be, becomes a set of chunks.
//!
//! The primary shard of the database first makes sure of the index, says what it holds already,
//! and stops writes to the collection; then the chunks and, as the commit, the collection's own
//! document are written; then the shards read them, which lets writes go on. If this is cut off
//! half way, the primary shard lets writes go on by itself after a while ([`BLOCK_MAX`]), and
//! chunks without a collection are swept away by the next attempt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_node::names::check_collection_name;
use banyan_sharding::chunk::Owner;
use banyan_sharding::{Chunk, ChunkRange, ShardKey, ShardKeyPattern, Zone, Zones, split};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use super::create_database;
use super::target::bad_value;
use crate::metadata::{ShardEntry, uuid_binary};
use crate::role::ConfigRole;
use crate::shards::SHORT;
use crate::user_writes;

pub static SPEC: CommandSpec = primary_only("_configsvrShardCollection", |ctx| boxed(run(ctx)));

/// The primary shard holds writes back for at most this long.
const BLOCK_MAX: Duration = Duration::from_secs(20);

/// After this long the commit is not attempted any more: the shard may let writes go on soon.
const COMMIT_BEFORE: Duration = Duration::from_secs(10);

/// As in MongoDB.
const INITIAL_CHUNKS_MAX: i64 = 8192;

/// Chunks that each shard gets of an empty hashed collection.
const HASHED_CHUNKS_PER_SHARD: usize = 2;

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let wanted = Wanted::parse(ctx)?;
    let _admitted = user_writes::admit(role, ctx).await?;
    let database = create_database::create(role, wanted.database, None, true).await?;
    let _lock = role.databases.lock(wanted.database).await;
    let _definition = role.definitions.lock(wanted.ns).await;
    if already_sharded(role, &wanted).await? {
        return Ok(rawdoc! { "collectionsharded": wanted.ns, "ok": 1.0 });
    }
    let shards = role.metadata.shards().await?;
    let home = role.metadata.shard(&database.primary).await?;
    let started = Instant::now();
    role.note("shardCollection.start", wanted.ns, wanted.details(&home))
        .await;
    let outcome = shard_it(role, &wanted, &shards, &home, started).await;
    // Whatever came of it, the primary shard reads the truth and lets writes go on.
    let known = role.metadata.table(wanted.ns).await?;
    let mut told = Vec::new();
    for shard in &shards {
        if shard.id == home.id
            || known
                .as_ref()
                .is_some_and(|table| table.owns_any(&shard.id))
        {
            told.push(shard.host.clone());
        }
    }
    role.tell_shards(wanted.ns, told).await;
    let chunks = outcome?;
    let mut details = wanted.details(&home);
    details.append(
        bson::cstr!("numChunks"),
        i32::try_from(chunks).unwrap_or(i32::MAX),
    );
    role.note("shardCollection.end", wanted.ns, details).await;
    Ok(rawdoc! { "collectionsharded": wanted.ns, "ok": 1.0 })
}

struct Wanted<'a> {
    ns: &'a str,
    database: &'a str,
    pattern: ShardKeyPattern,
    unique: bool,
    initial_chunks: Option<usize>,
    collation: Option<&'a RawDocument>,
}

impl<'a> Wanted<'a> {
    fn parse(ctx: &CommandContext<'a>) -> Result<Wanted<'a>, CommandError> {
        let ns = ctx.required("_configsvrShardCollection")?.str()?;
        let Some((database, collection)) = ns.split_once('.') else {
            let message = format!("Invalid namespace specified '{ns}'");
            return Err(CommandError::new(ErrorCode::InvalidNamespace, message));
        };
        check_collection_name(database, collection)?;
        if matches!(database, "admin" | "config" | "local") || collection.starts_with("system.") {
            let message = format!("Namespace {ns} can't be sharded");
            return Err(CommandError::new(ErrorCode::IllegalOperation, message));
        }
        let pattern =
            ShardKeyPattern::parse(ctx.required("key")?.document()?).map_err(bad_value)?;
        let unique = match ctx.field("unique") {
            Some(unique) => unique.bool()?,
            None => false,
        };
        let invalid = |message: &str| CommandError::new(ErrorCode::InvalidOptions, message);
        if unique && pattern.is_hashed() {
            return Err(invalid(
                "Hashed shard keys cannot be declared unique. It's possible to \
                                ensure uniqueness on the hashed field by declaring an additional \
                                (non-hashed) unique index on the field.",
            ));
        }
        let initial_chunks = match ctx.field("numInitialChunks") {
            Some(field) => Some(field.i64()?).filter(|n| *n > 0),
            None => None,
        };
        if initial_chunks.is_some_and(|n| n > INITIAL_CHUNKS_MAX) {
            return Err(invalid("numInitialChunks cannot be more than 8192"));
        }
        if initial_chunks.is_some() && !pattern.is_hashed() {
            return Err(invalid(
                "numInitialChunks is not supported when the collection is not \
                                hashed",
            ));
        }
        let collation = match ctx.field("collation") {
            Some(collation) => collation.document_or_null()?,
            None => None,
        };
        if collation.is_some_and(|c| c.get_str("locale").is_ok_and(|l| l != "simple")) {
            return Err(bad_value(
                "The collation for shardCollection must be {locale: 'simple'}",
            ));
        }
        let initial_chunks = initial_chunks.and_then(|n| usize::try_from(n).ok());
        Ok(Wanted {
            ns,
            database,
            pattern,
            unique,
            initial_chunks,
            collation,
        })
    }

    fn details(&self, home: &ShardEntry) -> RawDocumentBuf {
        rawdoc! {
            "shardKey": self.pattern.document().to_owned(),
            "collection": self.ns,
            "primary": &*home.id,
        }
    }
}

/// Sharding again in the same way is no error, in another way it is.
async fn already_sharded(role: &ConfigRole, wanted: &Wanted<'_>) -> Result<bool, CommandError> {
    let Some(table) = role.metadata.table(wanted.ns).await? else {
        return Ok(false);
    };
    if *table.pattern() == wanted.pattern && table.is_unique() == wanted.unique {
        return Ok(true);
    }
    Err(CommandError::new(
        ErrorCode::AlreadyInitialized,
        format!("sharding already enabled for collection {}", wanted.ns),
    ))
}

/// What the primary shard holds.
struct Prepared {
    uuid: [u8; 16],
    documents: i64,
    points: Vec<ShardKey>,
    default_collation: Option<RawDocumentBuf>,
}

async fn shard_it(
    role: &ConfigRole,
    wanted: &Wanted<'_>,
    shards: &[ShardEntry],
    home: &ShardEntry,
    started: Instant,
) -> Result<usize, CommandError> {
    let prepared = prepare(role, wanted, home).await?;
    let timestamp = role.metadata.tick();
    let planned = plan_chunks(role, wanted, &prepared, shards, home).await?;
    for shard in shards.iter().filter(|shard| shard.id != home.id) {
        if planned.iter().any(|(_, owner)| *owner == shard.id) {
            create_elsewhere(role, wanted, home, shard).await?;
        }
    }
    let chunks: Vec<RawDocumentBuf> = planned
        .into_iter()
        .enumerate()
        .map(|(n, (range, shard))| {
            let minor = u32::try_from(n).unwrap_or(u32::MAX);
            let chunk = Chunk {
                id: ObjectId::new(),
                range,
                shard: shard.clone(),
                lastmod: Timestamp {
                    time: 1,
                    increment: minor,
                },
                jumbo: false,
                history: vec![Owner {
                    valid_after: timestamp,
                    shard,
                }],
            };
            chunk.to_document(wanted.ns, prepared.uuid)
        })
        .collect();
    let _lock = role.namespaces.lock(wanted.ns).await;
    // What an attempt that was cut off may have left.
    role.metadata
        .remove("chunks", rawdoc! { "ns": wanted.ns })
        .await?;
    role.metadata.put("chunks", &chunks).await?;
    if started.elapsed() > COMMIT_BEFORE {
        let message = "sharding the collection took too long and was given up";
        return Err(CommandError::new(ErrorCode::ExceededTimeLimit, message));
    }
    let mut collection = rawdoc! {
        "_id": wanted.ns,
        "lastmodEpoch": ObjectId::new(),
        "lastmod": DateTime::now(),
        "timestamp": timestamp,
        "uuid": uuid_binary(prepared.uuid),
        "key": wanted.pattern.document().to_owned(),
        "unique": wanted.unique,
        "dropped": false,
        "noBalance": false,
    };
    if let Some(collation) = prepared.default_collation {
        collection.append(bson::cstr!("defaultCollation"), collation);
    }
    role.metadata.put("collections", &[collection]).await?;
    Ok(chunks.len())
}

async fn prepare(
    role: &ConfigRole,
    wanted: &Wanted<'_>,
    home: &ShardEntry,
) -> Result<Prepared, CommandError> {
    let mut body = rawdoc! {
        "_shardsvrPrepareShardCollection": wanted.ns,
        "key": wanted.pattern.document().to_owned(),
        "unique": wanted.unique,
        "blockMillis": i64::try_from(BLOCK_MAX.as_millis()).unwrap_or(i64::MAX),
    };
    if wanted.collation.is_some() {
        body.append(bson::cstr!("simpleCollation"), true);
    }
    let reply = role
        .shards
        .command(&home.host, &body, Duration::from_secs(600))
        .await?;
    let uuid = reply
        .get_binary("uuid")
        .map_err(bad_value)?
        .bytes
        .try_into()
        .map_err(bad_value)?;
    let documents = match reply.get("documents") {
        Ok(Some(RawBsonRef::Int64(n))) => n,
        _ => 0,
    };
    let mut points = Vec::new();
    for point in reply.get_array("points").map_err(bad_value)? {
        if let Some(point) = point.map_err(bad_value)?.as_document() {
            points.push(wanted.pattern.key_of_bound(point).map_err(bad_value)?);
        }
    }
    Ok(Prepared {
        uuid,
        documents,
        points,
        default_collation: reply
            .get_document("collation")
            .ok()
            .map(RawDocument::to_owned),
    })
}

/// The ranges of the first chunks and their owners.
async fn plan_chunks(
    role: &ConfigRole,
    wanted: &Wanted<'_>,
    prepared: &Prepared,
    shards: &[ShardEntry],
    home: &ShardEntry,
) -> Result<Vec<(ChunkRange, Arc<str>)>, CommandError> {
    let pattern = &wanted.pattern;
    if prepared.documents > 0 {
        // What is there stays where it is; the balancer spreads it later.
        let ranges = cut(pattern, &prepared.points);
        return Ok(ranges
            .into_iter()
            .map(|range| (range, home.id.clone()))
            .collect());
    }
    let documents = role
        .metadata
        .find("tags", rawdoc! { "ns": wanted.ns })
        .await?;
    let zones: Result<Vec<Zone>, _> = documents.iter().map(|d| Zone::parse(pattern, d)).collect();
    let zones = zones.and_then(Zones::new).map_err(bad_value)?;
    let open: Vec<&ShardEntry> = shards.iter().filter(|shard| !shard.draining).collect();
    if !zones.is_empty() {
        let points = zones.borders_inside(&ChunkRange::everything(pattern));
        let owner = |range: &ChunkRange| {
            let zone = zones.of(range)?;
            open.iter()
                .find(|shard| shard.zones.contains(zone))
                .map(|shard| shard.id.clone())
        };
        let ranges = cut(pattern, &points).into_iter();
        return Ok(ranges
            .map(|range| {
                let owner = owner(&range).unwrap_or_else(|| home.id.clone());
                (range, owner)
            })
            .collect());
    }
    let leads = pattern
        .fields()
        .first()
        .is_some_and(|field| field.is_hashed());
    if !leads || open.is_empty() {
        return Ok(vec![(ChunkRange::everything(pattern), home.id.clone())]);
    }
    let count = wanted
        .initial_chunks
        .unwrap_or(HASHED_CHUNKS_PER_SHARD * open.len());
    let ranges = cut(pattern, &split::hashed_split_points(pattern, count));
    let per_shard = ranges.len().div_ceil(open.len()).max(1);
    let owners = open
        .iter()
        .flat_map(|shard| std::iter::repeat_n(shard.id.clone(), per_shard));
    Ok(ranges.into_iter().zip(owners).collect())
}

fn cut(pattern: &ShardKeyPattern, points: &[ShardKey]) -> Vec<ChunkRange> {
    let mut ranges = Vec::with_capacity(points.len() + 1);
    let mut min = pattern.min_key();
    for point in points {
        ranges.push(ChunkRange {
            min,
            max: point.clone(),
        });
        min = point.clone();
    }
    ranges.push(ChunkRange {
        min,
        max: pattern.max_key(),
    });
    ranges
}

/// Gives another shard the collection with its options and indexes, before it gets any document.
async fn create_elsewhere(
    role: &ConfigRole,
    wanted: &Wanted<'_>,
    home: &ShardEntry,
    shard: &ShardEntry,
) -> Result<(), CommandError> {
    let describe = rawdoc! { "_shardsvrDescribeCollection": wanted.ns };
    let described = role.shards.command(&home.host, &describe, SHORT).await?;
    let body = rawdoc! {
        "_shardsvrCreateCollection": wanted.ns,
        "options": described.get_document("options").map_err(bad_value)?.to_owned(),
        "indexes": described.get_array("indexes").map_err(bad_value)?.to_owned(),
    };
    role.shards
        .command(&shard.host, &body, SHORT)
        .await
        .map(drop)
}
