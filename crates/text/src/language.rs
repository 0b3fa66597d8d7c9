//! The languages that MongoDB knows, by their names and codes.

use std::borrow::Cow;

use rust_stemmers::{Algorithm, Stemmer};

use crate::stop_words::{self, StopWords};
use crate::{TextError, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Words are taken as they are: no stop words, no stems.
    None,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Hungarian,
    Italian,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Turkish,
    /// A language by its code in an index of version 1: words have its stems, and nothing else is as
    /// in it. Each word is searched for.
    Code {
        code: &'static str,
        of: &'static Language,
    },
}

/// A language with its name, its code since version 2, and the codes of version 1.
type Names = (
    Language,
    &'static str,
    &'static str,
    &'static [&'static str],
);

static LANGUAGES: &[Names] = &[
    (Language::None, "none", "none", &[]),
    (Language::Danish, "danish", "da", &["da", "dan"]),
    (Language::Dutch, "dutch", "nl", &["nl", "dut", "nld"]),
    // Version 1 knew an older stemmer, too.
    (Language::English, "english", "en", &["en", "eng", "porter"]),
    (Language::Finnish, "finnish", "fi", &["fi", "fin"]),
    (Language::French, "french", "fr", &["fr", "fre", "fra"]),
    (Language::German, "german", "de", &["de", "ger", "deu"]),
    (Language::Hungarian, "hungarian", "hu", &["hu", "hun"]),
    (Language::Italian, "italian", "it", &["it", "ita"]),
    (Language::Norwegian, "norwegian", "nb", &["no", "nor"]),
    (Language::Portuguese, "portuguese", "pt", &["pt", "por"]),
    (Language::Romanian, "romanian", "ro", &["ro", "rum", "ron"]),
    (Language::Russian, "russian", "ru", &["ru", "rus"]),
    (Language::Spanish, "spanish", "es", &["es", "esl", "spa"]),
    (Language::Swedish, "swedish", "sv", &["sv", "swe"]),
    (Language::Turkish, "turkish", "tr", &["tr", "tur"]),
];

impl Language {
    /// The language of a name or a code. Version 1 takes them by their case, and has other codes;
    /// a name that it does not know stands for no language.
    pub fn named(name: &str, version: Version) -> Result<Language, TextError> {
        if version == Version::One {
            return Ok(Language::of_version_1(name));
        }
        let is_named = |(_, long, code, _): &&Names| {
            name.eq_ignore_ascii_case(long) || name.eq_ignore_ascii_case(code)
        };
        match LANGUAGES.iter().find(is_named) {
            Some((language, ..)) => Ok(*language),
            None => Err(TextError::Language {
                name: name.to_owned(),
                version: version.number(),
            }),
        }
    }

    fn of_version_1(name: &str) -> Language {
        let found = LANGUAGES.iter().find_map(|(language, long, _, codes)| {
            if name == *long {
                return Some(*language);
            }
            let code = codes.iter().find(|code| **code == name)?;
            Some(Language::Code { code, of: language })
        });
        found.unwrap_or(Language::None)
    }

    pub fn name(self) -> &'static str {
        if let Language::Code { code, .. } = self {
            return code;
        }
        let mut languages = LANGUAGES.iter();
        languages
            .find(|(language, ..)| *language == self)
            .map_or("none", |(_, name, ..)| name)
    }

    /// Whether a word, in lower case, says too little to be searched for.
    pub fn is_stop_word(self, word: &str) -> bool {
        let (words, _) = self.rules();
        words.contains(word)
    }

    /// The stem of a word in lower case.
    pub fn stem(self, word: &str) -> Cow<'_, str> {
        let (_, Some(algorithm)) = self.rules() else {
            return Cow::Borrowed(word);
        };
        let stemmer = Stemmer::create(algorithm);
        let language = match self {
            Language::Code { of, .. } => *of,
            language => language,
        };
        match older(language, word) {
            None => stemmer.stem(word),
            Some((word, back)) => Cow::Owned(exchanged(&stemmer.stem(&word), back)),
        }
    }

    fn rules(self) -> (&'static StopWords, Option<Algorithm>) {
        match self {
            Language::None => (&stop_words::NONE, None),
            Language::Danish => (&stop_words::DANISH, Some(Algorithm::Danish)),
            Language::Dutch => (&stop_words::DUTCH, Some(Algorithm::Dutch)),
            Language::English => (&stop_words::ENGLISH, Some(Algorithm::English)),
            Language::Finnish => (&stop_words::FINNISH, Some(Algorithm::Finnish)),
            Language::French => (&stop_words::FRENCH, Some(Algorithm::French)),
            Language::German => (&stop_words::GERMAN, Some(Algorithm::German)),
            Language::Hungarian => (&stop_words::HUNGARIAN, Some(Algorithm::Hungarian)),
            Language::Italian => (&stop_words::ITALIAN, Some(Algorithm::Italian)),
            Language::Norwegian => (&stop_words::NORWEGIAN, Some(Algorithm::Norwegian)),
            Language::Portuguese => (&stop_words::PORTUGUESE, Some(Algorithm::Portuguese)),
            Language::Romanian => (&stop_words::ROMANIAN, Some(Algorithm::Romanian)),
            Language::Russian => (&stop_words::RUSSIAN, Some(Algorithm::Russian)),
            Language::Spanish => (&stop_words::SPANISH, Some(Algorithm::Spanish)),
            Language::Swedish => (&stop_words::SWEDISH, Some(Algorithm::Swedish)),
            Language::Turkish => (&stop_words::TURKISH, Some(Algorithm::Turkish)),
            Language::Code { of, .. } => (&stop_words::NONE, of.rules().1),
        }
    }
}

/// Pairs of characters: one that is to be replaced, and what by.
type Exchange = &'static [(char, char)];

/// A word written such that today's Snowball treats it as the older one does that MongoDB has, and
/// how its stem is written back. The older one had `õ` and `û` in place of Hungarian's `ő` and `ű`,
/// and knew no Portuguese `-ução`. What stands for a character that it did not know is in no
/// language here.
fn older(language: Language, word: &str) -> Option<(String, Exchange)> {
    match language {
        Language::Hungarian if word.contains(['ő', 'õ', 'ű', 'û']) => {
            let there = [('ő', 'ȍ'), ('õ', 'ő'), ('ű', 'ȕ'), ('û', 'ű')];
            let back = &[('ő', 'õ'), ('ȍ', 'ő'), ('ű', 'û'), ('ȕ', 'ű')];
            Some((exchanged(word, &there), back))
        }
        Language::Portuguese => {
            let mut endings = [("ução", "uȼão"), ("uções", "uȼões")].into_iter();
            let written = endings.find_map(|(ending, other)| {
                let stem = word.strip_suffix(ending)?;
                Some(format!("{stem}{other}"))
            });
            Some((written?, &[('ȼ', 'ç')]))
        }
        _ => None,
    }
}

/// Each character is replaced once.
fn exchanged(word: &str, exchange: &[(char, char)]) -> String {
    let other = |c: char| {
        let found = exchange.iter().find(|(from, _)| *from == c);
        found.map_or(c, |(_, to)| *to)
    };
    word.chars().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_has_a_name_and_a_code() {
        let named = |name| Language::named(name, Version::Three);
        assert_eq!(named("english"), Ok(Language::English));
        assert_eq!(named("EN"), Ok(Language::English));
        assert_eq!(named("nb"), Ok(Language::Norwegian));
        assert_eq!(named("none"), Ok(Language::None));
        let error = named("klingon").unwrap_err();
        assert_eq!(
            error.to_string(),
            "unsupported language: \"klingon\" for text index version 3"
        );
        assert_eq!(error.code(), 2);
    }

    #[test]
    fn version_1_has_other_codes_and_knows_every_name() {
        let named = |name| Language::named(name, Version::One);
        assert_eq!(named("english"), Ok(Language::English));
        let coded = named("eng").unwrap();
        assert_eq!((coded.name(), &*coded.stem("running")), ("eng", "run"));
        assert!(Language::English.is_stop_word("the") && !coded.is_stop_word("the"));
        assert_eq!(named("nb"), Ok(Language::None));
        assert_eq!(named("English"), Ok(Language::None));
    }

    #[test]
    fn words_are_stemmed_by_their_language() {
        assert_eq!(Language::English.stem("running"), "run");
        assert_eq!(Language::German.stem("häuser"), "haus");
        assert_eq!(Language::None.stem("running"), "running");
    }

    #[test]
    fn stems_are_those_of_an_older_snowball() {
        let stem = |word| Language::Hungarian.stem(word).into_owned();
        assert_eq!(stem("nők"), "nők");
        assert_eq!(stem("nõk"), "nõ");
        assert_eq!(stem("tűnik"), "tűni");
        assert_eq!(stem("tûnik"), "tûn");
        assert_eq!(stem("körből"), "körből");
        assert_eq!(stem("körbõl"), "kör");
        assert_eq!(Language::Portuguese.stem("revolução"), "revoluçã");
        assert_eq!(Language::Portuguese.stem("soluções"), "soluçõ");
        assert_eq!(Language::Russian.stem("ещё"), "ещё");
        assert_eq!(Language::French.stem("laïcité"), "laïcit");
    }
}
