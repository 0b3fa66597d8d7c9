//! What a `collation` document says.

use bson::RawDocumentBuf;

use crate::writer::DocumentWriter;

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
    pub(super) fn name(self) -> &'static str {
        match self {
            CaseFirst::Upper => "upper",
            CaseFirst::Lower => "lower",
            CaseFirst::Off => "off",
        }
    }
}

impl Alternate {
    pub(super) fn name(self) -> &'static str {
        match self {
            Alternate::NonIgnorable => "non-ignorable",
            Alternate::Shifted => "shifted",
        }
    }
}

impl MaxVariable {
    pub(super) fn name(self) -> &'static str {
        match self {
            MaxVariable::Punct => "punct",
            MaxVariable::Space => "space",
        }
    }
}

/// What a field that is not given stands for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Absent {
    /// What the locale usually does: capitals come first in Danish.
    ByLocale,
    /// The same for all locales, but for `backwards`.
    Plain,
}
