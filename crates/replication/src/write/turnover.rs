//! How far a write unit has come with the oldest documents of a capped collection.

use std::ops::Bound;

use banyan_storage::{
    CappedLimits, Collection, CollectionId, Record, RecordId, RecordScan, Snapshot,
};
use banyan_wire::CommandError;
use parking_lot::Mutex;

use super::unit::WriteUnit;
use crate::errors;
use crate::incoming::{self, Incoming, Part};

/// The oldest documents of a collection on their way out, as far as a unit has come with them.
pub(super) struct Turnover {
    pub(super) limits: CappedLimits,
    pub(super) view: Snapshot,
    /// What there is before the unit.
    pub(super) documents: i64,
    pub(super) bytes: i64,
    /// Of the records in the view; `None` once they have all been looked at. One thread uses it at a
    /// time, and the staging that it is a part of may be referred to by several.
    scan: Option<Mutex<RecordScan>>,
    /// Records up to here go before the unit, and may be in the view.
    gone: Option<RecordId>,
    /// Of what comes before the unit and is not in the view: the first record, and that of the last part.
    coming: Option<(RecordId, RecordId)>,
    /// The last one that was looked at.
    last: Option<RecordId>,
}

/// What the search for the oldest record comes to.
pub(super) enum Next {
    Oldest(RecordId, Record),
    /// It is one of those that are on their way. Whoever inserts this one keeps it latched until they
    /// all are there.
    Coming(RecordId),
    End,
}

impl Turnover {
    /// The end of the collection is latched.
    pub(super) fn begin(
        incoming: &Incoming,
        unit: &mut WriteUnit,
        collection: &Collection,
        limits: CappedLimits,
    ) -> Result<Turnover, CommandError> {
        let (view, parts) = view(incoming, unit, collection.id);
        let (mut documents, mut bytes) = view.counts(collection.id).map_err(errors::storage)?;
        let mut gone = None;
        let mut coming: Option<(RecordId, RecordId)> = None;
        let stored = view.clone().with_overlay(None);
        let ahead = incoming::not_in(&stored, collection.id, parts);
        for part in ahead.map_err(errors::storage)? {
            documents += part.documents;
            bytes += part.bytes;
            gone = gone.max(part.removed);
            let first = coming.map_or_else(|| part.first.clone(), |(first, _)| first);
            coming = Some((first, part.first));
        }
        Ok(Turnover {
            limits,
            view,
            documents,
            bytes,
            scan: None,
            gone,
            coming,
            last: None,
        })
    }

    /// Whether it has come upon records that may be gone once the unit is committed.
    pub(super) fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// The next oldest record, among those before the unit and then among its own.
    pub(super) fn next(
        &mut self,
        unit: &mut WriteUnit,
        collection: &Collection,
    ) -> Result<Next, CommandError> {
        if self.scan.is_none() && self.last.is_none() {
            let from = match &self.gone {
                Some(gone) => Bound::Excluded(gone.clone()),
                None => {
                    let oldest = self.view.oldest_known(collection);
                    oldest.map_or(Bound::Unbounded, Bound::Included)
                }
            };
            // Behind those that come there are the unit's own.
            let coming = self.coming.as_ref();
            let to = coming.map_or(Bound::Unbounded, |(first, _)| {
                Bound::Excluded(first.clone())
            });
            let mut scan = self.view.records(collection.id, (from, to), false);
            let first = scan.next().transpose().map_err(errors::storage)?;
            if let Some((record, _)) = &first {
                // Those before it may stay, if what they go for is not committed.
                if self.gone.is_none() {
                    self.view.note_oldest(collection, record);
                }
                self.last = Some(record.clone());
                self.scan = Some(Mutex::new(scan));
                return Ok(first.into());
            }
        }
        if let Some(scan) = &mut self.scan {
            let next = scan.get_mut().next().transpose();
            if let Some((record, document)) = next.map_err(errors::storage)? {
                self.last = Some(record.clone());
                return Ok(Next::Oldest(record, document));
            }
            self.scan = None;
        }
        if let Some((_, last)) = &self.coming {
            return Ok(Next::Coming(last.clone()));
        }
        let after = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let own = unit.present_with_own();
        let mut own = own.records(collection.id, (after, Bound::Unbounded), false);
        let next = own.next().transpose().map_err(errors::storage)?;
        if let Some((record, _)) = &next {
            self.last = Some(record.clone());
        }
        Ok(next.into())
    }
}

impl From<Option<(RecordId, Record)>> for Next {
    fn from(found: Option<(RecordId, Record)>) -> Next {
        match found {
            Some((record, document)) => Next::Oldest(record, document),
            None => Next::End,
        }
    }
}

/// A view of now, and what was on its way all the while: what it shows of that has not been removed
/// again.
fn view(
    incoming: &Incoming,
    unit: &mut WriteUnit,
    collection: CollectionId,
) -> (Snapshot, Vec<Part>) {
    let mut parts = incoming.on_the_way(collection);
    loop {
        let view = unit.present();
        if parts.is_empty() {
            return (view, parts);
        }
        // Nothing is added where the end is latched.
        let still = incoming.on_the_way(collection);
        if still.len() == parts.len() {
            return (view, parts);
        }
        parts = still;
    }
}
