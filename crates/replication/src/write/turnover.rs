//! How far a write unit has come with the oldest documents of a capped collection.

use std::ops::Bound;

use banyan_storage::{CappedLimits, Collection, Record, RecordId, RecordScan, Snapshot};
use banyan_wire::CommandError;
use parking_lot::Mutex;

use super::unit::WriteUnit;
use crate::errors;

/// The oldest documents of a collection on their way out, as far as a unit has come with them.
pub(super) struct Turnover {
    pub(super) limits: CappedLimits,
    /// What there was before the unit.
    pub(super) view: Snapshot,
    pub(super) documents: i64,
    pub(super) bytes: i64,
    /// Of the records in the view; `None` once they have all been looked at. One thread uses it at a
    /// time, and the staging that it is a part of may be referred to by several.
    scan: Option<Mutex<RecordScan>>,
    /// The last one that was looked at.
    last: Option<RecordId>,
}

impl Turnover {
    pub(super) fn begin(
        view: Snapshot,
        collection: &Collection,
        limits: CappedLimits,
    ) -> Result<Turnover, CommandError> {
        let (documents, bytes) = view.counts(collection.id).map_err(errors::storage)?;
        Ok(Turnover {
            limits,
            view,
            documents,
            bytes,
            scan: None,
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
    ) -> Result<Option<(RecordId, Record)>, CommandError> {
        if self.scan.is_none() && self.last.is_none() {
            let from = self.view.oldest_known(collection);
            let from = from.map_or(Bound::Unbounded, Bound::Included);
            let mut scan = self
                .view
                .records(collection.id, (from, Bound::Unbounded), false);
            let first = scan.next().transpose().map_err(errors::storage)?;
            if let Some((record, _)) = &first {
                self.view.note_oldest(collection, record);
                self.last = Some(record.clone());
                self.scan = Some(Mutex::new(scan));
                return Ok(first);
            }
        }
        if let Some(scan) = &mut self.scan {
            let next = scan.get_mut().next().transpose();
            if let Some((record, document)) = next.map_err(errors::storage)? {
                self.last = Some(record.clone());
                return Ok(Some((record, document)));
            }
            self.scan = None;
        }
        let after = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let own = unit.present_with_own();
        let mut own = own.records(collection.id, (after, Bound::Unbounded), false);
        let next = own.next().transpose().map_err(errors::storage)?;
        if let Some((record, _)) = &next {
            self.last = Some(record.clone());
        }
        Ok(next)
    }
}
