//! `drop`: a collection goes, with its indexes.

use banyan_access::check::Access;
use banyan_query::view;
use banyan_replication::write::catalog_ops;
use banyan_security::Action;
use banyan_storage::{CatalogChange, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use crate::access::stored;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::node::Node;
use crate::profiler::PROFILE;
use crate::views;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("drop", Run::Future(run))
    .access(Access::Collection(Action::DropCollection))
    .fields(&[collection_uuid::FIELD])
    .form(collection_uuid::check_form_in)
    .writes();

/// What the profiler has kept goes while it keeps no more.
fn drop_profile(ctx: &CommandContext<'_>, namespace: &Namespace) -> CommandResult {
    let profiler = &ctx.node.profiler;
    if profiler.settings(ctx.database()).level > 0 {
        return Err(CommandError::new(
            ErrorCode::IllegalOperation,
            "turn off profiling before dropping system.profile collection",
        ));
    }
    match profiler.drop_collection(ctx.database()) {
        true => Ok(rawdoc! { "nIndexesWas": 0, "ns": namespace.as_str(), "ok": 1.0 }),
        false => Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "ns not found",
        )),
    }
}

/// In MongoDB their definitions lie among those of views.
pub(super) fn has_time_series(node: &Node, database: &str) -> bool {
    let catalog = node.replica.store.catalog();
    let collections = catalog.database(database).into_iter();
    let mut collections = collections.flat_map(|database| database.collections());
    collections.any(|collection| banyan_replication::time_series::of(collection).is_some())
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
        if stored::is_protected(&namespace) {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                format!("can't drop system collection {namespace}"),
            ));
        }
        collection_uuid::check(ctx, namespace.collection())?;
        if let Some((buckets, _)) = time_series::named(ctx, namespace.collection())
            && let Some(reply) = time_series::drop(ctx, &namespace, &buckets.namespace).await?
        {
            return reply;
        }
        if views::is_view(&node.replica, &namespace)?
            && views::changes::drop(ctx, &namespace).await?
        {
            return Ok(views::changes::dropped(&namespace));
        }
        let term = node.replica.writable_term()?;
        let _locks = ctx.lock_exclusive(&[&namespace]).await?;
        // Another one may have come by the name before the lock.
        collection_uuid::check(ctx, namespace.collection())?;
        if local::is_oplog(node, &namespace) {
            return Err(CommandError::new(
                ErrorCode::Location(5_255_000),
                "can't drop live oplog while replicating",
            ));
        }
        if namespace.collection() == PROFILE {
            return drop_profile(ctx, &namespace);
        }
        let Some(collection) = node.replica.store.catalog().find(&namespace).cloned() else {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                "ns not found",
            ));
        };
        if namespace.collection() == view::COLLECTION && has_time_series(node, ctx.database()) {
            return Err(CommandError::new(
                ErrorCode::CommandFailed,
                format!(
                    "cannot drop collection {namespace} when time-series collections are present."
                ),
            ));
        }
        let change = CatalogChange::DropCollection { id: collection.id };
        catalog_ops::apply(&node.replica, &[change], term).await?;
        let indexes = i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX);
        let shown = time_series::shown_name(&collection);
        Ok(rawdoc! { "nIndexesWas": indexes, "ns": shown, "ok": 1.0 })
    })
}
