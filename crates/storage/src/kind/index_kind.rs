//! What every kind of index answers, and what its keys look like.

use std::fmt;
use std::sync::Arc;

use banyan_document::key::{FieldOrder, KeyError, KeyPattern, Keys};
use banyan_document::path::Path;
use banyan_geo::grid::Grid;
use banyan_text::TextIndex;
use bson::{RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;

pub trait IndexKind: fmt::Debug + Send + Sync {
    /// The keys of a document, perhaps none.
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError>;

    /// The values behind one of a document's encoded keys.
    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf>;

    /// The layouts of keys that may help a query on these paths, where documents have arrays at those
    /// paths.
    fn layouts(&self, asked: &[&Path], arrays: &ArrayPaths) -> Vec<KeyLayout>;

    /// Whether a document's keys depend on the fields of the index's pattern alone.
    fn depends_on_pattern_alone(&self) -> bool {
        true
    }

    /// The cells of the plane that its keys begin with, if it is one of points.
    fn grid(&self) -> Option<&Grid> {
        None
    }

    /// What terms documents have in it, and its keys' layout, if it is one of text.
    fn text(&self) -> Option<(&Arc<TextIndex>, &KeyLayout)> {
        None
    }
}

/// What the keys of an index look like, or those of a part of it.
#[derive(Debug, Clone)]
pub struct KeyLayout {
    /// The first field of the keys, if that is a string which the layout knows.
    pub prefix: Option<KeyPrefix>,
    /// The fields that follow.
    pub fields: Arc<[(Path, FieldOrder)]>,
    /// Whether every document has keys here. Otherwise those have none whose field is missing, and
    /// of a document or an array in the field there are only keys of what is in it.
    pub is_complete: bool,
}

/// What the first field of keys is: one of these paths, or one below them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPrefix {
    pub field: &'static str,
    /// In order. None lies below another one if `with_below` is set.
    pub paths: Vec<String>,
    /// Whether keys of all paths below these belong to the layout as well. One document may have many.
    pub with_below: bool,
}

impl KeyPrefix {
    /// The string that all keys begin with, if they begin with one and the same.
    pub fn only(&self) -> Option<&str> {
        match &self.paths[..] {
            [path] if !self.with_below => Some(path),
            _ => None,
        }
    }
}

impl KeyLayout {
    pub(super) fn of_pattern(pattern: &KeyPattern) -> KeyLayout {
        KeyLayout {
            prefix: None,
            fields: pattern.fields.clone().into(),
            is_complete: true,
        }
    }
}
