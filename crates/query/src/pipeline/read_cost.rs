//! What it has cost a stage to read another collection, as `explain` tells it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_document::DocumentWriter;
use bson::RawBsonRef;
use parking_lot::Mutex;

/// Several threads may read for one stage.
#[derive(Debug, Default)]
pub struct ReadCost {
    keys: AtomicU64,
    documents: AtomicU64,
    scans: AtomicU64,
    indexes: Mutex<BTreeSet<String>>,
}

impl ReadCost {
    pub fn add(&self, keys: u64, documents: u64) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.documents.fetch_add(documents, Ordering::Relaxed);
    }

    /// A collection was scanned.
    pub fn note_scan(&self) {
        self.scans.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_index(&self, name: &str) {
        let mut indexes = self.indexes.lock();
        if !indexes.contains(name) {
            indexes.insert(name.to_owned());
        }
    }

    pub(super) fn explain(&self, out: &mut DocumentWriter) {
        let count = |counter: &AtomicU64| {
            let count = counter.load(Ordering::Relaxed);
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        out.append_i64("totalDocsExamined", count(&self.documents));
        out.append_i64("totalKeysExamined", count(&self.keys));
        out.append_i64("collectionScans", count(&self.scans));
        out.begin_array("indexesUsed");
        for name in self.indexes.lock().iter() {
            out.push(RawBsonRef::String(name));
        }
        out.end();
    }
}
