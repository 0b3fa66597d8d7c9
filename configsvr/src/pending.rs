//! Drops that have begun.
//!
//! A drop touches the metadata and every shard, so it is written down first
//! (config.pendingDrops) and forgotten last. Each step can be repeated; a new config primary
//! carries on where the old one was cut off.

use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::index_changes;
use crate::role::ConfigRole;
use crate::shards::SHORT;

const COLLECTION: &str = "pendingDrops";

/// What is to be dropped.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    Collection(&'a str),
    Database(&'a str),
}

/// Drops to the end, however often it is started.
pub async fn drop_target(role: &ConfigRole, target: Target<'_>) -> Result<(), CommandError> {
    let (name, kind) = match target {
        Target::Collection(name) => (name, "collection"),
        Target::Database(name) => (name, "database"),
    };
    role.metadata
        .put(COLLECTION, &[rawdoc! { "_id": name, "kind": kind }])
        .await?;
    perform(role, target).await?;
    role.metadata
        .remove(COLLECTION, rawdoc! { "_id": name })
        .await
}

/// Finishes what a former primary began.
pub async fn finish(role: &ConfigRole) -> Result<(), CommandError> {
    for document in role.metadata.find(COLLECTION, rawdoc! {}).await? {
        let (Ok(name), Ok(kind)) = (document.get_str("_id"), document.get_str("kind")) else {
            continue;
        };
        let target = match kind {
            "collection" => Target::Collection(name),
            _ => Target::Database(name),
        };
        let database = name.split('.').next().unwrap_or(name);
        let _lock = role.databases.lock(database).await;
        tracing::info!(name, kind, "finishing a drop that was interrupted");
        match drop_target(role, target).await {
            Ok(()) => {}
            // The balancer and everything else must not wait for a shard that is down.
            Err(error) if error.code.is_network() => {
                tracing::warn!(name, %error, "a drop stays unfinished");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn perform(role: &ConfigRole, target: Target<'_>) -> Result<(), CommandError> {
    match target {
        Target::Collection(ns) => drop_collection(role, ns).await,
        Target::Database(name) => drop_database(role, name).await,
    }
}

/// The metadata goes first: from then on the collection is an unsharded one, and no migration of
/// it can commit. What the shards hold goes next.
async fn drop_collection(role: &ConfigRole, ns: &str) -> Result<(), CommandError> {
    let metadata = &role.metadata;
    let _definition = role.definitions.lock(ns).await;
    {
        let _lock = role.namespaces.lock(ns).await;
        // Shards that still build an index for it are told that this is over.
        metadata
            .remove(index_changes::COLLECTION, rawdoc! { "_id": ns })
            .await?;
        metadata
            .remove("collections", rawdoc! { "_id": ns })
            .await?;
        metadata.remove("chunks", rawdoc! { "ns": ns }).await?;
        metadata.remove("tags", rawdoc! { "ns": ns }).await?;
    }
    let body = rawdoc! { "_shardsvrDropCollection": ns };
    for shard in metadata.shards().await? {
        role.shards.command(&shard.host, &body, SHORT).await?;
    }
    Ok(())
}

async fn drop_database(role: &ConfigRole, name: &str) -> Result<(), CommandError> {
    let metadata = &role.metadata;
    let prefix = format!("{name}.");
    for ns in metadata
        .sharded()
        .await?
        .iter()
        .filter(|ns| ns.starts_with(&prefix))
    {
        drop_collection(role, ns).await?;
    }
    // Once it has begun, it comes to its end, whether users may write or not.
    let command = rawdoc! { "dropDatabase": 1, "mayBypassWriteBlocking": true };
    for shard in metadata.shards().await? {
        let set = role.shards.set(&shard.host)?;
        let request_options = banyan_wire::RequestOptions::write()
            .idempotent()
            .timeout(Some(SHORT));
        match set.command(request_options, name, &command).await {
            Ok(_) => {}
            Err(error) if error.code() == ErrorCode::NamespaceNotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    metadata.remove("databases", rawdoc! { "_id": name }).await
}
