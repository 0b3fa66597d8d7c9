//! A chunk: a range of shard keys, owned by one shard, and its document in config.chunks.

use std::fmt;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use crate::shard_key::{ShardKey, ShardKeyError, ShardKeyPattern, show};

/// Older owners of a chunk that its document remembers.
const HISTORY_MAX: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    #[error("chunk {0} has no valid field '{1}'")]
    Field(String, &'static str),
    #[error("chunk {0}: {1}")]
    Key(String, ShardKeyError),
    #[error("chunk range is empty or reversed: {0}")]
    Empty(String),
}

/// Keys from `min` (inclusive) to `max` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRange {
    pub min: ShardKey,
    pub max: ShardKey,
}

impl ChunkRange {
    pub fn new(min: ShardKey, max: ShardKey) -> Result<Self, ChunkError> {
        let range = ChunkRange { min, max };
        if range.min < range.max {
            Ok(range)
        } else {
            Err(ChunkError::Empty(range.to_string()))
        }
    }

    /// Reads the `min` and `max` of a chunk, a zone or a command.
    pub fn parse(
        pattern: &ShardKeyPattern,
        min: &RawDocument,
        max: &RawDocument,
    ) -> Result<Self, ChunkError> {
        let key = |bound| {
            pattern
                .key_of_bound(bound)
                .map_err(|error| ChunkError::Key(show(bound), error))
        };
        ChunkRange::new(key(min)?, key(max)?)
    }

    /// The range of all keys.
    pub fn everything(pattern: &ShardKeyPattern) -> Self {
        ChunkRange {
            min: pattern.min_key(),
            max: pattern.max_key(),
        }
    }

    /// The last chunk's range includes MaxKey itself, which nothing else could own.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.min.encoded() <= key && (key < self.max.encoded() || self.max.is_global_max())
    }

    pub fn covers(&self, other: &ChunkRange) -> bool {
        self.min <= other.min && other.max <= self.max
    }

    pub fn overlaps(&self, other: &ChunkRange) -> bool {
        self.min < other.max && other.min < self.max
    }
}

impl fmt::Display for ChunkRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.min, self.max)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub valid_after: Timestamp,
    pub shard: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub id: ObjectId,
    pub range: ChunkRange,
    pub shard: Arc<str>,
    /// `(major, minor)` as a timestamp, the way it is stored.
    pub lastmod: Timestamp,
    pub jumbo: bool,
    /// Owners, the present one first.
    pub history: Vec<Owner>,
}

impl Chunk {
    pub fn parse(pattern: &ShardKeyPattern, document: &RawDocument) -> Result<Self, ChunkError> {
        let field = |name: &'static str| {
            let value = document.get(name).ok().flatten();
            value.ok_or_else(|| ChunkError::Field(show(document), name))
        };
        let wrong = |name| ChunkError::Field(show(document), name);
        let id = field("_id")?.as_object_id().ok_or_else(|| wrong("_id"))?;
        let min = field("min")?.as_document().ok_or_else(|| wrong("min"))?;
        let max = field("max")?.as_document().ok_or_else(|| wrong("max"))?;
        let shard = field("shard")?.as_str().ok_or_else(|| wrong("shard"))?;
        let lastmod = field("lastmod")?
            .as_timestamp()
            .ok_or_else(|| wrong("lastmod"))?;
        let jumbo = matches!(document.get("jumbo"), Ok(Some(RawBsonRef::Boolean(true))));
        Ok(Chunk {
            id,
            range: ChunkRange::parse(pattern, min, max)?,
            shard: shard.into(),
            lastmod,
            jumbo,
            history: parse_history(document),
        })
    }

    /// The document of config.chunks. `ns` is there for shells that look chunks up by it;
    /// newer ones go by `uuid`.
    pub fn to_document(&self, ns: &str, uuid: [u8; 16]) -> RawDocumentBuf {
        let uuid = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: uuid.to_vec(),
        };
        let mut document = rawdoc! {
            "_id": self.id,
            "uuid": uuid,
            "ns": ns,
            "min": self.range.min.document().to_owned(),
            "max": self.range.max.document().to_owned(),
            "shard": &*self.shard,
            "lastmod": self.lastmod,
        };
        if let Some(owner) = self.history.first() {
            document.append(bson::raw::cstr!("onCurrentShardSince"), owner.valid_after);
        }
        let mut history = RawArrayBuf::new();
        for owner in &self.history {
            history.push(rawdoc! { "validAfter": owner.valid_after, "shard": &*owner.shard });
        }
        document.append(bson::raw::cstr!("history"), history);
        if self.jumbo {
            document.append(bson::raw::cstr!("jumbo"), true);
        }
        document
    }

    /// The same chunk in the hands of another shard from `at` on.
    pub(crate) fn handed_to(&self, shard: Arc<str>, at: Timestamp) -> Chunk {
        let mut chunk = self.clone();
        chunk.history.insert(
            0,
            Owner {
                valid_after: at,
                shard: shard.clone(),
            },
        );
        chunk.history.truncate(HISTORY_MAX);
        chunk.shard = shard;
        chunk.jumbo = false;
        chunk
    }
}

fn parse_history(document: &RawDocument) -> Vec<Owner> {
    let Ok(Some(RawBsonRef::Array(history))) = document.get("history") else {
        return Vec::new();
    };
    let owners = history.into_iter().filter_map(|entry| {
        let entry = entry.ok()?.as_document()?;
        let valid_after = entry.get_timestamp("validAfter").ok()?;
        Some(Owner {
            valid_after,
            shard: entry.get_str("shard").ok()?.into(),
        })
    });
    owners.collect()
}
