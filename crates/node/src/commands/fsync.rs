//! `fsync`: what was written becomes durable; with `lock`, nothing is written until `fsyncUnlock`.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_document::is_true;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;
use tracing::info;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;

pub static SPEC: CommandSpec = CommandSpec::new("fsync", Run::Future(run))
    .access(Access::Cluster(Action::Fsync))
    .needs(Needs::Any)
    .admin_only()
    .lenient();

pub static UNLOCK_SPEC: CommandSpec = CommandSpec::new("fsyncUnlock", Run::Future(unlock))
    .access(Access::Cluster(Action::Unlock))
    .needs(Needs::Any)
    .admin_only()
    .lenient();

/// How long it waits for the writes that run, if the client does not say.
const PATIENCE_DEFAULT: Duration = Duration::from_secs(90);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(fsync(ctx))
}

async fn fsync(ctx: &CommandContext<'_>) -> CommandResult {
    let locks = ctx.field("lock").is_some_and(|field| is_true(field.value));
    if !locks {
        persist(ctx).await?;
        return Ok(rawdoc! { "numFiles": 1, "ok": 1.0 });
    }
    if !ctx.node.replica.is_primary() {
        // It follows its primary.
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "only a primary or a standalone can be locked against writes",
        ));
    }
    let patience = match ctx.field("lockAcquisitionTimeoutMillis") {
        Some(field) => Duration::from_millis(field.unsigned()?),
        None => PATIENCE_DEFAULT,
    };
    let gate = &ctx.node.write_gate;
    let closing = tokio::time::timeout(patience, gate.close());
    let closed = ctx.interrupt().within(closing).await;
    let times = closed.map_err(errors::query)?.map_err(|_| {
        CommandError::new(
            ErrorCode::LockTimeout,
            "Fsync lock timed out waiting for the writes that run",
        )
    })?;
    if let Err(error) = persist(ctx).await {
        gate.open().await;
        return Err(error);
    }
    info!(times, "locked against writes");
    let mut reply = rawdoc! {
        "info": "now locked against writes, use db.fsyncUnlock() to unlock",
        "lockCount": i64::try_from(times).unwrap_or(i64::MAX),
    };
    reply.append(
        bson::cstr!("seeAlso"),
        "http://dochub.mongodb.org/core/fsynccommand",
    );
    reply.append(bson::cstr!("ok"), 1.0);
    Ok(reply)
}

async fn persist(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let store = &ctx.node.replica.store;
    ctx.compute(|| store.persist().map_err(errors::storage))
        .await
}

fn unlock<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let Some(times) = ctx.node.write_gate.open().await else {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "fsyncUnlock called when not locked",
            ));
        };
        info!(times, "unlocked for writes");
        Ok(rawdoc! {
            "info": "fsyncUnlock completed",
            "lockCount": i64::try_from(times).unwrap_or(i64::MAX),
            "ok": 1.0,
        })
    })
}
