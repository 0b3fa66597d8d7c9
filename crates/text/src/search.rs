//! What a `$search` string asks for: terms of which a document needs one, phrases that it needs
//! all of, and terms and phrases that it may have none of.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::tokenizer::{self, Words};
use crate::{Language, TextError, Version};

/// The options beside `$search`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchOptions {
    /// `None`: the index's own.
    pub language: Option<String>,
    pub case_sensitive: bool,
    pub diacritic_sensitive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    pub language: Language,
    pub case_sensitive: bool,
    pub diacritic_sensitive: bool,
    /// The terms to look up in the index, whose case and diacritics are folded.
    pub looked_up: BTreeSet<String>,
    /// The terms as documents have to have them.
    pub terms: BTreeSet<String>,
    pub negated_terms: BTreeSet<String>,
    pub phrases: Vec<String>,
    pub negated_phrases: Vec<String>,
}

impl Search {
    /// `language` is that of the index, for a search that names none.
    pub fn parse(
        search: &str,
        options: &SearchOptions,
        language: Language,
        version: Version,
    ) -> Result<Search, TextError> {
        let language = match options.language.as_deref() {
            None | Some("") => language,
            Some(name) => Language::named(name, version)?,
        };
        let mut parsed = Search {
            language,
            case_sensitive: options.case_sensitive,
            // Before version 3 diacritics always count.
            diacritic_sensitive: options.diacritic_sensitive,
            looked_up: BTreeSet::new(),
            terms: BTreeSet::new(),
            negated_terms: BTreeSet::new(),
            phrases: Vec::new(),
            negated_phrases: Vec::new(),
        };
        let sentences = parsed.divide(search);
        parsed.terms = parsed.terms_of(&sentences.positive, version);
        parsed.negated_terms = parsed.terms_of(&sentences.negative, version);
        each(
            &sentences.positive,
            language,
            version,
            Words::default(),
            |term| {
                parsed.looked_up.insert(term.to_owned());
            },
        );
        Ok(parsed)
    }

    /// Takes the phrases out. A hyphen behind white space negates up to the next white space; what
    /// is in a phrase is searched for as terms as well, unless the phrase is negated.
    fn divide(&mut self, search: &str) -> Sentences {
        let mut sentences = Sentences::default();
        let mut negated = false;
        let mut phrase: Option<usize> = None;
        for token in tokens(search) {
            match token.kind {
                TokenKind::Text => {
                    if negated && token.is_behind_space && phrase.is_none() {
                        negated = false;
                    }
                    let into = match (negated, phrase) {
                        (true, Some(_)) => continue,
                        (true, None) => &mut sentences.negative,
                        (false, _) => &mut sentences.positive,
                    };
                    into.push_str(token.text);
                    into.push(' ');
                }
                TokenKind::Hyphen => {
                    if phrase.is_none() && token.is_behind_space {
                        negated = true;
                    }
                }
                TokenKind::Quote => match phrase.take() {
                    Some(start) => {
                        let text = search.get(start..token.at).unwrap_or_default();
                        match negated {
                            true => self.negated_phrases.push(text.to_owned()),
                            false => self.phrases.push(text.to_owned()),
                        }
                    }
                    None => {
                        if negated && token.is_behind_space {
                            negated = false;
                        }
                        phrase = Some(token.at + 1);
                    }
                },
            }
        }
        sentences
    }

    fn terms_of(&self, sentence: &str, version: Version) -> BTreeSet<String> {
        let words = Words {
            with_stop_words: false,
            case_sensitive: self.case_sensitive,
            diacritic_sensitive: self.diacritic_sensitive,
        };
        let mut terms = BTreeSet::new();
        each(sentence, self.language, version, words, |term| {
            terms.insert(term.to_owned());
        });
        terms
    }
}

fn each(
    sentence: &str,
    language: Language,
    version: Version,
    words: Words,
    mut f: impl FnMut(&str),
) {
    // What is behind a zero byte is not looked for.
    let sentence = sentence.split('\0').next().unwrap_or(sentence);
    let _ = tokenizer::each_term(sentence, language, version, words, &mut |term| {
        f(term);
        ControlFlow::Continue(())
    });
}

#[derive(Default)]
struct Sentences {
    positive: String,
    negative: String,
}

struct Token<'s> {
    kind: TokenKind,
    text: &'s str,
    at: usize,
    /// Or at the beginning.
    is_behind_space: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Text,
    Hyphen,
    Quote,
}

/// The parts of a search: hyphens, quotation marks and what is between them, without white space, of
/// which tabs are none.
fn tokens(search: &str) -> impl Iterator<Item = Token<'_>> {
    let is_space = |c: char| matches!(c, ' ' | '\n'..='\r');
    let mut at = 0;
    let mut is_behind_space = true;
    std::iter::from_fn(move || {
        loop {
            let rest = search.get(at..)?;
            let first = rest.chars().next()?;
            if is_space(first) {
                is_behind_space = true;
                at += first.len_utf8();
                continue;
            }
            let kind = match first {
                '-' => TokenKind::Hyphen,
                '"' => TokenKind::Quote,
                _ => TokenKind::Text,
            };
            let length = match kind {
                TokenKind::Text => rest
                    .find(|c: char| is_space(c) || c == '-' || c == '"')
                    .unwrap_or(rest.len()),
                TokenKind::Hyphen | TokenKind::Quote => 1,
            };
            let token = Token {
                kind,
                text: rest.get(..length)?,
                at,
                is_behind_space,
            };
            at += length;
            is_behind_space = false;
            return Some(token);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(search: &str) -> String {
        let options = SearchOptions::default();
        let parsed = Search::parse(search, &options, Language::English, Version::Three).unwrap();
        let terms = |terms: BTreeSet<String>| terms.into_iter().collect::<Vec<_>>().join(" ");
        format!(
            "{} | {} | {} | {}",
            terms(parsed.terms),
            terms(parsed.negated_terms),
            parsed.phrases.join(","),
            parsed.negated_phrases.join(",")
        )
    }

    #[test]
    fn terms_phrases_and_what_must_not_be() {
        assert_eq!(parsed("coffee shops"), "coffe shop |  |  | ");
        assert_eq!(parsed("coffee -shop"), "coffe | shop |  | ");
        assert_eq!(parsed("coffee-shop"), "coffe shop |  |  | ");
        assert_eq!(parsed("-coffee-shop tea"), "tea | coffe shop |  | ");
        assert_eq!(
            parsed("\"Coffee shop\" tea"),
            "coffe shop tea |  | Coffee shop | "
        );
        assert_eq!(parsed("tea -\"coffee shop\""), "tea |  |  | coffee shop");
        assert_eq!(parsed("tea - coffee"), "coffe tea |  |  | ");
        assert_eq!(parsed("tea \"coffee"), "coffe tea |  |  | ");
        assert_eq!(
            parsed("tea -coffee\"hot milk\"shop cake"),
            "cake tea | coffe shop |  | hot milk"
        );
        assert_eq!(parsed("tea\t-coffee"), "coffe tea |  |  | ");
        assert_eq!(parsed("tea\0coffee"), "tea |  |  | ");
    }

    #[test]
    fn what_is_looked_up_is_folded() {
        let options = SearchOptions {
            case_sensitive: true,
            ..SearchOptions::default()
        };
        let search = Search::parse("Coffee", &options, Language::English, Version::Three).unwrap();
        assert!(search.looked_up.contains("coffe"));
        assert!(search.terms.contains("Coffe"));
    }
}
