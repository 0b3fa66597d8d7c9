//! Who is told of changed documents.

use banyan_storage::Namespace;
use bson::RawDocument;

/// One document's change, as it was committed.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    Insert {
        document: &'a RawDocument,
    },
    Update {
        before: &'a RawDocument,
        after: &'a RawDocument,
    },
    Delete {
        before: &'a RawDocument,
    },
}

/// Told of every document that a proposal of this member's own has changed.
pub type OpObserver = Box<dyn Fn(&Namespace, Change<'_>) + Send + Sync>;
