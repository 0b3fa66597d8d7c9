//! Indexes with a field whose values are hashed. Arrays have no place in it, nor in the fields beside: the
//! hash of an array says nothing of its items.

use std::sync::Arc;

use banyan_document::key::{KeyError, KeyPattern, Keys};
use banyan_document::path::Path;
use bson::{RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout};
use super::ordered::Ordered;

#[derive(Debug)]
pub(super) struct Hashed {
    fields: Ordered,
}

impl Hashed {
    pub(super) fn of(pattern: &Arc<KeyPattern>, sparse: bool) -> Hashed {
        Hashed {
            fields: Ordered::of(pattern, sparse),
        }
    }
}

impl IndexKind for Hashed {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let keys = self.fields.keys(document)?;
        match keys.is_multikey() {
            true => Err(KeyError::HashedArray),
            false => Ok(keys),
        }
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        self.fields.value_of_key(document, key)
    }

    fn layouts(&self, asked: &[&Path], arrays: &ArrayPaths) -> Vec<KeyLayout> {
        self.fields.layouts(asked, arrays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn arrays_are_refused_in_each_field() {
        let pattern = KeyPattern::parse(&rawdoc! { "a.b": "hashed", "c": 1 }).unwrap();
        let kind = Hashed::of(&Arc::new(pattern), false);
        let keys = |document: RawDocumentBuf| kind.keys(&document).map(|keys| keys.keys.len());
        assert_eq!(keys(rawdoc! { "a": { "b": 1 }, "c": 1 }), Ok(1));
        assert_eq!(
            keys(rawdoc! { "a": { "b": 1 }, "c": [1, 2] }),
            Err(KeyError::HashedArray)
        );
        assert_eq!(
            keys(rawdoc! { "a": { "b": [1] } }),
            Err(KeyError::HashedArray)
        );
        assert_eq!(keys(rawdoc! { "a": [] }), Err(KeyError::HashedArray));
    }
}
