//! The record of an `_id`, which no plan is needed to find.

use banyan_document::key;
use banyan_query::QueryError;
use banyan_storage::{Collection, Record, Snapshot};
use bson::RawBsonRef;

use crate::error;

pub fn lookup(
    collection: &Collection,
    snapshot: &Snapshot,
    id: RawBsonRef<'_>,
) -> Result<Option<Record>, QueryError> {
    let Some(index) = collection.id_index() else {
        return Ok(None);
    };
    let mut key = Vec::with_capacity(32);
    key::encode(id, &mut key);
    let Some(record) = snapshot
        .unique_lookup(index, &key)
        .map_err(error::storage)?
    else {
        return Ok(None);
    };
    snapshot
        .record(collection.id, record)
        .map_err(error::storage)
}
