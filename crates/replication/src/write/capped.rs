//! Capped collections: an insert removes the oldest documents, so that those that stay keep to the
//! collection's size and number.
//!
//! The inserts of a capped collection follow each other: each holds the latch of its end until its entry
//! has its place in the log (`KeyedDocument::latch`), so that several share a round of the log. The next
//! one reckons with those that are not applied yet (`crate::incoming`). What an insert removes is in its
//! entry, behind it, so that every member removes the same. The document that comes is never removed by
//! its own insert, however large it is, as in MongoDB.

use std::sync::Arc;

use banyan_storage::{Collection, Record, RecordId};
use banyan_wire::{CommandError, ErrorCode};

use super::staging::Staging;
use super::turnover::{Next, Turnover};
use crate::errors;
use crate::latches::{Attempt, LatchKey};
use crate::machine::effects;
use crate::op_observer::Change;

/// So much is removed together with a document, and more in entries before it.
const REMOVED_MAX: usize = 1_000;
const REMOVED_BYTES_MAX: usize = 16 << 20;
/// A unit that holds so much with what an insert adds to it is committed before that.
const TOGETHER_BYTES_MAX: usize = 24 << 20;

/// What a document finds that is to be inserted.
pub(super) enum Room {
    /// There is room once these are gone. They are latched.
    After(Vec<(RecordId, Record)>),
    /// The oldest document is being changed, or inserted, by somebody else.
    Busy(LatchKey),
    /// What is staged has to be committed first.
    Later,
}

/// Finds out what has to go for a document of so many bytes. The end of the collection is latched, and
/// so is what the document itself needs.
pub(super) fn make_room(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    incoming: usize,
) -> Result<Room, CommandError> {
    let Some(limits) = collection.capped_limits() else {
        return Ok(Room::After(Vec::new()));
    };
    let mut turnover = match staging.turnover.take() {
        Some(turnover) => turnover,
        None => {
            let incoming = &staging.ctx.replica.incoming;
            Turnover::begin(incoming, &mut staging.unit, collection, limits)?
        }
    };
    let (documents, bytes) = staging.unit.batch.tallied(collection.id);
    let incoming_bytes = i64::try_from(incoming).unwrap_or(i64::MAX);
    let limit = turnover.limits;
    let documents = turnover.documents + documents + 1;
    let mut documents = documents - limit.documents.unwrap_or(i64::MAX).min(i64::MAX / 2);
    let mut bytes = turnover.bytes + bytes + incoming_bytes - limit.bytes;
    let mut going = Vec::new();
    let mut going_bytes = 0;
    let mut is_too_much = false;
    while documents > 0 || bytes > 0 {
        if going.len() >= REMOVED_MAX || going_bytes >= REMOVED_BYTES_MAX {
            is_too_much = true;
            break;
        }
        let (record, document) = match turnover.next(&mut staging.unit, collection)? {
            Next::Oldest(record, document) => (record, document),
            Next::Coming(record) => {
                staging.unit.unlatch();
                let latches = &staging.ctx.replica.latches;
                return Ok(Room::Busy(latches.record(collection.id, &record)));
            }
            Next::End => break,
        };
        let length = document.as_bytes().len();
        let counted = i64::try_from(length).unwrap_or(i64::MAX);
        (documents, bytes) = (documents - 1, bytes - counted);
        let latch = staging.ctx.replica.latches.record(collection.id, &record);
        if staging.unit.try_latch(latch) == Attempt::Busy {
            staging.unit.unlatch();
            return Ok(Room::Busy(latch));
        }
        match present(staging, collection, &turnover, &record, document)? {
            Some(document) => {
                going_bytes += length;
                going.push((record, document));
            }
            // Somebody has removed it meanwhile.
            None => {
                turnover.documents -= 1;
                turnover.bytes -= counted;
            }
        }
    }
    let together = staging.unit.entry.bytes() + incoming + going_bytes;
    if !staging.unit.is_clear() && (is_too_much || together > TOGETHER_BYTES_MAX) {
        staging.unit.unlatch();
        return Ok(Room::Later);
    }
    for (_, before) in &going {
        staging.check_change(Change::Delete { before })?;
    }
    if is_too_much {
        remove(staging, collection, going)?;
        return Ok(Room::Later);
    }
    staging.turnover = Some(turnover);
    Ok(Room::After(going))
}

/// A latched record as it is now, where it was found in the view or among what is staged.
fn present(
    staging: &mut Staging<'_>,
    collection: &Collection,
    turnover: &Turnover,
    record: &RecordId,
    document: Record,
) -> Result<Option<Record>, CommandError> {
    if staging.unit.is_present(&turnover.view) {
        return Ok(Some(document));
    }
    let present = staging.unit.present_with_own();
    let found = present.record(collection.id, record);
    found.map_err(errors::storage)
}

/// Stages the removal of latched records.
pub(super) fn remove(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    going: Vec<(RecordId, Record)>,
) -> Result<(), CommandError> {
    for (record, document) in going {
        let unit = &mut staging.unit;
        let removed = effects::delete(&mut unit.batch, collection, &record, &document);
        removed.map_err(|error| {
            CommandError::new(ErrorCode::from_code(error.code()), error.to_string())
        })?;
        unit.entry.delete(collection.id, &record, &document);
        unit.note_removed(collection.id, &record);
    }
    staging.unit.claim();
    Ok(())
}
