//! $dateAdd, $dateSubtract, $dateDiff and $dateTrunc

use bson::RawBsonRef;
use chrono::{Datelike, NaiveTime, Timelike, Weekday};

use banyan_document::Number;

use super::calendar::{
    Clock, DAY_MILLIS, NULL, Result, date, duration_overflow, millis, out_of_range,
};
use super::zone::{Zone, zone};
use crate::error::{ErrorKind, QueryError};
use crate::expression::env::Env;
use crate::expression::node::Arguments;
use crate::expression::operator::{
    Form, NamedCodes, Operands, Operator, Parameter, Reading, optional, required,
};
use crate::expression::value::{Value, describe, error, type_name};

const ADD_CODES: NamedCodes = NamedCodes {
    not_object: 5166400,
    unknown: 5166401,
    missing: &[5166402],
};
const DIFF_CODES: NamedCodes = NamedCodes {
    not_object: 5166301,
    unknown: 5166302,
    missing: &[5166303, 5166304, 5166305],
};
const TRUNC_CODES: NamedCodes = NamedCodes {
    not_object: 5439007,
    unknown: 5439008,
    missing: &[5439009, 5439010],
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
            operands: Operands::Asked,
            parameters: ADD,
            run: |args, env| add(args, env, 1),
            reading: Reading::AsWritten,
            codes: ADD_CODES,
        },
    },
    Operator {
        name: "$dateDiff",
        form: Form::Named {
            operands: Operands::Asked,
            parameters: &[
                required("startDate"),
                required("endDate"),
                required("unit"),
                optional("timezone"),
                optional("startOfWeek"),
            ],
            run: difference,
            reading: Reading::Backward,
            codes: DIFF_CODES,
        },
    },
    Operator {
        name: "$dateSubtract",
        form: Form::Named {
            operands: Operands::Asked,
            parameters: ADD,
            run: |args, env| add(args, env, -1),
            reading: Reading::AsWritten,
            codes: ADD_CODES,
        },
    },
    Operator {
        name: "$dateTrunc",
        form: Form::Named {
            operands: Operands::Asked,
            parameters: &[
                required("date"),
                required("unit"),
                optional("binSize"),
                optional("timezone"),
                optional("startOfWeek"),
            ],
            run: truncate,
            reading: Reading::Backward,
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
    fn named(name: &str) -> Option<Unit> {
        Some(match name {
            "year" => Unit::Year,
            "quarter" => Unit::Quarter,
            "month" => Unit::Month,
            "week" => Unit::Week,
            "day" => Unit::Day,
            "hour" => Unit::Hour,
            "minute" => Unit::Minute,
            "second" => Unit::Second,
            "millisecond" => Unit::Millisecond,
            _ => return None,
        })
    }

    /// As many of it as may be added to any date, whether or not one comes of it: what fits into 64
    /// bits of milliseconds. Of milliseconds that is any number.
    fn most(self) -> Option<u64> {
        const DAYS: u64 = u64::MAX / DAY_MILLIS.unsigned_abs() + 1;
        const WEEKS: u64 = (DAYS - 1) / 7 + 1;
        const YEARS: u64 = (DAYS - 1) / 365 + 1;
        let first_too_many = match self {
            Unit::Year => YEARS,
            Unit::Quarter => YEARS * 4,
            Unit::Month => YEARS * 12,
            Unit::Week => WEEKS,
            Unit::Day => DAYS,
            Unit::Hour => DAYS * 24,
            Unit::Minute => DAYS * 24 * 60,
            Unit::Second => DAYS * 24 * 60 * 60,
            Unit::Millisecond => return None,
        };
        Some(first_too_many - 1)
    }

    /// That of $dateAdd and $dateSubtract.
    fn of_change(args: &Arguments<'_>, index: usize) -> Result<Unit> {
        let Some(RawBsonRef::String(name)) = args.get(index) else {
            return error(
                5166404,
                format!(
                    "{} expects string defining the time unit, got {}",
                    args.operator,
                    type_name(args.get(index))
                ),
            );
        };
        Unit::named(name).ok_or_else(|| {
            QueryError::new(
                ErrorKind::FailedToParse,
                format!("unknown time unit value: {name}"),
            )
        })
    }

    /// That of $dateDiff and $dateTrunc.
    fn of_steps(args: &Arguments<'_>, index: usize) -> Result<Unit> {
        let operator = args.operator;
        let Some(RawBsonRef::String(name)) = args.get(index) else {
            return error(
                5439013,
                format!(
                    "{operator} requires 'unit' to be a string, but got {}",
                    type_name(args.get(index))
                ),
            );
        };
        match Unit::named(name) {
            Some(unit) => Ok(unit),
            None => error(
                5439014,
                format!(
                    "{operator} parameter 'unit' value cannot be recognized as a time unit: {name}"
                ),
            ),
        }
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

/// The arguments with the week's first day, which is evaluated where the unit asks for it; `None` if
/// it is null.
fn with_start_of_week<'a>(
    args: Arguments<'a>,
    unit: usize,
    index: usize,
    env: &Env<'a>,
) -> Result<Option<Arguments<'a>>> {
    match args.get(unit) == Some(RawBsonRef::String("week")) {
        true => args.until_null(&[index], env),
        false => Ok(Some(args)),
    }
}

/// Only weeks have one.
fn start_of_week(args: &Arguments<'_>, unit: Unit, index: usize) -> Result<Weekday> {
    if unit != Unit::Week || !args.is_given(index) {
        return Ok(Weekday::Sun);
    }
    let Some(RawBsonRef::String(name)) = args.get(index) else {
        return error(
            5439015,
            format!(
                "{} requires 'startOfWeek' to be a string, but got {}",
                args.operator,
                type_name(args.get(index))
            ),
        );
    };
    match name.parse() {
        Ok(day) => Ok(day),
        Err(_) => error(
            5439016,
            format!(
                "{} parameter 'startOfWeek' value cannot be recognized as a day of a week: {name}",
                args.operator
            ),
        ),
    }
}

/// A date that is not null; what is none has the operator's own code.
fn start(args: &Arguments<'_>, index: usize, name: &str, code: u32) -> Result<i64> {
    let value = args.get(index);
    match millis(value) {
        Ok(Some(millis)) => Ok(millis),
        Ok(None) | Err(_) => error(
            code,
            format!(
                "{} requires '{name}' to be a date, but got {}",
                args.operator,
                type_name(value)
            ),
        ),
    }
}

/// Null anywhere is the result, whatever else is wrong.
fn add<'a>(args: &Arguments<'a>, env: &Env<'a>, sign: i64) -> Result<Value<'a>> {
    let Some(args) = &args.until_null(&[0, 1, 2, 3], env)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 3)? else {
        return Ok(NULL);
    };
    let Ok(Some(start)) = millis(args.get(0)) else {
        return error(
            5166403,
            format!(
                "{} requires startDate to be convertible to a date",
                args.operator
            ),
        );
    };
    let unit = Unit::of_change(args, 1)?;
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
        return error(
            6045000,
            format!(
                "invalid {} 'amount' parameter value: {amount}",
                args.operator
            ),
        );
    };
    check_amount(unit, amount, args.operator)?;
    // Of dates that no calendar has, too.
    if amount == 0 {
        return date(start);
    }
    if let Some(length) = unit.fixed_millis() {
        let Some(change) = amount.checked_mul(length) else {
            return out_of_range();
        };
        return match start.checked_add(change) {
            Some(result) => date(result),
            None if unit == Unit::Millisecond => duration_overflow(),
            None => out_of_range(),
        };
    }
    let local = zone.local(start);
    let moved = match unit.months() {
        Some(months) => match amount.checked_mul(months) {
            Some(months) => add_months(&local, months),
            None => None,
        },
        None => {
            let days = amount.checked_mul(unit.days());
            let change = days.and_then(|days| days.checked_mul(DAY_MILLIS));
            let millis = local.millis().zip(change);
            let millis = millis.and_then(|(millis, change)| millis.checked_add(change));
            millis.map(Clock::at)
        }
    };
    match moved {
        Some(moved) => date(zone.millis(&moved)?),
        None => out_of_range(),
    }
}

/// More units than all of time has are not added.
fn check_amount(unit: Unit, amount: i64, operator: &str) -> Result<()> {
    match unit.most() {
        Some(most) if amount.unsigned_abs() > most => error(
            5976500,
            format!("invalid {operator} 'amount' parameter value: {amount}"),
        ),
        _ => Ok(()),
    }
}

/// The same day of a later month, or that month's last day.
fn add_months(local: &Clock, months: i64) -> Option<Clock> {
    let total = local.months().checked_add(months)?;
    let (year, month) = (total.div_euclid(12), total.rem_euclid(12) as u32 + 1);
    (0..4).find_map(|back| Clock::on(year, month, local.day().checked_sub(back)?, local.time()))
}

/// Days since 1970 of the first day of the week of a day.
fn week_start(days: i64, first: Weekday) -> i64 {
    // 1970 began on a Thursday.
    let weekday = (days + 3).rem_euclid(7);
    days - (weekday - i64::from(first.num_days_from_monday())).rem_euclid(7)
}

fn difference<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let Some(args) = args.until_null(&[0, 1, 2, 3], env)? else {
        return Ok(NULL);
    };
    let Some(args) = &with_start_of_week(args, 2, 4, env)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 3)? else {
        return Ok(NULL);
    };
    let start = self::start(args, 0, "startDate", 5166307)?;
    let end = self::start(args, 1, "endDate", 5166307)?;
    let unit = Unit::of_steps(args, 2)?;
    let first_day = start_of_week(args, unit, 4)?;
    let count = match unit.fixed_millis() {
        Some(length) => {
            let offset = i64::from(zone.offset_seconds(start)) * 1000;
            let index = |time: i64| time.checked_add(offset).map(|t| t.div_euclid(length));
            match (index(start), index(end)) {
                (Some(start), Some(end)) => end.checked_sub(start),
                _ => None,
            }
        }
        None => {
            let (start, end) = (zone.local(start), zone.local(end));
            let index = |local: &Clock| match unit.months() {
                Some(months) => local.months().div_euclid(months),
                None => {
                    let days = local.days();
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
        None => error(5166308, "dateDiff overflowed"),
    }
}

/// Bins are counted from the beginning of 2000.
const REFERENCE_YEAR: i64 = 2000;
const REFERENCE_DAYS: i64 = 10_957;
/// The largest bin of a unit that is days or longer.
const DAYS_BIN_MAX: i64 = 100_000_000_000;

fn truncate<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let Some(args) = args.until_null(&[0, 1, 2, 3], env)? else {
        return Ok(NULL);
    };
    let Some(args) = &with_start_of_week(args, 1, 4, env)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 3)? else {
        return Ok(NULL);
    };
    let time = start(args, 0, "date", 5439012)?;
    let unit = Unit::of_steps(args, 1)?;
    let bin = bin_size(args)?;
    let first_day = start_of_week(args, unit, 4)?;
    if let Some(length) = unit.fixed_millis() {
        let reference = zone.millis(&midnight(REFERENCE_DAYS)?)?;
        let Some(bin) = length.checked_mul(bin) else {
            return error(5439002, "dateTrunc overflowed");
        };
        let start = time
            .checked_sub(reference)
            .and_then(|since| since.div_euclid(bin).checked_mul(bin))
            .and_then(|since| since.checked_add(reference));
        return match start {
            Some(start) => date(start),
            None => error(5439000, "dateTrunc overflowed"),
        };
    }
    if bin > DAYS_BIN_MAX {
        return error(5439006, "dateTrunc unsupported binSize value");
    }
    let local = zone.local(time);
    let start = match unit.months() {
        Some(months) => month_bin(&local, unit, months, bin)?,
        None => {
            let reference = match unit {
                // The first such day of the week in 2000.
                Unit::Week => week_start(REFERENCE_DAYS + 6, first_day),
                _ => REFERENCE_DAYS,
            };
            let Some(length) = bin.checked_mul(unit.days()) else {
                return out_of_range();
            };
            let bins = (local.days() - reference).div_euclid(length);
            check_bins(unit, bins, bin)?;
            let days = bins.checked_mul(length);
            match days.and_then(|days| days.checked_add(reference)) {
                Some(days) => midnight(days)?,
                None => return out_of_range(),
            }
        }
    };
    date(start_of_day(&zone, &start)?)
}

fn start_of_day(zone: &Zone, local: &Clock) -> Result<i64> {
    debug_assert_eq!(local.num_seconds_from_midnight(), 0);
    zone.millis(local)
}

/// A bin begins where so many units are added to the beginning of the first one.
fn check_bins(unit: Unit, bins: i64, bin: i64) -> Result<()> {
    match bins.checked_mul(bin) {
        Some(amount) => check_amount(unit, amount, "dateAdd"),
        None => Ok(()),
    }
}

fn month_bin(local: &Clock, unit: Unit, months: i64, bin: i64) -> Result<Clock> {
    let reference = REFERENCE_YEAR * 12;
    let Some(length) = months.checked_mul(bin) else {
        return out_of_range();
    };
    let bins = (local.months() - reference).div_euclid(length);
    check_bins(unit, bins, bin)?;
    let total = bins.checked_mul(length).map(|since| since + reference);
    let first = total.and_then(|total| {
        let month = total.rem_euclid(12) as u32 + 1;
        Clock::on(total.div_euclid(12), month, 1, NaiveTime::MIN)
    });
    match first {
        Some(first) => Ok(first),
        None => out_of_range(),
    }
}

fn midnight(days: i64) -> Result<Clock> {
    match days.checked_mul(DAY_MILLIS) {
        Some(millis) => Ok(Clock::at(millis)),
        None => out_of_range(),
    }
}

fn bin_size(args: &Arguments<'_>) -> Result<i64> {
    if !args.is_given(2) {
        return Ok(1);
    }
    let value = args.get(2);
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
        Some(bin) => Ok(bin),
    }
}
