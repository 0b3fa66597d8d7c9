//! Measurements on their way into buckets.
//!
//! The measurements of one command go into its buckets in memory, and each bucket is staged once: as a
//! new document, or in the place of what it was. A bucket is latched from when it is looked at until it
//! is committed, so that what is added to it is added to all that others have. Which bucket takes a
//! measurement nobody needs to know again: it lies in the log as the bucket that it became a part of.

use std::collections::HashMap;
use std::sync::Arc;

use banyan_document::path::Path;
use banyan_document::time_series::index_keys::{bounded_field, column_field};
use banyan_document::time_series::{Bucket, Measurement, TimeSeries};
use banyan_document::{elements, field};
use banyan_storage::kind::column;
use banyan_storage::{Collection, RecordId};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::insert::{KeyedDocument, Staged};
use super::modify::replace;
use super::staging::Staging;
use crate::entry::Style;
use crate::errors;
use crate::latches::{Attempt, LatchKey};

/// Where the measurements of a command go.
pub struct Measurements {
    series: TimeSeries,
    collection: Arc<Collection>,
    /// The paths at which an index is over the least and greatest values of buckets.
    indexed: Vec<Path>,
    /// The fields whose places are in an index of all buckets.
    places: Vec<Path>,
    pending: Vec<Pending>,
    /// By metadata, the last of them.
    current: HashMap<Vec<u8>, usize>,
    /// What the pending ones hold.
    held_bytes: usize,
    /// What was added to them.
    added_bytes: usize,
}

/// What an entry may come to with buckets that little was added to: each lies in it as a whole.
const HELD_BYTES_MAX: usize = 12 << 20;

/// A bucket that is latched and not staged.
struct Pending {
    record: RecordId,
    /// As it was; `None`: it is new.
    before: Option<RawDocumentBuf>,
    bucket: Bucket,
    /// How many measurements it had then.
    count_before: usize,
}

/// What came of an attempt to add a measurement.
#[must_use]
pub enum Added {
    Done,
    /// Somebody else writes to its bucket: to be added again once that is over and what is pending is
    /// staged.
    Busy(LatchKey),
}

fn indexed(collection: &Collection) -> Vec<Path> {
    let keys = collection
        .indexes
        .iter()
        .chain(collection.building_indexes());
    let keys = keys.filter_map(|index| index.spec.get_document("key").ok());
    let names = keys.flat_map(elements);
    names
        .filter_map(|element| Path::parse(bounded_field(element.name())?).ok())
        .collect()
}

fn places(collection: &Collection) -> Vec<Path> {
    let indexes = collection.indexes.iter();
    let indexes = indexes.chain(collection.building_indexes());
    // A partial one may not hold the bucket at all.
    let indexes = indexes.filter(|index| index.partial_filter.is_none());
    let keys = indexes.filter_map(|index| index.spec.get_document("key").ok());
    let fields = keys.flat_map(elements);
    fields
        .filter_map(|element| Path::parse(column_field(element.name(), element.value())?).ok())
        .collect()
}

/// Refuses what cannot be in an index of places.
fn check_place(document: &RawDocument, path: &Path) -> Result<(), CommandError> {
    let Some((first, rest)) = path.parts().split_first() else {
        return Ok(());
    };
    let checked = match field(document, first) {
        Some(value) => column::check(value, rest),
        None => Ok(()),
    };
    checked.map_err(|error| {
        let code = ErrorCode::from_code(error.code());
        CommandError::new(code, error.to_string())
    })
}

/// Whether there is an array on the way along a path, or at its end.
fn meets_array(document: &RawDocument, parts: &[Box<str>]) -> bool {
    let Some((first, rest)) = parts.split_first() else {
        return false;
    };
    match field(document, first) {
        Some(RawBsonRef::Array(_)) => true,
        Some(RawBsonRef::Document(inner)) => meets_array(inner, rest),
        _ => false,
    }
}

impl Measurements {
    pub fn new(collection: Arc<Collection>, series: TimeSeries) -> Measurements {
        Measurements {
            series,
            indexed: indexed(&collection),
            places: places(&collection),
            collection,
            pending: Vec::new(),
            current: HashMap::new(),
            held_bytes: 0,
            added_bytes: 0,
        }
    }

    pub fn series(&self) -> &TimeSeries {
        &self.series
    }

    /// Whether what is pending should be committed before more is added, where the entry takes so many
    /// bytes.
    pub fn is_full(&self, room: usize) -> bool {
        self.added_bytes >= room || self.held_bytes >= HELD_BYTES_MAX
    }

    /// Adds a measurement to the bucket of its source, or to a new one.
    pub fn add(
        &mut self,
        staging: &mut Staging<'_>,
        measurement: &Measurement<'_>,
    ) -> Result<Added, CommandError> {
        // An array has no place between the least value and the greatest.
        let document = measurement.document;
        if self
            .indexed
            .iter()
            .any(|path| meets_array(document, path.parts()))
        {
            return Err(CommandError::new(
                ErrorCode::Location(5930501),
                "Indexed measurement field contains an array value",
            ));
        }
        let mut places = self.places.iter();
        places.try_for_each(|path| check_place(document, path))?;
        let source = measurement.meta.as_bytes();
        let known = self.current.get(source).copied();
        let at = match known {
            Some(at) => Some(at),
            None => match self.reopen(staging, &measurement.meta)? {
                Reopened::Busy(latch) => return Ok(Added::Busy(latch)),
                Reopened::Found(pending) => Some(self.push(source, pending)),
                Reopened::Nothing => None,
            },
        };
        let series = &self.series;
        let takes = |at: &usize| self.pending[*at].bucket.takes(measurement, series);
        let at = match at.filter(takes) {
            Some(at) => at,
            None => {
                let pending = self.open(staging, measurement)?;
                self.push(source, pending)
            }
        };
        let collator = self.collection.collator.as_ref();
        let bucket = &mut self.pending[at].bucket;
        let before = bucket.bytes();
        bucket.add(measurement, &self.series, collator);
        let added = bucket.bytes() - before;
        self.held_bytes += added;
        self.added_bytes += added;
        Ok(Added::Done)
    }

    fn push(&mut self, source: &[u8], pending: Pending) -> usize {
        let at = self.pending.len();
        self.held_bytes += pending.bucket.bytes();
        self.pending.push(pending);
        self.current.insert(source.to_vec(), at);
        at
    }

    /// Latches and reads the bucket that took the last measurement of a source.
    fn reopen(
        &self,
        staging: &mut Staging<'_>,
        meta: &RawDocument,
    ) -> Result<Reopened, CommandError> {
        let replica = staging.ctx.replica;
        let id = self.collection.id;
        let Some(record) = replica.open_buckets.find(id, meta) else {
            return Ok(Reopened::Nothing);
        };
        let latch = replica.latches.record(id, &record);
        if staging.unit.try_latch(latch) == Attempt::Busy {
            staging.unit.unlatch();
            return Ok(Reopened::Busy(latch));
        }
        let present = staging.unit.present_with_own();
        let found = present.record(id, &record).map_err(errors::storage)?;
        let opened = found.and_then(|document| {
            let bucket = Bucket::parse(&document, &self.series)?;
            Some((RawDocument::to_owned(&document), bucket))
        });
        let Some((before, bucket)) = opened else {
            staging.unit.unlatch();
            return Ok(Reopened::Nothing);
        };
        staging.unit.claim();
        Ok(Reopened::Found(Pending {
            record,
            before: Some(before),
            count_before: bucket.count(),
            bucket,
        }))
    }

    /// A new bucket, whose record is latched.
    fn open(
        &self,
        staging: &mut Staging<'_>,
        first: &Measurement<'_>,
    ) -> Result<Pending, CommandError> {
        let replica = staging.ctx.replica;
        loop {
            let bucket = Bucket::open(&self.series, first, ObjectId::new());
            if !bucket.has_room_for(first) {
                return Err(CommandError::new(
                    ErrorCode::BSONObjectTooLarge,
                    format!(
                        "a measurement of {} bytes is too large for a bucket",
                        first.bytes()
                    ),
                ));
            }
            // What no index takes is refused before it is among others.
            let mut alone = bucket.clone();
            alone.add(first, &self.series, self.collection.collator.as_ref());
            let document = alone.to_document();
            let keyed = KeyedDocument::new(&self.collection, &document)?;
            let Some(record) = keyed.record().cloned() else {
                return Err(CommandError::new(
                    ErrorCode::InternalError,
                    format!("{} is not clustered", self.collection.namespace),
                ));
            };
            let latch = replica.latches.record(self.collection.id, &record);
            // Another thing of the same hash may hold it: the next id is another one.
            if staging.unit.try_latch(latch) == Attempt::Taken {
                staging.unit.claim();
                return Ok(Pending {
                    record,
                    before: None,
                    bucket,
                    count_before: 0,
                });
            }
            staging.unit.unlatch();
        }
    }

    /// Stages all that is pending.
    pub fn stage(&mut self, staging: &mut Staging<'_>) -> Result<(), CommandError> {
        self.current.clear();
        self.held_bytes = 0;
        self.added_bytes = 0;
        let collection = self.collection.clone();
        for pending in self.pending.drain(..) {
            if pending.bucket.count() == pending.count_before {
                continue;
            }
            let after = pending.bucket.to_document();
            let busy = match &pending.before {
                Some(before) => {
                    let (record, style) =
                        (&pending.record, Style::Modifiers { wholes: Vec::new() });
                    replace(staging, &collection, record, before, &after, &style)?
                }
                None => insert(staging, &collection, &after)?,
            };
            if busy.is_some() {
                // Its record is latched, and a bucket collection has no other unique key.
                return Err(CommandError::new(
                    ErrorCode::InternalError,
                    format!("{} has a unique index", collection.namespace),
                ));
            }
            staging.unit.claim();
            let meta = pending.bucket.meta();
            let open = &staging.ctx.replica.open_buckets;
            open.remember(collection.id, meta, pending.record);
        }
        Ok(())
    }
}

enum Reopened {
    Found(Pending),
    Nothing,
    Busy(LatchKey),
}

/// Stages a new bucket, whose record is latched; the latch that it would have to wait for.
fn insert(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    document: &RawDocument,
) -> Result<Option<LatchKey>, CommandError> {
    let mut keyed = KeyedDocument::new(collection, document)?;
    if let Err(latch) = keyed.latch(staging, collection) {
        return Ok(Some(latch));
    }
    let present = staging.unit.present();
    match keyed.stage(staging, collection, &present)? {
        Staged::Done => Ok(None),
        Staged::Busy(latch) => Ok(Some(latch)),
        // Of capped collections alone.
        Staged::Later => Ok(None),
    }
}
