//! Indexes with a field whose values are hashed. Arrays have no place in it: the hash of an array
//! says nothing of its items.

use std::sync::Arc;

use banyan_document::key::{FieldOrder, KeyError, KeyPattern, Keys};
use banyan_document::path::Path;
use bson::{RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout};
use super::ordered::Ordered;

#[derive(Debug)]
pub(super) struct Hashed {
    pattern: Arc<KeyPattern>,
    fields: Ordered,
}

impl Hashed {
    pub(super) fn of(pattern: &Arc<KeyPattern>, sparse: bool) -> Hashed {
        Hashed {
            pattern: pattern.clone(),
            fields: Ordered::of(pattern, sparse),
        }
    }
}

impl IndexKind for Hashed {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let keys = self.fields.keys(document)?;
        if keys.is_multikey() {
            let arrays = ArrayPaths::of(&keys.arrays);
            let mut fields = self.pattern.fields.iter();
            let refused = |(path, order): &(Path, FieldOrder)| {
                *order == FieldOrder::Hashed && arrays.are_on(path)
            };
            if fields.any(refused) {
                return Err(KeyError::HashedArray);
            }
        }
        Ok(keys)
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        self.fields.value_of_key(document, key)
    }

    fn layouts(&self, asked: &[&Path]) -> Vec<KeyLayout> {
        self.fields.layouts(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn arrays_are_refused_in_the_hashed_field_alone() {
        let pattern = KeyPattern::parse(&rawdoc! { "a.b": "hashed", "c": 1 }).unwrap();
        let kind = Hashed::of(&Arc::new(pattern), false);
        let keys = |document: RawDocumentBuf| kind.keys(&document).map(|keys| keys.keys.len());
        assert_eq!(keys(rawdoc! { "a": { "b": 1 }, "c": [1, 2] }), Ok(2));
        assert_eq!(
            keys(rawdoc! { "a": { "b": [1] } }),
            Err(KeyError::HashedArray)
        );
        assert_eq!(keys(rawdoc! { "a": [] }), Err(KeyError::HashedArray));
    }
}
