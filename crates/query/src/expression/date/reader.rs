//! Reads the parts of written dates from the left.

use chrono::{NaiveDate, NaiveDateTime};

use super::zone::Zone;

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Zones by the letters that newspapers print, in hours east of Greenwich.
const SHORT_ZONES: [(&str, i32); 12] = [
    ("EST", -5),
    ("EDT", -4),
    ("CST", -6),
    ("CDT", -5),
    ("MST", -7),
    ("MDT", -6),
    ("PST", -8),
    ("PDT", -7),
    ("CEST", 2),
    ("CET", 1),
    ("EEST", 3),
    ("EET", 2),
];

/// What a text says about a time.
#[derive(Default)]
pub(super) struct Fields {
    pub year: Option<i32>,
    pub month: Option<u32>,
    pub day: Option<u32>,
    pub ordinal: Option<u32>,
    pub iso_year: Option<i32>,
    pub iso_week: Option<u32>,
    pub iso_day: Option<u32>,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    pub millisecond: u32,
    pub zone: Option<Zone>,
}

impl Fields {
    pub fn on(year: u32, month: u32, day: u32) -> Fields {
        Fields {
            year: i32::try_from(year).ok(),
            month: Some(month),
            day: Some(day),
            ..Fields::default()
        }
    }

    pub fn local(&self) -> Option<NaiveDateTime> {
        let day = match (self.iso_year, self.ordinal) {
            (Some(year), _) => {
                // Week 53 of a year of 52 is the first of the next.
                let first = NaiveDate::from_isoywd_opt(year, 1, chrono::Weekday::Mon)?;
                let days =
                    (i64::from(self.iso_week?) - 1) * 7 + i64::from(self.iso_day.unwrap_or(1)) - 1;
                first.checked_add_signed(chrono::TimeDelta::try_days(days)?)?
            }
            (None, Some(ordinal)) => NaiveDate::from_yo_opt(self.year?, ordinal)?,
            (None, None) => NaiveDate::from_ymd_opt(self.year?, self.month?, self.day?)?,
        };
        day.and_hms_milli_opt(self.hour, self.minute, self.second, self.millisecond)
    }
}

/// Reads a text from the left.
pub(super) struct Reader<'a> {
    pub rest: &'a str,
}

impl Reader<'_> {
    pub fn eat(&mut self, literal: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(literal)?;
        Some(())
    }

    /// A number of at least `min` and at most `max` digits.
    pub fn number(&mut self, min: usize, max: usize) -> Option<u32> {
        let digits = self
            .rest
            .bytes()
            .take(max)
            .take_while(u8::is_ascii_digit)
            .count();
        if digits < min {
            return None;
        }
        let (digits, rest) = self.rest.split_at(digits);
        self.rest = rest;
        digits.parse().ok()
    }

    /// `.123…`, of which milliseconds are kept.
    pub fn fraction(&mut self) -> Option<u32> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return None;
        }
        let (digits, rest) = self.rest.split_at(digits);
        self.rest = rest;
        format!("{digits:0<3}").get(..3)?.parse().ok()
    }

    /// `Z`, `UTC`, `GMT` or an offset.
    pub fn zone(&mut self) -> Option<Zone> {
        for name in ["UTC", "GMT", "Z"] {
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                return Some(Zone::Utc);
            }
        }
        for (name, hours) in SHORT_ZONES {
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                return Some(Zone::Offset(hours * 3600));
            }
        }
        let end = self
            .rest
            .char_indices()
            .position(|(at, c)| !(c.is_ascii_digit() || c == ':' || (at == 0 && "+-".contains(c))))
            .unwrap_or(self.rest.len());
        let (offset, rest) = self.rest.split_at(end);
        if !offset.starts_with(['+', '-']) {
            return None;
        }
        let zone = Zone::parse(offset).ok()?;
        self.rest = rest;
        Some(zone)
    }
}

/// What is behind the day: nothing, or a time of day and perhaps a zone.
pub(super) fn read_time(mut reader: Reader<'_>, mut fields: Fields) -> Option<Fields> {
    if reader.rest.is_empty() {
        return Some(fields);
    }
    let mut zone = Reader {
        rest: reader.rest.trim_start(),
    };
    if let Some(found) = zone.zone()
        && zone.rest.is_empty()
    {
        fields.zone = Some(found);
        return Some(fields);
    }
    let spaced = reader.eat('T').is_none();
    if spaced {
        reader.eat(' ')?;
    }
    fields.hour = reader.number(1, 2)?;
    if reader.eat(':').is_some() || reader.rest.starts_with(|c: char| c.is_ascii_digit()) {
        fields.minute = reader.number(2, 2)?;
        if reader.eat(':').is_some() || reader.rest.starts_with(|c: char| c.is_ascii_digit()) {
            fields.second = reader.number(2, 2)?;
            if reader.eat('.').is_some() {
                fields.millisecond = reader.fraction()?;
            }
        }
    }
    reader.rest = reader.rest.trim_start();
    if spaced && let Some(afternoon) = meridiem(&mut reader) {
        let hour = Some(fields.hour).filter(|hour| (1..=12).contains(hour))?;
        fields.hour = hour % 12 + if afternoon { 12 } else { 0 };
    }
    if !reader.rest.is_empty() {
        fields.zone = Some(reader.zone()?);
    }
    reader.rest.is_empty().then_some(fields)
}

/// Whether it is written to be afternoon or morning, if it is.
fn meridiem(reader: &mut Reader<'_>) -> Option<bool> {
    for (name, afternoon) in [("a.m.", false), ("am", false), ("p.m.", true), ("pm", true)] {
        if let Some(start) = reader.rest.get(..name.len())
            && start.eq_ignore_ascii_case(name)
        {
            reader.rest = reader.rest[name.len()..].trim_start();
            return Some(afternoon);
        }
    }
    None
}
