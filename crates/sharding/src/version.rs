//! How old a picture of a sharded collection is.
//!
//! `epoch` and `timestamp` name one life of the collection (from shardCollection to drop);
//! inside it `(major, minor)` only grows. The major part rises when a range changes hands,
//! the minor part when a chunk is cut: a request routed with an older major may look for
//! documents in the wrong place, one with an older minor can't.

use std::fmt;

use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkVersion {
    pub epoch: ObjectId,
    pub timestamp: Timestamp,
    pub major: u32,
    pub minor: u32,
}

impl ChunkVersion {
    /// The version of a collection that is not sharded.
    pub const UNSHARDED: ChunkVersion = ChunkVersion {
        epoch: ObjectId::from_bytes([0; 12]),
        timestamp: Timestamp {
            time: 0,
            increment: 0,
        },
        major: 0,
        minor: 0,
    };

    /// Sent by internal operations that must reach a shard whatever it owns.
    pub const IGNORED: ChunkVersion = ChunkVersion {
        epoch: ObjectId::from_bytes([0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]),
        timestamp: Timestamp {
            time: u32::MAX,
            increment: u32::MAX,
        },
        major: 0,
        minor: 0,
    };

    pub fn is_unsharded(&self) -> bool {
        self.epoch == Self::UNSHARDED.epoch
    }

    pub fn is_ignored(&self) -> bool {
        self.epoch == Self::IGNORED.epoch
    }

    /// Whether both speak of the same life of the collection.
    pub fn same_collection(&self, other: &ChunkVersion) -> bool {
        self.epoch == other.epoch && self.timestamp == other.timestamp
    }

    /// `(major, minor)`, to compare versions of the same collection.
    pub fn order(&self) -> (u32, u32) {
        (self.major, self.minor)
    }

    /// Whether a request routed with `self` may run where `wanted` is known: the same life of
    /// the collection and no range has changed hands since.
    pub fn is_write_compatible(&self, wanted: &ChunkVersion) -> bool {
        self.same_collection(wanted) && self.major == wanted.major
    }

    /// Whether `self` is known to be older than `other`. Different lives are ordered by the
    /// time of their birth.
    pub fn is_older_than(&self, other: &ChunkVersion) -> bool {
        if self.same_collection(other) {
            return self.order() < other.order();
        }
        self.timestamp < other.timestamp
    }

    /// `Timestamp(major, minor)`: the `lastmod` of a chunk.
    pub fn lastmod(&self) -> Timestamp {
        Timestamp {
            time: self.major,
            increment: self.minor,
        }
    }

    pub fn with_lastmod(&self, lastmod: Timestamp) -> ChunkVersion {
        ChunkVersion {
            major: lastmod.time,
            minor: lastmod.increment,
            ..*self
        }
    }

    /// `{e, t, v}`: the form in which a version travels.
    pub fn to_document(&self) -> RawDocumentBuf {
        rawdoc! { "e": self.epoch, "t": self.timestamp, "v": self.lastmod() }
    }

    /// Reads `{e, t, v}`; `None` when a part is missing or of another type.
    pub fn from_document(document: &RawDocument) -> Option<ChunkVersion> {
        let part = |name: &str| document.get(name).ok().flatten();
        let Some(RawBsonRef::ObjectId(epoch)) = part("e") else {
            return None;
        };
        let Some(RawBsonRef::Timestamp(timestamp)) = part("t") else {
            return None;
        };
        let Some(RawBsonRef::Timestamp(version)) = part("v") else {
            return None;
        };
        Some(ChunkVersion {
            epoch,
            timestamp,
            major: version.time,
            minor: version.increment,
        })
    }
}

impl fmt::Display for ChunkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}|{}||{}||Timestamp({}, {})",
            self.major, self.minor, self.epoch, self.timestamp.time, self.timestamp.increment
        )
    }
}
