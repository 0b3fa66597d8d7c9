//! What operations amount to in storage: records, index keys, counts.
//!
//! The proposer of an entry and the members that apply it work the same batch out with the same
//! functions.

use std::sync::Arc;

use banyan_document::elements;
use banyan_document::key::{Key, KeyError, Keys};
use banyan_execution::partial;
use banyan_storage::{
    Batch, Catalog, Collection, INDEX_KEY_BYTES_MAX, Index, RecordId, StorageError,
};
use bson::RawDocument;

use crate::entry::{Entry, EntryError, Operation};

/// The keys that a document has in an index.
pub fn keys_of(index: &Index, document: &RawDocument) -> Result<Keys, KeyError> {
    if let Some(filter) = partial::filter_of(index) {
        let covers = match filter.as_ref() {
            // The filters that an index may have cannot fail (`Filter::suits_an_index`).
            Some(filter) => filter.try_matches(document).unwrap_or(false),
            // An index whose filter cannot be read was refused when it was made.
            None => true,
        };
        if !covers {
            return Ok(Keys::default());
        }
    }
    let keys = index.kind.keys(document)?;
    let too_large = |key: &&Key| key.len() > INDEX_KEY_BYTES_MAX;
    match keys.keys.iter().find(too_large) {
        Some(key) => Err(KeyError::TooLarge(key.len())),
        None => Ok(keys),
    }
}

pub fn insert(
    batch: &mut Batch,
    collection: &Arc<Collection>,
    record: &RecordId,
    document: &RawDocument,
) -> Result<(), KeyError> {
    batch.insert_record(collection, record, document);
    for index in &collection.indexes {
        put_keys(batch, collection, index, &keys_of(index, document)?, record);
    }
    write_building(batch, collection, record, None, Some(document));
    Ok(())
}

/// Keeps up the indexes that are being built. One of them may turn out not to be possible: the
/// build finds that out, the write goes on.
pub fn write_building(
    batch: &mut Batch,
    collection: &Collection,
    record: &RecordId,
    before: Option<&RawDocument>,
    after: Option<&RawDocument>,
) {
    for index in collection.building_indexes() {
        let keys = |document: &RawDocument| keys_of(index, document).ok();
        let before = before.and_then(keys).unwrap_or_default();
        let after = after.map_or_else(|| Some(Keys::default()), keys);
        if let Some(after) = &after {
            batch.note_arrays(collection.id, index, &after.arrays);
        }
        let after = after.map(|after| after.keys);
        batch.write_building(collection.id, index, record, before.keys, after);
    }
}

pub fn put_keys(
    batch: &mut Batch,
    collection: &Collection,
    index: &Arc<Index>,
    keys: &Keys,
    record: &RecordId,
) {
    batch.note_arrays(collection.id, index, &keys.arrays);
    for key in &keys.keys {
        batch.put_index_key(collection, index, key, record);
    }
}

/// The indexes in which two states of a document may have different keys.
pub fn changed_indexes<'c, 'd>(
    collection: &'c Collection,
    before: &'d RawDocument,
    after: &'d RawDocument,
) -> impl Iterator<Item = &'c Arc<Index>> + use<'c, 'd> {
    let keeps_id = id_bytes(before) == id_bytes(after);
    let indexes = collection.indexes.iter();
    let indexes = indexes.filter(move |index| !(keeps_id && index.is_id()));
    let changed = match indexes.clone().next() {
        Some(_) => changed_fields(before, after),
        None => None,
    };
    indexes.filter(move |index| match &changed {
        Some(changed) => may_depend_on(index, changed),
        None => true,
    })
}

/// The `_id` with its type: it may become an equal number of another type.
fn id_bytes(document: &RawDocument) -> Option<&[u8]> {
    let mut fields = elements(document);
    let id = fields.find(|field| field.name_bytes() == b"_id")?;
    Some(id.bytes())
}

/// The fields that differ between two states of a document. `None`: they do not lie in the same
/// order.
fn changed_fields<'d>(before: &'d RawDocument, after: &'d RawDocument) -> Option<Vec<&'d [u8]>> {
    let (mut before, mut after) = (elements(before), elements(after));
    let mut changed = Vec::new();
    loop {
        match (before.next(), after.next()) {
            (Some(was), Some(is)) if was.bytes() == is.bytes() => {}
            (Some(was), Some(is)) if was.name_bytes() != is.name_bytes() => return None,
            (None, None) => return Some(changed),
            (Some(other), _) | (None, Some(other)) => changed.push(other.name_bytes()),
        }
    }
}

fn may_depend_on(index: &Index, changed: &[&[u8]]) -> bool {
    let pattern = &index.pattern;
    let mut heads = pattern
        .fields
        .iter()
        .map(|(path, _)| path.head().as_bytes());
    index.partial_filter.is_some()
        || !index.kind.depends_on_pattern_alone()
        || heads.any(|head| changed.contains(&head))
}

/// Index keys that both documents have are left alone.
pub fn update(
    batch: &mut Batch,
    collection: &Arc<Collection>,
    record: &RecordId,
    before: &RawDocument,
    after: &RawDocument,
) -> Result<(), KeyError> {
    batch.replace_record(collection, record, before, after);
    for index in changed_indexes(collection, before, after) {
        let (old, new) = (keys_of(index, before)?, keys_of(index, after)?);
        change_keys(batch, collection, index, record, &old, &new);
    }
    write_building(batch, collection, record, Some(before), Some(after));
    Ok(())
}

pub fn change_keys(
    batch: &mut Batch,
    collection: &Collection,
    index: &Arc<Index>,
    record: &RecordId,
    old: &Keys,
    new: &Keys,
) {
    batch.note_arrays(collection.id, index, &new.arrays);
    for key in old.keys.iter().filter(|key| new.get(key).is_none()) {
        batch.delete_index_key(collection, index, key, record);
    }
    for key in &new.keys {
        match old.get(key) {
            None => batch.put_index_key(collection, index, key, record),
            Some(known) if known.types != key.types => batch.retype_index_key(index, key, record),
            Some(_) => {}
        }
    }
}

pub fn delete(
    batch: &mut Batch,
    collection: &Arc<Collection>,
    record: &RecordId,
    before: &RawDocument,
) -> Result<(), KeyError> {
    batch.delete_record(collection, record, before);
    for index in &collection.indexes {
        for key in &keys_of(index, before)?.keys {
            batch.delete_index_key(collection, index, key, record);
        }
    }
    write_building(batch, collection, record, Some(before), None);
    Ok(())
}

/// Why an entry cannot be applied: what is on disk contradicts itself.
#[derive(Debug, thiserror::Error)]
pub enum EffectError {
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("a committed document has no index keys: {0}")]
    Keys(#[from] KeyError),
}

/// Adds what an entry's operations on documents do. Those on a collection that a later entry has
/// dropped (which an earlier run applied already) have no effect.
pub fn work_out(
    batch: &mut Batch,
    catalog: &Catalog,
    entry: &Entry<'_>,
) -> Result<(), EffectError> {
    for operation in entry.operations() {
        match operation? {
            Operation::Insert {
                collection,
                record,
                document,
            } => {
                if let Some(collection) = catalog.by_id(collection) {
                    insert(batch, collection, &record, document)?;
                }
            }
            Operation::Update {
                collection,
                record,
                before,
                after,
                style: _,
            } => {
                if let Some(collection) = catalog.by_id(collection) {
                    update(batch, collection, &record, &before, after)?;
                }
            }
            Operation::Delete {
                collection,
                record,
                before,
            } => {
                if let Some(collection) = catalog.by_id(collection) {
                    delete(batch, collection, &record, before)?;
                }
            }
            Operation::Catalog(..)
            | Operation::DropDatabase { .. }
            | Operation::SetConfig { .. }
            | Operation::Noop { .. } => {}
        }
    }
    Ok(())
}
