//! `addShardToZone`, `removeShardFromZone`, `updateZoneKeyRange`.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_sharding::{ChunkRange, ShardKeyPattern, Zone, Zones};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, rawdoc};

use crate::role::ConfigRole;

pub static ADD: CommandSpec = primary_only("_configsvrAddShardToZone", |ctx| boxed(add(ctx)));
pub static REMOVE: CommandSpec =
    primary_only("_configsvrRemoveShardFromZone", |ctx| boxed(remove(ctx)));
pub static UPDATE_RANGE: CommandSpec = primary_only("_configsvrUpdateZoneKeyRange", |ctx| {
    boxed(update_range(ctx))
});

async fn add(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let shard = ctx.required("_configsvrAddShardToZone")?.str()?;
    let zone = ctx.required("zone")?.str()?;
    let _lock = role.membership.lock().await;
    let shard = role.metadata.shard(shard).await?;
    let change = rawdoc! { "$addToSet": { "tags": zone } };
    role.metadata
        .update("shards", &shard.id, change, false)
        .await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn remove(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let shard = ctx.required("_configsvrRemoveShardFromZone")?.str()?;
    let zone = ctx.required("zone")?.str()?;
    let _lock = role.membership.lock().await;
    let shards = role.metadata.shards().await?;
    let shard = role.metadata.shard(shard).await?;
    let elsewhere = shards
        .iter()
        .any(|other| other.id != shard.id && other.zones.contains(zone));
    if shard.zones.contains(zone) && !elsewhere {
        let ranges = role.metadata.count("tags", rawdoc! { "tag": zone }).await?;
        if ranges > 0 {
            let message = "The last shard for zone cannot be removed while the zone has ranges";
            return Err(CommandError::new(ErrorCode::ZoneStillInUse, message));
        }
    }
    let change = rawdoc! { "$pull": { "tags": zone } };
    role.metadata
        .update("shards", &shard.id, change, false)
        .await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn update_range(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx.required("_configsvrUpdateZoneKeyRange")?.str()?;
    let min = ctx.required("min")?.document()?;
    let max = ctx.required("max")?.document()?;
    let zone = match ctx.field("zone") {
        Some(zone) if !zone.is_null() => Some(zone.str()?),
        _ => None,
    };
    let _lock = role.namespaces.lock(ns).await;
    let table = role.metadata.table(ns).await?;
    // The zones of a collection may be drawn before it is sharded; its key is then taken to be
    // what the range says.
    let pattern = match &table {
        Some(table) => table.pattern().clone(),
        None => pattern_of_bound(min)?,
    };
    let range = ChunkRange::parse(&pattern, min, max).map_err(bad_value)?;
    let id = rawdoc! { "ns": ns, "min": range.min.document().to_owned() };
    let Some(name) = zone else {
        role.metadata
            .remove(
                "tags",
                rawdoc! { "ns": ns, "min": range.min.document().to_owned() },
            )
            .await?;
        return Ok(rawdoc! { "ok": 1.0 });
    };
    if !role
        .metadata
        .shards()
        .await?
        .iter()
        .any(|shard| shard.zones.contains(name))
    {
        let message = format!("zone {name} does not exist");
        return Err(CommandError::new(ErrorCode::ZoneNotFound, message));
    }
    let existing = role.metadata.find("tags", rawdoc! { "ns": ns }).await?;
    let mut zones = vec![Zone {
        name: name.to_owned(),
        range: range.clone(),
    }];
    for document in &existing {
        let other = Zone::parse(&pattern, document).map_err(bad_value)?;
        if other.range != range {
            zones.push(other);
        }
    }
    Zones::new(zones)
        .map_err(|error| CommandError::new(ErrorCode::RangeOverlapConflict, error.to_string()))?;
    let document = rawdoc! {
        "_id": id,
        "ns": ns,
        "min": range.min.document().to_owned(),
        "max": range.max.document().to_owned(),
        "tag": name,
    };
    role.metadata.put("tags", &[document]).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

fn pattern_of_bound(bound: &bson::RawDocument) -> Result<ShardKeyPattern, CommandError> {
    let mut pattern = RawDocumentBuf::new();
    for element in bound.iter() {
        let (name, _) = element.map_err(bad_value)?;
        pattern.append(name, 1);
    }
    ShardKeyPattern::parse(&pattern).map_err(bad_value)
}

fn bad_value(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(ErrorCode::BadValue, error.to_string())
}
