//! The words of each language that are neither indexed nor searched for: one a line, in lower case.

use std::collections::HashSet;
use std::sync::OnceLock;

pub(crate) struct StopWords {
    lines: &'static str,
    words: OnceLock<HashSet<&'static str>>,
}

impl StopWords {
    const fn of(lines: &'static str) -> StopWords {
        StopWords {
            lines,
            words: OnceLock::new(),
        }
    }

    pub(crate) fn contains(&self, word: &str) -> bool {
        let words = self.words.get_or_init(|| self.lines.lines().collect());
        words.contains(word)
    }
}

pub(crate) static NONE: StopWords = StopWords::of("");
pub(crate) static DANISH: StopWords = StopWords::of(include_str!("stop_words/danish.txt"));
pub(crate) static DUTCH: StopWords = StopWords::of(include_str!("stop_words/dutch.txt"));
pub(crate) static ENGLISH: StopWords = StopWords::of(include_str!("stop_words/english.txt"));
pub(crate) static FINNISH: StopWords = StopWords::of(include_str!("stop_words/finnish.txt"));
pub(crate) static FRENCH: StopWords = StopWords::of(include_str!("stop_words/french.txt"));
pub(crate) static GERMAN: StopWords = StopWords::of(include_str!("stop_words/german.txt"));
pub(crate) static HUNGARIAN: StopWords = StopWords::of(include_str!("stop_words/hungarian.txt"));
pub(crate) static ITALIAN: StopWords = StopWords::of(include_str!("stop_words/italian.txt"));
pub(crate) static NORWEGIAN: StopWords = StopWords::of(include_str!("stop_words/norwegian.txt"));
pub(crate) static PORTUGUESE: StopWords = StopWords::of(include_str!("stop_words/portuguese.txt"));
pub(crate) static ROMANIAN: StopWords = StopWords::of(include_str!("stop_words/romanian.txt"));
pub(crate) static RUSSIAN: StopWords = StopWords::of(include_str!("stop_words/russian.txt"));
pub(crate) static SPANISH: StopWords = StopWords::of(include_str!("stop_words/spanish.txt"));
pub(crate) static SWEDISH: StopWords = StopWords::of(include_str!("stop_words/swedish.txt"));
pub(crate) static TURKISH: StopWords = StopWords::of(include_str!("stop_words/turkish.txt"));
