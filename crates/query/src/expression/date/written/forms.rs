//! The forms in which the parts of a date are written.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// What a form says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A word for a day beside today, or for a time of day.
    Word,
    /// Seconds since 1970.
    Timestamp,
    /// By the clock with two halves of a day.
    HalfDayTime,
    Time,
    /// Without points in between; behind another time it is a year.
    BareTime,
    /// Whatever of a year, a month and a day it names.
    Date,
    /// The year as it is, also a short one.
    PlainDate,
    Ordinal,
    Week,
    Year,
    Weekday,
    Ago,
    /// A day and a time that belong together.
    DateAndTime,
    Offset,
    Zone,
    /// So many units from there.
    Step,
    /// `next month` and the like.
    WordStep,
    /// What stands between the others.
    Gap,
}

/// A form that has been found.
pub(super) struct Found<'t> {
    pub form: Form,
    pub parts: Captures<'t>,
    pub length: usize,
}

/// The names that the patterns below use. Where one is the beginning of another, the longer one
/// comes first.
const NAMES: &[(&str, &str)] = &[
    ("{hour}", "(?<hour>2[0-4]|[01]?[0-9])"),
    ("{hh}", "(?<hour>[01][0-9]|2[0-4])"),
    ("{hour12}", "(?<hour>1[0-2]|0?[1-9])"),
    ("{minute}", "(?<minute>[0-5]?[0-9])"),
    ("{mm}", "(?<minute>[0-5][0-9])"),
    ("{second}", "(?<second>60|[0-5]?[0-9])"),
    ("{ss}", "(?<second>60|[0-5][0-9])"),
    ("{fraction}", r"\.(?<fraction>[0-9]+)"),
    ("{half}", r"(?<half>[ap])\.?m\.?(?:[\t ]|\z)"),
    ("{month}", "(?<month>1[0-2]|0?[0-9])"),
    ("{mo}", "(?<month>0[0-9]|1[0-2])"),
    (
        "{name}",
        "(?<name>january|february|march|april|may|june|july|august|september|october|november|\
         december|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|\
         (?-i:VIII|VII|VI|V|IV|IX|III|II|I|XII|XI|X))",
    ),
    (
        "{abbr}",
        "(?<name>jan|feb|mar|apr|may|jun|jul|aug|sept|sep|oct|nov|dec)",
    ),
    ("{day}", "(?<day>3[01]|[0-2]?[0-9])"),
    ("{dd}", "(?<day>3[01]|[0-2][0-9])"),
    ("{year}", "(?<year>[0-9]{1,4})"),
    ("{yyyy}", "(?<year>[0-9]{4})"),
    ("{yy}", "(?<year>[0-9]{2})"),
    ("{behind}", r"[,.stndrh\t ]+"),
    (
        "{weekday}",
        "(?<weekday>sunday|monday|tuesday|wednesday|thursday|friday|saturday|sun|mon|tue|wed|thu|\
         fri|sat)",
    ),
    (
        "{unit}",
        "(?<unit>millisecond|msec|ms|second|sec|minute|min|hour|day|fortnight|forthnight|month|\
         year|week)s?",
    ),
];

/// In the order in which the reference tries them: of two of one length the first counts.
const FORMS: &[(Form, &str)] = &[
    (
        Form::Word,
        "(?<word>yesterday|now|noon|midnight|today|tomorrow)",
    ),
    (
        Form::Timestamp,
        r"@(?<seconds>-?[0-9]+)(?:\.(?<fraction>[0-9]{0,6}))?",
    ),
    (Form::HalfDayTime, r"{hour12}[ \t]*{half}"),
    (Form::HalfDayTime, r"{hour12}[:.]{mm}[ \t]*{half}"),
    (
        Form::HalfDayTime,
        r"{hour12}[:.]{minute}[:.]{ss}[ \t]*{half}",
    ),
    (
        Form::HalfDayTime,
        r"{hour12}:{mm}:{ss}[:.](?<fraction>[0-9]+){half}",
    ),
    (Form::Time, "t{hour}"),
    (Form::Time, "t?{hour}[:.]{minute}"),
    (Form::Time, "t?{hour}[:.]{minute}[:.]{second}"),
    (Form::Time, "t?{hour}[:.]{minute}[:.]{second}{fraction}"),
    (Form::BareTime, "t?{hh}{mm}"),
    (Form::Time, "t?{hh}{mm}{ss}"),
    (Form::Date, "{month}/{day}"),
    (Form::Date, "{month}/{day}/{year}"),
    (Form::PlainDate, "(?<sign>[+-])?{yyyy}-{mo}-{dd}"),
    (Form::PlainDate, "{yyyy}/{mo}/{dd}/?"),
    (Form::PlainDate, "{yyyy}/{month}/{day}"),
    (Form::Date, "{yy}-{mo}-{dd}"),
    (
        Form::PlainDate,
        "(?<sign>[+-])(?<year>[0-9]{5,19})-{mo}-{dd}",
    ),
    (Form::Date, "{yyyy}-{month}"),
    (Form::Date, "{year}-{month}-{day}"),
    (
        Form::Date,
        r"{day}(?:st|nd|rd|th)?[ \t.-]*{name}[ \t.-]*{year}",
    ),
    (Form::Date, r"{day}[.\t-]{month}[.-]{yyyy}"),
    (Form::Date, r"{day}[.\t]{month}\.{yy}"),
    (Form::Date, r"{name}[ .\t-]*{yyyy}"),
    (Form::Date, r"{yyyy}[ .\t-]*{name}"),
    (Form::Date, r"{name}[ .\t-]*{day}{behind}{year}"),
    (Form::Date, r"{name}[ .\t-]*{day}(?:{behind}|\z)"),
    (Form::Date, r"{day}(?:st|nd|rd|th)?[ .\t-]*{name}"),
    (Form::Date, "{yyyy}{mo}{dd}"),
    (Form::DateAndTime, "{yyyy}:{mo}:{dd} {hh}:{mm}:{ss}"),
    (
        Form::Ordinal,
        "{yyyy}[.-]?(?<ordinal>00[1-9]|0[1-9][0-9]|[12][0-9][0-9]|3[0-5][0-9]|36[0-6])",
    ),
    (
        Form::Week,
        "{yyyy}-?(?-i:W)(?<week>0[1-9]|[1-4][0-9]|5[0-3])-?(?<weekday>[0-7])",
    ),
    (
        Form::Week,
        "{yyyy}-?(?-i:W)(?<week>0[1-9]|[1-4][0-9]|5[0-3])",
    ),
    (Form::Date, "{abbr}-{dd}-{year}"),
    (Form::Date, "{year}-{abbr}-{dd}"),
    (Form::DateAndTime, "{day}/{abbr}/{yyyy}:{hh}:{mm}:{ss}"),
    (Form::Year, "{yyyy}"),
    (Form::Ago, "ago"),
    (Form::Weekday, "{weekday}"),
    (
        Form::WordStep,
        r"(?<word>next|last|previous|this)[ \t]+{unit}",
    ),
    (Form::Date, "{name}"),
    (
        Form::Offset,
        "(?-i:GMT)?(?<sign>[+-])(?<offset>(?:[01][0-9]|2[0-4]):[0-5][0-9]:[0-5][0-9]|\
         (?:2[0-4]|[01]?[0-9]):?(?:[0-5]?[0-9])?)",
    ),
    (Form::Zone, r"\(?(?<zone>[a-z]{1,6})\)?"),
    (
        Form::DateAndTime,
        r"{name}[ .\t-]*{day}{behind}t?{hour}[:.]{minute}",
    ),
    (
        Form::DateAndTime,
        r"{name}[ .\t-]*{day}{behind}t?{hour}[:.]{minute}[:.]{second}",
    ),
    (
        Form::Step,
        r"(?<signs>[+-]*)[ \t]*(?<count>[0-9]{1,13})[ \t]*{unit}",
    ),
    (Form::Gap, r"[ .,\t\n]"),
];

static PATTERNS: LazyLock<Vec<(Form, Regex)>> = LazyLock::new(|| {
    let pattern = |(form, text): &(Form, &str)| {
        let written =
            |text: String, (name, stands_for): &(&str, &str)| text.replace(name, stands_for);
        let text = NAMES.iter().fold((*text).to_owned(), written);
        // One that is no pattern is caught by the test below.
        Regex::new(&format!(r"\A(?i:{text})"))
            .ok()
            .map(|regex| (*form, regex))
    };
    FORMS.iter().filter_map(pattern).collect()
});

/// What the text begins with.
pub(super) fn first(text: &str) -> Option<Found<'_>> {
    let mut longest: Option<Found<'_>> = None;
    for (form, pattern) in PATTERNS.iter() {
        let Some(parts) = pattern.captures(text) else {
            continue;
        };
        let length = parts.get(0).map_or(0, |all| all.len());
        if longest.as_ref().is_none_or(|found| found.length < length) {
            let form = *form;
            longest = Some(Found {
                form,
                parts,
                length,
            });
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_pattern() {
        assert_eq!(PATTERNS.len(), FORMS.len());
    }

    #[test]
    fn the_longest_form_counts_and_of_those_the_first() {
        let form = |text: &str| first(text).map(|found| (found.form, found.length));
        assert_eq!(form("1.2.14"), Some((Form::Time, 6)));
        assert_eq!(form("22.12.78"), Some((Form::Date, 8)));
        assert_eq!(form("2014"), Some((Form::BareTime, 4)));
        assert_eq!(form("1978 "), Some((Form::Year, 4)));
        assert_eq!(form("2014-08-09T12"), Some((Form::PlainDate, 10)));
        assert_eq!(form("Aug  9 12:13:14 2014"), Some((Form::DateAndTime, 15)));
        assert_eq!(form("+1 day"), Some((Form::Step, 6)));
        assert_eq!(form("+1"), Some((Form::Offset, 2)));
        assert_eq!(form("!"), None);
    }
}
