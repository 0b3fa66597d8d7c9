//! Which indexes the planner may use for some queries: by an index filter, or as a query's settings
//! say. A hint on a query of which that is said is ignored.
//!
//! Index filters are kept in memory with the collection and end with it. Settings come with each
//! request ([`crate::Request::settings`]), and outweigh a filter.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_document::compare::compare_documents;
use banyan_query::canonical::natural_direction;
use banyan_query::{CanonicalQuery, PlanCacheShape};
use banyan_storage::Index;
use bson::{RawDocument, RawDocumentBuf};
use parking_lot::Mutex;

/// The indexes that queries of one shape may use.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexFilter {
    /// The query that it was set with.
    pub query: RawDocumentBuf,
    pub sort: RawDocumentBuf,
    pub projection: RawDocumentBuf,
    /// If it named one.
    pub collation: Option<RawDocumentBuf>,
    pub indexes: AllowedIndexes,
}

/// The only indexes that may be used.
#[derive(Debug, Clone, PartialEq)]
pub struct AllowedIndexes(pub Vec<AllowedIndex>);

#[derive(Debug, Clone, PartialEq)]
pub enum AllowedIndex {
    Name(String),
    /// Every index with the pattern.
    KeyPattern(RawDocumentBuf),
}

impl AllowedIndexes {
    pub fn allows(&self, index: &Index) -> bool {
        self.0.iter().any(|allowed| match allowed {
            AllowedIndex::Name(name) => *name == index.name,
            AllowedIndex::KeyPattern(pattern) => has_pattern(index, pattern),
        })
    }

    /// Whether the whole collection may be read: `{$natural: 1}`.
    pub fn allows_scan(&self) -> bool {
        self.0.iter().any(|allowed| match allowed {
            AllowedIndex::Name(name) => name == "$natural",
            AllowedIndex::KeyPattern(pattern) => natural_direction(pattern).is_some(),
        })
    }
}

pub(crate) fn has_pattern(index: &Index, pattern: &RawDocument) -> bool {
    let key = index.spec.get_document("key");
    key.is_ok_and(|key| compare_documents(key, pattern).is_eq())
}

/// The index filters of a collection.
#[derive(Debug, Default)]
pub struct IndexFilters {
    by_shape: Mutex<HashMap<PlanCacheShape, Arc<IndexFilter>>>,
    /// Kept beside, so that a query pays nothing where there is none.
    count: AtomicUsize,
}

impl IndexFilters {
    /// The filter for a query, if there is one.
    pub fn of(&self, query: &CanonicalQuery) -> Option<Arc<IndexFilter>> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.by_shape.lock().get(&query.shape()).cloned(),
        }
    }

    pub fn set(&self, shape: PlanCacheShape, filter: IndexFilter) {
        let mut filters = self.by_shape.lock();
        filters.insert(shape, Arc::new(filter));
        self.count.store(filters.len(), Ordering::Release);
    }

    pub fn remove(&self, shape: &PlanCacheShape) {
        let mut filters = self.by_shape.lock();
        filters.remove(shape);
        self.count.store(filters.len(), Ordering::Release);
    }

    pub fn clear(&self) {
        let mut filters = self.by_shape.lock();
        filters.clear();
        self.count.store(0, Ordering::Release);
    }

    /// All of them, in the order of their shapes' hashes.
    pub fn all(&self) -> Vec<Arc<IndexFilter>> {
        let filters = self.by_shape.lock();
        let mut all: Vec<_> = filters.iter().collect();
        all.sort_by_key(|(shape, _)| shape.hash());
        all.into_iter().map(|(_, filter)| filter.clone()).collect()
    }
}
