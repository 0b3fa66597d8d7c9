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

mod definition;
mod key_value;
mod locale;
mod parse;
mod rules;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bson::RawDocument;

use definition::Absent;

pub use definition::{Alternate, CaseFirst, Collation, MaxVariable, Strength, VERSION};
pub use key_value::{describe_key_string, holds_strings, key_value};
pub use parse::CollationError;

/// A collation at work. Cloning shares it; two are equal if their collations are.
#[derive(Clone)]
pub struct Collator {
    shared: Arc<Shared>,
}

struct Shared {
    collation: Collation,
    rules: icu_collator::Collator,
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
