//! The words of a text, as they are indexed and searched for.

use std::ops::ControlFlow;

use crate::characters::{self, CaseFolding};
use crate::{Language, Version};

/// What becomes of a text's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// Stop words stay.
    pub with_stop_words: bool,
    /// Their case stays.
    pub case_sensitive: bool,
    /// Their diacritics stay. Since version 3; before, they always do.
    pub diacritic_sensitive: bool,
}

/// Calls `f` with each term of a text, in their order.
pub(crate) fn each_term(
    text: &str,
    language: Language,
    version: Version,
    words: Words,
    f: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match version {
        Version::One | Version::Two => each_ascii(text, language, words, f),
        Version::Three => each_unicode(text, language, words, f),
    }
}

/// Words end at ASCII white space and punctuation, and have the case of ASCII letters folded. An
/// underscore is part of a word, an apostrophe in English.
fn each_ascii(
    text: &str,
    language: Language,
    words: Words,
    f: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let is_english = language == Language::English;
    let separates = |c: char| match c {
        '\'' => !is_english,
        '_' => false,
        ' ' | '\x0c' | '\x0b' | '\t' | '\r' | '\n' => true,
        c => c.is_ascii_punctuation(),
    };
    for word in text.split(separates).filter(|word| !word.is_empty()) {
        let lower = word.to_ascii_lowercase();
        if !words.with_stop_words && language.is_stop_word(&lower) {
            continue;
        }
        match words.case_sensitive {
            true => f(&language.stem(word))?,
            false => f(&language.stem(&lower))?,
        }
    }
    ControlFlow::Continue(())
}

/// Words end at what Unicode has for dashes, hyphens, quotation marks, punctuation that ends
/// something, white space and the syntax of patterns. Stop words and stems are looked for before
/// diacritics are dropped.
fn each_unicode(
    text: &str,
    language: Language,
    words: Words,
    f: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let is_english = language == Language::English;
    let folding = CaseFolding::of(language);
    let separates = |c: char| characters::is_delimiter(c, is_english);
    let (mut lower, mut shown) = (String::new(), String::new());
    for word in text.split(separates).filter(|word| !word.is_empty()) {
        lower.clear();
        lower.extend(word.chars().map(|c| folding.fold(c)));
        if !words.with_stop_words && language.is_stop_word(&lower) {
            continue;
        }
        let stem = match words.case_sensitive {
            true => language.stem(word),
            false => language.stem(&lower),
        };
        if words.diacritic_sensitive || stem.is_ascii() {
            f(&stem)?;
            continue;
        }
        shown.clear();
        shown.extend(stem.chars().filter_map(characters::without_diacritic));
        f(&shown)?;
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str, language: Language, version: Version, words: Words) -> String {
        let mut terms: Vec<String> = Vec::new();
        let _ = each_term(text, language, version, words, &mut |term| {
            terms.push(term.to_owned());
            ControlFlow::Continue(())
        });
        terms.join(" ")
    }

    #[test]
    fn words_are_folded_and_stemmed() {
        let english = |text| terms(text, Language::English, Version::Three, Words::default());
        assert_eq!(english("The Runner's running, again!"), "runner run");
        assert_eq!(english("Café—CAFE\u{301}"), "cafe cafe");
        assert_eq!(english("  "), "");
        let german = |text| terms(text, Language::German, Version::Three, Words::default());
        assert_eq!(german("Die Häuser"), "haus");
    }

    #[test]
    fn before_version_3_only_ascii_counts() {
        let none = |text| terms(text, Language::None, Version::Two, Words::default());
        assert_eq!(none("CAFÉ—Bar a_b c'd"), "cafÉ—bar a_b c d");
    }

    #[test]
    fn case_and_diacritics_stay_where_that_is_asked_for() {
        let with = |case_sensitive, diacritic_sensitive| {
            let words = Words {
                case_sensitive,
                diacritic_sensitive,
                ..Words::default()
            };
            terms("CAFÉ", Language::None, Version::Three, words)
        };
        assert_eq!(with(true, false), "CAFE");
        assert_eq!(with(false, true), "café");
        assert_eq!(with(true, true), "CAFÉ");
    }
}
