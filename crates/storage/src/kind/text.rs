//! Text indexes: a key for each term of a document, with its score, between the fields that come in
//! front and behind.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::element::{field, items};
use banyan_document::key::{Key, KeyBuilder, KeyError, KeyField, KeyPattern, Keys};
use banyan_document::path::{Path, position};
use banyan_document::writer::DocumentWriter;
use banyan_text::{PLUGIN, TERM_FIELD, TextError, TextIndex};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout};

/// The index of a specification, if it is one of text.
pub(crate) fn of(
    spec: &RawDocument,
    pattern: &KeyPattern,
) -> Result<Option<Arc<dyn IndexKind>>, TextError> {
    let key = spec.get_document("key").ok();
    let term = key.and_then(|key| key.get_str(TERM_FIELD).ok());
    if term != Some(PLUGIN) {
        return Ok(None);
    }
    let index = Arc::new(TextIndex::parse(spec)?);
    let layout = KeyLayout::of_pattern(pattern);
    Ok(Some(Arc::new(Text { index, layout })))
}

#[derive(Debug)]
struct Text {
    index: Arc<TextIndex>,
    layout: KeyLayout,
}

impl Text {
    /// Hands on the values of each key.
    fn each_key<'a>(
        &self,
        document: &'a RawDocument,
        f: &mut dyn FnMut(&[KeyField<'_>]),
    ) -> Result<(), KeyError> {
        let beside = |paths: &[String]| {
            let values = paths.iter().map(|path| value_at(document, path));
            values.collect::<Result<Vec<KeyField<'a>>, KeyError>>()
        };
        // They are refused although there may be no terms.
        let (before, after) = (beside(&self.index.before)?, beside(&self.index.after)?);
        let scores = self.index.scores(document).map_err(refused)?;
        for (term, score) in &scores {
            let term = self.index.key_term(term);
            let mut values: Vec<KeyField<'_>> = Vec::with_capacity(self.layout.fields.len());
            values.extend(&before);
            values.push(KeyField::Value(RawBsonRef::String(&term)));
            values.push(KeyField::Value(RawBsonRef::Double(*score)));
            values.extend(&after);
            f(&values);
        }
        Ok(())
    }

    fn encode(&self, values: &[KeyField<'_>]) -> Key {
        let mut key = KeyBuilder::with_capacity(16 * values.len());
        for ((_, order), value) in self.layout.fields.iter().zip(values) {
            key.push(*value, *order, None);
        }
        key.finish()
    }
}

impl IndexKind for Text {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let mut keys = Vec::new();
        self.each_key(document, &mut |values| keys.push(self.encode(values)))?;
        let mut arrays = BTreeSet::new();
        if keys.len() > 1 {
            // One document has several keys, as one with an array has.
            arrays.insert(TERM_FIELD.into());
        }
        Ok(Keys::of(keys, arrays))
    }

    fn depends_on_pattern_alone(&self) -> bool {
        false
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        let mut shown = None;
        let found = self.each_key(document, &mut |values| {
            if shown.is_none() && self.encode(values).bytes == key {
                let mut writer = DocumentWriter::new();
                for ((path, _), value) in self.layout.fields.iter().zip(values) {
                    writer.append(&path.to_string(), value.as_value());
                }
                shown = Some(writer.finish());
            }
        });
        found.ok()?;
        shown
    }

    /// None: only a search finds something in it ([`IndexKind::text`]).
    fn layouts(&self, _: &[&Path], _: &ArrayPaths) -> Vec<KeyLayout> {
        Vec::new()
    }

    fn text(&self) -> Option<(&Arc<TextIndex>, &KeyLayout)> {
        Some((&self.index, &self.layout))
    }
}

fn refused(error: TextError) -> KeyError {
    KeyError::Refused {
        code: error.code(),
        message: error.to_string(),
    }
}

/// The value beside the terms. Arrays have no place there.
fn value_at<'a>(document: &'a RawDocument, path: &str) -> Result<KeyField<'a>, KeyError> {
    let mut value = RawBsonRef::Document(document);
    for part in path.split('.') {
        let next = match value {
            RawBsonRef::Document(inner) => field(inner, part),
            RawBsonRef::Array(array) => match position(part) {
                Some(at) => items(array).nth(at).map(|item| item.value()),
                None => return Err(refused(TextError::ArrayBeside(path.to_owned()))),
            },
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return Ok(KeyField::Value(RawBsonRef::Null)),
        }
    }
    match value {
        RawBsonRef::Array(_) => Err(refused(TextError::ArrayBeside(path.to_owned()))),
        value => Ok(KeyField::Value(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn kind(spec: RawDocumentBuf) -> Arc<dyn IndexKind> {
        let definition = banyan_text::complete(&spec).unwrap();
        let mut kept = rawdoc! { "key": definition.key.clone() };
        definition.append_options(&mut kept);
        let pattern = KeyPattern::parse(&definition.key).unwrap();
        of(&kept, &pattern).unwrap().unwrap()
    }

    #[test]
    fn a_document_has_a_key_for_each_term() {
        let kind = kind(rawdoc! { "key": { "x": 1, "a": "text", "y": -1 } });
        let document = rawdoc! { "x": 5, "a": "cakes and tea", "y": "z" };
        let keys = kind.keys(&document).unwrap();
        let shown: Vec<_> = keys
            .keys
            .iter()
            .map(|key| kind.value_of_key(&document, key).unwrap())
            .collect();
        let expected = [
            rawdoc! { "x": 5, "_fts": "cake", "_ftsx": 0.75, "y": "z" },
            rawdoc! { "x": 5, "_fts": "tea", "_ftsx": 0.75, "y": "z" },
        ];
        assert_eq!(shown, expected);
        assert!(kind.keys(&rawdoc! { "x": 1 }).unwrap().keys.is_empty());
    }

    #[test]
    fn an_array_beside_the_terms_is_refused() {
        let kind = kind(rawdoc! { "key": { "x": 1, "a": "text" } });
        let refused = kind.keys(&rawdoc! { "x": [1], "a": "tea" }).unwrap_err();
        assert_eq!(refused.code(), 201);
        let refused = kind.keys(&rawdoc! { "x": [] }).unwrap_err();
        assert_eq!(refused.code(), 201);
    }
}
