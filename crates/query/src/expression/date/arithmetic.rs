//! $dateAdd, $dateSubtract, $dateDiff and $dateTrunc

use bson::RawBsonRef;
use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike, Weekday};

use banyan_document::Number;

use super::calendar::{NULL, Result, date, days_since_1970, millis, naive, out_of_range};
use super::zone::{Zone, zone};
use crate::error::{ErrorKind, QueryError};
use crate::expression::node::Arguments;
use crate::expression::operator::{Form, NamedCodes, Operator, Parameter, optional, required};
use crate::expression::value::{Value, describe, error, is_nullish, type_name};

const ADD_CODES: NamedCodes = NamedCodes {
    not_object: 5166400,
    unknown: 5166401,
    missing: 5166402,
};
const DIFF_CODES: NamedCodes = NamedCodes {
    not_object: 5166301,
    unknown: 5166302,
    missing: 5166303,
};
const TRUNC_CODES: NamedCodes = NamedCodes {
    not_object: 5439007,
    unknown: 5439008,
    missing: 5439009,
};

const ADD: &[Parameter] = &[
    required("startDate"),
    required("unit"),
    required("amount"),
    optional("timezone"),
];

pub(in crate::expression) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$dateAdd",
        form: Form::Named {
            parameters: ADD,
            run: |args, _| add(args, 1),
            codes: ADD_CODES,
        },
    },
    Operator {
        name: "$dateDiff",
        form: Form::Named {
            parameters: &[
                required("startDate"),
                required("endDate"),
                required("unit"),
                optional("timezone"),
                optional("startOfWeek"),
            ],
            run: |args, _| difference(args),
            codes: DIFF_CODES,
        },
    },
    Operator {
        name: "$dateSubtract",
        form: Form::Named {
            parameters: ADD,
            run: |args, _| add(args, -1),
            codes: ADD_CODES,
        },
    },
    Operator {
        name: "$dateTrunc",
        form: Form::Named {
            parameters: &[
                required("date"),
                required("unit"),
                optional("binSize"),
                optional("timezone"),
                optional("startOfWeek"),
            ],
            run: |args, _| truncate(args),
            codes: TRUNC_CODES,
        },
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Year,
    Quarter,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
}

impl Unit {
    fn parse(value: Value<'_>, operator: &str, code: u32) -> Result<Option<Unit>> {
        let name = match value {
            value if is_nullish(value) => return Ok(None),
            Some(RawBsonRef::String(name)) => name,
            other => {
                return error(
                    code,
                    format!(
                        "{operator} expects string defining a time unit, got {}",
                        type_name(other)
                    ),
                );
            }
        };
        Ok(Some(match name {
            "year" => Unit::Year,
            "quarter" => Unit::Quarter,
            "month" => Unit::Month,
            "week" => Unit::Week,
            "day" => Unit::Day,
            "hour" => Unit::Hour,
            "minute" => Unit::Minute,
            "second" => Unit::Second,
            "millisecond" => Unit::Millisecond,
            other => {
                return Err(QueryError::new(
                    ErrorKind::FailedToParse,
                    format!("unknown time unit value: {other}"),
                ));
            }
        }))
    }

    /// Units that are the same length everywhere and always.
    fn fixed_millis(self) -> Option<i64> {
        match self {
            Unit::Hour => Some(3_600_000),
            Unit::Minute => Some(60_000),
            Unit::Second => Some(1000),
            Unit::Millisecond => Some(1),
            _ => None,
        }
    }

    fn months(self) -> Option<i64> {
        match self {
            Unit::Year => Some(12),
            Unit::Quarter => Some(3),
            Unit::Month => Some(1),
            _ => None,
        }
    }

    fn days(self) -> i64 {
        if self == Unit::Week { 7 } else { 1 }
    }
}

fn start_of_week(args: &Arguments<'_>, index: usize) -> Result<Option<Weekday>> {
    if !args.is_given(index) {
        return Ok(Some(Weekday::Sun));
    }
    match args.get(index) {
        value if is_nullish(value) => Ok(None),
        Some(RawBsonRef::String(name)) => match name.parse() {
            Ok(day) => Ok(Some(day)),
            Err(_) => Err(QueryError::new(
                ErrorKind::FailedToParse,
                format!("unknown day of week value: {name}"),
            )),
        },
        other => error(
            5439015,
            format!(
                "{} requires 'startOfWeek' to be a string, but got {}",
                args.operator,
                type_name(other)
            ),
        ),
    }
}

fn add<'a>(args: &Arguments<'a>, sign: i64) -> Result<Value<'a>> {
    let Some(unit) = Unit::parse(args.get(1), args.operator, 5166404)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 3)? else {
        return Ok(NULL);
    };
    if is_nullish(args.get(0)) || is_nullish(args.get(2)) {
        return Ok(NULL);
    }
    let Some(start) = millis(args.get(0))? else {
        return Ok(NULL);
    };
    let amount = args
        .get(2)
        .and_then(Number::from_raw)
        .and_then(Number::to_i64_exact);
    let Some(amount) = amount else {
        return error(
            5166405,
            format!("{} expects integer amount of time units", args.operator),
        );
    };
    let Some(amount) = amount.checked_mul(sign) else {
        return out_of_range();
    };
    let result = match unit.fixed_millis() {
        Some(length) => amount
            .checked_mul(length)
            .and_then(|change| start.checked_add(change)),
        None => {
            let local = zone.local(start)?;
            let moved = match unit.months() {
                Some(months) => amount
                    .checked_mul(months)
                    .and_then(|n| add_months(&local, n)),
                None => amount
                    .checked_mul(unit.days())
                    .and_then(|n| add_days(&local, n)),
            };
            moved.map(|moved| zone.millis(&moved)).transpose()?
        }
    };
    match result {
        Some(result) => date(result),
        None => out_of_range(),
    }
}

/// The same day of a later month, or that month's last day.
fn add_months(local: &NaiveDateTime, months: i64) -> Option<NaiveDateTime> {
    let total = month_number(local).checked_add(months)?;
    let year = i32::try_from(total.div_euclid(12)).ok()?;
    let month = total.rem_euclid(12) as u32 + 1;
    let day = (0..4)
        .filter_map(|back| NaiveDate::from_ymd_opt(year, month, local.day().checked_sub(back)?))
        .next()?;
    Some(day.and_time(local.time()))
}

fn add_days(local: &NaiveDateTime, days: i64) -> Option<NaiveDateTime> {
    local.checked_add_signed(chrono::TimeDelta::try_days(days)?)
}

/// Months since year 0.
fn month_number(local: &NaiveDateTime) -> i64 {
    i64::from(local.year()) * 12 + i64::from(local.month0())
}

/// Days since 1970 of the first day of the week of a day.
fn week_start(days: i64, first: Weekday) -> i64 {
    // 1970 began on a Thursday.
    let weekday = (days + 3).rem_euclid(7);
    days - (weekday - i64::from(first.num_days_from_monday())).rem_euclid(7)
}

fn difference<'a>(args: &Arguments<'a>) -> Result<Value<'a>> {
    let Some(unit) = Unit::parse(args.get(2), "$dateDiff", 5439013)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 3)? else {
        return Ok(NULL);
    };
    let Some(first_day) = start_of_week(args, 4)? else {
        return Ok(NULL);
    };
    let (Some(start), Some(end)) = (millis(args.get(0))?, millis(args.get(1))?) else {
        return Ok(NULL);
    };
    let count = match unit.fixed_millis() {
        Some(length) => {
            let offset = i64::from(zone.offset_seconds(start)?) * 1000;
            let index = |time: i64| time.checked_add(offset).map(|t| t.div_euclid(length));
            match (index(start), index(end)) {
                (Some(start), Some(end)) => end.checked_sub(start),
                _ => None,
            }
        }
        None => {
            let (start, end) = (zone.local(start)?, zone.local(end)?);
            let index = |local: &NaiveDateTime| match unit.months() {
                Some(months) => month_number(local).div_euclid(months),
                None => {
                    let days = days_since_1970(local.date());
                    match unit {
                        Unit::Week => week_start(days, first_day).div_euclid(7),
                        _ => days,
                    }
                }
            };
            Some(index(&end) - index(&start))
        }
    };
    match count {
        Some(count) => Ok(Some(RawBsonRef::Int64(count))),
        None => out_of_range(),
    }
}

/// Bins are counted from the beginning of 2000.
const REFERENCE_YEAR: i32 = 2000;
const REFERENCE_DAYS: i64 = 10_957;

fn truncate<'a>(args: &Arguments<'a>) -> Result<Value<'a>> {
    let Some(unit) = Unit::parse(args.get(1), "$dateTrunc", 5439013)? else {
        return Ok(NULL);
    };
    let Some(bin) = bin_size(args)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 3)? else {
        return Ok(NULL);
    };
    let Some(first_day) = start_of_week(args, 4)? else {
        return Ok(NULL);
    };
    let Some(time) = millis(args.get(0))? else {
        return Ok(NULL);
    };
    if let Some(length) = unit.fixed_millis() {
        let reference = zone.millis(&midnight(REFERENCE_DAYS)?)?;
        let Some(bin) = length.checked_mul(bin) else {
            return out_of_range();
        };
        let Some(since) = time.checked_sub(reference) else {
            return out_of_range();
        };
        return date(reference + since.div_euclid(bin) * bin);
    }
    let local = zone.local(time)?;
    let start = match unit.months() {
        Some(months) => month_bin(&local, months, bin)?,
        None => {
            let reference = match unit {
                // The first such day of the week in 2000.
                Unit::Week => week_start(REFERENCE_DAYS + 6, first_day),
                _ => REFERENCE_DAYS,
            };
            let Some(length) = bin.checked_mul(unit.days()) else {
                return out_of_range();
            };
            let since = days_since_1970(local.date()) - reference;
            midnight(reference + since.div_euclid(length) * length)?
        }
    };
    date(start_of_day(&zone, &start)?)
}

fn start_of_day(zone: &Zone, local: &NaiveDateTime) -> Result<i64> {
    debug_assert_eq!(local.num_seconds_from_midnight(), 0);
    zone.millis(local)
}

fn month_bin(local: &NaiveDateTime, months: i64, bin: i64) -> Result<NaiveDateTime> {
    let reference = i64::from(REFERENCE_YEAR) * 12;
    let Some(length) = months.checked_mul(bin) else {
        return out_of_range();
    };
    let total = reference + (month_number(local) - reference).div_euclid(length) * length;
    let first = i32::try_from(total.div_euclid(12))
        .ok()
        .and_then(|year| NaiveDate::from_ymd_opt(year, total.rem_euclid(12) as u32 + 1, 1));
    match first {
        Some(first) => Ok(first.and_time(NaiveTime::MIN)),
        None => out_of_range(),
    }
}

fn midnight(days: i64) -> Result<NaiveDateTime> {
    match days.checked_mul(86_400_000).and_then(naive) {
        Some(date) => Ok(date),
        None => out_of_range(),
    }
}

fn bin_size(args: &Arguments<'_>) -> Result<Option<i64>> {
    if !args.is_given(2) {
        return Ok(Some(1));
    }
    let value = args.get(2);
    if is_nullish(value) {
        return Ok(None);
    }
    match value
        .and_then(Number::from_raw)
        .and_then(Number::to_i64_exact)
    {
        None => error(
            5439017,
            format!(
                "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{}' of type \
                 {}",
                describe(value),
                type_name(value)
            ),
        ),
        Some(bin) if bin <= 0 => error(
            5439018,
            format!("$dateTrunc requires 'binSize' to be greater than 0, but got value {bin}"),
        ),
        Some(bin) => Ok(Some(bin)),
    }
}
