//! Indexes of the first format of keys (`v: 1`), which has no decimals.

use std::ops::ControlFlow;
use std::sync::Arc;

use banyan_document::key::{KeyError, KeyPattern, Keys};
use banyan_document::path::{Path, Visit, visit};
use banyan_document::{elements, items};
use banyan_geo::grid::Grid;
use banyan_text::TextIndex;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout};

#[derive(Debug)]
pub(super) struct FirstFormat {
    pattern: Arc<KeyPattern>,
    kind: Arc<dyn IndexKind>,
}

/// MongoDB's number: UnsupportedFormat.
const UNSUPPORTED_FORMAT: i32 = 12;

impl FirstFormat {
    pub(super) fn of(pattern: &Arc<KeyPattern>, kind: Arc<dyn IndexKind>) -> FirstFormat {
        FirstFormat {
            pattern: pattern.clone(),
            kind,
        }
    }
}

impl IndexKind for FirstFormat {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let fields = self.pattern.fields.iter();
        let mut paths = fields.filter(|(_, order)| order.is_of_values());
        match paths.any(|(path, _)| leads_to_decimal(document, path)) {
            true => Err(KeyError::Refused {
                code: UNSUPPORTED_FORMAT,
                message: "Index version does not support NumberDecimal".to_owned(),
            }),
            false => self.kind.keys(document),
        }
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        self.kind.value_of_key(document, key)
    }

    fn layouts(&self, asked: &[&Path], arrays: &ArrayPaths) -> Vec<KeyLayout> {
        self.kind.layouts(asked, arrays)
    }

    fn depends_on_pattern_alone(&self) -> bool {
        self.kind.depends_on_pattern_alone()
    }

    fn grid(&self) -> Option<&Grid> {
        self.kind.grid()
    }

    fn text(&self) -> Option<(&Arc<TextIndex>, &KeyLayout)> {
        self.kind.text()
    }
}

fn leads_to_decimal(document: &RawDocument, path: &Path) -> bool {
    let mut found = false;
    visit(document, path, &mut |visit: Visit<'_>| {
        found = visit.value.is_some_and(has_decimal);
        match found {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    found
}

fn has_decimal(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Decimal128(_) => true,
        RawBsonRef::Document(document) => {
            elements(document).any(|element| has_decimal(element.value()))
        }
        RawBsonRef::Array(array) => items(array).any(|item| has_decimal(item.value())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bson::{Decimal128, rawdoc};

    use super::super::of;
    use super::*;

    #[test]
    fn decimals_are_refused_where_they_would_be_in_a_key() {
        let decimal = || "1.5".parse::<Decimal128>().unwrap();
        let pattern = KeyPattern::parse(&rawdoc! { "a.b": 1, "h": "hashed" }).unwrap();
        let first = of(&Arc::new(pattern), false, &rawdoc! { "v": 1 }).unwrap();
        let code = |document: RawDocumentBuf| first.keys(&document).map_err(|error| error.code());
        assert_eq!(code(rawdoc! { "a": { "b": decimal() } }), Err(12));
        assert_eq!(code(rawdoc! { "a": { "b": { "c": decimal() } } }), Err(12));
        assert!(code(rawdoc! { "a": decimal(), "h": decimal() }).is_ok());
    }
}
