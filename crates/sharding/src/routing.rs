//! All chunks of one collection, in key order: who owns what.
//!
//! A table is immutable. It is built from one document of config.collections and the
//! collection's documents of config.chunks, and a newer one is made from it and the chunks
//! that changed since. Either way the chunks must cover the key space without gap or overlap,
//! so a half-seen change on the config servers is an error here and never a wrong answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use banyan_document::Collator;
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, Timestamp};

use crate::bounds::KeyRanges;
use crate::chunk::{Chunk, ChunkError, ChunkRange};
use crate::shard_key::{ShardKey, ShardKeyError, ShardKeyPattern};
use crate::version::ChunkVersion;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutingError {
    #[error("collection entry has no valid field '{0}'")]
    CollectionField(&'static str),
    #[error("collection entry has a bad shard key: {0}")]
    ShardKey(#[from] ShardKeyError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error("collection {0} has no chunks")]
    NoChunks(String),
    #[error("chunks of {ns} leave a gap or overlap at {at}")]
    Broken { ns: String, at: String },
    #[error("collection {0} was dropped and sharded again")]
    Replaced(String),
}

/// What is known of a sharded collection besides its chunks.
#[derive(Debug, Clone)]
pub struct CollectionEntry {
    pub ns: String,
    pub uuid: [u8; 16],
    pub epoch: ObjectId,
    pub timestamp: Timestamp,
    pub pattern: ShardKeyPattern,
    pub unique: bool,
    /// Balancing is allowed (`noBalance` is not set).
    pub balanced: bool,
    /// A collection may have its own chunk size.
    pub chunk_bytes_max: Option<u64>,
    /// How operations that name no collation compare strings; `None`: by their bytes.
    pub default_collator: Option<Collator>,
    /// When the last change of its indexes was over.
    pub indexes_changed: Option<Timestamp>,
}

impl CollectionEntry {
    pub fn parse(document: &RawDocument) -> Result<Self, RoutingError> {
        let wrong = RoutingError::CollectionField;
        let ns = document
            .get_str("_id")
            .map_err(|_| wrong("_id"))?
            .to_owned();
        let pattern = document.get_document("key").map_err(|_| wrong("key"))?;
        let uuid = document.get_binary("uuid").map_err(|_| wrong("uuid"))?;
        let flag = |name: &str| matches!(document.get(name), Ok(Some(RawBsonRef::Boolean(true))));
        let chunk_bytes_max = match document.get("maxChunkSizeBytes") {
            Ok(Some(RawBsonRef::Int64(n))) => u64::try_from(n).ok(),
            Ok(Some(RawBsonRef::Int32(n))) => u64::try_from(n).ok(),
            _ => None,
        };
        let default_collator = match document.get_document("defaultCollation") {
            Ok(collation) => Collator::parse(collation).map_err(|_| wrong("defaultCollation"))?,
            Err(_) => None,
        };
        Ok(CollectionEntry {
            ns,
            uuid: uuid.bytes.try_into().map_err(|_| wrong("uuid"))?,
            epoch: document
                .get_object_id("lastmodEpoch")
                .map_err(|_| wrong("lastmodEpoch"))?,
            timestamp: document
                .get_timestamp("timestamp")
                .map_err(|_| wrong("timestamp"))?,
            pattern: ShardKeyPattern::parse(pattern)?,
            unique: flag("unique"),
            balanced: !flag("noBalance"),
            chunk_bytes_max: chunk_bytes_max.filter(|bytes| *bytes > 0),
            default_collator,
            indexes_changed: document.get_timestamp("indexesChanged").ok(),
        })
    }
}

#[derive(Debug, Clone)]
pub struct RoutingTable {
    entry: Arc<CollectionEntry>,
    /// Sorted by key; the first starts at MinKey, each ends where the next starts, the last
    /// ends at MaxKey. Never empty.
    chunks: Vec<Arc<Chunk>>,
    version: ChunkVersion,
    shard_versions: BTreeMap<Arc<str>, Timestamp>,
}

impl RoutingTable {
    /// Builds the table from a document of config.collections and all its chunks, in any order.
    pub fn build<'a>(
        collection: &RawDocument,
        chunks: impl IntoIterator<Item = &'a RawDocument>,
    ) -> Result<Self, RoutingError> {
        let entry = Arc::new(CollectionEntry::parse(collection)?);
        let chunks = parse_chunks(&entry, chunks)?;
        Self::assemble(entry, chunks)
    }

    /// The table of a collection whose chunks are already parsed. Where chunks overlap, as they
    /// do when they were read page by page while they changed, the newest ones count.
    pub fn assemble(
        entry: Arc<CollectionEntry>,
        chunks: Vec<Arc<Chunk>>,
    ) -> Result<Self, RoutingError> {
        let chunks = replace(BTreeMap::new(), chunks);
        check_cover(&entry, &chunks)?;
        let mut shard_versions: BTreeMap<Arc<str>, Timestamp> = BTreeMap::new();
        let mut newest = Timestamp {
            time: 0,
            increment: 0,
        };
        for chunk in &chunks {
            newest = newest.max(chunk.lastmod);
            let version = shard_versions
                .entry(chunk.shard.clone())
                .or_insert(chunk.lastmod);
            *version = (*version).max(chunk.lastmod);
        }
        let version = ChunkVersion {
            epoch: entry.epoch,
            timestamp: entry.timestamp,
            major: newest.time,
            minor: newest.increment,
        };
        Ok(RoutingTable {
            entry,
            chunks,
            version,
            shard_versions,
        })
    }

    /// A newer table: this one with `changed` (the chunks whose `lastmod` is at least this
    /// table's version) put in place of whatever they overlap.
    pub fn refreshed<'a>(
        &self,
        collection: &RawDocument,
        changed: impl IntoIterator<Item = &'a RawDocument>,
    ) -> Result<Self, RoutingError> {
        let entry = CollectionEntry::parse(collection)?;
        if entry.epoch != self.entry.epoch || entry.timestamp != self.entry.timestamp {
            return Err(RoutingError::Replaced(entry.ns));
        }
        let entry = Arc::new(entry);
        let changed = parse_chunks(&entry, changed)?;
        self.with_entry(entry, changed)
    }

    /// This table with some chunks replaced.
    pub fn with_chunks(&self, changed: Vec<Arc<Chunk>>) -> Result<Self, RoutingError> {
        self.with_entry(self.entry.clone(), changed)
    }

    fn with_entry(
        &self,
        entry: Arc<CollectionEntry>,
        changed: Vec<Arc<Chunk>>,
    ) -> Result<Self, RoutingError> {
        let present = self
            .chunks
            .iter()
            .map(|chunk| (chunk.range.min.clone(), chunk.clone()))
            .collect();
        Self::assemble(entry, replace(present, changed))
    }

    pub fn entry(&self) -> &CollectionEntry {
        &self.entry
    }

    pub fn ns(&self) -> &str {
        &self.entry.ns
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.entry.uuid
    }

    pub fn pattern(&self) -> &ShardKeyPattern {
        &self.entry.pattern
    }

    /// How operations that name no collation compare strings; `None`: by their bytes.
    pub fn default_collator(&self) -> Option<&Collator> {
        self.entry.default_collator.as_ref()
    }

    pub fn is_unique(&self) -> bool {
        self.entry.unique
    }

    /// The newest version of any chunk.
    pub fn version(&self) -> ChunkVersion {
        self.version
    }

    /// The version to attach to a request for `shard`: that of its newest chunk, or 0|0 where
    /// it has none.
    pub fn shard_version(&self, shard: &str) -> ChunkVersion {
        let lastmod = self.shard_versions.get(shard).copied();
        self.version.with_lastmod(lastmod.unwrap_or(Timestamp {
            time: 0,
            increment: 0,
        }))
    }

    pub fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    pub fn chunks_of<'a>(&'a self, shard: &'a str) -> impl Iterator<Item = &'a Arc<Chunk>> + 'a {
        self.chunks
            .iter()
            .filter(move |chunk| &*chunk.shard == shard)
    }

    /// Shards that own at least one chunk, in order of name.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shard_versions.keys()
    }

    pub fn owns_any(&self, shard: &str) -> bool {
        self.shard_versions.contains_key(shard)
    }

    /// The place among [`RoutingTable::chunks`] of the chunk that holds a key.
    pub fn position_encoded(&self, key: &[u8]) -> usize {
        let above = self
            .chunks
            .partition_point(|chunk| chunk.range.min.encoded() <= key);
        // The first chunk starts at MinKey, the least key there is, so `above` is at least 1
        // for every key of a document; an impossible key falls to the first chunk.
        above.saturating_sub(1)
    }

    /// The chunk that holds a key, given as encoded bytes.
    pub fn find_encoded(&self, key: &[u8]) -> &Arc<Chunk> {
        // In range: there is at least one chunk, and a position is less than their number.
        &self.chunks[self.position_encoded(key)]
    }

    pub fn find(&self, key: &ShardKey) -> &Arc<Chunk> {
        self.find_encoded(key.encoded())
    }

    /// The chunk that holds a document.
    pub fn find_document(&self, document: &RawDocument) -> Result<&Arc<Chunk>, ShardKeyError> {
        let mut key = Vec::with_capacity(32);
        self.pattern().encode(document, &mut key)?;
        Ok(self.find_encoded(&key))
    }

    /// The chunk with exactly this range.
    pub fn exact(&self, range: &ChunkRange) -> Option<&Arc<Chunk>> {
        Some(self.find(&range.min)).filter(|chunk| chunk.range == *range)
    }

    /// The chunks that have keys in a range.
    pub fn overlapping<'a>(
        &'a self,
        range: &'a ChunkRange,
    ) -> impl Iterator<Item = &'a Arc<Chunk>> + 'a {
        let first = self
            .chunks
            .partition_point(|chunk| chunk.range.max <= range.min);
        self.chunks
            .iter()
            .skip(first)
            .take_while(move |chunk| chunk.range.min < range.max)
    }

    /// The shards that own keys in any of the ranges, in order of name.
    pub fn shards_of_ranges(&self, ranges: &KeyRanges) -> Vec<Arc<str>> {
        if ranges.is_everything() {
            return self.shards().cloned().collect();
        }
        let mut found: BTreeSet<&Arc<str>> = BTreeSet::new();
        for range in &ranges.0 {
            let start = range.start.as_slice();
            let first = self
                .chunks
                .partition_point(|chunk| chunk.range.max.encoded() <= start);
            // MaxKey itself lies on the last chunk's end and belongs to it.
            let first = first.min(self.chunks.len() - 1);
            for chunk in self.chunks.iter().skip(first) {
                if range
                    .end
                    .as_deref()
                    .is_some_and(|end| chunk.range.min.encoded() >= end)
                {
                    break;
                }
                found.insert(&chunk.shard);
            }
            if found.len() == self.shard_versions.len() {
                break;
            }
        }
        found.into_iter().cloned().collect()
    }

    /// The shards that documents with these keys can live on. At least one, so that there is
    /// someone to say that nothing matches.
    pub fn shards_to_ask(&self, ranges: &KeyRanges) -> Vec<Arc<str>> {
        let mut shards = self.shards_of_ranges(ranges);
        if shards.is_empty() {
            shards.extend(self.shards().next().cloned());
        }
        shards
    }
}

fn parse_chunks<'a>(
    entry: &CollectionEntry,
    documents: impl IntoIterator<Item = &'a RawDocument>,
) -> Result<Vec<Arc<Chunk>>, ChunkError> {
    let parse = |document| Chunk::parse(&entry.pattern, document).map(Arc::new);
    documents.into_iter().map(parse).collect()
}

/// Puts `changed` in place of whatever they overlap, oldest first, so that the newest stay.
fn replace(
    mut by_min: BTreeMap<ShardKey, Arc<Chunk>>,
    mut changed: Vec<Arc<Chunk>>,
) -> Vec<Arc<Chunk>> {
    changed.sort_by_key(|chunk| chunk.lastmod);
    for chunk in changed {
        let before = by_min.range(..&chunk.range.min).next_back();
        let first = match before {
            Some((min, last)) if last.range.overlaps(&chunk.range) => min.clone(),
            _ => chunk.range.min.clone(),
        };
        let replaced: Vec<ShardKey> = by_min
            .range(&first..&chunk.range.max)
            .map(|(min, _)| min.clone())
            .collect();
        for min in replaced {
            by_min.remove(&min);
        }
        by_min.insert(chunk.range.min.clone(), chunk);
    }
    by_min.into_values().collect()
}

fn check_cover(entry: &CollectionEntry, chunks: &[Arc<Chunk>]) -> Result<(), RoutingError> {
    let broken = |at: &ShardKey| RoutingError::Broken {
        ns: entry.ns.clone(),
        at: at.to_string(),
    };
    let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else {
        return Err(RoutingError::NoChunks(entry.ns.clone()));
    };
    if !first.range.min.is_global_min() {
        return Err(broken(&first.range.min));
    }
    if !last.range.max.is_global_max() {
        return Err(broken(&last.range.max));
    }
    let pairs = chunks.iter().zip(chunks.iter().skip(1));
    for (left, right) in pairs {
        if left.range.max != right.range.min {
            return Err(broken(&right.range.min));
        }
    }
    Ok(())
}
