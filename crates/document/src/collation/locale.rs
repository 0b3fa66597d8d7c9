//! The locales that collations may name, as MongoDB does, and what Unicode calls them.

use icu_locale_core::Locale;

use super::definition::{Alternate, CaseFirst};

/// Those that have rules or are known to need none beyond the root's. In order.
const LOCALES: [&str; 109] = [
    "af",
    "am",
    "ar",
    "as",
    "az",
    "be",
    "bg",
    "bn",
    "bo",
    "bs",
    "bs_Cyrl",
    "ca",
    "chr",
    "cs",
    "cy",
    "da",
    "de",
    "de_AT",
    "dsb",
    "dz",
    "ee",
    "el",
    "en",
    "en_US",
    "en_US_POSIX",
    "eo",
    "es",
    "et",
    "fa",
    "fa_AF",
    "fi",
    "fil",
    "fo",
    "fr",
    "fr_CA",
    "ga",
    "gl",
    "gu",
    "ha",
    "haw",
    "he",
    "hi",
    "hr",
    "hsb",
    "hu",
    "hy",
    "id",
    "ig",
    "is",
    "it",
    "ja",
    "ka",
    "kk",
    "kl",
    "km",
    "kn",
    "ko",
    "kok",
    "ky",
    "lb",
    "lkt",
    "ln",
    "lo",
    "lt",
    "lv",
    "mk",
    "ml",
    "mn",
    "mr",
    "ms",
    "mt",
    "my",
    "nb",
    "ne",
    "nl",
    "nn",
    "om",
    "or",
    "pa",
    "pl",
    "ps",
    "pt",
    "ro",
    "ru",
    "se",
    "si",
    "sk",
    "sl",
    "smn",
    "sq",
    "sr",
    "sr_Latn",
    "sv",
    "sw",
    "ta",
    "te",
    "th",
    "to",
    "tr",
    "ug",
    "uk",
    "ur",
    "vi",
    "wae",
    "yi",
    "yo",
    "zh",
    "zh_Hant",
    "zu",
];

/// The orders that a locale has beside its usual one, with Unicode's names.
const TYPES: [(&str, &str, &str); 16] = [
    ("ar", "compat", "compat"),
    ("bn", "traditional", "trad"),
    ("de", "phonebook", "phonebk"),
    ("de_AT", "phonebook", "phonebk"),
    ("es", "traditional", "trad"),
    ("fi", "traditional", "trad"),
    ("ja", "unihan", "unihan"),
    ("kn", "traditional", "trad"),
    ("ko", "unihan", "unihan"),
    ("si", "dictionary", "dict"),
    // What is the usual order today was called reformed then.
    ("sv", "standard", "trad"),
    ("vi", "traditional", "trad"),
    ("zh", "unihan", "unihan"),
    ("zh", "zhuyin", "zhuyin"),
    ("zh_Hant", "pinyin", "pinyin"),
    ("zh_Hant", "unihan", "unihan"),
];

/// Those that normalise text by default, in order.
const NORMALIZING: [&str; 24] = [
    "as", "bn", "el", "fa", "fa_AF", "gu", "he", "hi", "ig", "km", "kn", "kok", "mr", "my", "or",
    "pa", "ps", "si", "ta", "te", "th", "vi", "yi", "yo",
];

/// The orders that every locale has.
const COMMON_TYPES: [&str; 2] = ["emoji", "eor"];

/// Unicode's locale for MongoDB's. `None`: there is none of the name, or there are no rules for it.
pub(super) fn find(name: &str) -> Option<Locale> {
    let (base, kind) = match name.split_once("@collation=") {
        Some((base, kind)) => (base, Some(kind)),
        None => (name, None),
    };
    LOCALES.binary_search(&base).ok()?;
    let mut tag = match base {
        "en_US_POSIX" => "en-US-posix".to_owned(),
        "nb" | "nn" => "no".to_owned(),
        other => other.replace('_', "-"),
    };
    if let Some(kind) = kind {
        tag.push_str("-u-co-");
        tag.push_str(kind_of(base, kind)?);
    }
    tag.parse().ok()
}

/// What a locale asks for where a collation says nothing.
pub(super) struct Customs {
    pub case_first: CaseFirst,
    pub alternate: Alternate,
    pub normalization: bool,
    pub backwards: bool,
}

impl Customs {
    pub fn of(name: &str) -> Customs {
        let base = match name.split_once('@') {
            // These orders are those of the root, whatever the locale.
            Some((_, "collation=emoji" | "collation=eor")) => "",
            Some((base, _)) => base,
            None => name,
        };
        Customs {
            case_first: match base {
                "da" | "mt" => CaseFirst::Upper,
                _ => CaseFirst::Off,
            },
            alternate: match base {
                "th" => Alternate::Shifted,
                _ => Alternate::NonIgnorable,
            },
            normalization: NORMALIZING.binary_search(&base).is_ok(),
            backwards: base == "fr_CA",
        }
    }
}

fn kind_of(base: &str, kind: &str) -> Option<&'static str> {
    let common = COMMON_TYPES.iter().find(|common| **common == kind);
    let own = TYPES
        .iter()
        .find(|(locale, name, _)| (*locale, *name) == (base, kind));
    common.copied().or(own.map(|(_, _, unicode)| *unicode))
}

/// All names that [`find`] knows.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = String> {
    let named = |base: &str, kind: &str| format!("{base}@collation={kind}");
    let bases = LOCALES.into_iter().map(str::to_owned);
    let common = LOCALES
        .into_iter()
        .flat_map(move |base| COMMON_TYPES.map(|kind| named(base, kind)));
    let own = TYPES
        .into_iter()
        .map(move |(base, kind, _)| named(base, kind));
    bases.chain(common).chain(own)
}
