//! A document on its way to whoever asked.

use std::ops::Deref;

use banyan_query::QueryError;
use banyan_storage::Record;
use bson::{RawDocument, RawDocumentBuf};

/// As it is stored, or made on the way.
pub enum Row {
    Record(Record),
    Owned(RawDocumentBuf),
}

impl Deref for Row {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        match self {
            Row::Record(record) => record,
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
            Row::Record(record) => RawDocument::to_owned(&record),
            Row::Owned(document) => document,
        }
    }
}

/// Rows in order. An iterator of a tailable cursor may yield again after it has said `None`.
pub type Rows = Box<dyn Iterator<Item = Result<Row, QueryError>> + Send>;
