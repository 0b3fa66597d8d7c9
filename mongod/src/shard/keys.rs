//! Walking a collection in the order of its shard key, over the index that supports it.
//!
//! All of this reads storage and may take a while: it runs on a thread that may block.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use banyan_execution::by_id;
use banyan_node::node::Node;
use banyan_sharding::{ChunkRange, ShardKey, ShardKeyPattern, split};
use banyan_storage::{
    Collection, Index, IndexScan, KeyRange, Namespace, Record, RecordId, Snapshot,
};
use banyan_wire::{CommandError, ErrorCode};

use super::errors::internal;

/// Keys looked at to find the places where a chunk is cut.
const SAMPLE_KEYS: usize = 2_000;

/// A collection seen through the index of its shard key, at one moment.
pub struct KeyView {
    pub collection: Arc<Collection>,
    pub index: Arc<Index>,
    pub snapshot: Snapshot,
    pub pattern: ShardKeyPattern,
}

/// The index that keeps every document of a collection in the order of the shard key.
pub fn supporting_index<'a>(
    collection: &'a Collection,
    pattern: &ShardKeyPattern,
) -> Option<&'a Arc<Index>> {
    let mut indexes = collection.all_indexes();
    indexes.find(|index| serves(index, pattern))
}

/// Whether the index has one entry for each document, in the order of the shard key.
pub fn serves(index: &Index, pattern: &ShardKeyPattern) -> bool {
    leads_with(index, pattern) && !index.is_multikey()
}

/// Whether it would if no document had an array in its fields.
pub fn leads_with(index: &Index, pattern: &ShardKeyPattern) -> bool {
    let key = index.spec.get_document("key");
    key.is_ok_and(|key| pattern.is_prefix_of(key))
        && !index.sparse
        && index.partial_filter.is_none()
        // Shard keys are in the simple order.
        && index.pattern.collator.is_none()
}

impl KeyView {
    /// `None` if there is no such collection here.
    pub fn open(
        node: &Node,
        ns: &str,
        pattern: &ShardKeyPattern,
    ) -> Result<Option<KeyView>, CommandError> {
        let (catalog, snapshot) = node.replica.view();
        let namespace =
            Namespace::parse(ns).ok_or_else(|| internal("a namespace without a dot"))?;
        let Some(collection) = catalog.find(&namespace).cloned() else {
            return Ok(None);
        };
        let Some(index) = supporting_index(&collection, pattern).cloned() else {
            let message = format!("{ns} has no index that supports the shard key {pattern}");
            return Err(CommandError::new(ErrorCode::IndexNotFound, message));
        };
        Ok(Some(KeyView {
            collection,
            index,
            snapshot,
            pattern: pattern.clone(),
        }))
    }

    pub fn scan(&self, range: &ChunkRange) -> IndexScan {
        self.snapshot.scan_index(&self.index, bounds(range), false)
    }

    /// Index entries from `after` (an entry's key and record) on.
    pub fn scan_after(
        &self,
        range: &ChunkRange,
        after: Option<(&[u8], &RecordId)>,
    ) -> impl Iterator<Item = Result<(Vec<u8>, RecordId), CommandError>> {
        let mut bounds = bounds(range);
        if let Some((key, _)) = after {
            bounds.lower = Bound::Included(key.to_vec());
        }
        let after = after.map(|(key, record)| (key.to_vec(), record.clone()));
        let entries = self.snapshot.scan_index(&self.index, bounds, false);
        entries
            .map(|entry| {
                entry
                    .map(|(key, record)| (key.to_vec(), record))
                    .map_err(internal)
            })
            .skip_while(move |entry| match (entry, &after) {
                (Ok(entry), Some(after)) => entry <= after,
                _ => false,
            })
    }

    pub fn record(&self, record: &RecordId) -> Result<Option<Record>, CommandError> {
        self.snapshot
            .record(self.collection.id, record)
            .map_err(internal)
    }

    /// How many documents a range holds.
    pub fn count(&self, range: &ChunkRange) -> Result<u64, CommandError> {
        let mut count = 0;
        for entry in self.scan(range) {
            entry.map_err(internal)?;
            count += 1;
        }
        Ok(count)
    }

    /// About how many bytes `count` documents of the collection take.
    pub fn bytes_of(&self, count: u64) -> u64 {
        let documents = self.collection.documents().max(1);
        let bytes = u128::from(self.collection.bytes()) * u128::from(count);
        u64::try_from(bytes / u128::from(documents)).unwrap_or(u64::MAX)
    }

    /// Keys that cut a range of `count` documents into `parts` of equal numbers.
    pub fn split_points(
        &self,
        range: &ChunkRange,
        count: u64,
        parts: usize,
    ) -> Result<Vec<ShardKey>, CommandError> {
        let step = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .div_ceil(SAMPLE_KEYS)
            .max(1);
        let mut keys = Vec::new();
        for entry in self.scan(range).step_by(step) {
            let (_, record) = entry.map_err(internal)?;
            if let Some(document) = self.record(&record)?
                && let Ok(key) = self.pattern.key_of(&document)
            {
                keys.push(key);
            }
        }
        Ok(split::split_points(range, &keys, parts))
    }
}

fn bounds(range: &ChunkRange) -> KeyRange {
    let upper = if range.max.is_global_max() {
        Bound::Unbounded
    } else {
        Bound::Excluded(range.max.encoded().to_vec())
    };
    KeyRange {
        lower: Bound::Included(range.min.encoded().to_vec()),
        upper,
    }
}

/// The documents with these `_id`s that are in the collection now and lie in the range.
pub fn documents_in_range(
    node: &Node,
    ns: &str,
    pattern: &ShardKeyPattern,
    range: &ChunkRange,
    ids: &[bson::RawBson],
) -> Result<HashMap<usize, Record>, CommandError> {
    let mut found = HashMap::new();
    let (catalog, snapshot) = node.replica.view();
    let namespace = Namespace::parse(ns).ok_or_else(|| internal("a namespace without a dot"))?;
    let Some(collection) = catalog.find(&namespace) else {
        return Ok(found);
    };
    let Some(index) = collection.id_index() else {
        return Ok(found);
    };
    for (position, id) in ids.iter().enumerate() {
        let key = by_id::key(index, id.as_raw_bson_ref());
        let Some(record) = snapshot.unique_lookup(index, &key).map_err(internal)? else {
            continue;
        };
        let Some(document) = snapshot.record(collection.id, &record).map_err(internal)? else {
            continue;
        };
        let mut key = Vec::new();
        if pattern.encode(&document, &mut key).is_ok() && range.contains(&key) {
            found.insert(position, document);
        }
    }
    Ok(found)
}
