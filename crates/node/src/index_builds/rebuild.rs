//! What a build has to do that makes a collection's indexes anew.

use std::sync::Arc;

use banyan_storage::{CatalogChange, Collection, Index, IndexBuild};
use bson::cstr;
use bson::raw::CStr;

/// Among the options of such a build.
pub(super) const REBUILDS: &CStr = cstr!("rebuilds");

/// Whether the build's indexes are to take the place of those that there are.
pub(super) fn rebuilds(build: &IndexBuild) -> bool {
    build.options.get_bool(REBUILDS).unwrap_or(false)
}

/// What takes out the indexes that a build makes anew.
pub(super) fn replaced(collection: &Collection, build: &IndexBuild) -> Vec<CatalogChange> {
    let is_built = |index: &&Arc<Index>| {
        let mut built = build.indexes.iter();
        built.any(|built| built.name == index.name)
    };
    let indexes = collection.indexes.iter().filter(is_built);
    indexes.map(|index| removal(collection, index)).collect()
}

pub(super) fn removal(collection: &Collection, index: &Index) -> CatalogChange {
    CatalogChange::DropIndex {
        collection: collection.id,
        index: index.id,
    }
}
