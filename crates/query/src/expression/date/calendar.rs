//! Dates as milliseconds since 1970, as wall clocks, and what is counted in them

use bson::{DateTime, RawBsonRef};
use chrono::{Datelike, NaiveDate, NaiveDateTime};

use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{Value, error, is_nullish, type_name};

pub(in crate::expression) type Result<T> = std::result::Result<T, QueryError>;

pub(super) const NULL: Value<'static> = Some(RawBsonRef::Null);

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

pub(super) fn out_of_range<T>() -> Result<T> {
    Err(QueryError::new(
        ErrorKind::Overflow,
        "the date is out of range",
    ))
}

/// The wall clock that many milliseconds after 1970 began on it.
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
