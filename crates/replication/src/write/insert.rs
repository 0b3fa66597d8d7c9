//! Inserting documents: `_id`, record ids, unique keys.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use banyan_document::depth::is_too_deep_to_store;
use banyan_document::key::{Key, Keys};
use banyan_document::{MAX_DOCUMENT_BYTES, MAX_STORED_DEPTH, elements, field};
use banyan_storage::{Collection, KeyRange, RecordId, RecordIdRef, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::capped::{self, Room};
use super::staging::Staging;
use super::turnover::Turnover;
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
    /// Bit n: the unique index at n is known to hold none of its keys.
    free: u64,
}

/// So many documents are worth a scan that may spare their lookups.
const TOGETHER_MIN: usize = 16;

/// Where the keys of these documents ascend, as those of a load do, one scan tells that a unique index
/// holds none of them. They are latched, `present` was taken after that, and they are staged by it.
pub fn look_up_together(
    staging: &Staging<'_>,
    collection: &Collection,
    documents: &mut [&mut KeyedDocument<'_>],
    present: &Snapshot,
) -> Result<(), CommandError> {
    // The keys of a unit that is committed at once are held against its snapshot as well.
    if documents.len() < TOGETHER_MIN || !staging.unit.commits_in_parts() {
        return Ok(());
    }
    for (at, index) in collection.indexes.iter().enumerate().take(64) {
        if !index.refuses_duplicates() {
            continue;
        }
        let Some(range) = ascending(documents, at) else {
            continue;
        };
        let held = present.scan_index(index, range, false).next().transpose();
        if held.map_err(errors::storage)?.is_none() {
            for document in &mut *documents {
                document.free |= 1 << at;
            }
        }
    }
    Ok(())
}

/// From the first to the last key in the index at `at`, if each document has one and they ascend.
fn ascending(documents: &[&mut KeyedDocument<'_>], at: usize) -> Option<KeyRange> {
    let mut first: Option<&[u8]> = None;
    let mut last: &[u8] = &[];
    for document in documents {
        let [key] = &document.keys.get(at)?.keys[..] else {
            return None;
        };
        let key: &[u8] = key;
        if key < last {
            return None;
        }
        first.get_or_insert(key);
        last = key;
    }
    Some(KeyRange {
        lower: Bound::Included(first?.to_vec()),
        upper: Bound::Included(last.to_vec()),
    })
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
        let keys = keys.map_err(|error| errors::no_keys(error, &document))?;
        Ok(KeyedDocument {
            record: record_id(collection, &document)?,
            document,
            keys,
            meets_staged: false,
            free: 0,
        })
    }

    /// In a clustered collection, where the document says it itself.
    pub fn record(&self) -> Option<&RecordId> {
        self.record.as_ref()
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
            // Held until the document has its place in the log: ids are given in the order in which
            // documents appear, so that who follows the collection misses none.
            take(staging, latches.capped_end(collection.id))?;
        }
        for (index, keys) in collection.indexes.iter().zip(&self.keys) {
            if !index.refuses_duplicates() {
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
    ) -> Result<Staged, CommandError> {
        staging.check_document(None, &self.document)?;
        // What is staged may have removed what held its keys.
        let removes = staging.turnover.as_ref().is_some_and(Turnover::has_begun);
        let meets_staged = self.meets_staged || removes;
        let is_free = |at: usize| !self.meets_staged && at < 64 && self.free & (1 << at) != 0;
        let mut indexes = collection.indexes.iter().enumerate();
        let looks = collection.clustered_index.is_some()
            || indexes.any(|(at, index)| index.refuses_duplicates() && !is_free(at));
        let with_own = (looks && meets_staged).then(|| staging.unit.present_with_own());
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
        for (at, (index, keys)) in collection.indexes.iter().zip(&self.keys).enumerate() {
            if index.refuses_duplicates() && !is_free(at) {
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
        let going = match capped::make_room(staging, collection, self.document.as_bytes().len())? {
            Room::After(going) => going,
            Room::Busy(latch) => return Ok(Staged::Busy(latch)),
            Room::Later => return Ok(Staged::Later),
        };
        staging.pass_fail_point()?;
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
        if collection.is_capped {
            unit.note_capped(collection.id, record);
        }
        if !going.is_empty() {
            capped::remove(staging, collection, going)?;
        }
        Ok(Staged::Done)
    }

    /// Latches and stages the document, waiting for whatever it has to.
    pub async fn insert(
        &mut self,
        staging: &mut Staging<'_>,
        collection: &Arc<Collection>,
    ) -> Result<(), CommandError> {
        loop {
            if let Err(latch) = self.latch(staging, collection) {
                staging.wait_for(latch).await?;
                continue;
            }
            let present = staging.unit.present();
            match self.stage(staging, collection, &present)? {
                Staged::Done => return Ok(()),
                Staged::Busy(latch) => staging.wait_for(latch).await?,
                Staged::Later => {
                    staging.flush().await?;
                    staging.ctx.check_interrupt()?;
                }
            }
        }
    }
}

/// What came of an attempt to stage an insert.
#[must_use]
pub enum Staged {
    Done,
    /// What has to go for it is being changed by somebody else: to be latched anew after that.
    Busy(LatchKey),
    /// To be latched anew after what is staged is committed.
    Later,
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
    let keys = index.kind.keys(document);
    let keys = keys.map_err(|error| errors::no_keys(error, document))?.keys;
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

/// What is wrong with a document by itself, wherever it is to be inserted.
pub fn fault_of(document: &RawDocument) -> Option<CommandError> {
    with_id(document).err()
}

/// The document with a usable `_id` as its first field.
fn with_id(document: &RawDocument) -> Result<Cow<'_, RawDocument>, CommandError> {
    if document.as_bytes().len() > MAX_DOCUMENT_BYTES {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "object to insert too large. size in bytes: {}, max size: {MAX_DOCUMENT_BYTES}",
                document.as_bytes().len()
            ),
        ));
    }
    if is_too_deep_to_store(document) {
        return Err(CommandError::new(
            ErrorCode::Overflow,
            format!(
                "cannot insert document because it exceeds {MAX_STORED_DEPTH} levels of nesting"
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
