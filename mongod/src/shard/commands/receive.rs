//! The recipient's side of a migration, as the donor drives it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{cstr, rawdoc};

use crate::shard::errors::{bad_value, conflict};
use crate::shard::migration::recipient;
use crate::shard::migration::recipient_state::RecipientState;
use crate::shard::state::ShardRole;

pub static START: CommandSpec = primary_only("_recvChunkStart", |ctx| boxed(start(ctx)));
pub static STATUS: CommandSpec = primary_only("_recvChunkStatus", |ctx| boxed(status(ctx)));
pub static COMMIT: CommandSpec = primary_only("_recvChunkCommit", |ctx| boxed(commit(ctx)));
pub static ABORT: CommandSpec = primary_only("_recvChunkAbort", |ctx| boxed(abort(ctx)));
pub static FINISH: CommandSpec = primary_only("_recvChunkFinish", |ctx| boxed(finish(ctx)));

async fn start(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    role.identified()?;
    recipient::start(&role, RecipientState::parse(ctx.body())?)?;
    Ok(rawdoc! { "started": true, "ok": 1.0 })
}

fn migration_id(ctx: &CommandContext<'_>) -> Result<ObjectId, CommandError> {
    ctx.body().get_object_id("migrationId").map_err(bad_value)
}

fn recipient(
    ctx: &CommandContext<'_>,
    role: &ShardRole,
) -> Result<Arc<RecipientState>, CommandError> {
    let id = migration_id(ctx)?;
    let recipient = role
        .recipient
        .lock()
        .clone()
        .filter(|recipient| recipient.id == id);
    recipient.ok_or_else(|| conflict(format!("no migration {id} is being received here")))
}

async fn status(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let recipient = recipient(ctx, &role)?;
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let (phase, error) = recipient.progress();
    let mut reply = rawdoc! {
        "ns": recipient.ns.as_str(),
        "state": phase.name(),
        "cleared": count(recipient.cleared.load(Ordering::Relaxed)),
        "cloned": count(recipient.cloned.load(Ordering::Relaxed)),
        "clonedBytes": count(recipient.cloned_bytes.load(Ordering::Relaxed)),
        "caughtUp": count(recipient.caught_up.load(Ordering::Relaxed)),
    };
    if let Some(error) = error {
        reply.append(cstr!("errmsg"), error.to_string());
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

async fn commit(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    recipient(ctx, &role)?.finish_up().await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn abort(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    recipient(ctx, &role)?.abandon();
    Ok(rawdoc! { "ok": 1.0 })
}

async fn finish(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_recvChunkFinish")?.str()?;
    let committed = ctx.required("committed")?.bool()?;
    recipient::finish(&role, ns, migration_id(ctx)?, committed).await?;
    Ok(rawdoc! { "ok": 1.0 })
}
