//! Time zones: UTC, offsets, and names of the Olson database.

use bson::RawBsonRef;
use chrono::{Datelike, LocalResult, NaiveDate, NaiveDateTime, Offset, TimeZone};
use chrono_tz::Tz;

use super::calendar::{Clock, DAY_MILLIS, Result, naive, out_of_range};
use crate::expression::node::Arguments;
use crate::expression::value::{error, is_nullish, type_name};

#[derive(Clone, Copy, Debug)]
pub(in crate::expression) enum Zone {
    Utc,
    /// Seconds east of Greenwich.
    Offset(i32),
    Named(Tz),
}

impl Zone {
    pub(super) fn parse(name: &str) -> Result<Zone> {
        if matches!(name, "UTC" | "GMT") {
            return Ok(Zone::Utc);
        }
        if let Some(seconds) = offset(name) {
            return Ok(Zone::Offset(seconds));
        }
        match name.parse::<Tz>() {
            Ok(zone) => Ok(Zone::Named(zone)),
            Err(_) => error(
                40485,
                format!("unrecognized time zone identifier: \"{name}\""),
            ),
        }
    }

    /// What clocks show at that many milliseconds after 1970.
    pub(super) fn local(self, millis: i64) -> Clock {
        Clock::at(i128::from(millis) + i128::from(self.offset_seconds(millis)) * 1000)
    }

    /// Seconds that clocks are ahead of UTC at that time.
    pub(super) fn offset_seconds(self, millis: i64) -> i32 {
        match self {
            Zone::Utc => 0,
            Zone::Offset(seconds) => seconds,
            Zone::Named(zone) => {
                let offset = zone.offset_from_utc_datetime(&with_like_rules(millis));
                offset.fix().local_minus_utc()
            }
        }
    }

    /// When clocks show `local`: the earlier time where they do twice, and what they would show
    /// had they not been put forward where they never do.
    pub(super) fn millis(self, local: &Clock) -> Result<i64> {
        let Some(shown) = local.millis() else {
            return out_of_range();
        };
        let offset = match self {
            Zone::Utc => 0,
            Zone::Offset(seconds) => seconds,
            Zone::Named(zone) => match zone.offset_from_local_datetime(&with_like_rules(shown)) {
                LocalResult::Single(offset) | LocalResult::Ambiguous(offset, _) => {
                    offset.fix().local_minus_utc()
                }
                LocalResult::None => self.offset_seconds(shown.saturating_sub(DAY_MILLIS)),
            },
        };
        match shown.checked_sub(i64::from(offset) * 1000) {
            Some(millis) => Ok(millis),
            None => out_of_range(),
        }
    }
}

/// What the zones' rules are written down for; before that no clock was ever put forward, and
/// later on they go on as they are.
const RULES_BEGIN: i64 = -62_135_596_800_000;
const RULES_END: i64 = 4_070_908_800_000;

/// A year of each kind is among these: by its first weekday, and by whether it is a leap year.
const LATE_YEARS: std::ops::Range<i32> = 2050..2078;

/// A time at which the rules of a zone say the same as at that many milliseconds after 1970.
fn with_like_rules(millis: i64) -> NaiveDateTime {
    if millis < RULES_END {
        return naive(millis.max(RULES_BEGIN)).unwrap_or_default();
    }
    let time = *Clock::at(millis);
    let kind = |year| {
        let first = NaiveDate::from_yo_opt(year, 1);
        first.map(|day| (day.weekday(), day.leap_year()))
    };
    let year = LATE_YEARS
        .into_iter()
        .find(|year| kind(*year) == kind(time.year()));
    let day = year.and_then(|year| NaiveDate::from_yo_opt(year, time.ordinal()));
    day.map_or(time, |day| day.and_time(time.time()))
}

/// The zone of argument `index`; `None` if it is null.
pub(super) fn zone(args: &Arguments<'_>, index: usize) -> Result<Option<Zone>> {
    if !args.is_given(index) {
        return Ok(Some(Zone::Utc));
    }
    match args.get(index) {
        value if is_nullish(value) => Ok(None),
        Some(RawBsonRef::String(name)) => Zone::parse(name).map(Some),
        other => error(
            40517,
            format!(
                "timezone must evaluate to a string, found {}",
                type_name(other)
            ),
        ),
    }
}

/// `+hh`, `+hhmm` or `+hh:mm` in seconds.
fn offset(text: &str) -> Option<i32> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let digits: String = match digits.len() {
        2 | 4 => digits.into(),
        5 if digits.as_bytes()[2] == b':' => digits.chars().filter(|c| *c != ':').collect(),
        _ => return None,
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let hours: i32 = digits.get(..2)?.parse().ok()?;
    let minutes: i32 = digits.get(2..4).map_or(Ok(0), str::parse).ok()?;
    Some(sign * (hours * 3600 + minutes * 60))
}
