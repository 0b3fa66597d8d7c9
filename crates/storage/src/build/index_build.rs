//! A build and its indexes, as the catalog names them.

use std::sync::Arc;

use bson::RawDocumentBuf;

use super::building::Building;
use crate::StorageError;
use crate::index::{Index, IndexDefinition};
use crate::keys::IndexId;
use crate::kind::ArrayPaths;
use crate::record_id::RecordIdFormat;

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
}
