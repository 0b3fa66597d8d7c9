//! Records by their ids, one by one or, where these follow closely on one another, by a scan.

use std::ops::Bound;

use banyan_query::QueryError;
use banyan_storage::{Collection, Record, RecordId, RecordReader, RecordScan, StorageError};

use super::Run;
use crate::error;

/// Ids that are no farther apart than this are near: a record is reached in steps of a scan sooner
/// than it is found by itself.
const NEAR: u64 = 8;
/// A scan is opened once so many ids in a row were near: that costs as much as several lookups.
const NEAR_IN_A_ROW: u32 = 8;

/// A reader of many records is opened for this one.
const ONE_BY_ONE: u32 = 2;

/// Reads records whose ids follow closely on one another by one scan, as those do that were inserted
/// in the order of the index.
#[derive(Default)]
pub struct Nearby {
    /// The id that was read last.
    last: Option<u64>,
    reverse: bool,
    /// How many ids in a row were near in this direction.
    in_a_row: u32,
    scan: Option<RecordScan>,
    /// Reads what does not lie close together. `None`: not opened yet, or there is none.
    reader: Option<RecordReader>,
    /// How many records were read one by one.
    read: u32,
}

impl Nearby {
    pub fn read(
        &mut self,
        run: &mut Run<'_>,
        collection: &Collection,
        record: &RecordId,
    ) -> Result<Record, QueryError> {
        if !self.follows(record) {
            return self.read_one(run, collection, record);
        }
        let (snapshot, reverse) = (run.snapshot, self.reverse);
        let scan = self.scan.get_or_insert_with(|| {
            let from = Bound::Included(record.clone());
            match reverse {
                false => snapshot.records(collection.id, (from, Bound::Unbounded), false),
                true => snapshot.records(collection.id, (Bound::Unbounded, from), true),
            }
        });
        for found in scan {
            let (id, document) = found.map_err(error::storage)?;
            if id == *record {
                return Ok(document);
            }
            if (id > *record) != reverse {
                break;
            }
        }
        Err(missing(collection, record))
    }

    fn read_one(
        &mut self,
        run: &mut Run<'_>,
        collection: &Collection,
        record: &RecordId,
    ) -> Result<Record, QueryError> {
        self.read = self.read.saturating_add(1);
        if self.reader.is_none() && self.read == ONE_BY_ONE {
            self.reader = run.snapshot.record_reader(collection.id);
        }
        let Some(reader) = &mut self.reader else {
            return document_of(run, collection, record);
        };
        let found = reader.read(record).map_err(error::storage)?;
        found.ok_or_else(|| missing(collection, record))
    }

    /// Whether the records that were read last lay close together.
    pub fn is_scanning(&self) -> bool {
        self.in_a_row >= NEAR_IN_A_ROW
    }

    /// Whether the scan leads to the record.
    fn follows(&mut self, record: &RecordId) -> bool {
        let number = record.as_number();
        let last = std::mem::replace(&mut self.last, number);
        let Some((number, last)) = number.zip(last) else {
            return false;
        };
        let reverse = number < last;
        let is_near = number != last && number.abs_diff(last) <= NEAR;
        if !is_near || reverse != self.reverse {
            self.scan = None;
            self.in_a_row = 0;
        }
        self.reverse = reverse;
        self.in_a_row = self.in_a_row.saturating_add(u32::from(is_near));
        self.is_scanning()
    }
}

/// The document that a key of an index of the same snapshot names: without one, the index lies.
pub fn document_of(
    run: &mut Run<'_>,
    collection: &Collection,
    record: &RecordId,
) -> Result<banyan_storage::Record, QueryError> {
    let found = run.snapshot.record(collection.id, record);
    let found = found.map_err(error::storage)?;
    found.ok_or_else(|| missing(collection, record))
}

/// An index names a record that is not there.
pub fn missing(collection: &Collection, record: &RecordId) -> QueryError {
    error::storage(StorageError::Damaged {
        place: format!("index of {}", collection.namespace),
        reason: format!("a key names record {record}, which does not exist"),
    })
}
