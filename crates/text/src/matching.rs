//! Whether a document matches a search.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bson::RawDocument;

use crate::characters::{self, CaseFolding};
use crate::index::Text;
use crate::tokenizer::{self, Words};
use crate::{Search, TextError, TextIndex, Version};

/// A search in the documents of an index.
#[derive(Debug, Clone, PartialEq)]
pub struct Matcher {
    pub index: Arc<TextIndex>,
    pub search: Arc<Search>,
}

impl Matcher {
    /// Whether a document has one of the terms and every phrase, and nothing that is negated.
    pub fn matches(&self, document: &RawDocument) -> Result<bool, TextError> {
        Ok(self.has_one_of(document, &self.search.terms)? && self.is_not_excluded(document)?)
    }

    /// As [`Matcher::matches`], of a document that the index has under one of the terms.
    pub fn matches_found(&self, document: &RawDocument) -> Result<bool, TextError> {
        let search = &self.search;
        // The index says nothing of case and diacritics.
        let is_sensitive = search.case_sensitive || search.diacritic_sensitive;
        if is_sensitive && !self.has_one_of(document, &search.terms)? {
            return Ok(false);
        }
        self.is_not_excluded(document)
    }

    fn is_not_excluded(&self, document: &RawDocument) -> Result<bool, TextError> {
        let search = &self.search;
        for phrase in &search.phrases {
            if !self.has_phrase(document, phrase)? {
                return Ok(false);
            }
        }
        for phrase in &search.negated_phrases {
            if self.has_phrase(document, phrase)? {
                return Ok(false);
            }
        }
        // Last: to find the stems of all words takes longest.
        Ok(!self.has_one_of(document, &search.negated_terms)?)
    }

    fn has_one_of(
        &self,
        document: &RawDocument,
        terms: &BTreeSet<String>,
    ) -> Result<bool, TextError> {
        if terms.is_empty() {
            return Ok(false);
        }
        let words = Words {
            with_stop_words: true,
            case_sensitive: self.search.case_sensitive,
            diacritic_sensitive: self.search.diacritic_sensitive,
        };
        let version = self.index.version;
        let mut has_one =
            |text: Text<'_>| {
                tokenizer::each_term(text.text, text.language, version, words, &mut |term| {
                    match terms.contains(term) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                })
            };
        Ok(self.index.each_text(document, &mut has_one)?.is_break())
    }

    /// Whether a phrase is somewhere in one of the document's strings, be it inside of words.
    fn has_phrase(&self, document: &RawDocument, phrase: &str) -> Result<bool, TextError> {
        let mut has_phrase = |text: Text<'_>| match self.is_in(phrase, &text) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        Ok(self.index.each_text(document, &mut has_phrase)?.is_break())
    }

    fn is_in(&self, phrase: &str, text: &Text<'_>) -> bool {
        let search = &self.search;
        if self.index.version != Version::Three {
            return match search.case_sensitive {
                true => text.text.contains(phrase),
                false => {
                    let lower = text.text.to_ascii_lowercase();
                    lower.contains(&phrase.to_ascii_lowercase())
                }
            };
        }
        let folding = CaseFolding::of(text.language);
        let simplified = |text| {
            let (case, diacritics) = (search.case_sensitive, search.diacritic_sensitive);
            characters::simplified(text, folding, case, diacritics)
        };
        simplified(text.text).contains(&simplified(phrase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SearchOptions;
    use bson::rawdoc;

    fn matches(text: &str, search: &str, options: SearchOptions) -> bool {
        let index = TextIndex::parse(&rawdoc! { "key": { "a": "text" } }).unwrap();
        let language = index.default_language;
        let search = Search::parse(search, &options, language, index.version).unwrap();
        let matcher = Matcher {
            index: Arc::new(index),
            search: Arc::new(search),
        };
        matcher.matches(&rawdoc! { "a": text }).unwrap()
    }

    #[test]
    fn terms_phrases_and_what_must_not_be() {
        let matches = |text, search| matches(text, search, SearchOptions::default());
        assert!(matches("Coffee and cakes", "cake tea"));
        assert!(!matches("Coffee and cakes", "tea"));
        assert!(!matches("Coffee and cakes", "cake -coffee"));
        assert!(matches("Coffee and cakes", "\"and cake\""));
        assert!(!matches("Coffee and cakes", "\"coffee cake\""));
        assert!(!matches("Coffee and cakes", "cake -\"coffee and\""));
        assert!(matches("Café", "cafe"));
    }

    #[test]
    fn case_and_diacritics_count_where_that_is_asked_for() {
        let cased = |text, search| {
            let options = SearchOptions {
                case_sensitive: true,
                ..SearchOptions::default()
            };
            matches(text, search, options)
        };
        assert!(cased("Coffee", "Coffee"));
        assert!(!cased("coffee", "Coffee"));
        let accented = |text, search| {
            let options = SearchOptions {
                diacritic_sensitive: true,
                ..SearchOptions::default()
            };
            matches(text, search, options)
        };
        assert!(accented("CAFÉ", "café"));
        assert!(!accented("cafe", "café"));
    }
}
