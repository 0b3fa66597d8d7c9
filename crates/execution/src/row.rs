//! A document on its way to whoever asked, and streams of them.

use std::collections::VecDeque;
use std::ops::Deref;

use banyan_query::QueryError;
use banyan_query::sort::Piece;
use banyan_storage::Record;
use bson::{RawDocument, RawDocumentBuf};

/// A record of so many bytes lies in a block with little else: it is kept as it is.
const OWN_BLOCK: usize = 64 * 1024;

/// As it is stored, or made on the way.
pub enum Row {
    Record(Record),
    InSlab(SlabDocument),
    Owned(RawDocumentBuf),
}

/// A document that lies in a slab with others.
pub struct SlabDocument(Piece);

impl SlabDocument {
    /// `None`: this is no document.
    pub fn new(bytes: Piece) -> Option<SlabDocument> {
        RawDocument::from_bytes(&*bytes).ok()?;
        Some(SlabDocument(bytes))
    }
}

impl Deref for SlabDocument {
    type Target = RawDocument;

    #[expect(
        clippy::expect_used,
        reason = "the same bytes passed the same check in `new`"
    )]
    fn deref(&self) -> &RawDocument {
        RawDocument::from_bytes(&*self.0).expect("checked when it was made")
    }
}

impl Deref for Row {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        match self {
            Row::Record(record) => record,
            Row::InSlab(document) => document,
            Row::Owned(document) => document,
        }
    }
}

impl AsRef<RawDocument> for Row {
    fn as_ref(&self) -> &RawDocument {
        self
    }
}

impl Row {
    pub fn into_owned(self) -> RawDocumentBuf {
        match self {
            Row::Owned(document) => document,
            other => RawDocument::to_owned(&other),
        }
    }

    /// It is to be kept for long: it lets go of the slab or the block of the engine that it lies in,
    /// unless it takes up most of the block.
    pub fn detach(&mut self) {
        let has_own_block = matches!(self, Row::Record(_)) && self.as_bytes().len() >= OWN_BLOCK;
        if !has_own_block && !matches!(self, Row::Owned(_)) {
            *self = Row::Owned(RawDocument::to_owned(self));
        }
    }
}

/// No more rows are handed on at once after so many bytes: those that do not fit into a client's batch
/// have to be kept.
pub const HANDED_ON_BYTES: usize = 256 * 1024;

/// Rows in order, for a cursor.
pub trait RowStream: Send {
    /// Appends up to `most` rows, fewer where they are large ([`HANDED_ON_BYTES`]). None: it has ended,
    /// for now at least; that of a tailable cursor may have more when asked again.
    fn next_batch(&mut self, most: usize, out: &mut VecDeque<Row>) -> Result<(), QueryError>;

    /// About so many bytes will be asked for at once from now on.
    fn ask_for(&mut self, _bytes: usize) {}

    /// Has documents taken that are at hand, where they lie: `take` says whether it has room for the one
    /// that it is shown. What is not taken comes with the next batch.
    fn hand_on(&mut self, _take: &mut dyn FnMut(&RawDocument) -> bool) {}

    /// Of those of a tailable cursor that has come to the end: whether there may be more by now.
    /// Cheaper than to ask for it.
    fn may_have_more(&self) -> bool {
        true
    }

    /// Fails where the collection that it reads is gone. What was found of it before is not handed on.
    fn check_collection(&self) -> Result<(), QueryError> {
        Ok(())
    }

    /// Keeps the position and lets the snapshot go, where it can go on in another one.
    fn save(&mut self) {}

    /// What the stages that make the rows have done, where that is known.
    fn explain_run(&self) -> Option<RawDocumentBuf> {
        None
    }

    /// Whether it holds a snapshot.
    fn holds_snapshot(&self) -> bool {
        false
    }
}

pub type Rows = Box<dyn RowStream>;

/// Rows that were not found by a plan.
pub struct Listed<I>(pub I);

impl<I: Iterator<Item = Result<Row, QueryError>> + Send> RowStream for Listed<I> {
    fn next_batch(&mut self, most: usize, out: &mut VecDeque<Row>) -> Result<(), QueryError> {
        for row in self.0.by_ref().take(most) {
            out.push_back(row?);
        }
        Ok(())
    }
}
