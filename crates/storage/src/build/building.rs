//! What the indexes of one build share while it is under way on this member.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use banyan_document::key::Key;
use parking_lot::Mutex;

use super::record_set::RecordSet;
use crate::keys::{self, IndexId};
use crate::record_id::RecordId;

/// What the indexes of one build share while it is under way on this member.
#[derive(Debug)]
pub(crate) struct Building {
    pub(crate) duplicates: IndexId,
    /// Removals of its keys may lie in the engine's memory.
    is_cleared: AtomicBool,
    /// Numbers of the engine up to this one lie in its tables, and are those of the removals.
    removals_until: AtomicU64,
    loaded: AtomicBool,
    has_had_duplicates: AtomicBool,
    pub(super) marks: Mutex<Marks>,
    /// How far the tables of a load that was stopped go.
    frontiers: Mutex<HashMap<IndexId, Frontier>>,
}

/// Up to where the keys of untouched records are in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frontier {
    /// All before this key of the engine.
    Key(Vec<u8>),
    End,
}

#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) touched: Arc<RecordSet>,
    unindexable: HashMap<IndexId, RecordSet>,
    window: Option<Window>,
}

/// What is touched while tables are written that leave out what had been touched before.
#[derive(Debug)]
pub(super) struct Window {
    index: IndexId,
    touched: RecordSet,
    /// Those of which this index's keys have been noted.
    noted: RecordSet,
    /// The keys that the tables may have of them: those of the state that the first touch found.
    pub(super) keys: Vec<(Key, RecordId)>,
}

/// The window of a load. With this it ends, and what was touched in it is touched.
pub(super) struct OpenWindow<'a> {
    building: &'a Building,
    /// What had been touched before.
    pub(super) touched: Arc<RecordSet>,
}

impl Marks {
    pub(super) fn is_touched(&self, record: &RecordId) -> bool {
        let window = self.window.as_ref();
        self.touched.contains(record) || window.is_some_and(|w| w.touched.contains(record))
    }
}

impl Window {
    fn touch(&mut self, index: IndexId, record: &RecordId, before: &[Key]) {
        self.touched.insert(record);
        if index == self.index && !self.noted.contains(record) {
            self.noted.insert(record);
            let keys = before.iter().map(|key| (key.clone(), record.clone()));
            self.keys.extend(keys);
        }
    }
}

impl OpenWindow<'_> {
    /// With the commit lock held: what the tables have that they should not.
    pub(super) fn close(&self) -> Vec<(Key, RecordId)> {
        let mut marks = self.building.marks.lock();
        let Some(window) = marks.window.take() else {
            return Vec::new();
        };
        if !self.building.is_loaded() {
            Arc::make_mut(&mut marks.touched).absorb(window.touched);
        }
        window.keys
    }
}

impl Drop for OpenWindow<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl Building {
    pub(crate) fn begun(duplicates: IndexId) -> Building {
        Building {
            duplicates,
            is_cleared: AtomicBool::new(false),
            removals_until: AtomicU64::new(0),
            loaded: AtomicBool::new(false),
            has_had_duplicates: AtomicBool::new(false),
            marks: Mutex::default(),
            frontiers: Mutex::default(),
        }
    }

    /// As the catalog on disk knows it. Whoever opens the store removes what the build has put.
    pub(crate) fn resumed(duplicates: IndexId) -> Building {
        Building {
            is_cleared: AtomicBool::new(true),
            ..Building::begun(duplicates)
        }
    }

    pub(super) fn is_cleared(&self) -> bool {
        self.is_cleared.load(Ordering::Acquire)
    }

    /// The removals lie in tables, with numbers below this one.
    pub(super) fn removals_are_flushed(&self, until: u64) {
        self.removals_until.store(until, Ordering::Release);
        self.is_cleared.store(false, Ordering::Release);
    }

    pub(super) fn removals_until(&self) -> u64 {
        self.removals_until.load(Ordering::Acquire)
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    pub(super) fn frontier(&self, index: IndexId) -> Option<Frontier> {
        self.frontiers.lock().get(&index).cloned()
    }

    pub(super) fn set_frontier(&self, index: IndexId, frontier: Frontier) {
        self.frontiers.lock().insert(index, frontier);
    }

    /// With the commit lock held.
    pub(super) fn open_window(&self, index: IndexId) -> OpenWindow<'_> {
        let mut marks = self.marks.lock();
        marks.window = Some(Window {
            index,
            touched: RecordSet::default(),
            noted: RecordSet::default(),
            keys: Vec::new(),
        });
        OpenWindow {
            building: self,
            touched: marks.touched.clone(),
        }
    }

    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
        self.marks.lock().touched = Arc::default();
    }

    pub(super) fn may_have_duplicates(&self) -> bool {
        self.has_had_duplicates.load(Ordering::Acquire)
    }

    pub(super) fn note_duplicate(&self) {
        self.has_had_duplicates.store(true, Ordering::Release);
    }

    /// A write finds a record with the keys `before` in an index.
    pub(super) fn touch(&self, index: IndexId, record: &RecordId, before: &[Key], indexable: bool) {
        let mut marks = self.marks.lock();
        let marks = &mut *marks;
        if !self.is_loaded() {
            match &mut marks.window {
                Some(window) if !marks.touched.contains(record) => {
                    window.touch(index, record, before);
                }
                Some(_) => {}
                None => Arc::make_mut(&mut marks.touched).insert(record),
            }
        }
        if !indexable {
            marks.unindexable.entry(index).or_default().insert(record);
        } else if let Some(records) = marks.unindexable.get_mut(&index) {
            records.remove(record);
            if records.is_empty() {
                marks.unindexable.remove(&index);
            }
        }
    }

    /// Of a record that the load has read.
    pub(super) fn note_unindexable(&self, index: IndexId, record: &RecordId) {
        let mut marks = self.marks.lock();
        if !marks.is_touched(record) {
            marks.unindexable.entry(index).or_default().insert(record);
        }
    }

    pub(super) fn first_unindexable(&self) -> HashMap<IndexId, RecordId> {
        let marks = self.marks.lock();
        let first = |(index, records): (&IndexId, &RecordSet)| Some((*index, records.any()?));
        marks.unindexable.iter().filter_map(first).collect()
    }

    /// The engine's key under which a further holder of a key waits.
    pub(super) fn duplicate_key(
        &self,
        index: IndexId,
        key: &[u8],
        record: Option<&RecordId>,
    ) -> Vec<u8> {
        let listed = [&index.to_be_bytes()[..], key].concat();
        keys::with_index_key(self.duplicates, &listed, record, <[u8]>::to_vec)
    }
}
