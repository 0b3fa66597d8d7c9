//! A text index: which strings of a document are in it, in which language, and what terms they
//! have with what scores.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use bson::{RawBsonRef, RawDocument};
use md5::{Digest, Md5};

use crate::definition::{self, WILDCARD};
use crate::tokenizer::{self, Words};
use crate::{Language, TERM_FIELD, TextError, Version, WEIGHT_FIELD};

/// The weight of a field that is only in the index because all are.
const WEIGHT: f64 = 1.0;
/// Longer terms are in keys as a part of them and a hash: by version, that length and the part's.
const TERM_BYTES_MAX: (usize, usize) = (64, 256);
const TERM_PREFIX_BYTES: (usize, usize) = (32, 224);

/// The terms of a document, each with its score.
pub type TermScores = BTreeMap<String, f64>;

/// What a text index is over, and by which rules.
#[derive(Debug, Clone, PartialEq)]
pub struct TextIndex {
    pub version: Version,
    pub default_language: Language,
    /// The field in which a document names its language.
    pub language_override: String,
    /// By the path of each field.
    weights: BTreeMap<String, f64>,
    /// Whether all strings are in it.
    is_wildcard: bool,
    /// The fields of its keys in front of the terms, and behind the scores.
    pub before: Vec<String>,
    pub after: Vec<String>,
}

impl TextIndex {
    /// From a specification, completed or not.
    pub fn parse(spec: &RawDocument) -> Result<TextIndex, TextError> {
        let definition = definition::complete(spec)?;
        let version = Version::of(definition.version.into()).unwrap_or(Version::Three);
        let default_language = Language::named(&definition.default_language, version)?;
        let mut weights = BTreeMap::new();
        for (name, weight) in definition.weights.iter().flatten() {
            let weight = weight.as_i32().map_or(WEIGHT, f64::from);
            weights.insert(name.as_str().to_owned(), weight);
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut is_behind = false;
        for (name, _) in definition.key.iter().flatten() {
            match name.as_str() {
                TERM_FIELD | WEIGHT_FIELD => is_behind = true,
                name if is_behind => after.push(name.to_owned()),
                name => before.push(name.to_owned()),
            }
        }
        Ok(TextIndex {
            version,
            default_language,
            language_override: definition.language_override,
            is_wildcard: weights.remove(WILDCARD).is_some(),
            weights,
            before,
            after,
        })
    }

    /// The scores of a document's terms: each field in which a term is adds to its score.
    pub fn scores(&self, document: &RawDocument) -> Result<TermScores, TextError> {
        let mut scores = TermScores::new();
        let is_first = self.version == Version::One;
        let _ = self.walk(document, is_first, &mut |text| {
            self.add_scores(&text, &mut scores);
            ControlFlow::Continue(())
        })?;
        Ok(scores)
    }

    /// A term that is there `n` times scores `1 + 1/2 + ... + 1/2^(n-1)`, times between a half and
    /// one by its share of the text's terms, a tenth more if the text is nothing else.
    fn add_scores(&self, text: &Text<'_>, scores: &mut TermScores) {
        let mut terms: HashMap<String, Occurrences> = HashMap::new();
        let mut count = 0_u32;
        let words = Words::default();
        let _ = tokenizer::each_term(text.text, text.language, self.version, words, &mut |term| {
            let occurrences = match terms.get_mut(term) {
                Some(known) => known,
                None => terms.entry(term.to_owned()).or_default(),
            };
            occurrences.add();
            count += 1;
            ControlFlow::Continue(())
        });
        for (term, occurrences) in terms {
            let share = 0.5 * f64::from(occurrences.count) / f64::from(count) + 0.5;
            let is_all = text.text.eq_ignore_ascii_case(&term);
            let adjustment = if is_all { 1.1 } else { 1.0 };
            let score = text.weight * occurrences.frequency * share * adjustment;
            *scores.entry(term).or_default() += score;
        }
    }

    /// A term as it is in keys.
    pub fn key_term<'t>(&self, term: &'t str) -> Cow<'t, str> {
        let is_early = self.version != Version::Three;
        let pick = |(early, now): (usize, usize)| if is_early { early } else { now };
        if self.version == Version::One || term.len() <= pick(TERM_BYTES_MAX) {
            return Cow::Borrowed(term);
        }
        let mut end = pick(TERM_PREFIX_BYTES);
        while !term.is_char_boundary(end) {
            end -= 1;
        }
        let mut key = term.get(..end).unwrap_or_default().to_owned();
        for byte in Md5::digest(term.as_bytes()) {
            key.push_str(&format!("{byte:02x}"));
        }
        Cow::Owned(key)
    }

    /// Calls `f` with each string of a document that is in the index. The inner result tells
    /// whether `f` has broken off.
    pub(crate) fn each_text(
        &self,
        document: &RawDocument,
        f: &mut dyn FnMut(Text<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TextError> {
        self.walk(document, false, f)
    }

    /// `is_first`: as version 1 did for its terms, though not for phrases and what is negated.
    fn walk(
        &self,
        document: &RawDocument,
        is_first: bool,
        f: &mut dyn FnMut(Text<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TextError> {
        let mut walk = Walk {
            index: self,
            is_first,
            path: String::new(),
            f,
        };
        walk.document(document, self.default_language, true)
    }

    /// The language of what is in a document: the one that it names, or that of what is around it. For
    /// the terms of version 1 inner documents name none.
    fn language_of(
        &self,
        document: &RawDocument,
        around: Language,
        is_top: bool,
        is_first: bool,
    ) -> Result<Language, TextError> {
        let named = document.get(&self.language_override).ok().flatten();
        match (is_first, named) {
            (_, None) => Ok(around),
            (true, Some(RawBsonRef::String(name))) if is_top => Language::named(name, Version::One),
            (true, _) => Ok(around),
            (false, Some(RawBsonRef::String(name))) => Language::named(name, self.version)
                .map_err(|_| TextError::Override(name.to_owned())),
            (false, Some(_)) => Err(TextError::OverrideType),
        }
    }
}

#[derive(Default)]
struct Occurrences {
    count: u32,
    frequency: f64,
    weight: f64,
}

impl Occurrences {
    fn add(&mut self) {
        self.weight = match self.count {
            0 => 1.0,
            _ => self.weight / 2.0,
        };
        self.count += 1;
        self.frequency += self.weight;
    }
}

/// A string that is in an index.
pub(crate) struct Text<'t> {
    pub text: &'t str,
    pub language: Language,
    pub weight: f64,
}

struct Walk<'w> {
    index: &'w TextIndex,
    is_first: bool,
    path: String,
    f: &'w mut dyn FnMut(Text<'_>) -> ControlFlow<()>,
}

/// What the weights say of a path.
struct Named {
    /// It is a field of the index.
    is_field: bool,
    /// One lies below.
    is_above: bool,
    weight: f64,
}

impl Walk<'_> {
    fn document(
        &mut self,
        document: &RawDocument,
        around: Language,
        is_top: bool,
    ) -> Result<ControlFlow<()>, TextError> {
        let language = self
            .index
            .language_of(document, around, is_top, self.is_first)?;
        for (name, value) in document.iter().flatten() {
            let name = name.as_str();
            if self.index.is_wildcard && name == self.index.language_override {
                continue;
            }
            let length = self.path.len();
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            let walked = self.value(name, value, language, false);
            self.path.truncate(length);
            if walked?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Items of an array have its path. Version 1 knows no documents in arrays, but in an index over
    /// all strings.
    fn value(
        &mut self,
        name: &str,
        value: RawBsonRef<'_>,
        language: Language,
        is_item: bool,
    ) -> Result<ControlFlow<()>, TextError> {
        let is_wildcard = self.index.is_wildcard;
        let is_first = self.is_first;
        let named = self.named(name);
        if !is_wildcard && !named.is_field && !named.is_above {
            return Ok(ControlFlow::Continue(()));
        }
        match value {
            RawBsonRef::String(text) if named.is_field || is_wildcard => Ok((self.f)(Text {
                // What is behind a zero byte was never seen.
                text: text.split('\0').next().unwrap_or(text),
                language,
                weight: named.weight,
            })),
            RawBsonRef::Document(_) if is_first && is_item && !is_wildcard => {
                Ok(ControlFlow::Continue(()))
            }
            RawBsonRef::Document(inner) if named.is_above || is_wildcard => {
                self.document(inner, language, false)
            }
            RawBsonRef::Array(array) if !is_item || is_wildcard => {
                for (number, item) in array.into_iter().flatten().enumerate() {
                    let name = match is_first && is_wildcard {
                        true => number.to_string(),
                        false => String::new(),
                    };
                    if self.value(&name, item, language, true)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            }
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    /// An index of version 1 over all strings has weights for names, wherever they are.
    fn named(&self, name: &str) -> Named {
        let weight = match self.is_first && self.index.is_wildcard {
            true => self.index.weights.get(name),
            false => self.index.weights.get(&self.path),
        };
        let below = self.index.weights.range::<str, _>((
            std::ops::Bound::Excluded(self.path.as_str()),
            std::ops::Bound::Unbounded,
        ));
        let mut below = below.take_while(|(known, _)| known.starts_with(&self.path));
        Named {
            is_field: weight.is_some(),
            is_above: below.any(|(known, _)| known.as_bytes().get(self.path.len()) == Some(&b'.')),
            weight: weight.copied().unwrap_or(WEIGHT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, rawdoc};

    fn scores(spec: RawDocumentBuf, document: RawDocumentBuf) -> String {
        let index = TextIndex::parse(&spec).unwrap();
        let scores = index.scores(&document).unwrap();
        let shown = scores.iter().map(|(term, score)| format!("{term}={score}"));
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_term_scores_by_its_number_its_share_and_its_fields_weight() {
        let spec = rawdoc! { "key": { "a": "text", "b": "text" }, "weights": { "b": 10 } };
        assert_eq!(scores(spec.clone(), rawdoc! { "a": "cake" }), "cake=1.1");
        assert_eq!(
            scores(spec.clone(), rawdoc! { "a": "cake cake tea" }),
            "cake=1.25 tea=0.6666666666666666"
        );
        assert_eq!(
            scores(spec, rawdoc! { "a": "cake shop", "b": "cake shop" }),
            "cake=8.25 shop=8.25"
        );
    }

    #[test]
    fn documents_and_arrays_on_the_path_are_followed() {
        let spec = rawdoc! { "key": { "a.b": "text" } };
        let document = rawdoc! { "a": [{ "b": "x1" }, { "b": ["x2", ["x3"]] }], "b": "x4" };
        assert_eq!(scores(spec, document.clone()), "x1=1.1 x2=1.1");
        let both = rawdoc! { "key": { "a": "text", "a.b": "text" } };
        assert_eq!(scores(both, rawdoc! { "a": { "b": "x1" } }), "x1=1.1");
        let all = rawdoc! { "key": { "$**": "text" } };
        assert_eq!(scores(all, document), "x1=1.1 x2=1.1 x3=1.1 x4=1.1");
    }

    #[test]
    fn version_1_knows_no_documents_in_arrays() {
        let spec = rawdoc! { "key": { "c.t": "text" }, "textIndexVersion": 1 };
        let scores_of = |document| scores(spec.clone(), document);
        assert_eq!(scores_of(rawdoc! { "c": [{ "t": "tea" }] }), "");
        assert_eq!(scores_of(rawdoc! { "c": { "t": ["tea"] } }), "tea=1.1");
        let all = rawdoc! {
            "key": { "$**": "text" }, "weights": { "b": 7, "0": 5 }, "textIndexVersion": 1,
        };
        let scores_of = |document| scores(all.clone(), document);
        assert_eq!(
            scores_of(rawdoc! { "a": [{ "b": "tea" }] }),
            "tea=7.700000000000001"
        );
        assert_eq!(scores_of(rawdoc! { "a": ["tea"] }), "tea=5.5");
    }

    #[test]
    fn a_document_may_name_its_language() {
        let spec = rawdoc! { "key": { "a.b": "text" } };
        let document = rawdoc! { "a": [{ "b": "Häuser", "language": "german" }, { "b": "the" }] };
        assert_eq!(scores(spec.clone(), document), "haus=1");
        let index = TextIndex::parse(&spec).unwrap();
        let refused = |document: RawDocumentBuf| index.scores(&document).unwrap_err().code();
        assert_eq!(refused(rawdoc! { "language": 1 }), 17261);
        assert_eq!(refused(rawdoc! { "language": "klingon" }), 17262);
    }

    #[test]
    fn a_long_term_is_hashed() {
        let index = TextIndex::parse(&rawdoc! { "key": { "a": "text" } }).unwrap();
        assert_eq!(index.key_term("short"), "short");
        let long = "x".repeat(300);
        assert_eq!(index.key_term(&long).len(), 256);
        assert_ne!(index.key_term(&long), index.key_term(&"x".repeat(301)));
    }
}
