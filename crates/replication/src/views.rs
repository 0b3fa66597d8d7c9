//! The definitions of views, as they lie in a member's state: documents of `system.views`.
//!
//! A name is a view's where there is no collection of it and a definition with it. Both are looked
//! up in the same state, so whoever reads an earlier one finds the views of then. A time-series
//! collection is a view, too, which its buckets define ([`time_series`]).

use banyan_execution::by_id;
use banyan_query::QueryError;
use banyan_query::view::{COLLECTION, View};
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::errors;
use crate::replica::Replica;
use crate::time_series;

/// Whether there can be a view of this name.
pub fn may_be(catalog: &Catalog, database: &str, name: &str) -> bool {
    catalog.get(database, name).is_none()
        && (catalog.get(database, COLLECTION).is_some()
            || time_series::find(catalog, database, name).is_some())
}

/// The document that defines a view. `None`: there is none of this name.
pub fn definition(
    catalog: &Catalog,
    snapshot: &Snapshot,
    namespace: &Namespace,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let definitions = catalog.get(namespace.database(), COLLECTION);
    let (None, Some(definitions)) = (catalog.find(namespace), definitions) else {
        return Ok(None);
    };
    let id = RawBsonRef::String(namespace.as_str());
    let found = by_id::lookup(definitions, snapshot, id)?;
    Ok(found.map(|record| RawDocument::to_owned(&record)))
}

/// The view of this name, if there is one.
pub fn find(
    catalog: &Catalog,
    snapshot: &Snapshot,
    namespace: &Namespace,
) -> Result<Option<View>, QueryError> {
    let series = time_series::view(catalog, namespace.database(), namespace.collection());
    if series.is_some() {
        return Ok(series);
    }
    let found = definition(catalog, snapshot, namespace)?;
    found.map(|document| View::parse(&document)).transpose()
}

/// Whether the name is a view's now.
pub fn is_view(replica: &Replica, namespace: &Namespace) -> Result<bool, CommandError> {
    // A snapshot costs something that hardly anybody needs.
    let (database, name) = (namespace.database(), namespace.collection());
    if !may_be(&replica.store.catalog(), database, name) {
        return Ok(false);
    }
    if is_time_series(replica, namespace) {
        return Ok(true);
    }
    let (catalog, snapshot) = replica.view();
    let found = definition(&catalog, &snapshot, namespace).map_err(errors::query)?;
    Ok(found.is_some())
}

/// Whether the name is that of a time-series collection now, which is a view as well.
pub fn is_time_series(replica: &Replica, namespace: &Namespace) -> bool {
    let (database, name) = (namespace.database(), namespace.collection());
    time_series::find(&replica.store.catalog(), database, name).is_some()
}

/// Refuses a view where only a collection will do.
pub fn refuse(replica: &Replica, namespace: &Namespace) -> Result<(), CommandError> {
    if !is_view(replica, namespace)? {
        return Ok(());
    }
    let what = match is_time_series(replica, namespace) {
        true => "timeseries collection",
        false => "view, not a collection",
    };
    Err(CommandError::new(
        ErrorCode::CommandNotSupportedOnView,
        format!("Namespace {namespace} is a {what}"),
    ))
}
