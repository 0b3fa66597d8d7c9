//! `createIndexes`, `dropIndexes` and `collMod` of a sharded collection.

use std::time::Duration;

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, rawdoc};
use tokio::time::Instant;

use crate::index_changes::change;
use crate::role::ConfigRole;
use crate::user_writes;

pub static SPEC: CommandSpec = primary_only("_configsvrChangeIndexes", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::shared(ctx)?;
    let ns = ctx.required("_configsvrChangeIndexes")?.str()?.to_owned();
    let command = ctx.required("command")?.document()?.to_owned();
    let allowed = ctx.generic.max_time_ms.filter(|ms| *ms > 0);
    let deadline = allowed.map(|ms| Instant::now() + Duration::from_millis(ms));
    // On a task of its own: a connection that breaks must not leave it half done.
    let admitted = user_writes::admit(&role, ctx).await?;
    let task = tokio::spawn(async move {
        let _admitted = admitted;
        change(&role, &ns, &command, deadline).await
    });
    let changed = task
        .await
        .map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))??;
    let shards: RawArrayBuf = changed.shards.iter().map(|shard| &**shard).collect();
    Ok(rawdoc! { "reply": changed.reply, "shards": shards, "ok": 1.0 })
}
