//! A consistent view of everything that was committed before it was taken, and of what its reader
//! has staged itself.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use banyan_document::key::Key;
use fjall::{AbstractTree, Readable, Slice};

use crate::StorageError;
use crate::catalog::Collection;
use crate::engine::Engine;
use crate::index::Index;
use crate::keys::{self, CollectionId, EntryForm, KeyRange};
use crate::keyspaces::{Keyspace, Keyspaces};
use crate::overlay::{Merge, OverlayView, is_empty};
use crate::record::{Bytes, Record};
use crate::record_id::RecordId;
use crate::scan::{
    Entries, Found, IndexScan, MetaScan, RecordReader, RecordScan, Scan, TypeBits, damaged_index,
    place,
};
use crate::tables::{Cursor, Direction, Points, State};
use crate::view::View;

/// Cheap to take and to clone. Old versions of what it sees are kept while it lives: don't hold
/// one for ever.
#[derive(Clone)]
pub struct Snapshot {
    /// The engine counts its own clones under locks.
    pub(crate) view: Arc<View>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    /// Lies over the records and the indexes.
    pub(crate) overlay: Option<OverlayView>,
    // Keeps the directory locked.
    pub(crate) engine: Arc<Engine>,
}

impl Snapshot {
    pub(crate) fn of(engine: &Arc<Engine>) -> Snapshot {
        let view = View::new(engine.snapshot());
        Snapshot {
            view: Arc::new(view),
            keyspaces: engine.keyspaces(),
            overlay: None,
            engine: engine.clone(),
        }
    }

    /// The same with staged writes over its records and indexes.
    pub fn with_overlay(mut self, overlay: Option<OverlayView>) -> Snapshot {
        self.overlay = overlay;
        self
    }

    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Slice>, StorageError> {
        if let Some(overlay) = &self.overlay
            && let Some(written) = overlay.get(keyspace, key)
        {
            return Ok(written);
        }
        Ok(self.view.get(self.keyspaces.of(keyspace), key)?)
    }

    /// The bounds are not empty.
    fn scan(
        &self,
        keyspace: Keyspace,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        reverse: bool,
    ) -> Scan {
        if self.overlay.is_none()
            && let Some(state) = self.state(keyspace)
        {
            let direction = match reverse {
                true => Direction::Backward,
                false => Direction::Forward,
            };
            let mut cursor = Cursor::new(state.clone(), self.view.seqno(), direction);
            cursor.seek(bounds);
            return Scan::over_tables(cursor, &self.view);
        }
        let merge = self.overlay.as_ref().map(|overlay| {
            let merge = Merge::new(overlay.clone(), keyspace, bounds.clone(), reverse);
            Box::new(merge)
        });
        Scan::over_engine(self.range(keyspace, bounds), &self.view, reverse, merge)
    }

    /// `None`: the engine has to be asked.
    fn state(&self, keyspace: Keyspace) -> Option<&Arc<State>> {
        let visible = || self.engine.database.visible_seqno();
        self.view.state(&self.keyspaces, keyspace, visible)
    }

    /// To be held no longer than this view: the engine would count another clone of it under locks.
    fn range(&self, keyspace: Keyspace, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Found {
        let tree = &self.keyspaces.of(keyspace).tree;
        tree.range::<Vec<u8>, _>(bounds, self.view.seqno(), None)
    }

    pub fn record(
        &self,
        collection: CollectionId,
        record: &RecordId,
    ) -> Result<Option<Record>, StorageError> {
        let get = |key: &[u8]| self.get(Keyspace::Records, key);
        match keys::with_record_key(collection, record, get)? {
            Some(bytes) => Record::new(bytes, || place(collection, record)).map(Some),
            None => Ok(None),
        }
    }

    /// Reads many records one by one. `None`: [`Snapshot::record`] has to.
    pub fn record_reader(&self, collection: CollectionId) -> Option<RecordReader> {
        if self.has_overlay() {
            return None;
        }
        let state = self.state(Keyspace::Records)?;
        Some(RecordReader {
            collection,
            points: Points::new(state.clone(), self.view.seqno()),
            _view: self.view.clone(),
        })
    }

    /// The records of a collection in the order of their ids, or in the opposite one.
    pub fn records(
        &self,
        collection: CollectionId,
        range: impl RangeBounds<RecordId>,
        reverse: bool,
    ) -> RecordScan {
        let whole = |record: &RecordId| keys::record_key(collection, record);
        let lower = match range.start_bound() {
            Bound::Unbounded => Bound::Included(collection.to_be_bytes().to_vec()),
            bound => bound.map(whole),
        };
        let upper = match range.end_bound() {
            Bound::Unbounded => keys::end_of_id(collection),
            bound => bound.map(whole),
        };
        let bounds = (lower, upper);
        RecordScan {
            collection,
            scan: (!is_empty(&bounds)).then(|| self.scan(Keyspace::Records, bounds, reverse)),
        }
    }

    pub fn last_record_id(
        &self,
        collection: CollectionId,
    ) -> Result<Option<RecordId>, StorageError> {
        let last = self.records(collection, .., true).next().transpose()?;
        Ok(last.map(|(record, _)| record))
    }

    /// Notes the oldest record of a capped collection in this view, where nothing is staged over it.
    pub fn note_oldest(&self, collection: &Collection, record: &RecordId) {
        let is_noted = collection.is_capped && !self.has_overlay();
        if let Some(record) = record.as_number().filter(|_| is_noted) {
            collection.counters.oldest.note(record, self.view.seqno());
        }
    }

    /// No record of a capped collection comes before this one in the view; `None`: that is not known.
    pub fn oldest_known(&self, collection: &Collection) -> Option<RecordId> {
        if !collection.is_capped {
            return None;
        }
        let known = collection.counters.oldest.known(self.view.seqno());
        known.map(RecordId::number)
    }

    /// Which record holds `key` in a unique index. The keys of a clustered index are its records'
    /// ids.
    pub fn unique_lookup(
        &self,
        index: &Index,
        key: &[u8],
    ) -> Result<Option<RecordId>, StorageError> {
        let entry = self.unique_entry(index, key)?;
        Ok(entry.map(|(record, _)| record))
    }

    /// Which records hold `key`, the first ones of them: in a unique index there is one at most.
    pub fn key_holders(
        &self,
        index: &Index,
        key: &[u8],
        most: usize,
    ) -> Result<Vec<RecordId>, StorageError> {
        if index.unique {
            return Ok(self.unique_lookup(index, key)?.into_iter().collect());
        }
        let range = KeyRange {
            lower: Bound::Included(key.to_vec()),
            upper: Bound::Included(key.to_vec()),
        };
        let entries = self.scan_index(index, range, false).take(most);
        entries.map(|entry| Ok(entry?.1)).collect()
    }

    /// Which record holds `key` in a unique index, and the key's type bits.
    pub fn unique_entry(
        &self,
        index: &Index,
        key: &[u8],
    ) -> Result<Option<(RecordId, TypeBits)>, StorageError> {
        debug_assert!(index.unique);
        if key.len() > keys::INDEX_KEY_BYTES_MAX {
            return Ok(None);
        }
        if index.is_clustered() {
            let record = RecordId::bytes(key);
            let get = |key: &[u8]| self.get(Keyspace::Records, key);
            let found = keys::with_record_key(index.id, &record, get)?;
            return Ok(found.map(|_| (record, TypeBits::none())));
        }
        let found =
            keys::with_index_key(index.id, key, None, |key| self.get(Keyspace::Indexes, key))?;
        let Some(value) = found else { return Ok(None) };
        match index.record_ids.split(&value) {
            Some((end, record)) => Ok(Some((record, TypeBits::new(value, end)))),
            None => Err(damaged_index(index.id)),
        }
    }

    /// Whether an index holds `key` for `record`, with its type bits.
    pub fn has_index_key(
        &self,
        index: &Index,
        key: &Key,
        record: &RecordId,
    ) -> Result<bool, StorageError> {
        if index.unique {
            let held = self.unique_entry(index, key)?;
            // The keys of a clustered index are their documents', whole.
            let is_held = |(holder, types): (RecordId, TypeBits)| {
                holder == *record && (index.is_clustered() || *types == *key.types)
            };
            return Ok(held.is_some_and(is_held));
        }
        if key.len() > keys::INDEX_KEY_BYTES_MAX {
            return Ok(false);
        }
        let found = keys::with_index_key(index.id, key, Some(record), |key| {
            self.get(Keyspace::Indexes, key)
        })?;
        Ok(found.is_some_and(|types| *types == *key.types))
    }

    /// The keys of an index in key order (and by record id within a key), or in the opposite one.
    pub fn scan_index(&self, index: &Index, range: KeyRange, reverse: bool) -> IndexScan {
        self.scan_within(index, bounds_of(index, &range), reverse)
    }

    /// As [`Snapshot::scan_index`], from behind an entry on that an earlier scan came to. It need
    /// not be there any more.
    pub fn scan_index_after(
        &self,
        index: &Index,
        range: &KeyRange,
        reverse: bool,
        (key, record): (&[u8], &RecordId),
    ) -> IndexScan {
        let (mut lower, mut upper) = bounds_of(index, range);
        let entry = match index.is_clustered() {
            true => keys::record_key(index.id, record),
            false => {
                let form = index.entry_form();
                form.with_key(index.id, key, record, <[u8]>::to_vec)
            }
        };
        let behind = if reverse { &mut upper } else { &mut lower };
        *behind = Bound::Excluded(entry);
        self.scan_within(index, (lower, upper), reverse)
    }

    /// Whether a scan of an index may go on in another range ([`Snapshot::scan_on`]).
    pub fn goes_on(&self, index: &Index) -> bool {
        let keyspace = match index.is_clustered() {
            true => Keyspace::Records,
            false => Keyspace::Indexes,
        };
        !self.has_overlay() && self.state(keyspace).is_some()
    }

    /// Has a scan of an index of this snapshot go to another range. False: it cannot.
    pub fn scan_on(&self, scan: &mut IndexScan, index: &Index, range: &KeyRange) -> bool {
        let bounds = bounds_of(index, range);
        !is_empty(&bounds) && scan.seek(bounds)
    }

    fn scan_within(
        &self,
        index: &Index,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        reverse: bool,
    ) -> IndexScan {
        let (keyspace, entries) = match index.is_clustered() {
            true => (Keyspace::Records, Entries::Records),
            false => (Keyspace::Indexes, Entries::Keys(index.entry_form())),
        };
        let scan = (!is_empty(&bounds)).then(|| self.scan(keyspace, bounds, reverse));
        IndexScan::new(index.id, entries, scan)
    }

    /// What lies under an id in the indexes keyspace, in entries of this form.
    pub(crate) fn scan_plain(&self, id: u32, form: EntryForm) -> IndexScan {
        let bounds = keys::index_bounds(id, form.unique, &KeyRange::all());
        let found = self.range(Keyspace::Indexes, bounds);
        let scan = Scan::over_engine(found, &self.view, false, None);
        IndexScan::new(id, Entries::Keys(form), Some(scan))
    }

    /// Whether something is staged over it, which its counts know nothing of.
    pub fn has_overlay(&self) -> bool {
        self.overlay.is_some()
    }

    /// How many documents a collection counts, and their bytes, as of this view.
    pub fn counts(&self, collection: CollectionId) -> Result<(i64, i64), StorageError> {
        let key = keys::meta_key(keys::COUNTS, collection);
        let Some(counts) = self.view.get(&self.keyspaces.meta, key)? else {
            return Ok((0, 0));
        };
        let number = |at: usize| {
            let eight = counts.get(at..at + 8)?.try_into().ok()?;
            Some(i64::from_be_bytes(eight))
        };
        number(0).zip(number(8)).ok_or_else(|| {
            let place = format!("counts of collection {collection}");
            StorageError::damaged(place, "unexpected length")
        })
    }

    /// One of the caller's own keys.
    pub fn meta(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let key = [&[keys::CALLER], key].concat();
        Ok(self.view.get(&self.keyspaces.meta, key)?.map(Bytes))
    }

    /// The caller's own keys that start with `prefix`, in byte order.
    pub fn scan_meta(&self, prefix: &[u8]) -> MetaScan {
        let prefix = [&[keys::CALLER], prefix].concat();
        MetaScan {
            iterator: self.view.prefix(&self.keyspaces.meta, prefix),
        }
    }
}

/// The bounds of a scan in the keyspace that has the index's keys.
fn bounds_of(index: &Index, range: &KeyRange) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    if !index.is_clustered() {
        return keys::index_bounds(index.id, index.unique, range);
    }
    let key = |key: &Vec<u8>| keys::record_key(index.id, &RecordId::bytes(key));
    let lower = match range.lower.as_ref() {
        Bound::Unbounded => Bound::Included(index.id.to_be_bytes().to_vec()),
        bound => bound.map(key),
    };
    let upper = match range.upper.as_ref() {
        Bound::Unbounded => keys::end_of_id(index.id),
        bound => bound.map(key),
    };
    (lower, upper)
}
