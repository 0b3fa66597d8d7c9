//! Dates as milliseconds since 1970, as wall clocks, and what is counted in them

use std::ops::Deref;

use bson::{DateTime, RawBsonRef};
use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime};

use crate::error::QueryError;
use crate::expression::value::{Value, error, is_nullish, type_name};

pub(in crate::expression::date) const MONTHS: [&str; 12] = [
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

pub(in crate::expression) type Result<T> = std::result::Result<T, QueryError>;

pub(super) const NULL: Value<'static> = Some(RawBsonRef::Null);

pub(super) const DAY_MILLIS: i64 = 86_400_000;

/// After so many years the calendar begins anew, with the same days of the week.
const CYCLE_YEARS: i64 = 400;
const CYCLE_MILLIS: i64 = 146_097 * DAY_MILLIS;
const CYCLE_FIRST: i64 = 1970;

/// What a wall clock shows in any year that milliseconds reach. Chrono knows some hundred thousand
/// of them: others are kept as the same day of a year that it knows.
#[derive(Clone, Copy, Debug)]
pub(in crate::expression) struct Clock {
    within: NaiveDateTime,
    /// By how many cycles the year is another one.
    cycles: i64,
}

impl Clock {
    /// That many milliseconds after 1970 began on it.
    pub fn at(millis: impl Into<i128>) -> Clock {
        let millis = millis.into();
        if let Some(within) = i64::try_from(millis).ok().and_then(naive) {
            return Clock::from(within);
        }
        let cycle = i128::from(CYCLE_MILLIS);
        Clock {
            within: naive(millis.rem_euclid(cycle) as i64).unwrap_or_default(),
            cycles: millis.div_euclid(cycle) as i64,
        }
    }

    /// `None` if there is no such day.
    pub fn on(year: i64, month: u32, day: u32, time: NaiveTime) -> Option<Clock> {
        let known = i32::try_from(year).ok();
        if let Some(date) = known.and_then(|year| NaiveDate::from_ymd_opt(year, month, day)) {
            return Some(Clock::from(date.and_time(time)));
        }
        // Among the years that have time zones as they are now.
        let since = year.checked_sub(CYCLE_FIRST)?;
        let near = i32::try_from(CYCLE_FIRST + since.rem_euclid(CYCLE_YEARS)).ok()?;
        Some(Clock {
            within: NaiveDate::from_ymd_opt(near, month, day)?.and_time(time),
            cycles: since.div_euclid(CYCLE_YEARS),
        })
    }

    pub fn year(&self) -> i64 {
        i64::from(self.within.year()) + self.cycles * CYCLE_YEARS
    }

    /// The year that the week belongs to.
    pub fn iso_year(&self) -> i64 {
        i64::from(self.within.iso_week().year()) + self.cycles * CYCLE_YEARS
    }

    /// Milliseconds since 1970 began on it; `None` beyond what a date can be.
    pub fn millis(&self) -> Option<i64> {
        let within = self.within.and_utc().timestamp_millis();
        // The cycles alone may be too many by less than one.
        i64::try_from(i128::from(self.cycles) * i128::from(CYCLE_MILLIS) + i128::from(within)).ok()
    }

    /// Days since 1970.
    pub fn days(&self) -> i64 {
        self.cycles * (CYCLE_MILLIS / DAY_MILLIS)
            + self
                .within
                .and_utc()
                .timestamp_millis()
                .div_euclid(DAY_MILLIS)
    }

    /// Months since year 0.
    pub fn months(&self) -> i64 {
        self.year() * 12 + i64::from(self.within.month0())
    }
}

impl From<NaiveDateTime> for Clock {
    fn from(within: NaiveDateTime) -> Clock {
        Clock { within, cycles: 0 }
    }
}

/// All but the year is the same in every cycle.
impl Deref for Clock {
    type Target = NaiveDateTime;

    fn deref(&self) -> &NaiveDateTime {
        &self.within
    }
}

/// Milliseconds since 1970; `None` for null.
pub(super) fn millis(value: Value<'_>) -> Result<Option<i64>> {
    match value {
        value if is_nullish(value) => Ok(None),
        Some(RawBsonRef::DateTime(v)) => Ok(Some(v.timestamp_millis())),
        Some(RawBsonRef::Timestamp(v)) => Ok(Some(i64::from(v.time) * 1000)),
        Some(RawBsonRef::ObjectId(v)) => Ok(Some(v.timestamp().timestamp_millis())),
        other => error(
            16006,
            format!("can't convert from BSON type {} to Date", type_name(other)),
        ),
    }
}

pub(super) fn date<'a>(millis: i64) -> Result<Value<'a>> {
    Ok(Some(RawBsonRef::DateTime(DateTime::from_millis(millis))))
}

/// What no date can be, as the calendar has it and as durations have it.
pub(super) fn out_of_range<T>() -> Result<T> {
    error(5166406, "the date is out of range")
}

pub(super) fn duration_overflow<T>() -> Result<T> {
    error(
        159,
        "Overflow casting from a lower-precision duration to a higher-precision duration",
    )
}

pub(super) fn naive(millis: i64) -> Option<NaiveDateTime> {
    chrono::DateTime::from_timestamp_millis(millis).map(|date| date.naive_utc())
}

pub(super) fn days_since_1970(date: NaiveDate) -> i64 {
    i64::from(date.num_days_from_ce()) - 719_163
}

/// Weeks begin on Sundays; the days before the first Sunday are in week 0.
pub(super) fn week(date: &NaiveDateTime) -> u32 {
    (date.ordinal() + 6 - date.weekday().num_days_from_sunday()) / 7
}
