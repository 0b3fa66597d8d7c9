//! Time zones: UTC, offsets, and names of the Olson database.

use bson::RawBsonRef;
use chrono::{LocalResult, Offset, TimeZone};
use chrono_tz::Tz;

use super::calendar::{Clock, DAY_MILLIS, Result, out_of_range};
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
        if matches!(name, "UTC" | "GMT" | "Z") {
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
    pub(super) fn local(self, millis: i64) -> Result<Clock> {
        match millis.checked_add(i64::from(self.offset_seconds(millis)) * 1000) {
            Some(local) => Ok(Clock::at(local)),
            None => out_of_range(),
        }
    }

    /// Seconds that clocks are ahead of UTC at that time.
    pub(super) fn offset_seconds(self, millis: i64) -> i32 {
        match self {
            Zone::Utc => 0,
            Zone::Offset(seconds) => seconds,
            Zone::Named(zone) => {
                let offset = zone.offset_from_utc_datetime(&Clock::at(millis));
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
            Zone::Named(zone) => match zone.offset_from_local_datetime(local) {
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
