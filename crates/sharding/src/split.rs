//! When and where a chunk is cut.

use bson::{RawBsonRef, RawDocument};

use crate::chunk::ChunkRange;
use crate::shard_key::{ShardKey, ShardKeyPattern};

/// The chunk size of a cluster that sets none, as in MongoDB 7.
pub const CHUNK_BYTES_MAX_DEFAULT: u64 = 128 * 1024 * 1024;

/// The least size at which the only chunk of a collection is cut.
const CHUNK_BYTES_FIRST: u64 = 256 * 1024;

/// What the limit grows by with each chunk. A collection of `n` bytes then has about
/// `sqrt(n / 48 KiB)` chunks: some twenty for a first 24 MB, a hundred for half a gigabyte.
const CHUNK_BYTES_STEP: u64 = 64 * 1024;

/// The size of a large chunk, as the document `chunksize` of `config.settings` has it in megabytes;
/// the default if there is none, or none that makes sense.
pub fn chunk_bytes_max(setting: Option<&RawDocument>) -> u64 {
    let megabytes = setting.and_then(|setting| match setting.get("value") {
        Ok(Some(RawBsonRef::Int32(n))) => u64::try_from(n).ok(),
        Ok(Some(RawBsonRef::Int64(n))) => u64::try_from(n).ok(),
        Ok(Some(RawBsonRef::Double(n))) => Some(n as u64),
        _ => None,
    });
    megabytes
        .filter(|mb| (1..=1024).contains(mb))
        .map_or(CHUNK_BYTES_MAX_DEFAULT, |mb| mb * 1024 * 1024)
}

/// The size over which a chunk is cut, given how many chunks its collection has and how large
/// chunks of a large collection are. Small while there are few, so that a young collection
/// spreads over the shards before it is large.
pub fn chunk_bytes_limit(chunks: usize, chunk_bytes_max: u64) -> u64 {
    let grown = CHUNK_BYTES_STEP.saturating_mul(chunks as u64);
    grown.max(CHUNK_BYTES_FIRST).min(chunk_bytes_max)
}

/// Into how many chunks data that is already there is cut when its collection gets sharded.
pub fn initial_parts(bytes: u64, chunk_bytes_max: u64) -> usize {
    let mut parts = 1;
    while bytes / parts as u64 > chunk_bytes_limit(parts, chunk_bytes_max) {
        parts += 1 + parts / 64;
    }
    parts
}

/// Cuts a chunk into parts of equal numbers of keys. `keys` are the chunk's keys, or an even
/// sample of them, in key order. A cut never falls on the chunk's own bounds nor twice on the
/// same key: a key that fills half the chunk alone moves the cut to the next key.
pub fn split_points(range: &ChunkRange, keys: &[ShardKey], parts: usize) -> Vec<ShardKey> {
    let mut points: Vec<ShardKey> = Vec::new();
    for part in 1..parts {
        let wanted = keys.len() * part / parts;
        let floor = points.last().unwrap_or(&range.min);
        let above = keys.iter().skip(wanted).find(|key| *key > floor);
        // Keys that repeat up to the end leave only room below the wanted place.
        let below = || keys.iter().take(wanted).rev().find(|key| *key > floor);
        let Some(point) = above.or_else(below) else {
            break;
        };
        if *point < range.max && range.min < *point {
            points.push(point.clone());
        }
    }
    points
}

/// Even cuts of the space of hashes, for a hashed collection that starts with many chunks.
/// They mirror around zero, as MongoDB's do.
pub fn hashed_split_points(pattern: &ShardKeyPattern, chunks: usize) -> Vec<ShardKey> {
    if chunks < 2 {
        return Vec::new();
    }
    let interval = i64::MAX / i64::try_from(chunks).unwrap_or(i64::MAX) * 2;
    let mut hashes = Vec::with_capacity(chunks);
    let mut current = 0i64;
    if chunks.is_multiple_of(2) {
        hashes.push(0);
        current = interval;
    } else {
        current += interval / 2;
    }
    for _ in 0..(chunks - 1) / 2 {
        hashes.push(current);
        hashes.push(-current);
        current = current.saturating_add(interval);
    }
    hashes.sort_unstable();
    hashes.dedup();
    hashes
        .into_iter()
        .filter_map(|hash| hashed_key(pattern, hash))
        .collect()
}

/// The key whose hashed field is `hash` and whose other fields are MinKey. Only of use when
/// the hashed field comes first.
fn hashed_key(pattern: &ShardKeyPattern, hash: i64) -> Option<ShardKey> {
    let mut bound = bson::RawDocumentBuf::new();
    for field in pattern.fields() {
        let value = if field.is_hashed() {
            RawBsonRef::Int64(hash)
        } else {
            RawBsonRef::MinKey
        };
        bound.append(&field.name, value);
    }
    pattern.key_of_bound(&bound).ok()
}
