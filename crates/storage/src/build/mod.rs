//! Index builds that go on beside writes.
//!
//! A build begins with an entry of the log, so that all members begin it at the same point. From
//! then on the collection's entry in the catalog names the build and its indexes. Readers do not
//! see them; every write of a document keeps their keys up too ([`writes`]). Meanwhile a thread of
//! each member scans the records, sorts their keys in bounded memory ([`sorter`]) and puts them into
//! the indexes in small batches ([`load`]).
//!
//! # Why the index is exact in the end
//!
//! Each build keeps the set of the records that were *touched*: inserted, updated or deleted since
//! the build began on this member (or was taken up again after a restart). Three rules hold:
//!
//! 1. A write of a document removes all keys of its earlier state from the index and puts all keys
//!    of its later state, also those that both have. It marks the record as touched before its
//!    batch is committed.
//! 2. The load puts no key of a touched record.
//! 3. Marking and committing, and looking at the marks and putting keys, exclude each other: both
//!    are done with the store's commit lock held.
//!
//! At any time the keys of a touched record in the index are therefore those of its present state:
//! no key of it is put by the load afterwards (rule 2), and what the load had put before was of the
//! state that the first touch found, which rule 1 removes. So a deleted key is never resurrected
//! and a newer one never lost. The keys of an untouched record that are in the index are keys of
//! its present state, since that has not changed since the load read it; once the load is through,
//! they are all there. It does not matter in which snapshot, or how many, the load reads.
//!
//! The index holds keys of present states only, at any time, so an interrupted load begins again
//! over what is there. How many bytes of keys an index has is counted exactly: a key is put if it is
//! missing and removed if it is there, which is looked up where it is not known.
//!
//! # Unique indexes
//!
//! A unique index maps a key to one record. While it is built two records may share a key: nobody
//! refuses that yet, and on a member that loads at another pace the order of events differs. The
//! first holder stays in the index, any other one waits in a list of duplicates on disk; when the
//! holder goes, the next one moves up. So at any point of the log, index and list together hold
//! exactly the keys of the documents. A record whose keys cannot be made (two parallel arrays, say)
//! has none and is remembered as unindexable. The primary commits the build when it has found, with
//! all writes of the collection held off, neither a duplicate nor an unindexable record
//! ([`IndexBuild::violation`]). What it finds holds for all members at that point of the log.
//!
//! A member that has not loaded everything when the commit comes goes on; its readers get the index
//! once it is complete.

pub(crate) mod load;
mod record_set;
mod sorter;
pub(crate) mod writes;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::RawDocumentBuf;
use parking_lot::Mutex;

use crate::catalog::{Index, IndexDefinition};
use crate::keys::{EntryForm, IndexId};
use crate::kind::ArrayPaths;
use crate::record_id::{RecordId, RecordIdFormat};
use crate::snapshot::Snapshot;
use crate::{CollectionId, StorageError, keys};
pub use load::{LoadEnd, LoadHost, LoadPhase, LoadProgress};
use record_set::RecordSet;

pub type BuildId = [u8; 16];

/// What the catalog is told of a build that begins.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexBuildDefinition {
    pub id: BuildId,
    /// Names the list of keys that have another holder already.
    pub duplicates: IndexId,
    pub indexes: Vec<IndexDefinition>,
    /// The caller's own.
    pub options: RawDocumentBuf,
}

/// A build that is under way, with the indexes that it makes.
#[derive(Debug, Clone)]
pub struct IndexBuild {
    pub id: BuildId,
    pub indexes: Vec<Arc<Index>>,
    pub options: RawDocumentBuf,
    /// The log has committed it; this member still loads.
    pub is_committed: bool,
    pub(crate) building: Arc<Building>,
}

/// What stands against committing a build.
#[derive(Debug, Clone)]
pub enum Violation {
    /// More than one record has this key.
    Duplicate {
        index: Arc<Index>,
        key: Vec<u8>,
        record: RecordId,
    },
    /// The record's keys cannot be made.
    Unindexable { index: Arc<Index>, record: RecordId },
}

impl IndexBuild {
    pub(crate) fn parse(
        definition: &IndexBuildDefinition,
        building: Arc<Building>,
        record_ids: RecordIdFormat,
    ) -> Result<IndexBuild, StorageError> {
        let parse = |definition| {
            let index = Index::parse(definition, ArrayPaths::default())?;
            Ok::<_, StorageError>(Arc::new(index.of_records(record_ids).under(&building)))
        };
        let indexes = definition.indexes.iter().map(parse);
        Ok(IndexBuild {
            id: definition.id,
            indexes: indexes.collect::<Result<_, _>>()?,
            options: definition.options.clone(),
            is_committed: false,
            building,
        })
    }

    /// Whether it is the same build, worked on by the same process since the same moment.
    pub fn is_same(&self, other: &IndexBuild) -> bool {
        Arc::ptr_eq(&self.building, &other.building)
    }

    /// Whether this member's indexes hold all keys.
    pub fn is_loaded(&self) -> bool {
        self.building.is_loaded()
    }

    /// Why the build cannot be committed as of a snapshot. While writes go on it may come and go.
    pub fn violation(&self, snapshot: &Snapshot) -> Result<Option<Violation>, StorageError> {
        let unindexable = self.building.first_unindexable();
        for index in &self.indexes {
            if let Some(record) = unindexable.get(&index.id) {
                let (index, record) = (index.clone(), record.clone());
                return Ok(Some(Violation::Unindexable { index, record }));
            }
        }
        if !self.building.may_have_duplicates() {
            return Ok(None);
        }
        let Some(index) = self.indexes.first() else {
            return Ok(None);
        };
        let form = EntryForm {
            unique: false,
            ids: index.record_ids,
        };
        let listed = snapshot.scan_plain(self.building.duplicates, form).next();
        let Some(first) = listed else {
            return Ok(None);
        };
        let (listed, record) = first?;
        let damaged = || StorageError::damaged("an index build", "a duplicate of no index");
        let (id, key) = listed.split_first_chunk().ok_or_else(damaged)?;
        let id = u32::from_be_bytes(*id);
        let index = self.indexes.iter().find(|index| index.id == id);
        Ok(Some(Violation::Duplicate {
            index: index.ok_or_else(damaged)?.clone(),
            key: key.to_vec(),
            record,
        }))
    }
}

/// What the indexes of one build share while it is under way on this member.
#[derive(Debug)]
pub(crate) struct Building {
    pub(crate) duplicates: IndexId,
    /// A load has begun before, perhaps before a restart: keys may be there already.
    load_has_begun: AtomicBool,
    loaded: AtomicBool,
    has_had_duplicates: AtomicBool,
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    touched: RecordSet,
    unindexable: HashMap<IndexId, RecordSet>,
}

impl Building {
    pub(crate) fn begun(duplicates: IndexId) -> Building {
        Building {
            duplicates,
            load_has_begun: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            has_had_duplicates: AtomicBool::new(false),
            marks: Mutex::default(),
        }
    }

    /// As the catalog on disk knows it. What is touched and unindexable is not on the disk: the load
    /// begins again.
    pub(crate) fn resumed(duplicates: IndexId) -> Building {
        Building {
            load_has_begun: AtomicBool::new(true),
            has_had_duplicates: AtomicBool::new(true),
            ..Building::begun(duplicates)
        }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Whether another load has begun before the one that begins now.
    fn begin_load(&self) -> bool {
        self.load_has_begun.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
        self.marks.lock().touched = RecordSet::default();
    }

    fn may_have_duplicates(&self) -> bool {
        self.has_had_duplicates.load(Ordering::Acquire)
    }

    fn note_duplicate(&self) {
        self.has_had_duplicates.store(true, Ordering::Release);
    }

    fn touch(&self, index: IndexId, record: &RecordId, indexable: bool) {
        let mut marks = self.marks.lock();
        if !self.is_loaded() {
            marks.touched.insert(record);
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
    fn note_unindexable(&self, index: IndexId, record: &RecordId) {
        let mut marks = self.marks.lock();
        if !marks.touched.contains(record) {
            marks.unindexable.entry(index).or_default().insert(record);
        }
    }

    fn first_unindexable(&self) -> HashMap<IndexId, RecordId> {
        let marks = self.marks.lock();
        let first = |(index, records): (&IndexId, &RecordSet)| Some((*index, records.any()?));
        marks.unindexable.iter().filter_map(first).collect()
    }

    /// The engine's key under which a further holder of a key waits.
    fn duplicate_key(&self, index: IndexId, key: &[u8], record: Option<&RecordId>) -> Vec<u8> {
        let listed = [&index.to_be_bytes()[..], key].concat();
        keys::with_index_key(self.duplicates, &listed, record, <[u8]>::to_vec)
    }
}

/// Where a build is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BuildAddress {
    pub collection: CollectionId,
    pub build: BuildId,
}
