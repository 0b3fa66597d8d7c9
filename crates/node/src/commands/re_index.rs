//! `reIndex`: a standalone makes all indexes of a collection anew.
//!
//! The new ones are built beside the old ones, which serve until these take their place, all at once.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::index_builds;
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("reIndex", Run::Future(run))
    .access(Access::Collection(Action::ReIndex))
    .needs(Needs::Primary)
    .help("makes all indexes of a collection anew")
    .lenient();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(re_index(ctx))
}

async fn re_index(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
    if node.replication.is_replica_set() {
        return Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!(
                "reIndex is only allowed on a standalone mongod instance. Cannot reIndex \
                 '{namespace}' while replication is active"
            ),
        ));
    }
    let term = node.replica.writable_term()?;
    let locks = ctx.lock_exclusive(&[&namespace]).await?;
    let Some(collection) = node.replica.store.catalog().find(&namespace).cloned() else {
        views::refuse_named(ctx)?;
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "collection does not exist",
        ));
    };
    index_builds::refuse_builds(&collection)?;
    let begun = index_builds::start_again(node, &collection, term).await?;
    drop(locks);
    if let Some(begun) = begun {
        node.index_builds
            .wait(node, &begun, ctx.interrupt())
            .await?;
    }
    let count = i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX);
    let specs = collection
        .indexes
        .iter()
        .map(index_builds::in_newest_format);
    Ok(rawdoc! {
        "nIndexesWas": count,
        "nIndexes": count,
        "indexes": specs.collect::<RawArrayBuf>(),
        "ok": 1.0,
    })
}
