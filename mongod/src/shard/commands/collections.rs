//! What config servers ask about a shard's collections, or have done to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_node::errors::shown;
use banyan_node::views;
use banyan_replication::views::is_time_series;
use banyan_sharding::{ChunkRange, ShardKeyPattern, split};
use banyan_storage::{Collection, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::shard::definitions::create_collection;
use crate::shard::errors::{bad_value, internal};
use crate::shard::keys::{KeyView, supporting_index};
use crate::shard::metadata::{Block, Known};
use crate::shard::state::ShardRole;

pub static PREPARE: CommandSpec =
    primary_only("_shardsvrPrepareShardCollection", |ctx| boxed(prepare(ctx)));
pub static DESCRIBE: CommandSpec =
    primary_only("_shardsvrDescribeCollection", |ctx| boxed(describe(ctx)));
pub static CREATE: CommandSpec =
    primary_only("_shardsvrCreateCollection", |ctx| boxed(create(ctx)));
pub static DROP: CommandSpec =
    primary_only("_shardsvrDropCollection", |ctx| boxed(drop_collection(ctx)));
pub static FLUSH: CommandSpec =
    primary_only("_flushRoutingTableCacheUpdates", |ctx| boxed(flush(ctx)));
pub static STATS: CommandSpec =
    primary_only("_shardsvrGetStatsForBalancing", |ctx| boxed(stats(ctx)));
pub static SPLIT_POINTS: CommandSpec =
    primary_only("_shardsvrSplitPoints", |ctx| boxed(split_points(ctx)));

fn namespace(ns: &str) -> Result<Namespace, CommandError> {
    Namespace::parse(ns).ok_or_else(|| {
        CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{ns}'"),
        )
    })
}

fn find(role: &ShardRole, namespace: &Namespace) -> Option<Arc<Collection>> {
    role.node().replica.store.catalog().find(namespace).cloned()
}

/// Makes a collection ready to be sharded: it exists, an index supports the key, and writes wait
/// until the routing table is read again (or the time is up).
async fn prepare(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    role.identified()?;
    let ns = ctx.required("_shardsvrPrepareShardCollection")?.str()?;
    let pattern = ShardKeyPattern::parse(ctx.required("key")?.document()?).map_err(bad_value)?;
    let unique = ctx.required("unique")?.bool()?;
    let block = Duration::from_millis(ctx.required("blockMillis")?.unsigned()?);
    let namespace = namespace(ns)?;
    if find(&role, &namespace).is_none() {
        if is_time_series(&role.node().replica, &namespace) {
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                format!("{namespace} is a time-series collection, which cannot be sharded"),
            ));
        }
        views::refuse(&role.node().replica, &namespace)?;
        let body = rawdoc! { "create": namespace.collection() };
        match role.local.command(namespace.database(), body).await {
            Err(error) if error.code != ErrorCode::NamespaceExists => return Err(error),
            _ => {}
        }
    }
    let simple = ctx.field("simpleCollation").is_some();
    if find(&role, &namespace).is_some_and(|collection| collection.is_capped) {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "can't shard a capped collection",
        ));
    }
    refuse_other_collation(&role, &namespace, simple)?;
    ensure_index(&role, &namespace, &pattern, unique).await?;
    role.collection(ns).change(|state| {
        state.block = Some(Block {
            reads: false,
            until: Some(Instant::now() + block),
        });
        state.known = Known::Unknown;
    });
    role.drain_writes(ns).await;
    let ns = ns.to_owned();
    let work = move || {
        let view = KeyView::open(role.node(), &ns, &pattern)?;
        let view = view.ok_or_else(|| internal("the collection was dropped"))?;
        let documents = view.collection.documents();
        let range = ChunkRange::everything(&pattern);
        let parts = split::initial_parts(view.collection.bytes(), split::CHUNK_BYTES_MAX_DEFAULT);
        let mut points = RawArrayBuf::new();
        if parts > 1 {
            for point in view.split_points(&range, documents, parts)? {
                points.push(point.document().to_owned());
            }
        }
        let uuid = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: view.collection.uuid.to_vec(),
        };
        let mut reply = rawdoc! {
            "uuid": uuid,
            "documents": i64::try_from(documents).unwrap_or(i64::MAX),
            "bytes": i64::try_from(view.collection.bytes()).unwrap_or(i64::MAX),
            "points": points,
        };
        if let Some(collator) = &view.collection.collator {
            reply.append(cstr!("collation"), collator.collation().to_document());
        }
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

/// Shard keys compare by their bytes. Whoever shards a collection that does not has to know.
fn refuse_other_collation(
    role: &ShardRole,
    namespace: &Namespace,
    simple: bool,
) -> Result<(), CommandError> {
    match find(role, namespace).and_then(|collection| collection.collator.clone()) {
        Some(collator) if !simple => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "If no collation was specified, the collection collation must be {{locale: \
                 'simple'}}, but found: {}",
                shown(RawBsonRef::Document(&collator.collation().to_document()))
            ),
        )),
        _ => Ok(()),
    }
}

/// An index that starts with the shard key; made if the collection is empty.
async fn ensure_index(
    role: &ShardRole,
    namespace: &Namespace,
    pattern: &ShardKeyPattern,
    unique: bool,
) -> Result<(), CommandError> {
    let collection = find(role, namespace).ok_or_else(|| internal("the collection was dropped"))?;
    refuse_other_unique(&collection, pattern)?;
    let usable = supporting_index(&collection, pattern).is_some();
    let unique_there = collection.all_indexes().any(|index| {
        let same = index
            .spec
            .get_document("key")
            .is_ok_and(|key| same_fields(key, pattern));
        same && index.unique && index.partial_filter.is_none()
    });
    if usable && (!unique || unique_there) {
        return Ok(());
    }
    if collection.documents() > 0 {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Please create an index that starts with the proposed shard key before sharding the \
             collection",
        ));
    }
    let mut spec = rawdoc! {
        "key": pattern.document().to_owned(), "name": index_name(pattern.document()),
    };
    if unique {
        spec.append(cstr!("unique"), true);
    }
    spec.append(cstr!("collation"), rawdoc! { "locale": "simple" });
    let body = rawdoc! { "createIndexes": namespace.collection(), "indexes": [spec] };
    role.local.command(namespace.database(), body).await?;
    let collection = find(role, namespace).ok_or_else(|| internal("the collection was dropped"))?;
    match supporting_index(&collection, pattern) {
        Some(_) => Ok(()),
        None => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "couldn't find a valid index for the shard key: it must not be sparse, partial or \
             multikey",
        )),
    }
}

/// Uniqueness can only be held within one shard, so a unique index must start with the shard key's
/// fields.
fn refuse_other_unique(
    collection: &Collection,
    pattern: &ShardKeyPattern,
) -> Result<(), CommandError> {
    for index in collection
        .indexes
        .iter()
        .filter(|index| index.unique && !index.is_id())
    {
        let key = index.spec.get_document("key").map_err(internal)?;
        if !pattern.keeps_unique(key) {
            let message = format!(
                "can't shard collection '{}' with unique index on {} and proposed shard key \
                 {pattern}. Uniqueness can't be maintained unless shard key is a prefix",
                collection.namespace,
                shown(RawBsonRef::Document(key))
            );
            return Err(CommandError::new(ErrorCode::InvalidOptions, message));
        }
    }
    Ok(())
}

fn same_fields(key: &RawDocument, pattern: &ShardKeyPattern) -> bool {
    pattern.is_prefix_of(key) && key.iter().count() == pattern.fields().len()
}

/// As drivers and shells name indexes: `id_1`, `a_1_b_hashed`.
fn index_name(key: &RawDocument) -> String {
    let parts = key
        .iter()
        .flatten()
        .map(|(name, value)| match value.as_str() {
            Some(kind) => format!("{name}_{kind}", name = name.as_str()),
            None => format!("{name}_1", name = name.as_str()),
        });
    parts.collect::<Vec<String>>().join("_")
}

async fn describe(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let namespace = namespace(ctx.required("_shardsvrDescribeCollection")?.str()?)?;
    let collection = find(&role, &namespace).ok_or_else(|| {
        CommandError::new(
            ErrorCode::NamespaceNotFound,
            format!("ns not found: {namespace}"),
        )
    })?;
    let mut indexes = RawArrayBuf::new();
    for index in &collection.indexes {
        indexes.push(index.spec.clone());
    }
    Ok(rawdoc! { "options": collection.options.clone(), "indexes": indexes, "ok": 1.0 })
}

async fn create(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_shardsvrCreateCollection")?.str()?;
    let options = ctx.required("options")?.document()?;
    let indexes = ctx.required("indexes")?.array()?;
    create_collection(&role, ns, options, indexes).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Drops what is here of a collection whose metadata is gone.
async fn drop_collection(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_shardsvrDropCollection")?.str()?;
    let namespace = namespace(ns)?;
    if let Some(recipient) = role.recipient.lock().as_ref().filter(|r| r.ns == ns) {
        recipient.abandon();
    }
    let body = rawdoc! { "drop": namespace.collection() };
    match role.local.command(namespace.database(), body).await {
        Err(error) if error.code != ErrorCode::NamespaceNotFound => return Err(error),
        _ => {}
    }
    role.log_dropped(&role.collection(ns)).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Reads the routing table again, which also ends what [`prepare`] began.
async fn flush(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_flushRoutingTableCacheUpdates")?.str()?;
    role.refresh(ns).await?;
    role.collection(ns).change(|state| {
        if state.block.is_some_and(|block| block.until.is_some()) {
            state.block = None;
        }
    });
    Ok(rawdoc! { "ok": 1.0 })
}

/// How much of each collection this shard owns.
async fn stats(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let mut stats = RawArrayBuf::new();
    for collection in ctx.required("collections")?.array()? {
        let collection = collection.map_err(bad_value)?;
        let collection = collection
            .as_document()
            .ok_or_else(|| bad_value("no document"))?;
        let ns = collection.get_str("ns").map_err(bad_value)?;
        let bytes = i64::try_from(role.bytes_held(ns)).unwrap_or(i64::MAX);
        stats.push(rawdoc! { "namespace": ns, "bytes": bytes, "collSize": bytes / (1024 * 1024) });
    }
    Ok(rawdoc! { "stats": stats, "ok": 1.0 })
}

async fn split_points(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_shardsvrSplitPoints")?.str()?.to_owned();
    let min = ctx.required("min")?.document()?;
    let max = ctx.required("max")?.document()?;
    let parts = usize::try_from(ctx.required("parts")?.unsigned()?)
        .unwrap_or(2)
        .clamp(2, 8192);
    role.refresh(&ns).await?;
    let filter = role.collection(&ns).filter().ok_or_else(|| {
        CommandError::new(
            ErrorCode::NamespaceNotSharded,
            format!("{ns} is not sharded"),
        )
    })?;
    let range = ChunkRange::parse(filter.table.pattern(), min, max).map_err(bad_value)?;
    let work = move || -> Result<RawDocumentBuf, CommandError> {
        let mut points = RawArrayBuf::new();
        if let Some(view) = KeyView::open(role.node(), &ns, filter.table.pattern())? {
            let count = view.count(&range)?;
            for point in view.split_points(&range, count, parts)? {
                points.push(point.document().to_owned());
            }
        }
        Ok(rawdoc! { "points": points, "ok": 1.0 })
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}
