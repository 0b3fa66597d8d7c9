//! Places in the log at which every member looks at its state: everything before them is in it, and
//! nothing of what comes later.

use banyan_storage::CollectionId;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use crate::entry::{Entry, Operation};

/// What the no-op entry says that asks every member to keep a snapshot of the state as of its time.
pub const SNAPSHOT_POINT: &str = "snapshot point";

/// What the no-op entry says that comes before the removal of a range's documents.
const RANGE_REMOVAL: &str = "range removal";

/// Such a place.
#[derive(Debug, Clone, PartialEq)]
pub enum LogPoint {
    /// A snapshot of the state is to be kept.
    Snapshot,
    /// The state is the last one in which the range is whole.
    RangeRemoval(RangeRemoval),
    /// Not in the log: the state of another member has taken the place of this one's.
    Installed,
}

/// Told when the state is as of the point, before its time is told to anybody. Must not block.
pub type PointListener = Box<dyn Fn(&LogPoint) + Send + Sync>;

/// A range of a sharded collection whose documents, from here on, the log removes.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeRemoval {
    pub collection: CollectionId,
    /// Values of the shard key.
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
}

impl RangeRemoval {
    /// What the no-op entry says.
    pub(crate) fn message(&self, namespace: &str) -> RawDocumentBuf {
        rawdoc! {
            "msg": RANGE_REMOVAL,
            "ns": namespace,
            "collection": i64::from(self.collection),
            "min": self.min.clone(),
            "max": self.max.clone(),
        }
    }

    fn parse(message: &RawDocument) -> Option<RangeRemoval> {
        Some(RangeRemoval {
            collection: message.get_i64("collection").ok()?.try_into().ok()?,
            min: message.get_document("min").ok()?.to_owned(),
            max: message.get_document("max").ok()?.to_owned(),
        })
    }
}

impl LogPoint {
    /// The point that an entry is. A client's note that only looks like one is none.
    pub(super) fn of(entry: &Entry<'_>) -> Option<LogPoint> {
        let Ok(Operation::Noop { document }) = entry.operations().next()? else {
            return None;
        };
        match document.get_str("msg").ok()? {
            SNAPSHOT_POINT => Some(LogPoint::Snapshot),
            RANGE_REMOVAL => RangeRemoval::parse(document).map(LogPoint::RangeRemoval),
            _ => None,
        }
    }
}
