//! Whether users may write in the cluster: the same on all shards.
//!
//! What is wanted is written down first (config.pendingUserWriteBlocks) and forgotten once all shards
//! have it; whoever becomes the config primary meanwhile carries on. To block, the config servers'
//! own document (config.user_writes_critical_sections) comes before those of the shards: from then
//! on no change of collections begins here, and those that had begun are waited for. It is the last
//! one to go. A shard that joins is given what is wanted before it belongs to the cluster.

use std::time::Duration;

use banyan_node::blocked_writes;
use banyan_node::commands::set_user_write_block_mode::change;
use banyan_node::commands::table::BoxFuture;
use banyan_node::context::CommandContext;
use banyan_wire::CommandError;
use bson::{RawDocumentBuf, rawdoc};
use tokio::sync::OwnedRwLockReadGuard;

use crate::concurrent::join_all;
use crate::role::ConfigRole;

const PENDING: &str = "pendingUserWriteBlocks";

/// There is one such document.
const ID: &str = "";

/// A shard waits for the writes that run there.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Between two looks for what could not be finished.
const SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// Held by a change of collections that a client has asked for. What is refused: a change while the
/// writes of users are blocked.
pub async fn admit(
    role: &ConfigRole,
    ctx: &CommandContext<'_>,
) -> Result<OwnedRwLockReadGuard<()>, CommandError> {
    let admitted = role.user_changes.clone().read_owned().await;
    match blocked_writes::are_blocked(ctx.node) && !blocked_writes::may_bypass(ctx) {
        true => Err(blocked_writes::blocked()),
        false => Ok(admitted),
    }
}

/// Blocks the writes of users in the whole cluster, or lets them pass again.
pub async fn set(role: &ConfigRole, blocks: bool) -> Result<(), CommandError> {
    let _no_shard_joins = role.membership.lock().await;
    let note = rawdoc! { "_id": ID, "global": blocks };
    role.metadata.put(PENDING, &[note]).await?;
    carry_out(role, blocks).await
}

async fn carry_out(role: &ConfigRole, blocks: bool) -> Result<(), CommandError> {
    if blocks {
        role.metadata.local.write("config", change(true)).await?;
        drop(role.user_changes.write().await);
    }
    let shards = role.metadata.shards().await?;
    let request = request(blocks);
    let told = shards.iter().map(|shard| -> BoxFuture<'_, _> {
        let telling = role.shards.command_if_up(&shard.host, &request, TIMEOUT);
        Box::pin(telling)
    });
    for reply in join_all(told).await {
        reply?;
    }
    if !blocks {
        role.metadata.local.write("config", change(false)).await?;
    }
    role.metadata.remove(PENDING, rawdoc! { "_id": ID }).await
}

/// As a shard is asked.
fn request(blocks: bool) -> RawDocumentBuf {
    rawdoc! { "_shardsvrSetUserWriteBlockMode": 1, "global": blocks }
}

/// What a shard that joins is asked; to be called while nobody else changes which shards there are.
pub async fn for_new_shard(role: &ConfigRole) -> Result<RawDocumentBuf, CommandError> {
    let blocks = match wanted(role).await? {
        Some(blocks) => blocks,
        None => blocked_writes::are_blocked(&role.metadata.local.service().node),
    };
    Ok(request(blocks))
}

/// What has been asked for and is not there on all shards yet.
async fn wanted(role: &ConfigRole) -> Result<Option<bool>, CommandError> {
    let note = role.metadata.find_one(PENDING, rawdoc! { "_id": ID });
    Ok(note.await?.and_then(|note| note.get_bool("global").ok()))
}

/// Finishes what was cut off, for as long as this member is the primary.
pub async fn keep_settling(role: &ConfigRole) {
    loop {
        if let Err(error) = settle(role).await {
            tracing::warn!(%error, "the writes of users are not blocked or open on all shards yet");
        }
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
}

async fn settle(role: &ConfigRole) -> Result<(), CommandError> {
    if wanted(role).await?.is_none() {
        return Ok(());
    }
    let _no_shard_joins = role.membership.lock().await;
    // Whoever has been waited for may have finished it.
    match wanted(role).await? {
        Some(blocks) => carry_out(role, blocks).await,
        None => Ok(()),
    }
}
