//! The kinds of updates, parsed, and what they need to know beside the document.

use std::sync::Arc;

use banyan_document::{Collator, MAX_STORED_DEPTH};
use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, Timestamp};

use super::array_filter::ArrayFilter;
use super::rename::Rename;
use super::tree::Fields;
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};
use crate::filter::ArrayPosition;
use crate::names::Named;
use crate::pipeline::Pipeline;

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Replacement(RawDocumentBuf),
    Modifiers(Modifiers),
    Pipeline(Box<Pipeline>),
}

#[derive(Clone, Debug)]
pub(super) struct Modifiers {
    pub fields: Fields,
    pub filters: Named<ArrayFilter>,
    pub renames: Vec<Rename>,
    /// See [`Update::wholes`](super::Update::wholes).
    pub wholes: Vec<String>,
    /// Whether `$` stands in a path.
    pub positional: bool,
    /// Whether a result may nest deeper than the document and the operands were seen to.
    pub may_deepen: bool,
    pub budget: Budget,
    /// How strings are compared; without one, by their bytes.
    pub collator: Option<Collator>,
}

/// What an update needs to know beside the document.
#[derive(Clone, Debug)]
pub struct UpdateContext {
    /// Where the filter matched, for `$`.
    pub position: Option<ArrayPosition>,
    /// Whether the result is inserted (`$setOnInsert`).
    pub is_upsert: bool,
    /// What an upsert inserts instead of what the update makes.
    pub supplied: Option<Arc<RawDocumentBuf>>,
    /// The `_id` of an upsert's document that brings none; without it, a new one.
    pub generated_id: Option<ObjectId>,
    /// `$currentDate`.
    pub now: DateTime,
    /// `$currentDate` with `$type: "timestamp"`.
    pub timestamp: Timestamp,
}

impl UpdateContext {
    pub fn new(now: DateTime, timestamp: Timestamp) -> UpdateContext {
        UpdateContext {
            position: None,
            is_upsert: false,
            supplied: None,
            generated_id: None,
            now,
            timestamp,
        }
    }

    pub fn at(mut self, position: Option<ArrayPosition>) -> UpdateContext {
        self.position = position;
        self
    }
}

pub(super) fn too_deep() -> QueryError {
    let message = format!("Document exceeds maximum nesting depth of {MAX_STORED_DEPTH}");
    QueryError::new(ErrorKind::Overflow, message)
}

/// What an update makes of a document.
pub(super) struct Transformed {
    pub after: RawDocumentBuf,
    /// It counts as another document, and is written, even where it is as it was: MongoDB compares what
    /// an update brings with what is there, and not the documents before and after. So it does not see
    /// that a replacement without an `_id` changes nothing, nor a sum that is NaN.
    pub is_written: bool,
}
