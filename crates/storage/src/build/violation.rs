//! What stands against committing a build.

use std::sync::Arc;

use super::index_build::IndexBuild;
use crate::StorageError;
use crate::index::Index;
use crate::keys::EntryForm;
use crate::record_id::RecordId;
use crate::snapshot::Snapshot;

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
