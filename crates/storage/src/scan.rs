//! Scans of records, index entries and the caller's own keys. They own what they need.

use std::ops::Bound;
use std::sync::Arc;

use bson::RawDocument;
use fjall::Slice;
use lsm_tree::{Guard, IterGuardImpl};

use crate::StorageError;
use crate::keys::{self, CollectionId, EntryForm};
use crate::overlay::Merge;
use crate::record::{Bytes, Record};
use crate::record_id::{RecordId, RecordIdRef};
use crate::tables::{Cursor, Points};
use crate::view::View;

pub(crate) fn place(collection: CollectionId, record: &RecordId) -> String {
    format!("record {record} of collection {collection}")
}

pub(crate) fn damaged_index(index: u32) -> StorageError {
    StorageError::damaged(format!("index {index}"), "an entry without a record id")
}

/// What the engine finds in a range, from both ends.
pub(crate) type Found = Box<dyn DoubleEndedIterator<Item = IterGuardImpl> + Send>;

/// The keys of a range and their values.
pub(crate) enum Scan {
    Tables {
        cursor: Box<Cursor>,
        /// Keeps the state that it reads.
        _view: Arc<View>,
    },
    Engine {
        iterator: Found,
        _view: Arc<View>,
        reverse: bool,
        /// With what is staged.
        merge: Option<Box<Merge>>,
        current: Option<(Slice, Slice)>,
    },
}

impl Scan {
    pub(crate) fn over_tables(cursor: Cursor, view: &Arc<View>) -> Scan {
        Scan::Tables {
            cursor: Box::new(cursor),
            _view: view.clone(),
        }
    }

    pub(crate) fn over_engine(
        iterator: Found,
        view: &Arc<View>,
        reverse: bool,
        merge: Option<Box<Merge>>,
    ) -> Scan {
        Scan::Engine {
            iterator,
            _view: view.clone(),
            reverse,
            merge,
            current: None,
        }
    }

    /// Goes on to the next key. False: the range has ended.
    #[inline]
    fn advance(&mut self) -> Result<bool, StorageError> {
        match self {
            Scan::Tables { cursor, .. } => Ok(cursor.advance().map_err(fjall::Error::from)?),
            Scan::Engine {
                iterator,
                reverse,
                merge,
                current,
                ..
            } => {
                let mut stored = || {
                    let guard = match *reverse {
                        true => iterator.next_back(),
                        false => iterator.next(),
                    };
                    guard.map(|guard| guard.into_inner().map_err(fjall::Error::from))
                };
                let found = match merge {
                    None => stored(),
                    Some(merge) => merge.next(stored),
                };
                *current = found.transpose()?;
                Ok(current.is_some())
            }
        }
    }

    /// The key that it has come to, and its value.
    #[inline]
    fn entry(&self) -> (&[u8], &[u8]) {
        match self {
            Scan::Tables { cursor, .. } => (cursor.key(), cursor.value()),
            Scan::Engine { current, .. } => match current {
                Some((key, value)) => (key, value),
                None => (&[], &[]),
            },
        }
    }

    /// Its value, to be kept.
    #[inline]
    fn kept_value(&self) -> Slice {
        match self {
            Scan::Tables { cursor, .. } => cursor.kept_value(),
            Scan::Engine { current, .. } => match current {
                Some((_, value)) => value.clone(),
                None => Slice::from([]),
            },
        }
    }
}

/// Records of one collection by their ids, one after another.
pub struct RecordReader {
    pub(crate) collection: CollectionId,
    pub(crate) points: Points,
    /// Keeps the state that it reads.
    pub(crate) _view: Arc<View>,
}

impl RecordReader {
    pub fn read(&mut self, record: &RecordId) -> Result<Option<Record>, StorageError> {
        let points = &mut self.points;
        let get = |key: &[u8]| points.get(key).map_err(fjall::Error::from);
        match keys::with_record_key(self.collection, record, get)? {
            Some(bytes) => Record::new(bytes, || place(self.collection, record)).map(Some),
            None => Ok(None),
        }
    }
}

pub struct RecordScan {
    pub(crate) collection: CollectionId,
    pub(crate) scan: Option<Scan>,
}

impl RecordScan {
    /// Goes on to the next record. False: the range has ended.
    #[inline]
    pub fn advance(&mut self) -> Result<bool, StorageError> {
        match &mut self.scan {
            Some(scan) => scan.advance(),
            None => Ok(false),
        }
    }

    /// The id of the record that it has come to.
    #[inline]
    pub fn id(&self) -> Option<RecordId> {
        let (key, _) = self.scan.as_ref()?.entry();
        key.get(keys::ID_BYTES..).and_then(RecordId::from_key)
    }

    /// That record's document.
    #[inline]
    pub fn document(&self) -> Result<&RawDocument, StorageError> {
        let value = self.scan.as_ref().map_or(&[][..], |scan| scan.entry().1);
        RawDocument::from_bytes(value).map_err(|error| StorageError::damaged(self.place(), error))
    }

    /// The same, to be kept.
    pub fn record(&self) -> Result<Record, StorageError> {
        let value = self.scan.as_ref().map(Scan::kept_value);
        Record::new(value.unwrap_or_else(|| Slice::from([])), || self.place())
    }

    /// What it has come to has no id.
    pub fn without_id(&self) -> StorageError {
        let place = format!("collection {}", self.collection);
        StorageError::damaged(place, "a record without an id")
    }

    fn place(&self) -> String {
        match self.id() {
            Some(record) => place(self.collection, &record),
            None => format!("collection {}", self.collection),
        }
    }
}

impl Iterator for RecordScan {
    type Item = Result<(RecordId, Record), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        let Some(id) = self.id() else {
            return Some(Err(self.without_id()));
        };
        Some(self.record().map(|record| (id, record)))
    }
}

/// The encoded fields of one index entry, and their type bits.
#[derive(Clone)]
pub struct IndexKey {
    fields: Vec<u8>,
    types: TypeBits,
}

/// The type bits of an index entry. Those of a clustered index have none, whatever their keys are.
#[derive(Clone)]
pub struct TypeBits {
    value: Slice,
    end: usize,
}

impl TypeBits {
    pub(crate) fn new(value: Slice, end: usize) -> TypeBits {
        TypeBits { value, end }
    }

    pub(crate) fn none() -> TypeBits {
        let value = Slice::from([]);
        TypeBits { value, end: 0 }
    }
}

impl std::ops::Deref for TypeBits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.value[..self.end]
    }
}

impl IndexKey {
    pub fn types(&self) -> &[u8] {
        &self.types
    }
}

impl std::ops::Deref for IndexKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.fields
    }
}

/// What a scan of an index comes to.
pub(crate) enum Entries {
    Keys(EntryForm),
    /// The records of a clustered collection.
    Records,
}

pub struct IndexScan {
    index: u32,
    entries: Entries,
    scan: Option<Scan>,
    /// The entry that it has come to, if `is_on_entry`.
    current: (IndexKey, RecordId),
    is_on_entry: bool,
}

impl IndexScan {
    /// `None`: nothing is in the range.
    pub(crate) fn new(index: u32, entries: Entries, scan: Option<Scan>) -> IndexScan {
        let key = IndexKey {
            fields: Vec::new(),
            types: TypeBits::none(),
        };
        IndexScan {
            index,
            entries,
            scan,
            current: (key, RecordId::number(0)),
            is_on_entry: false,
        }
    }

    /// Goes on to the next entry. `None`: the range has ended.
    #[inline]
    pub fn advance(&mut self) -> Result<Option<(&IndexKey, &RecordId)>, StorageError> {
        self.is_on_entry = false;
        let Some(scan) = &mut self.scan else {
            return Ok(None);
        };
        if !scan.advance()? {
            return Ok(None);
        }
        let (entry, value) = scan.entry();
        let (key, record) = &mut self.current;
        let fields = match self.entries {
            Entries::Keys(form) => {
                let parts = form.split(entry, value);
                let parts = parts.ok_or_else(|| damaged_index(self.index))?;
                *record = parts.record;
                key.types = match parts.types_end {
                    0 => TypeBits::none(),
                    end => TypeBits::new(scan.kept_value(), end),
                };
                &entry[keys::ID_BYTES..parts.fields_end]
            }
            Entries::Records => {
                let id = entry.get(keys::ID_BYTES..).and_then(RecordId::from_key);
                *record = id.ok_or_else(|| damaged_index(self.index))?;
                let RecordIdRef::Bytes(id) = record.as_ref() else {
                    return Err(damaged_index(self.index));
                };
                &entry[entry.len() - id.len()..]
            }
        };
        key.fields.clear();
        key.fields.extend_from_slice(fields);
        self.is_on_entry = true;
        Ok(self.current())
    }

    /// Goes to another range of the same index. False: it cannot, and stays where it is.
    pub(crate) fn seek(&mut self, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> bool {
        let Some(Scan::Tables { cursor, .. }) = &mut self.scan else {
            return false;
        };
        self.is_on_entry = false;
        cursor.seek(bounds);
        true
    }

    /// Goes on by up to so many entries: how many there were. `None`: it has to be asked for one by one.
    pub fn pass(&mut self, most: u64) -> Result<Option<u64>, StorageError> {
        let Some(Scan::Tables { cursor, .. }) = &mut self.scan else {
            return Ok(None);
        };
        let before_last = most.saturating_sub(1);
        let passed = cursor.pass(before_last).map_err(fjall::Error::from)?;
        // It stands on the last one, and tells it.
        let has_last = passed == before_last && most > 0 && self.advance()?.is_some();
        Ok(Some(passed + u64::from(has_last)))
    }

    /// The entry that it has come to.
    #[inline]
    pub fn current(&self) -> Option<(&IndexKey, &RecordId)> {
        let (key, record) = &self.current;
        self.is_on_entry.then_some((key, record))
    }
}

impl Iterator for IndexScan {
    type Item = Result<(IndexKey, RecordId), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(found) => found.map(|(key, record)| Ok((key.clone(), record.clone()))),
            Err(error) => Some(Err(error)),
        }
    }
}

pub struct MetaScan {
    pub(crate) iterator: fjall::Iter,
}

impl Iterator for MetaScan {
    /// The key comes without the mark that makes it the caller's.
    type Item = Result<(Vec<u8>, Bytes), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.iterator.next()?.into_inner() {
            Ok((key, value)) => Some(Ok((key[1..].to_vec(), Bytes(value)))),
            Err(error) => Some(Err(error.into())),
        }
    }
}
