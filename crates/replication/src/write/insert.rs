//! Inserting documents: `_id`, record ids, unique keys.

use std::borrow::Cow;
use std::sync::Arc;

use banyan_document::key::{Key, KeyError, Keys};
use banyan_document::validate::MAX_DOCUMENT_BYTES;
use banyan_document::{elements, field};
use banyan_storage::{Collection, RecordId, RecordIdRef, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::staging::Staging;
use super::unique::check_unique;
use crate::errors;
use crate::latches::{Attempt, LatchKey};
use crate::machine::effects;
use crate::op_observer::Change;

/// A document with `_id` in front, and the keys it will have, index by index.
pub struct KeyedDocument<'a> {
    pub document: Cow<'a, RawDocument>,
    keys: Vec<Keys>,
    /// In a clustered collection, where the document says it itself.
    record: Option<RecordId>,
    /// Something that is staged has one of its unique keys, or had it.
    meets_staged: bool,
}

impl<'a> KeyedDocument<'a> {
    pub fn new(
        collection: &Collection,
        document: &'a RawDocument,
    ) -> Result<KeyedDocument<'a>, CommandError> {
        let document = with_id(document)?;
        let keys = collection
            .indexes
            .iter()
            .map(|index| effects::keys_of(index, &document))
            .collect::<Result<_, _>>();
        let keys = keys.map_err(no_keys)?;
        Ok(KeyedDocument {
            record: record_id(collection, &document)?,
            document,
            keys,
            meets_staged: false,
        })
    }

    pub fn id(&self) -> Option<RawBsonRef<'_>> {
        field(&self.document, "_id")
    }

    /// Latches the unique keys, the record if the document says which it is, and the end of a capped
    /// collection.
    pub fn latch(
        &mut self,
        staging: &mut Staging<'_>,
        collection: &Collection,
    ) -> Result<(), LatchKey> {
        let latches = &staging.ctx.replica.latches;
        if let Some(record) = &self.record {
            let latch = latches.record(collection.id, record);
            self.meets_staged |= take(staging, latch)?;
        }
        if collection.is_capped {
            // Held until the document is there: ids are given in the order in which documents
            // appear, so that who follows the collection misses none.
            take(staging, latches.capped_end(collection.id))?;
        }
        for (index, keys) in collection.indexes.iter().zip(&self.keys) {
            if !index.unique {
                continue;
            }
            for key in &keys.keys {
                let latch = latches.unique_key(index.id, key);
                self.meets_staged |= take(staging, latch)?;
            }
        }
        staging.unit.claim();
        Ok(())
    }

    /// Stages the insert. The latches are held, and `present` was taken after that.
    pub fn stage(
        &self,
        staging: &mut Staging<'_>,
        collection: &Arc<Collection>,
        present: &Snapshot,
    ) -> Result<(), CommandError> {
        let with_own = self.meets_staged.then(|| staging.unit.present_with_own());
        let snapshot = with_own.as_ref().unwrap_or(present);
        if let (Some(index), Some(record)) = (&collection.clustered_index, &self.record)
            && let RecordIdRef::Bytes(key) = record.as_ref()
        {
            let key = [Key {
                bytes: key.to_vec(),
                ..Key::default()
            }];
            let unit = &staging.unit;
            check_unique(
                unit,
                collection,
                index,
                snapshot,
                &self.document,
                &key,
                None,
            )?;
        }
        for (index, keys) in collection.indexes.iter().zip(&self.keys) {
            if index.unique {
                check_unique(
                    &staging.unit,
                    collection,
                    index,
                    snapshot,
                    &self.document,
                    &keys.keys,
                    None,
                )?;
            }
        }
        staging.check_change(Change::Insert {
            document: &self.document,
        })?;
        let reserved;
        let record = match &self.record {
            Some(record) => record,
            None => {
                let last_known = || present.last_record_id(collection.id);
                let number = collection.reserve_records(1, last_known);
                reserved = RecordId::number(number.map_err(errors::storage)?);
                &reserved
            }
        };
        let unit = &mut staging.unit;
        unit.batch.insert_record(collection, record, &self.document);
        for (index, keys) in collection.indexes.iter().zip(&self.keys) {
            effects::put_keys(&mut unit.batch, collection, index, keys, record);
        }
        let document = Some(&*self.document);
        effects::write_building(&mut unit.batch, collection, record, None, document);
        unit.entry.insert(collection.id, record, &self.document);
        Ok(())
    }
}

/// Takes a latch for what is to be staged; whether something that is staged has it already.
fn take(staging: &mut Staging<'_>, latch: LatchKey) -> Result<bool, LatchKey> {
    match staging.unit.try_latch(latch) {
        Attempt::Taken => Ok(false),
        Attempt::Own => Ok(true),
        Attempt::Busy => {
            staging.unit.unlatch();
            Err(latch)
        }
    }
}

/// The id that a document gives its record in a clustered collection.
fn record_id(
    collection: &Collection,
    document: &RawDocument,
) -> Result<Option<RecordId>, CommandError> {
    let Some(index) = &collection.clustered_index else {
        return Ok(None);
    };
    let keys = index.kind.keys(document).map_err(no_keys)?.keys;
    let Some(key) = keys.first() else {
        return Ok(None);
    };
    if key.len() > RecordId::BYTES_MAX {
        return Err(CommandError::new(
            ErrorCode::Location(5894900),
            format!(
                "Size of RecordId ({}) is above limit of {} bytes",
                key.len(),
                RecordId::BYTES_MAX
            ),
        ));
    }
    Ok(Some(RecordId::bytes(key)))
}

fn no_keys(error: KeyError) -> CommandError {
    CommandError::new(ErrorCode::from_code(error.code()), error.to_string())
}

/// An `_id` that looks like an operator could never be asked for.
fn refuse_dollars(id: &RawDocument) -> Result<(), CommandError> {
    for (name, value) in id.iter().flatten() {
        if name.as_str().starts_with('$') {
            return Err(CommandError::new(
                ErrorCode::DollarPrefixedFieldName,
                format!(
                    "_id fields may not contain '$'-prefixed fields: {} is not valid for storage.",
                    name.as_str()
                ),
            ));
        }
        match value {
            RawBsonRef::Document(inner) => refuse_dollars(inner)?,
            RawBsonRef::Array(items) => {
                for inner in items
                    .into_iter()
                    .flatten()
                    .filter_map(|item| item.as_document())
                {
                    refuse_dollars(inner)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The document with a usable `_id` as its first field.
fn with_id(document: &RawDocument) -> Result<Cow<'_, RawDocument>, CommandError> {
    if document.as_bytes().len() > MAX_DOCUMENT_BYTES {
        return Err(CommandError::new(
            ErrorCode::BSONObjectTooLarge,
            format!(
                "object to insert too large. size in bytes: {}, max size: {MAX_DOCUMENT_BYTES}",
                document.as_bytes().len()
            ),
        ));
    }
    let first = elements(document)
        .next()
        .filter(|first| first.name() == "_id");
    let is_first = first.is_some();
    let id = match first {
        Some(first) => Some(first.value()),
        None => field(document, "_id"),
    };
    if let Some(value) = id {
        let kind = match value {
            RawBsonRef::Array(_) => Some("array"),
            RawBsonRef::RegularExpression(_) => Some("regex"),
            RawBsonRef::Undefined => Some("undefined"),
            _ => None,
        };
        if let Some(kind) = kind {
            return Err(CommandError::new(
                ErrorCode::InvalidIdField,
                format!("The '_id' value cannot be of type {kind}"),
            ));
        }
        if let RawBsonRef::Document(inner) = value {
            refuse_dollars(inner)?;
        }
    }
    if is_first {
        return Ok(Cow::Borrowed(document));
    }
    let mut moved = RawDocumentBuf::new();
    match id {
        Some(id) => moved.append(cstr!("_id"), id),
        None => moved.append(cstr!("_id"), ObjectId::new()),
    }
    for (name, value) in document.iter().flatten() {
        if name.as_str() != "_id" {
            moved.append(name, value);
        }
    }
    Ok(Cow::Owned(moved))
}
