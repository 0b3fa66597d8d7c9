//! Making a batch visible, with the changes of the catalog and of counts that it brings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use banyan_crash::{Point, pass};

use crate::StorageError;
use crate::batch::Batch;
use crate::build::writes;
use crate::catalog::{Catalog, CatalogChange, persist};
use crate::cleanup::Cleaner;
use crate::cleanup::dropped::Dropped;
use crate::engine::Engine;
use crate::keys;
use crate::keyspaces::Keyspace;

impl Engine {
    pub(crate) fn commit(&self, mut batch: Batch, cleaner: &Cleaner) -> Result<(), StorageError> {
        batch.order();
        if batch.changes.is_empty()
            && batch.tallies.is_empty()
            && batch.index_tallies.is_empty()
            && batch.arrays.is_empty()
            && batch.build_writes.is_empty()
        {
            return self.write_at(batch.operations, batch.origin);
        }
        let _one_at_a_time = self.commit.lock();
        self.commit_locked(batch, cleaner)
    }

    pub(crate) fn commit_locked(
        &self,
        mut batch: Batch,
        cleaner: &Cleaner,
    ) -> Result<(), StorageError> {
        if !batch.build_writes.is_empty() {
            let view = self.snapshot();
            writes::resolve(&mut batch, &view, &self.keyspaces().indexes)?;
        }
        let finishes_build = batch.changes.iter().any(CatalogChange::finishes_build);
        let mut dropped = Vec::new();
        let changed = if batch.changes.is_empty() {
            None
        } else {
            let mut catalog = Catalog::clone(&self.catalog.read());
            self.change_catalog(&mut catalog, &mut batch, &mut dropped)?;
            Some(Arc::new(catalog))
        };
        let catalog = match &changed {
            Some(catalog) => catalog.clone(),
            None => self.catalog.read().clone(),
        };
        write_arrays(&catalog, &mut batch);
        write_counts(&catalog, &mut batch);
        if changed.is_some() {
            pass(Point::CatalogChanging);
        }
        self.write_at(std::mem::take(&mut batch.operations), batch.origin)?;
        if finishes_build {
            // Whoever opens the store after a crash would load the build's indexes once more.
            self.requests.checkpoint();
        }
        if let Some(changed) = changed {
            pass(Point::CatalogChanged);
            *self.catalog.write() = changed;
        }
        if !dropped.is_empty() {
            cleaner.remove(dropped);
        }
        Ok(())
    }

    /// Applies the batch's changes to `catalog` and adds what they write.
    fn change_catalog(
        &self,
        catalog: &mut Catalog,
        batch: &mut Batch,
        dropped: &mut Vec<Dropped>,
    ) -> Result<(), StorageError> {
        let mut highest_id = 0;
        for change in std::mem::take(&mut batch.changes) {
            highest_id = highest_id.max(change.highest_id());
            if let CatalogChange::StartIndexBuild { build, .. } = &change {
                // Tables may be ahead of meta after a crash, and hold keys of this build already.
                for index in &build.indexes {
                    self.remove_all(Keyspace::Indexes, index.id)?;
                }
                self.remove_all(Keyspace::Indexes, build.duplicates)?;
            }
            let id = change.collection();
            let before = catalog.by_id(id).cloned();
            let after = change.apply(before.as_deref())?;
            let gone = match (&change, &before) {
                (CatalogChange::DropCollection { .. }, Some(before)) => Dropped::collection(before),
                (CatalogChange::DropIndex { index, .. }, Some(before)) => {
                    Dropped::index_of(before, *index)
                }
                (CatalogChange::AbortIndexBuild { build, .. }, Some(before)) => {
                    before.build(build).map(Dropped::build).unwrap_or_default()
                }
                _ => Vec::new(),
            };
            for dropped in &gone {
                batch.write_meta(&dropped.meta_key(), Some(&[]));
            }
            dropped.extend(gone);
            let key = keys::meta_key(keys::COLLECTION, id);
            match after {
                Some(after) => {
                    batch.write_meta(&key, Some(persist::encode(&after).as_bytes()));
                    catalog.insert(Arc::new(after));
                }
                None => {
                    batch.write_meta(&key, None);
                    batch.write_meta(&keys::meta_key(keys::COUNTS, id), None);
                    catalog.remove(id);
                }
            }
        }
        let next = self
            .next_id
            .fetch_max(highest_id + 1, Ordering::Relaxed)
            .max(highest_id + 1);
        batch.write_meta(keys::NEXT_ID, Some(&next.to_be_bytes()));
        Ok(())
    }
}

fn write_arrays(catalog: &Catalog, batch: &mut Batch) {
    for noted in std::mem::take(&mut batch.arrays) {
        noted.index.add_arrays(&noted.paths);
        let Some(collection) = catalog.by_id(noted.collection) else {
            continue;
        };
        if let Some(current) = collection.written_by_id(noted.index.id) {
            current.add_arrays(&noted.paths);
        }
        let entry = persist::encode(collection);
        batch.write_meta(
            &keys::meta_key(keys::COLLECTION, noted.collection),
            Some(entry.as_bytes()),
        );
    }
}

/// Adds the differences up and writes the sums. Only called with the commit lock held.
fn write_counts(catalog: &Catalog, batch: &mut Batch) {
    let mut touched = Vec::with_capacity(1);
    for tally in std::mem::take(&mut batch.tallies) {
        let Some(collection) = catalog.by_id(tally.collection.id) else {
            continue;
        };
        let counters = &collection.counters;
        counters
            .documents
            .fetch_add(tally.documents, Ordering::Relaxed);
        counters.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
        if tally.last_record != 0 {
            counters
                .next_record
                .fetch_max(tally.last_record + 1, Ordering::Relaxed);
        }
        touched.push(collection.id);
    }
    for tally in std::mem::take(&mut batch.index_tallies) {
        let collection = catalog.by_id(tally.collection);
        let Some(index) = collection.and_then(|known| known.written_by_id(tally.index.id)) else {
            continue;
        };
        index
            .key_bytes
            .fetch_add(tally.key_bytes, Ordering::Relaxed);
        if tally.key_bytes != 0 && !touched.contains(&tally.collection) {
            touched.push(tally.collection);
        }
    }
    for id in touched {
        let Some(collection) = catalog.by_id(id) else {
            continue;
        };
        let counts = persist::encode_counts(collection);
        batch.write_meta(&keys::meta_key(keys::COUNTS, id), Some(&counts));
    }
}
