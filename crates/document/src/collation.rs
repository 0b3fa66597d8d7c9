//! Collations: which strings are equal and in what order they come, by the rules of a language.
//!
//! A [`Collation`] is what MongoDB's `collation` documents say, with every field filled in. A
//! [`Collator`] is one at work: it compares strings and makes the bytes that sort as the strings
//! do. The simple collation, which compares bytes, is the absence of a collator.
//!
//! A key string is a sort key as text: each byte is the character of that number, so that the text
//! sorts as the bytes do. With its strings replaced by their key strings ([`key_value`]), a value
//! can go wherever values are compared in the simple order.
//!
//! [`locale`] knows the locales, [`rules`] turns a collation into Unicode's algorithm.

mod key_value;
mod locale;
mod parse;
mod rules;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};

use crate::writer::DocumentWriter;
pub use key_value::{describe_key_string, holds_strings, key_value};
pub use parse::CollationError;

/// The version of the locales' data, as MongoDB names it.
pub const VERSION: &str = "57.1";

/// All that decides how strings are compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collation {
    /// As it was written: `de_AT`, `de@collation=phonebook`.
    pub locale: String,
    pub case_level: bool,
    pub case_first: CaseFirst,
    pub strength: Strength,
    pub numeric_ordering: bool,
    pub alternate: Alternate,
    pub max_variable: MaxVariable,
    /// Text is always normalised before it is compared, so this changes nothing.
    pub normalization: bool,
    pub backwards: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CaseFirst {
    Upper,
    Lower,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strength {
    Primary = 1,
    Secondary = 2,
    Tertiary = 3,
    Quaternary = 4,
    Identical = 5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alternate {
    NonIgnorable,
    Shifted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MaxVariable {
    Punct,
    Space,
}

impl Collation {
    /// As `listCollections` and `listIndexes` show it.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut writer = DocumentWriter::new();
        writer.append_str("locale", &self.locale);
        writer.append_bool("caseLevel", self.case_level);
        writer.append_str("caseFirst", self.case_first.name());
        writer.append_i32("strength", self.strength as i32);
        writer.append_bool("numericOrdering", self.numeric_ordering);
        writer.append_str("alternate", self.alternate.name());
        writer.append_str("maxVariable", self.max_variable.name());
        writer.append_bool("normalization", self.normalization);
        writer.append_bool("backwards", self.backwards);
        writer.append_str("version", VERSION);
        writer.finish()
    }
}

impl CaseFirst {
    fn name(self) -> &'static str {
        match self {
            CaseFirst::Upper => "upper",
            CaseFirst::Lower => "lower",
            CaseFirst::Off => "off",
        }
    }
}

impl Alternate {
    fn name(self) -> &'static str {
        match self {
            Alternate::NonIgnorable => "non-ignorable",
            Alternate::Shifted => "shifted",
        }
    }
}

impl MaxVariable {
    fn name(self) -> &'static str {
        match self {
            MaxVariable::Punct => "punct",
            MaxVariable::Space => "space",
        }
    }
}

/// A collation at work. Cloning shares it; two are equal if their collations are.
#[derive(Clone)]
pub struct Collator {
    shared: Arc<Shared>,
}

struct Shared {
    collation: Collation,
    rules: icu_collator::Collator,
}

/// What a field that is not given stands for.
#[derive(Debug, Clone, Copy)]
enum Absent {
    /// What the locale usually does: capitals come first in Danish.
    ByLocale,
    /// The same for all locales, but for `backwards`.
    Plain,
}

impl Collator {
    /// Of a `collation` document; `None` is the simple collation. The locale decides about what is
    /// not given.
    pub fn parse(document: &RawDocument) -> Result<Option<Collator>, CollationError> {
        Collator::complete(document, Absent::ByLocale)
    }

    /// Of what `create` gives a collection, which MongoDB completes without asking the locale.
    pub fn parse_default(document: &RawDocument) -> Result<Option<Collator>, CollationError> {
        Collator::complete(document, Absent::Plain)
    }

    fn complete(
        document: &RawDocument,
        absent: Absent,
    ) -> Result<Option<Collator>, CollationError> {
        let Some(collation) = parse::parse(document, absent)? else {
            return Ok(None);
        };
        let rules = rules::of(&collation).ok_or_else(|| parse::invalid_locale(document))?;
        Ok(Some(Collator {
            shared: Arc::new(Shared { collation, rules }),
        }))
    }

    pub fn collation(&self) -> &Collation {
        &self.shared.collation
    }

    pub fn compare(&self, a: &str, b: &str) -> Ordering {
        if a == b {
            return Ordering::Equal;
        }
        self.shared.rules.as_borrowed().compare(a, b)
    }

    /// Text whose bytes sort as the strings do, and are equal where the strings are.
    pub fn key_string(&self, text: &str) -> String {
        let mut bytes = Vec::with_capacity(2 * text.len() + 8);
        // Writing to memory cannot fail.
        let Ok(()) = self
            .shared
            .rules
            .as_borrowed()
            .write_sort_key_to(text, &mut bytes);
        bytes.into_iter().map(char::from).collect()
    }
}

impl fmt::Debug for Collator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collator({:?})", self.shared.collation)
    }
}

impl PartialEq for Collator {
    fn eq(&self, other: &Collator) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) || self.shared.collation == other.shared.collation
    }
}

impl Eq for Collator {}

/// How strings are ordered. The simple order and that of a collator are types of their own, so that
/// what goes through values is compiled for each and asks no further.
pub(crate) trait StringOrder: Copy {
    fn compare(self, a: &str, b: &str) -> Ordering;

    /// Hands on the bytes that sort as the strings do.
    fn with_sort_key(self, text: &str, take: impl FnOnce(&[u8]));
}

/// By bytes.
#[derive(Clone, Copy)]
pub(crate) struct Simple;

impl StringOrder for Simple {
    #[inline]
    fn compare(self, a: &str, b: &str) -> Ordering {
        a.cmp(b)
    }

    #[inline]
    fn with_sort_key(self, text: &str, take: impl FnOnce(&[u8])) {
        take(text.as_bytes());
    }
}

impl StringOrder for &Collator {
    fn compare(self, a: &str, b: &str) -> Ordering {
        Collator::compare(self, a, b)
    }

    fn with_sort_key(self, text: &str, take: impl FnOnce(&[u8])) {
        take(self.key_string(text).as_bytes());
    }
}

#[cfg(test)]
mod tests;
