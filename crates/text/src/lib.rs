//! Text search as MongoDB 6.0 has it: what the words of a text are, what a search asks for, which
//! documents it finds and how well they fit. Pure functions over strings and BSON.
//!
//! Read in this order: `language.rs` (names, stemmers, stop words), `tokenizer.rs` (a text's words;
//! `characters.rs` says what separates and folds them), `search.rs` (what `$search` asks for),
//! `definition.rs` (the options of a text index), `index.rs` (a document's terms and their scores),
//! `matching.rs` (whether a document matches a search).
//!
//! The rules have three versions, those of `textIndexVersion`: 1 and 2 separate words at ASCII
//! punctuation and fold the case of ASCII letters, 3 does both by Unicode and drops diacritics.

mod characters;
mod characters_tables;
mod definition;
mod index;
mod language;
mod matching;
mod search;
mod stop_words;
mod tokenizer;

use thiserror::Error;

pub use definition::{Definition, complete};
pub use index::{TermScores, TextIndex};
pub use language::Language;
pub use matching::Matcher;
pub use search::{Search, SearchOptions};

/// The value of a key pattern's field that stands for text.
pub const PLUGIN: &str = "text";
/// What stands for the text fields in the key pattern of a text index as it is kept.
pub const TERM_FIELD: &str = "_fts";
pub const WEIGHT_FIELD: &str = "_ftsx";

/// Of text indexes, and of searches in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    One = 1,
    Two = 2,
    Three = 3,
}

impl Version {
    pub fn of(number: i64) -> Option<Version> {
        match number {
            1 => Some(Version::One),
            2 => Some(Version::Two),
            3 => Some(Version::Three),
            _ => None,
        }
    }

    pub fn number(self) -> i32 {
        self as i32
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TextError {
    #[error("unsupported language: \"{name}\" for text index version {version}")]
    Language { name: String, version: i32 },
    #[error("found language override field in document with non-string type")]
    OverrideType,
    #[error("language override unsupported: {0}")]
    Override(String),
    /// What an index may not be.
    #[error("{0}")]
    Definition(String),
    #[error("Field '{0}' of text index contains an array")]
    ArrayBeside(String),
}

impl TextError {
    /// MongoDB's number for the error.
    pub fn code(&self) -> i32 {
        match self {
            TextError::Language { .. } => 2,
            TextError::OverrideType => 17261,
            TextError::Override(_) => 17262,
            TextError::Definition(_) => 67,
            TextError::ArrayBeside(_) => 201,
        }
    }
}
