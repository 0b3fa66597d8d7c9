//! What commands do that are about a time-series collection.
//!
//! It is a view to whoever reads it ([`banyan_replication::time_series`]). A command that changes it, or
//! what it is, works on its buckets: [`create`] makes them, [`insert`] puts measurements into them,
//! [`changes`] says what an update or a delete of measurements does to them, [`options`] and
//! [`indexes`] what `collMod` and the commands on indexes change of them.

pub mod changes;
pub mod create;
pub mod indexes;
pub mod insert;
pub mod options;

use std::sync::Arc;

use banyan_document::time_series::{TimeSeries, buckets_name, visible_name};
use banyan_replication::time_series;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::staging::Staging;
use banyan_storage::{CatalogChange, Collection, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::CommandResult;
use crate::context::CommandContext;

/// The buckets of a collection that a command names, and how measurements lie in them. `None`: it is
/// no time-series collection.
pub fn named(ctx: &CommandContext<'_>, name: &str) -> Option<(Arc<Collection>, TimeSeries)> {
    let catalog = ctx.node.replica.store.catalog();
    time_series::find(&catalog, ctx.database(), name)
}

/// Opens the buckets of a collection for a command that names it. What a shard demands of the command was
/// asked by that name: it is not sharded, and nor are its buckets.
pub async fn open<'a>(context: WriteContext<'a>, name: &str) -> Result<Staging<'a>, CommandError> {
    let context = WriteContext {
        rules: None,
        ..context
    };
    Staging::open(context, &buckets_name(name), false).await
}

/// How measurements lie in the buckets that were opened for a command which names another
/// collection, that of the measurements.
pub fn opened(staging: &Staging<'_>, named: &str) -> Option<TimeSeries> {
    let collection = staging.collection.as_deref()?;
    match collection.namespace.collection() == named {
        true => None,
        false => time_series::of(collection),
    }
}

/// What a collection is called by its users: that of its measurements if it holds buckets.
pub fn shown_name(collection: &Collection) -> String {
    let namespace = &collection.namespace;
    match (
        time_series::of(collection),
        visible_name(namespace.collection()),
    ) {
        (Some(_), Some(name)) => format!("{}.{name}", namespace.database()),
        _ => namespace.to_string(),
    }
}

/// Drops the buckets. `None`: they are gone already.
pub async fn drop(
    ctx: &CommandContext<'_>,
    namespace: &Namespace,
    buckets: &Namespace,
) -> Result<Option<CommandResult>, CommandError> {
    let replica = &ctx.node.replica;
    let term = replica.writable_term()?;
    let _locks = ctx.lock_exclusive(&[namespace, buckets]).await?;
    let catalog = replica.store.catalog();
    let found = time_series::find(&catalog, namespace.database(), namespace.collection());
    let Some((collection, _)) = found else {
        return Ok(None);
    };
    let change = CatalogChange::DropCollection { id: collection.id };
    catalog_ops::apply(replica, &[change], term).await?;
    let indexes = i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX);
    let reply = rawdoc! { "nIndexesWas": indexes, "ns": namespace.as_str(), "ok": 1.0 };
    Ok(Some(Ok(reply)))
}

fn invalid(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InvalidOptions, text)
}
