//! `removeShard`: the first call starts to drain the shard, later ones tell how far it is, the
//! one after the last chunk and database have left removes it.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, rawdoc};

use crate::role::ConfigRole;

pub static SPEC: CommandSpec = primary_only("_configsvrRemoveShard", |ctx| boxed(run(ctx)));

/// MongoDB's note, and what it comes to here.
const NOTE: &str = "you need to drop or movePrimary these databases; movePrimary is not supported \
                    yet, so copy what is to stay into a database on another shard and drop these";

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let name = ctx.required("_configsvrRemoveShard")?.str()?;
    let _lock = role.membership.lock().await;
    let metadata = &role.metadata;
    let shard = metadata.shard(name).await?;
    let others = metadata.shards().await?;
    let mut homes = RawArrayBuf::new();
    let mut databases = 0;
    for database in metadata
        .databases()
        .await?
        .iter()
        .filter(|d| d.primary == shard.id)
    {
        homes.push(database.name.as_str());
        databases += 1;
    }
    if !shard.draining {
        if !others
            .iter()
            .any(|other| other.id != shard.id && !other.draining)
        {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "Operation not allowed because it would remove the last shard",
            ));
        }
        let change = rawdoc! { "$set": { "draining": true } };
        metadata.update("shards", &shard.id, change, false).await?;
        role.note("removeShard.start", "", rawdoc! { "shard": &*shard.id })
            .await;
        return Ok(rawdoc! {
            "msg": "draining started successfully",
            "state": "started",
            "shard": &*shard.id,
            "note": NOTE,
            "dbsToMove": homes,
            "ok": 1.0,
        });
    }
    let chunks = metadata
        .count("chunks", rawdoc! { "shard": &*shard.id })
        .await?;
    if chunks > 0 || databases > 0 {
        let jumbo = metadata
            .count("chunks", rawdoc! { "shard": &*shard.id, "jumbo": true })
            .await?;
        return Ok(rawdoc! {
            "msg": "draining ongoing",
            "state": "ongoing",
            "remaining": { "chunks": chunks, "dbs": databases as i64, "jumboChunks": jumbo },
            "note": NOTE,
            "dbsToMove": homes,
            "ok": 1.0,
        });
    }
    metadata
        .remove("shards", rawdoc! { "_id": &*shard.id })
        .await?;
    role.note("removeShard", "", rawdoc! { "shard": &*shard.id })
        .await;
    Ok(rawdoc! {
        "msg": "removeshard completed successfully",
        "state": "completed",
        "shard": &*shard.id,
        "ok": 1.0,
    })
}
