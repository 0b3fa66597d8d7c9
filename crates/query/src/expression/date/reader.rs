//! Reads the parts of written dates from the left.

use chrono::{NaiveDate, NaiveDateTime};

use super::written::abbreviated;
use super::zone::Zone;

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

    /// `Z`, `UTC`, `GMT` or an offset.
    pub fn zone(&mut self) -> Option<Zone> {
        for name in ["UTC", "GMT", "Z"] {
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                return Some(Zone::Utc);
            }
        }
        let letters = self.rest.bytes().take_while(u8::is_ascii_alphabetic);
        let (name, rest) = self.rest.split_at(letters.count());
        if let Some(seconds) = abbreviated(name) {
            self.rest = rest;
            return Some(Zone::Offset(seconds));
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
