//! `enableSharding`, and the birth of a database at its first write.

use std::sync::Arc;

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_node::names::check_database_name;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, rawdoc};

use crate::metadata::{DatabaseEntry, uuid_binary};
use crate::role::ConfigRole;
use crate::shards::SHORT;

pub static SPEC: CommandSpec = primary_only("_configsvrCreateDatabase", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let name = ctx.required("_configsvrCreateDatabase")?.str()?;
    let mut primary = None;
    for field in ["primaryShard", "primaryShardId"] {
        if let Some(field) = ctx.field(field) {
            primary = Some(field.str()?);
        }
    }
    let partitioned = match ctx.field("enableSharding") {
        Some(field) => field.bool()?,
        None => false,
    };
    let entry = create(role, name, primary, partitioned).await?;
    Ok(rawdoc! { "primary": &*entry.primary, "database": entry.document, "ok": 1.0 })
}

/// The database's entry, made if there is none.
pub async fn create(
    role: &ConfigRole,
    name: &str,
    primary: Option<&str>,
    partitioned: bool,
) -> Result<DatabaseEntry, CommandError> {
    check_database_name(name)?;
    if matches!(name, "admin" | "config" | "local") {
        let message = format!("Cannot manually create or shard the '{name}' database");
        return Err(CommandError::new(ErrorCode::InvalidOptions, message));
    }
    let _lock = role.databases.lock(name).await;
    if let Some(known) = role.metadata.database(name).await? {
        if let Some(primary) = primary {
            let shard = role.metadata.shard(primary).await?;
            if shard.id != known.primary {
                let message = format!(
                    "database already created on a primary which is different from {primary}"
                );
                return Err(CommandError::new(ErrorCode::NamespaceExists, message));
            }
        }
        if partitioned && !known.partitioned {
            let change = rawdoc! { "$set": { "partitioned": true } };
            role.metadata
                .update("databases", name, change, false)
                .await?;
        }
        return Ok(known);
    }
    refuse_other_case(role, name).await?;
    let primary = match primary {
        Some(primary) => role.metadata.shard(primary).await?.id,
        None => emptiest_shard(role).await?,
    };
    let document = entry(role, name, &primary, partitioned);
    role.metadata.insert("databases", document.clone()).await?;
    Ok(DatabaseEntry {
        name: name.to_owned(),
        primary,
        partitioned,
        document,
    })
}

/// A document of config.databases. `partitioned` is for shells that ask for it.
pub fn entry(role: &ConfigRole, name: &str, primary: &str, partitioned: bool) -> RawDocumentBuf {
    rawdoc! {
        "_id": name,
        "primary": primary,
        "partitioned": partitioned,
        "version": {
            "uuid": uuid_binary(*uuid::Uuid::new_v4().as_bytes()),
            "timestamp": role.metadata.tick(),
            "lastMod": 1,
        },
    }
}

async fn refuse_other_case(role: &ConfigRole, name: &str) -> Result<(), CommandError> {
    let databases = role.metadata.databases().await?;
    match databases
        .iter()
        .find(|other| other.name.eq_ignore_ascii_case(name))
    {
        None => Ok(()),
        Some(other) => Err(CommandError::new(
            ErrorCode::DatabaseDifferCase,
            format!(
                "can't have 2 databases that just differ on case  have: {} want to add: {name}",
                other.name
            ),
        )),
    }
}

/// The shard that stores least, and of those the one that is home to the fewest databases.
async fn emptiest_shard(role: &ConfigRole) -> Result<Arc<str>, CommandError> {
    let databases = role.metadata.databases().await?;
    let mut best: Option<((i64, usize), Arc<str>)> = None;
    let mut last_error = None;
    for shard in role
        .metadata
        .shards()
        .await?
        .into_iter()
        .filter(|shard| !shard.draining)
    {
        let bytes = match stored_bytes(role, &shard.host).await {
            Ok(bytes) => bytes,
            Err(error) => {
                last_error = Some(error);
                continue;
            }
        };
        let homes = databases
            .iter()
            .filter(|database| database.primary == shard.id)
            .count();
        if best.as_ref().is_none_or(|(load, _)| (bytes, homes) < *load) {
            best = Some(((bytes, homes), shard.id));
        }
    }
    match (best, last_error) {
        (Some((_, shard)), _) => Ok(shard),
        (None, Some(error)) => Err(error),
        (None, None) => Err(CommandError::new(
            ErrorCode::ShardNotFound,
            "No shards found",
        )),
    }
}

/// In megabytes: what differs by less is the same.
async fn stored_bytes(role: &ConfigRole, host: &str) -> Result<i64, CommandError> {
    // The log of a set says nothing of how much there is.
    let stored = rawdoc! { "listDatabases": 1, "filter": { "name": { "$ne": "local" } } };
    let reply = role.shards.command(host, &stored, SHORT).await?;
    let total = match reply.get("totalSize") {
        Ok(Some(RawBsonRef::Int32(n))) => i64::from(n),
        Ok(Some(RawBsonRef::Int64(n))) => n,
        Ok(Some(RawBsonRef::Double(n))) => n as i64,
        _ => 0,
    };
    Ok(total / (1024 * 1024))
}
