//! Writes of documents while an index is built: which keys they put and remove is decided when
//! their batch is committed, against what the index holds then (see the parent's argument).

use std::collections::BTreeMap;
use std::ops::Bound;

use banyan_document::key::Key;
use fjall::{Readable, Slice};

use super::building::Building;
use crate::StorageError;
use crate::batch::Batch;
use crate::index::Index;
use crate::keyspaces::{Keyspace, Operation};
use crate::record_id::RecordId;

/// The keys of indexes under construction, as the batch that is being put together leaves them.
/// Needs the commit lock: what is read here must not change before it is written.
pub(super) struct Pending<'a> {
    view: &'a fjall::Snapshot,
    indexes: &'a fjall::Keyspace,
    /// By the engine's keys; `None` removes.
    written: BTreeMap<Vec<u8>, Option<Slice>>,
}

impl<'a> Pending<'a> {
    pub(super) fn new(view: &'a fjall::Snapshot, indexes: &'a fjall::Keyspace) -> Pending<'a> {
        Pending {
            view,
            indexes,
            written: BTreeMap::new(),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Slice>, StorageError> {
        match self.written.get(key) {
            Some(written) => Ok(written.clone()),
            None => Ok(self.view.get(self.indexes, key)?),
        }
    }

    /// The first entry whose key has a prefix.
    fn first(&self, prefix: &[u8]) -> Result<Option<(Vec<u8>, Slice)>, StorageError> {
        let from = (Bound::Included(prefix.to_vec()), Bound::Unbounded);
        let mut first: Option<(Vec<u8>, Slice)> = None;
        for (key, value) in self.written.range::<Vec<u8>, _>(from) {
            if !key.starts_with(prefix) {
                break;
            }
            if let Some(value) = value {
                first = Some((key.clone(), value.clone()));
                break;
            }
        }
        for guard in self.view.prefix(self.indexes, prefix) {
            let (key, value) = guard.into_inner()?;
            if first
                .as_ref()
                .is_some_and(|(first, _)| first[..] <= key[..])
            {
                break;
            }
            if !self.written.contains_key(&key[..]) {
                return Ok(Some((key.to_vec(), value)));
            }
        }
        Ok(first)
    }

    /// Makes `record` a holder of `key`; what that adds to the length of all keys.
    pub(super) fn put(
        &mut self,
        index: &Index,
        building: &Building,
        key: &Key,
        record: &RecordId,
    ) -> Result<i64, StorageError> {
        let form = index.entry_form();
        let place = form.with_key(index.id, key, record, <[u8]>::to_vec);
        let holder = self.get(&place)?;
        let value = form.value(record, &key.types);
        match holder {
            None => {
                self.written.insert(place, Some(value));
                Ok(form.counted_bytes(key, record))
            }
            Some(holder) if index.unique && !holds(index, &holder, record) => {
                building.note_duplicate();
                let waiting = building.duplicate_key(index.id, key, Some(record));
                let types = Slice::from(&*key.types);
                self.written.insert(waiting, Some(types));
                Ok(0)
            }
            Some(holder) => {
                if holder != value {
                    self.written.insert(place, Some(value));
                }
                Ok(0)
            }
        }
    }

    /// Writes an entry again as it is, over tables that may have it otherwise.
    pub(super) fn repeat(&mut self, place: Vec<u8>) -> Result<(), StorageError> {
        let entry = self.get(&place)?;
        self.written.insert(place, entry);
        Ok(())
    }

    /// Takes `key` from `record`; what that adds to the length of all keys.
    fn remove(
        &mut self,
        index: &Index,
        building: &Building,
        key: &[u8],
        record: &RecordId,
    ) -> Result<i64, StorageError> {
        let form = index.entry_form();
        let place = form.with_key(index.id, key, record, <[u8]>::to_vec);
        let holder = self.get(&place)?;
        let is_holder = match &holder {
            None => false,
            Some(holder) => !index.unique || holds(index, holder, record),
        };
        if !is_holder {
            if index.unique && building.may_have_duplicates() {
                let waiting = building.duplicate_key(index.id, key, Some(record));
                self.written.insert(waiting, None);
            }
            return Ok(0);
        }
        if index.unique && building.may_have_duplicates() {
            let waiting = building.duplicate_key(index.id, key, None);
            // Keys are no prefixes of one another: what follows is a record id.
            if let Some((next, types)) = self.first(&waiting)?
                && let Some((_, successor)) = index.record_ids.split(&next)
            {
                let value = form.value(&successor, &types);
                self.written.insert(place, Some(value));
                self.written.insert(next, None);
                return Ok(0);
            }
        }
        self.written.insert(place, None);
        Ok(-form.counted_bytes(key, record))
    }

    /// Adds what was worked out to a batch.
    pub(super) fn write(self, batch: &mut Batch) {
        for (key, value) in self.written {
            batch.operations.push(Operation {
                keyspace: Keyspace::Indexes,
                key: key.into(),
                value,
            });
        }
    }
}

/// Whether the value of a unique index's entry names a record.
fn holds(index: &Index, value: &[u8], record: &RecordId) -> bool {
    let holder = index.record_ids.split(value);
    holder.is_some_and(|(_, holder)| holder == *record)
}

/// Turns a batch's writes to indexes under construction into writes of keys.
pub(crate) fn resolve(
    batch: &mut Batch,
    view: &fjall::Snapshot,
    indexes: &fjall::Keyspace,
) -> Result<(), StorageError> {
    let mut pending = Pending::new(view, indexes);
    for write in std::mem::take(&mut batch.build_writes) {
        let index = &write.index;
        let Some(building) = index.building.clone() else {
            continue;
        };
        building.touch(
            index.id,
            &write.record,
            &write.before,
            write.after.is_some(),
        );
        let after = write.after.unwrap_or_default();
        let mut grown = 0;
        let is_gone = |key: &&Key| !after.iter().any(|after| after.bytes == key.bytes);
        for key in write.before.iter().filter(is_gone) {
            grown += pending.remove(index, &building, key, &write.record)?;
        }
        for key in &after {
            grown += pending.put(index, &building, key, &write.record)?;
        }
        batch.index_tally(write.collection, index).key_bytes += grown;
    }
    pending.write(batch);
    Ok(())
}
