//! How `collMod` makes an index unique.
//!
//! From when an index has `prepareUnique` on no write gives a record a key that another record has.
//! Once nothing is left of those from before, the index is built anew as a unique one beside the one
//! that is there, and takes its place.

use std::sync::Arc;

use banyan_replication::locks::Lock;
use banyan_storage::{Collection, Index, IndexId, KeyRange, Namespace, RecordId, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};

use super::index_modification::IndexOption;
use crate::context::CommandContext;
use crate::errors;
use crate::index_builds;

/// So much of the ids that stand against it is told.
const VIOLATIONS_BYTES_MAX: usize = 8 << 20;

/// The index that a change asks to make unique, if it may be: it has been looked through.
pub async fn checked_index(
    ctx: &CommandContext<'_>,
    namespace: &Namespace,
    option: &IndexOption<'_>,
) -> Result<Option<IndexId>, CommandError> {
    let collection = ctx.node.replica.store.catalog().find(namespace).cloned();
    let Some(collection) = collection else {
        return Ok(None);
    };
    // What is wrong with the change otherwise is told in its turn.
    match option.find(&collection) {
        Ok(index) if option.converts(&index) => {
            check(ctx, &collection, &index).await?;
            Ok(Some(index.id))
        }
        _ => Ok(None),
    }
}

/// Refuses an index that cannot be unique: what kind it is, or which records have one key.
pub async fn check(
    ctx: &CommandContext<'_>,
    collection: &Arc<Collection>,
    index: &Arc<Index>,
) -> Result<(), CommandError> {
    let orders = index.spec.get_document("key").into_iter();
    let mut orders = orders.flat_map(|key| key.iter().flatten());
    if orders.any(|(_, order)| order == RawBsonRef::String("hashed")) {
        return Err(CommandError::new(
            ErrorCode::Location(16764),
            "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.",
        ));
    }
    let snapshot = ctx.node.replica.store.snapshot();
    let interrupt = ctx.interrupt();
    let violations = ctx.compute(|| {
        let mut violations = Violations::new(collection, &snapshot);
        for (at, entry) in snapshot
            .scan_index(index, KeyRange::all(), false)
            .enumerate()
        {
            if at % 1024 == 0 {
                interrupt.check().map_err(errors::query)?;
            }
            let (key, record) = entry.map_err(errors::storage)?;
            violations.add(&key, record)?;
        }
        violations.finish()
    });
    let violations = violations.await?;
    if violations.is_empty() {
        return Ok(());
    }
    let error = CommandError::new(
        ErrorCode::CannotConvertIndexToUnique,
        "Cannot convert the index to unique. Please resolve conflicting documents before running \
         collMod again.",
    );
    Err(error.with_extra(rawdoc! { "violations": violations }))
}

/// The `_id`s of records that have one key, by key.
struct Violations<'s> {
    collection: &'s Collection,
    snapshot: &'s Snapshot,
    key: Vec<u8>,
    /// Those with the key.
    records: Vec<RecordId>,
    found: RawArrayBuf,
}

impl<'s> Violations<'s> {
    fn new(collection: &'s Collection, snapshot: &'s Snapshot) -> Violations<'s> {
        Violations {
            collection,
            snapshot,
            key: Vec::new(),
            records: Vec::new(),
            found: RawArrayBuf::new(),
        }
    }

    fn add(&mut self, key: &[u8], record: RecordId) -> Result<(), CommandError> {
        if key != self.key {
            self.end_key()?;
            self.key = key.to_vec();
        }
        // More of them would not be told.
        if self.found.as_bytes().len() < VIOLATIONS_BYTES_MAX {
            self.records.push(record);
        }
        Ok(())
    }

    /// No more records have the key.
    fn end_key(&mut self) -> Result<(), CommandError> {
        let records = std::mem::take(&mut self.records);
        if records.len() < 2 || self.found.as_bytes().len() >= VIOLATIONS_BYTES_MAX {
            return Ok(());
        }
        let mut ids = RawArrayBuf::new();
        let mut bytes = self.found.as_bytes().len();
        for record in &records {
            let document = self.snapshot.record(self.collection.id, record);
            let document = document.map_err(errors::storage)?;
            let id = document
                .as_ref()
                .and_then(|document| document.get("_id").ok());
            if let Some(id) = id.flatten() {
                ids.push(id);
            }
            bytes = bytes.saturating_add(ids.as_bytes().len());
            if bytes >= VIOLATIONS_BYTES_MAX {
                break;
            }
        }
        self.found.push(rawdoc! { "ids": ids });
        Ok(())
    }

    fn finish(mut self) -> Result<RawArrayBuf, CommandError> {
        self.end_key()?;
        Ok(self.found)
    }
}

/// Builds the unique index in the place of the one of its name. The locks are exclusive ones of the
/// collection, which is written to while the index is built.
pub async fn convert(
    ctx: &CommandContext<'_>,
    collection: &Collection,
    spec: RawDocumentBuf,
    locks: Vec<Lock>,
    term: u64,
) -> Result<(), CommandError> {
    let node = ctx.node;
    let begun = index_builds::start_instead(node, collection, spec, term).await?;
    drop(locks);
    match begun {
        Some(begun) => node.index_builds.wait(node, &begun, ctx.interrupt()).await,
        None => Ok(()),
    }
}
