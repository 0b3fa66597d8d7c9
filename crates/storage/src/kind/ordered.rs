//! Indexes whose keys are the values of some fields, in their order.

use std::sync::Arc;

use banyan_document::key::{KeyError, KeyPattern, Keys};
use banyan_document::path::Path;
use bson::{RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout};

#[derive(Debug)]
pub(super) struct Ordered {
    pattern: Arc<KeyPattern>,
    sparse: bool,
    layout: KeyLayout,
}

impl Ordered {
    pub(super) fn of(pattern: &Arc<KeyPattern>, sparse: bool) -> Ordered {
        Ordered {
            pattern: pattern.clone(),
            sparse,
            layout: KeyLayout::of_pattern(pattern),
        }
    }
}

impl IndexKind for Ordered {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        match self.sparse {
            true => self.pattern.sparse_keys(document),
            false => self.pattern.keys(document),
        }
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        self.pattern.value_of_key(document, key)
    }

    fn layouts(&self, _: &[&Path], _: &ArrayPaths) -> Vec<KeyLayout> {
        vec![self.layout.clone()]
    }
}
