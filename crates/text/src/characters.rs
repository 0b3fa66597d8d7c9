//! What separates words in version 3, and how their characters are folded: Unicode 8.0's dashes,
//! hyphens, quotation marks, terminal punctuation, white space and pattern syntax; its simple case
//! folding; its canonical decompositions without diacritics. The tables hold what is not ASCII.

use crate::Language;
use crate::characters_tables::{BASES, DELIMITERS, FOLDS, MARKS};

/// Whether words end at the character. In English an apostrophe is part of a word.
pub(crate) fn is_delimiter(c: char, is_english: bool) -> bool {
    match c {
        '\'' => !is_english,
        '_' => false,
        '\0'..='\x7f' => c.is_ascii_punctuation() || matches!(c, '\t'..='\r' | ' '),
        c => is_in(DELIMITERS, c),
    }
}

/// How upper case becomes lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseFolding {
    Common,
    /// `I` without a dot is `ı`, and `İ` is `i`.
    Turkish,
}

impl CaseFolding {
    pub(crate) fn of(language: Language) -> CaseFolding {
        match language {
            Language::Turkish => CaseFolding::Turkish,
            _ => CaseFolding::Common,
        }
    }

    pub(crate) fn fold(self, c: char) -> char {
        match c {
            'I' if self == CaseFolding::Turkish => 'ı',
            'İ' if self == CaseFolding::Turkish => 'i',
            c if c.is_ascii() => c.to_ascii_lowercase(),
            c => folded(c),
        }
    }
}

fn folded(c: char) -> char {
    let code = u32::from(c);
    let at = FOLDS.partition_point(|(start, ..)| *start <= code);
    let Some((start, end, step, shift)) = at.checked_sub(1).and_then(|at| FOLDS.get(at)) else {
        return c;
    };
    if code > *end || !(code - start).is_multiple_of(*step) {
        return c;
    }
    code.checked_add_signed(*shift)
        .and_then(char::from_u32)
        .unwrap_or(c)
}

/// What is left of a character without its diacritics; `None`: it is one itself.
pub(crate) fn without_diacritic(c: char) -> Option<char> {
    match c {
        '^' | '`' => None,
        c if c.is_ascii() => Some(c),
        c if is_in(MARKS, c) => None,
        c => {
            let code = u32::from(c);
            let found = BASES.binary_search_by_key(&code, |(composed, _)| *composed);
            let base = found.ok().and_then(|at| BASES.get(at));
            Some(
                base.and_then(|(_, base)| char::from_u32(*base))
                    .unwrap_or(c),
            )
        }
    }
}

/// Whether one of the sorted ranges holds a character.
fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    let at = ranges.partition_point(|(start, _)| *start <= code);
    let range = at.checked_sub(1).and_then(|at| ranges.get(at));
    range.is_some_and(|(_, end)| code <= *end)
}

/// The text that phrases are looked for in: folded as far as case and diacritics do not count.
pub(crate) fn simplified(
    text: &str,
    folding: CaseFolding,
    case_sensitive: bool,
    diacritic_sensitive: bool,
) -> String {
    let cased = text.chars().map(|c| match case_sensitive {
        true => c,
        false => folding.fold(c),
    });
    match diacritic_sensitive {
        true => cased.collect(),
        false => cased.filter_map(without_diacritic).collect(),
    }
}
