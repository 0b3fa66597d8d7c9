//! `drop` and `dropDatabase` in a cluster.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode, RequestOptions};
use bson::rawdoc;

use crate::pending::{Target, drop_target};
use crate::role::ConfigRole;
use crate::shards::SHORT;
use crate::user_writes;

pub static COLLECTION: CommandSpec =
    primary_only("_configsvrDropCollection", |ctx| boxed(collection(ctx)));

pub static DATABASE: CommandSpec =
    primary_only("_configsvrDropDatabase", |ctx| boxed(database(ctx)));

async fn collection(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx.required("_configsvrDropCollection")?.str()?;
    let _admitted = user_writes::admit(role, ctx).await?;
    let Some((database, collection)) = ns.split_once('.') else {
        let message = format!("Invalid namespace specified '{ns}'");
        return Err(CommandError::new(ErrorCode::InvalidNamespace, message));
    };
    let _lock = role.databases.lock(database).await;
    if role
        .metadata
        .find_one("collections", rawdoc! { "_id": ns })
        .await?
        .is_some()
    {
        role.note("dropCollection.start", ns, rawdoc! {}).await;
        drop_target(role, Target::Collection(ns)).await?;
        role.note("dropCollection", ns, rawdoc! {}).await;
        return Ok(rawdoc! { "ns": ns, "ok": 1.0 });
    }
    // Not sharded: it lives on the database's primary shard, if anywhere.
    let Some(entry) = role.metadata.database(database).await? else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "ns not found",
        ));
    };
    let shard = role.metadata.shard(&entry.primary).await?;
    let set = role.shards.set(&shard.host)?;
    let request_options = RequestOptions::write().timeout(Some(SHORT));
    let command = rawdoc! { "drop": collection, "mayBypassWriteBlocking": true };
    let reply = set.command(request_options, database, &command).await?;
    Ok(reply)
}

async fn database(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let name = ctx.required("_configsvrDropDatabase")?.str()?;
    let _admitted = user_writes::admit(role, ctx).await?;
    let _lock = role.databases.lock(name).await;
    if role.metadata.database(name).await?.is_none() {
        // What does not exist is as good as dropped.
        return Ok(rawdoc! { "ok": 1.0 });
    }
    role.note("dropDatabase.start", name, rawdoc! {}).await;
    drop_target(role, Target::Database(name)).await?;
    role.note("dropDatabase", name, rawdoc! {}).await;
    Ok(rawdoc! { "dropped": name, "ok": 1.0 })
}
