//! Looking views up.

use std::sync::Arc;

use banyan_execution::{InterruptSlot, Planned, ReadView, Request, Row};
use banyan_query::QueryError;
use banyan_query::view::{COLLECTION, Resolved};
use banyan_replication::views::{find, may_be, refuse};
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::CommandError;
use bson::RawDocumentBuf;

use crate::context::CommandContext;
use crate::errors;

/// The collection below a view, and how it becomes the view. `None`: the name is no view's.
pub fn resolve(ctx: &CommandContext<'_>, name: &str) -> Result<Option<Resolved>, CommandError> {
    let may_be = match &ctx.view {
        Some(view) => may_be(&view.catalog, ctx.database(), name),
        None => may_be(&ctx.node.replica.store.catalog(), ctx.database(), name),
    };
    if !may_be {
        return Ok(None);
    }
    let (catalog, snapshot) = ctx.view();
    resolve_in(&catalog, &snapshot, ctx.database(), name).map_err(errors::query)
}

/// The same in a certain state.
pub fn resolve_in(
    catalog: &Catalog,
    snapshot: &Snapshot,
    database: &str,
    name: &str,
) -> Result<Option<Resolved>, QueryError> {
    Resolved::follow(name, |name| {
        find(catalog, snapshot, &Namespace::new(database, name))
    })
}

/// Refuses a view where the command needs a collection.
pub fn refuse_named(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
    refuse(&ctx.node.replica, &namespace)
}

/// The definitions of a database's views, in no particular order.
pub fn definitions(
    catalog: &Catalog,
    snapshot: &Snapshot,
    database: &str,
    slot: &Arc<InterruptSlot>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let Some(collection) = catalog.get(database, COLLECTION) else {
        return Ok(Vec::new());
    };
    let view = ReadView {
        collection: Some(collection.clone()),
        snapshot: snapshot.clone(),
        later: None,
    };
    let open = || Planned::new(view, Request::default())?.open(slot);
    let rows = open().map_err(errors::query)?;
    rows.map(|row| row.map(Row::into_owned).map_err(errors::query))
        .collect()
}
