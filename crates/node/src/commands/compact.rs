//! `compact`: the tables of the storage engine are merged, and what was removed or replaced goes.
//!
//! The engine keeps all collections in the same tables: those of all are merged, whichever is named.

use banyan_access::check::Access;
use banyan_document::is_true;
use banyan_query::view;
use banyan_security::Action;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::coll_stats::number;
use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;

pub static SPEC: CommandSpec = CommandSpec::new("compact", Run::Future(run))
    .access(Access::Collection(Action::Compact))
    .needs(Needs::Data)
    .help("gives disk space back that is not used")
    .lenient();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(compact(ctx))
}

async fn compact(ctx: &CommandContext<'_>) -> CommandResult {
    let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
    let node = ctx.node;
    let forced = ctx.field("force").is_some_and(|field| is_true(field.value));
    if node.replication.is_replica_set() && node.replica.is_primary() && !forced {
        return Err(CommandError::new(
            ErrorCode::UnknownError,
            "will not run compact on an active replica set primary as this is a slow blocking \
             operation. use force:true to force",
        ));
    }
    if namespace.collection() == view::COLLECTION {
        return Err(CommandError::new(
            ErrorCode::UnknownError,
            "can't compact a system namespace",
        ));
    }
    if node.replica.store.catalog().find(&namespace).is_none() {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "collection does not exist",
        ));
    }
    ctx.interrupt();
    let store = node.replica.store.clone();
    // It takes as long as it takes to write everything once, and cannot be ended in between.
    let compacted = tokio::task::spawn_blocking(move || store.compact()).await;
    let freed = match compacted {
        Ok(freed) => freed.map_err(errors::storage)?,
        Err(_) => return Err(errors::internal("the tables could not be merged")),
    };
    let freed = i64::try_from(freed).unwrap_or(i64::MAX);
    Ok(rawdoc! { "bytesFreed": number(freed), "ok": 1.0 })
}
