//! The record of an `_id`, which no plan is needed to find.

use banyan_document::collation::holds_strings;
use banyan_document::{Collator, key};
use banyan_query::QueryError;
use banyan_storage::{Collection, Index, Record, RecordId, Snapshot};
use bson::RawBsonRef;

use crate::error;

/// Whether the index on `_id` finds what a query with this collation means by `id`.
pub fn serves(index: &Index, id: RawBsonRef<'_>, collator: Option<&Collator>) -> bool {
    !holds_strings(&id) || index.pattern.collator.as_ref() == collator
}

/// The key of a record in the index on `_id`: in a clustered collection, the record's id.
pub fn key(index: &Index, id: RawBsonRef<'_>) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    key::encode_collated(id, index.pattern.collator.as_ref(), &mut key);
    key
}

pub fn lookup(
    collection: &Collection,
    snapshot: &Snapshot,
    id: RawBsonRef<'_>,
) -> Result<Option<Record>, QueryError> {
    match collection.id_index() {
        Some(index) => read(collection, snapshot, &key(index, id)),
        None => Ok(None),
    }
}

/// The record with a key of the index on `_id`.
pub fn read(
    collection: &Collection,
    snapshot: &Snapshot,
    key: &[u8],
) -> Result<Option<Record>, QueryError> {
    let Some(index) = collection.id_index() else {
        return Ok(None);
    };
    let record = match index.is_clustered() {
        true => Some(RecordId::bytes(key)),
        false => snapshot.unique_lookup(index, key).map_err(error::storage)?,
    };
    let Some(record) = record else {
        return Ok(None);
    };
    snapshot
        .record(collection.id, &record)
        .map_err(error::storage)
}
