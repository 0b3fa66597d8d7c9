//! `setUserWriteBlockMode`: users write no more, or again.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::info::ClusterRole;
use crate::user_writes::{COLLECTION, FIELD, ID};

// It is no write among the others: it waits for those that run.
pub static SPEC: CommandSpec = CommandSpec::new("setUserWriteBlockMode", Run::Future(run))
    .access(Access::Cluster(Action::SetUserWriteBlockMode))
    .needs(Needs::Primary)
    .help("blocks the writes of users, or lets them pass again")
    .fields(&["global"])
    .takes_concern()
    .lenient();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(set(ctx))
}

async fn set(ctx: &CommandContext<'_>) -> CommandResult {
    let blocks = ctx.required("global")?.strict_bool()?;
    let node = ctx.node;
    let refuse = |why| Err(CommandError::new(ErrorCode::IllegalOperation, why));
    if !node.replication.is_replica_set() {
        return refuse("setUserWriteBlockMode cannot be run on standalones");
    }
    if node.info.role != ClusterRole::None {
        return refuse("setUserWriteBlockMode cannot be run on a member of a cluster");
    }
    set_here(ctx, blocks).await
}

/// Blocks the writes of users on this set, or lets them pass again. Once it has answered, none is
/// under way that had begun before.
pub async fn set_here(ctx: &CommandContext<'_>, blocks: bool) -> CommandResult {
    let node = ctx.node;
    if blocks == node.user_writes.are_blocked(&node.replica) {
        return Ok(rawdoc! { "ok": 1.0 });
    }
    ctx.nested("config", change(blocks)).await?;
    // Those that had begun are over by then.
    let gate = &node.write_gate;
    ctx.interrupt()
        .within(gate.close())
        .await
        .map_err(errors::query)?;
    gate.open().await;
    Ok(rawdoc! { "ok": 1.0 })
}

/// The write that blocks, or the one that blocks no more.
pub fn change(blocks: bool) -> RawDocumentBuf {
    if !blocks {
        let statement = rawdoc! { "q": { "_id": ID }, "limit": 1 };
        return rawdoc! {
            "delete": COLLECTION,
            "deletes": RawArrayBuf::from_iter([statement]),
        };
    }
    let mut set = rawdoc! { "_id": ID, "blockNewUserShardedDDL": false };
    if let Ok(field) = bson::raw::CString::try_from(FIELD) {
        set.append(&field, true);
    }
    let mut statement = rawdoc! { "q": { "_id": ID }, "u": set };
    statement.append(cstr!("upsert"), true);
    rawdoc! { "update": COLLECTION, "updates": RawArrayBuf::from_iter([statement]) }
}
