//! One atomic change: what a slice of the log does to records, index keys, catalog and meta.
//!
//! A batch is made without the store (the proposer of a write prepares one long before it is
//! committed) and batches can be appended to one another. Within a batch the last write of a key
//! wins. Counts are kept as differences and become one write per collection at commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::key::Key;
use bson::RawDocument;
use fjall::Slice;

use crate::StorageError;
use crate::catalog::{CatalogChange, Collection};
use crate::index::Index;
use crate::keys::{self, CollectionId};
use crate::keyspaces::{Keyspace, Operation};
use crate::record_id::RecordId;

#[derive(Default)]
pub struct Batch {
    pub(crate) operations: Vec<Operation>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) index_tallies: Vec<IndexTally>,
    pub(crate) changes: Vec<CatalogChange>,
    pub(crate) arrays: Vec<NewArrays>,
    pub(crate) build_writes: Vec<BuildWrite>,
    pub(crate) origin: Origin,
}

/// Where a batch comes from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin {
    /// How far the log has come with it.
    pub(crate) position: Option<u64>,
    /// `None`: nobody who asks for it, or several.
    pub(crate) writer: Option<WriterId>,
}

/// Somebody who writes batches and knows what is in them: what was read before them is read still,
/// unless others have written ([`crate::Store::is_current_to`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterId(pub(crate) u64);

/// What a write does to one record's keys in an index that is being built.
pub(crate) struct BuildWrite {
    pub(crate) collection: CollectionId,
    pub(crate) index: Arc<Index>,
    pub(crate) record: RecordId,
    pub(crate) before: Vec<Key>,
    /// `None`: the record's keys cannot be made.
    pub(crate) after: Option<Vec<Key>>,
}

/// Paths at which documents of an index have arrays now.
pub(crate) struct NewArrays {
    pub(crate) collection: CollectionId,
    pub(crate) index: Arc<Index>,
    pub(crate) paths: BTreeSet<Box<str>>,
}

/// How one collection's counts change.
pub(crate) struct Tally {
    pub(crate) collection: Arc<Collection>,
    pub(crate) documents: i64,
    pub(crate) bytes: i64,
    /// 0: none, or none that is a number.
    pub(crate) last_record: u64,
}

pub(crate) struct IndexTally {
    pub(crate) collection: CollectionId,
    pub(crate) index: Arc<Index>,
    pub(crate) key_bytes: i64,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.changes.is_empty()
            && self.arrays.is_empty()
            && self.build_writes.is_empty()
    }

    /// The number of single writes, without counts and catalog.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// By how many documents and bytes it changes a collection's counts.
    pub fn tallied(&self, collection: CollectionId) -> (i64, i64) {
        let of_it = |tally: &&Tally| tally.collection.id == collection;
        let tally = self.tallies.iter().find(of_it);
        tally.map_or((0, 0), |tally| (tally.documents, tally.bytes))
    }

    pub fn insert_record(
        &mut self,
        collection: &Arc<Collection>,
        record: &RecordId,
        document: &RawDocument,
    ) {
        let tally = self.tally(collection);
        tally.documents += 1;
        tally.bytes += document.as_bytes().len() as i64;
        tally.last_record = tally.last_record.max(record.as_number().unwrap_or(0));
        self.write_record(collection, record, Some(document));
    }

    pub fn replace_record(
        &mut self,
        collection: &Arc<Collection>,
        record: &RecordId,
        before: &RawDocument,
        after: &RawDocument,
    ) {
        let grown = after.as_bytes().len() as i64 - before.as_bytes().len() as i64;
        if grown != 0 {
            self.tally(collection).bytes += grown;
        }
        self.write_record(collection, record, Some(after));
    }

    pub fn delete_record(
        &mut self,
        collection: &Arc<Collection>,
        record: &RecordId,
        before: &RawDocument,
    ) {
        let tally = self.tally(collection);
        tally.documents -= 1;
        tally.bytes -= before.as_bytes().len() as i64;
        self.write_record(collection, record, None);
    }

    fn write_record(
        &mut self,
        collection: &Collection,
        record: &RecordId,
        document: Option<&RawDocument>,
    ) {
        self.operations.push(Operation {
            keyspace: Keyspace::Records,
            key: keys::with_record_key(collection.id, record, |key| Slice::from(key)),
            value: document.map(|document| Slice::from(document.as_bytes())),
        });
    }

    pub fn put_index_key(
        &mut self,
        collection: &Collection,
        index: &Arc<Index>,
        key: &Key,
        record: &RecordId,
    ) {
        let form = index.entry_form();
        self.index_tally(collection.id, index).key_bytes += form.counted_bytes(key, record);
        self.retype_index_key(index, key, record);
    }

    /// Writes other type bits to a key that is there.
    pub fn retype_index_key(&mut self, index: &Index, key: &Key, record: &RecordId) {
        let value = index.entry_form().value(record, &key.types);
        self.write_index_key(index, key, record, Some(value));
    }

    pub fn delete_index_key(
        &mut self,
        collection: &Collection,
        index: &Arc<Index>,
        key: &[u8],
        record: &RecordId,
    ) {
        let form = index.entry_form();
        self.index_tally(collection.id, index).key_bytes -= form.counted_bytes(key, record);
        self.write_index_key(index, key, record, None);
    }

    /// Changes a record's keys in an index that is being built. `after` is `None` if they cannot be
    /// made.
    pub fn write_building(
        &mut self,
        collection: CollectionId,
        index: &Arc<Index>,
        record: &RecordId,
        before: Vec<Key>,
        after: Option<Vec<Key>>,
    ) {
        self.build_writes.push(BuildWrite {
            collection,
            index: index.clone(),
            record: record.clone(),
            before,
            after,
        });
    }

    fn write_index_key(
        &mut self,
        index: &Index,
        key: &[u8],
        record: &RecordId,
        value: Option<Slice>,
    ) {
        let form = index.entry_form();
        let key = form.with_key(index.id, key, record, |key| Slice::from(key));
        self.operations.push(Operation {
            keyspace: Keyspace::Indexes,
            key,
            value,
        });
    }

    /// Says where a document of `index` has arrays, if that is news.
    pub fn note_arrays(
        &mut self,
        collection: CollectionId,
        index: &Arc<Index>,
        paths: &BTreeSet<Box<str>>,
    ) {
        if paths.is_empty() || index.arrays().contains(paths) {
            return;
        }
        let noted = self.arrays.iter_mut();
        let mut noted = noted.filter(|noted| noted.index.id == index.id);
        match noted.next() {
            Some(noted) => noted.paths.extend(paths.iter().cloned()),
            None => self.arrays.push(NewArrays {
                collection,
                index: index.clone(),
                paths: paths.clone(),
            }),
        }
    }

    /// The collection as whoever reads what is staged has to plan for it: some of its indexes may
    /// hold several keys of a record only in here.
    pub fn collection(
        &self,
        collection: &Arc<Collection>,
    ) -> Result<Arc<Collection>, StorageError> {
        let news = |index: &Arc<Index>| {
            let of_index = |noted: &&NewArrays| noted.index.id == index.id;
            let noted = self.arrays.iter().find(of_index)?;
            (!index.arrays().contains(&noted.paths)).then_some(&noted.paths)
        };
        if collection.indexes.iter().all(|index| news(index).is_none()) {
            return Ok(collection.clone());
        }
        let mut staged = Collection::clone(collection);
        for index in &mut staged.indexes {
            if let Some(paths) = news(index) {
                let with_arrays = index.succeed(&index.definition())?;
                with_arrays.add_arrays(paths);
                *index = Arc::new(with_arrays);
            }
        }
        Ok(Arc::new(staged))
    }

    /// Says how far the log has come with the batch. The caller also writes it to a key of its own, from
    /// which it goes on after a crash.
    pub fn set_position(&mut self, position: u64) {
        self.origin.position = Some(position);
    }

    pub fn set_writer(&mut self, writer: WriterId) {
        self.origin.writer = Some(writer);
    }

    /// Writes one of the caller's own keys.
    pub fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        self.write_meta(&[&[keys::CALLER], key].concat(), Some(value));
    }

    pub fn delete_meta(&mut self, key: &[u8]) {
        self.write_meta(&[&[keys::CALLER], key].concat(), None);
    }

    pub(crate) fn write_meta(&mut self, key: &[u8], value: Option<&[u8]>) {
        let value = value.map(Slice::from);
        self.operations.push(Operation {
            keyspace: Keyspace::Meta,
            key: key.into(),
            value,
        });
    }

    pub fn change_catalog(&mut self, change: CatalogChange) {
        self.changes.push(change);
    }

    /// Puts many writes into the engine's order. It then finds the place of each near that of the one
    /// before, in memory that is at hand, where keys of several indexes in turn lie far apart. Writes
    /// of one key stay in their order.
    pub(crate) fn order(&mut self) {
        const WORTH_SORTING: usize = 64;
        if self.operations.len() < WORTH_SORTING {
            return;
        }
        // Those of one keyspace often come in order, and are found to be, where those of all take turns.
        let (mut records, mut indexes, mut meta) = (Vec::new(), Vec::new(), Vec::new());
        records.reserve(self.operations.len());
        for operation in self.operations.drain(..) {
            match operation.keyspace {
                Keyspace::Records => records.push(operation),
                Keyspace::Indexes => indexes.push(operation),
                Keyspace::Meta => meta.push(operation),
            }
        }
        for part in [&mut records, &mut indexes, &mut meta] {
            part.sort_by(|a, b| a.key.cmp(&b.key));
        }
        records.append(&mut indexes);
        records.append(&mut meta);
        self.operations = records;
    }

    /// Adds everything that `other` does, after what this one does.
    pub fn append(&mut self, other: Batch) {
        if self.is_empty() && self.tallies.is_empty() {
            *self = other;
            return;
        }
        self.origin = Origin {
            position: other.origin.position.or(self.origin.position),
            writer: self
                .origin
                .writer
                .filter(|_| self.origin.writer == other.origin.writer),
        };
        self.operations.extend(other.operations);
        self.changes.extend(other.changes);
        self.build_writes.extend(other.build_writes);
        for tally in other.tallies {
            let sum = self.tally(&tally.collection);
            sum.documents += tally.documents;
            sum.bytes += tally.bytes;
            sum.last_record = sum.last_record.max(tally.last_record);
        }
        for tally in other.index_tallies {
            self.index_tally(tally.collection, &tally.index).key_bytes += tally.key_bytes;
        }
        for noted in other.arrays {
            self.note_arrays(noted.collection, &noted.index, &noted.paths);
        }
    }

    fn tally(&mut self, collection: &Arc<Collection>) -> &mut Tally {
        let known = self
            .tallies
            .iter()
            .position(|tally| tally.collection.id == collection.id);
        let position = known.unwrap_or_else(|| {
            let collection = collection.clone();
            self.tallies.push(Tally {
                collection,
                documents: 0,
                bytes: 0,
                last_record: 0,
            });
            self.tallies.len() - 1
        });
        &mut self.tallies[position]
    }

    pub(crate) fn index_tally(
        &mut self,
        collection: CollectionId,
        index: &Arc<Index>,
    ) -> &mut IndexTally {
        let known = self
            .index_tallies
            .iter()
            .position(|tally| tally.index.id == index.id);
        let position = known.unwrap_or_else(|| {
            self.index_tallies.push(IndexTally {
                collection,
                index: index.clone(),
                key_bytes: 0,
            });
            self.index_tallies.len() - 1
        });
        &mut self.index_tallies[position]
    }
}
