//! Capped collections: what they hold at most.

use std::sync::atomic::Ordering;

use bson::RawBsonRef;

use super::Collection;
use crate::record_id::RecordId;

/// What a capped collection holds at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CappedLimits {
    /// The sum of the documents' BSON lengths.
    pub bytes: i64,
    /// `None`: any number.
    pub documents: Option<i64>,
}

impl Collection {
    /// What it holds at most; `None`: as much as comes.
    pub fn capped_limits(&self) -> Option<CappedLimits> {
        if !self.is_capped {
            return None;
        }
        let number = |name: &str| match self.options.get(name) {
            Ok(Some(RawBsonRef::Int32(value))) => Some(i64::from(value)),
            Ok(Some(RawBsonRef::Int64(value))) => Some(value),
            _ => None,
        };
        Some(CappedLimits {
            bytes: number("size").unwrap_or(i64::MAX),
            documents: number("max"),
        })
    }

    /// Whether records may have been added since the one with this id. Not for clustered
    /// collections.
    pub fn may_have_grown_since(&self, record: &RecordId) -> bool {
        let next = self.counters.next_record.load(Ordering::Acquire);
        record.as_number().is_none_or(|known| next != known + 1)
    }
}
