//! The kinds of indexes: which keys a document has in an index, and which questions those answer.
//!
//! An index's key pattern says of what kind it is ([`of`]). Whoever writes asks the kind for keys
//! ([`IndexKind::keys`]). Whoever plans asks it for layouts ([`IndexKind::layouts`]): an index whose
//! keys are the same fields in all documents has one, an index over many paths one for each of them.
//! Neither has to know which kinds there are.

mod arrays;
mod hashed;
mod ordered;
mod wildcard;

use std::fmt;
use std::sync::Arc;

use banyan_document::key::{FieldOrder, KeyError, KeyPattern, Keys};
use banyan_document::path::Path;
use bson::{RawDocument, RawDocumentBuf};

pub use arrays::ArrayPaths;
pub use wildcard::PATH_FIELD;

pub trait IndexKind: fmt::Debug + Send + Sync {
    /// The keys of a document, perhaps none.
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError>;

    /// The values behind one of a document's encoded keys.
    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf>;

    /// The layouts of keys that may help a query on these paths.
    fn layouts(&self, asked: &[&Path]) -> Vec<KeyLayout>;
}

/// What the keys of an index look like, or those of a part of it.
#[derive(Debug, Clone)]
pub struct KeyLayout {
    /// The first field of the keys, if all of them begin with the same string.
    pub prefix: Option<KeyPrefix>,
    /// The fields that follow.
    pub fields: Arc<[(Path, FieldOrder)]>,
    /// Whether every document has keys here. Otherwise those have none whose field is missing, and
    /// of a document or an array in the field there are only keys of what is in it.
    pub is_complete: bool,
}

#[derive(Debug, Clone)]
pub struct KeyPrefix {
    pub field: &'static str,
    pub value: String,
}

impl KeyLayout {
    fn of_pattern(pattern: &KeyPattern) -> KeyLayout {
        KeyLayout {
            prefix: None,
            fields: pattern.fields.clone().into(),
            is_complete: true,
        }
    }
}

/// The kind of an index with this pattern and these options.
pub(crate) fn of(
    pattern: &Arc<KeyPattern>,
    sparse: bool,
    wildcard_projection: Option<&RawDocument>,
) -> Arc<dyn IndexKind> {
    if let Some(wildcard) = wildcard::Wildcard::of(pattern, wildcard_projection) {
        Arc::new(wildcard)
    } else if pattern.has_hashed_field() {
        Arc::new(hashed::Hashed::of(pattern, sparse))
    } else {
        Arc::new(ordered::Ordered::of(pattern, sparse))
    }
}
