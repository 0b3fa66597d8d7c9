//! Parts of dates, and dates of parts

use std::ops::Range;

use bson::RawBsonRef;
use chrono::{Datelike, NaiveDate, Timelike};

use banyan_document::{DocumentWriter, Number};

use super::calendar::{
    Clock, DAY_MILLIS, NULL, Result, date, days_since_1970, duration_overflow, millis,
    out_of_range, week,
};
use super::zone::zone;
use crate::expression::env::Env;
use crate::expression::node::{Arguments, ExpressionNode, Run};
use crate::expression::operator::{
    Form, NamedCodes, Operands, Operator, Reading, optional, required,
};
use crate::expression::parse::{Parser, malformed};
use crate::expression::value::{
    Value, describe, error, is_nullish, items, show_document, type_name,
};

const PARTS_CODES: NamedCodes = NamedCodes {
    not_object: 40519,
    unknown: 40518,
    missing: &[40516],
};
const TO_PARTS_CODES: NamedCodes = NamedCodes {
    not_object: 40524,
    unknown: 40520,
    missing: &[40522],
};
macro_rules! part {
    ($name:literal, $of:expr) => {
        Operator::special($name, |value, parser| {
            parse_part(
                $name,
                |args, _| {
                    let of: fn(&Clock) -> RawBsonRef<'static> = $of;
                    Ok(local(args)?.map_or(NULL, |date| Some(of(&date))))
                },
                value,
                parser,
            )
        })
    };
}

fn int(value: u32) -> RawBsonRef<'static> {
    RawBsonRef::Int32(value as i32)
}

/// The years of dates fit.
fn year(year: i64) -> RawBsonRef<'static> {
    RawBsonRef::Int32(i32::try_from(year).unwrap_or(i32::MAX))
}

pub(in crate::expression) const OPERATORS: &[Operator] = &[
    Operator::special("$dateFromParts", |value, parser| {
        // Which parts there are is looked at before what they are.
        if let Some(given) = FROM_PARTS.given(value) {
            check_calendar(given)?;
        }
        FROM_PARTS.parse(value, parser)
    }),
    Operator {
        name: "$dateToParts",
        form: Form::Named {
            operands: Operands::Asked,
            parameters: &[required("date"), optional("timezone"), optional("iso8601")],
            run: to_parts,
            reading: Reading::Forward,
            codes: TO_PARTS_CODES,
        },
    },
    part!("$dayOfMonth", |d| int(d.day())),
    part!("$dayOfWeek", |d| int(d.weekday().number_from_sunday())),
    part!("$dayOfYear", |d| int(d.ordinal())),
    part!("$hour", |d| int(d.hour())),
    part!("$isoDayOfWeek", |d| int(d.weekday().number_from_monday())),
    part!("$isoWeek", |d| int(d.iso_week().week())),
    part!("$isoWeekYear", |d| RawBsonRef::Int64(d.iso_year())),
    part!("$millisecond", |d| int(d.nanosecond() / 1_000_000)),
    part!("$minute", |d| int(d.minute())),
    part!("$month", |d| int(d.month())),
    part!("$second", |d| int(d.second())),
    part!("$week", |d| int(week(d))),
    part!("$year", |d| year(d.year())),
    Operator::fixed("$tsIncrement", 1, |args, _| {
        timestamp(args, |t| t.increment, 5687302)
    }),
    Operator::fixed("$tsSecond", 1, |args, _| {
        timestamp(args, |t| t.time, 5687301)
    }),
];

const FROM_PARTS: Operator = Operator {
    name: "$dateFromParts",
    form: Form::Named {
        // The time comes before the zone and that before the day.
        operands: Operands::InTurn,
        parameters: &[
            optional("hour"),
            optional("minute"),
            optional("second"),
            optional("millisecond"),
            optional("timezone"),
            optional("year"),
            optional("month"),
            optional("day"),
            optional("isoWeekYear"),
            optional("isoWeek"),
            optional("isoDayOfWeek"),
        ],
        run: from_parts,
        // The day comes before the time and that before the zone.
        reading: Reading::Own(&[5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 4]),
        codes: PARTS_CODES,
    },
};

fn timestamp<'a>(
    args: &Arguments<'a>,
    part: fn(bson::Timestamp) -> u32,
    code: u32,
) -> Result<Value<'a>> {
    match args.get(0) {
        value if is_nullish(value) => Ok(NULL),
        Some(RawBsonRef::Timestamp(v)) => Ok(Some(RawBsonRef::Int64(i64::from(part(v))))),
        other => error(
            code,
            format!(
                " Argument to {} must be a timestamp, but is {}",
                args.operator,
                type_name(other)
            ),
        ),
    }
}

/// `{$year: date}`, `{$year: [date]}` or `{$year: {date: ..., timezone: ...}}`.
fn parse_part(
    name: &'static str,
    run: Run,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<ExpressionNode> {
    let (mut date, mut timezone, mut given) = (None, ExpressionNode::Missing, 0);
    match value {
        RawBsonRef::Document(document)
            if document
                .iter()
                .next()
                .and_then(std::result::Result::ok)
                .is_none_or(|(first, _)| !first.as_str().starts_with('$')) =>
        {
            for element in document.iter() {
                let (option, value) = element.map_err(malformed)?;
                match option.as_str() {
                    "date" => date = Some(parser.operand(value)?),
                    "timezone" => {
                        timezone = parser.operand(value)?;
                        given |= 0b10;
                    }
                    other => {
                        return error(40535, format!("unrecognized option to {name}: \"{other}\""));
                    }
                }
            }
            if date.is_none() {
                return error(
                    40539,
                    format!(
                        "missing 'date' argument to {name}, provided: {name}: {}",
                        show_document(document)
                    ),
                );
            }
        }
        RawBsonRef::Array(array) => {
            let count = items(array).count();
            if count != 1 {
                return error(
                    40536,
                    format!(
                        "{name} accepts exactly one argument if given an array, but was given \
                         {count}"
                    ),
                );
            }
            date = parser.operands(array)?.pop();
        }
        other => date = Some(parser.operand(other)?),
    }
    Ok(ExpressionNode::call(
        name,
        run,
        vec![date.unwrap_or(ExpressionNode::Missing), timezone],
        given | 1,
    ))
}

/// The date of argument 0 in the zone of argument 1.
fn local(args: &Arguments<'_>) -> Result<Option<Clock>> {
    let Some(millis) = millis(args.get(0))? else {
        return Ok(None);
    };
    if args.is_given(1)
        && let Some(other) = args.get(1)
        && !matches!(other, RawBsonRef::String(_))
        && !is_nullish(Some(other))
    {
        return error(
            40533,
            format!(
                "{} requires a string for the timezone argument, but was given a {} ({})",
                args.operator,
                type_name(Some(other)),
                describe(Some(other))
            ),
        );
    }
    match zone(args, 1)? {
        None => Ok(None),
        Some(zone) => Ok(Some(zone.local(millis))),
    }
}

fn to_parts<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let args = args.with(0, env)?.with(1, env)?;
    let Some(zone) = zone(&args, 1)? else {
        return Ok(NULL);
    };
    let iso = match args.with(2, env)?.get(2) {
        None if !args.is_given(2) => false,
        value if is_nullish(value) => return Ok(NULL),
        Some(RawBsonRef::Boolean(value)) => value,
        other => {
            return error(
                40521,
                format!(
                    "iso8601 must evaluate to a bool, found {}",
                    type_name(other)
                ),
            );
        }
    };
    let Some(millis) = millis(args.get(0))? else {
        return Ok(NULL);
    };
    let local = zone.local(millis);
    let mut writer = DocumentWriter::new();
    if iso {
        writer.append("isoWeekYear", year(local.iso_year()));
        writer.append("isoWeek", int(local.iso_week().week()));
        writer.append("isoDayOfWeek", int(local.weekday().number_from_monday()));
    } else {
        writer.append("year", year(local.year()));
        writer.append("month", int(local.month()));
        writer.append("day", int(local.day()));
    }
    writer.append("hour", int(local.hour()));
    writer.append("minute", int(local.minute()));
    writer.append("second", int(local.second()));
    writer.append("millisecond", int(local.nanosecond() / 1_000_000));
    env.document(writer)
}

/// One part as an integer; `None` for null.
fn part_value(args: &Arguments<'_>, index: usize, name: &str, default: i64) -> Result<Option<i64>> {
    if !args.is_given(index) {
        return Ok(Some(default));
    }
    let value = args.get(index);
    if is_nullish(value) {
        return Ok(None);
    }
    let Some(number) = value
        .and_then(Number::from_raw)
        .and_then(Number::to_i64_exact)
    else {
        return error(
            40515,
            format!(
                "'{name}' must evaluate to an integer, found {} with value {}",
                type_name(value),
                describe(value)
            ),
        );
    };
    let years = matches!(name, "year" | "isoWeekYear");
    if !years && name != "second" && name != "millisecond" && !(-32768..=32767).contains(&number) {
        return error(
            31034,
            format!(
                "'{name}' must evaluate to a value in the range [-32768, 32767]; value {number} is not in range"
            ),
        );
    }
    Ok(Some(number))
}

/// Years of one calendar with the days of that calendar; `given` has a bit for each parameter.
fn check_calendar(given: u32) -> Result<()> {
    let is_given = |mut indexes: Range<usize>| indexes.any(|index| given >> index & 1 == 1);
    let (year, iso_year) = (is_given(5..6), is_given(8..9));
    if year && is_given(8..11) {
        return error(
            40489,
            "$dateFromParts does not allow mixing natural dates with ISO dates",
        );
    }
    if iso_year && is_given(6..8) {
        return error(
            40525,
            "$dateFromParts does not allow mixing ISO dates with natural dates",
        );
    }
    if !year && !iso_year {
        return error(
            40516,
            "$dateFromParts requires either 'year' or 'isoWeekYear' to be present",
        );
    }
    Ok(())
}

fn from_parts<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let iso = args.is_given(8);
    const TIME: Range<usize> = 0..4;
    const ZONE: usize = 4;
    const DAY: Range<usize> = 5..11;
    const NAMES: [(&str, i64); 11] = [
        ("hour", 0),
        ("minute", 0),
        ("second", 0),
        ("millisecond", 0),
        ("timezone", 0),
        ("year", 1970),
        ("month", 1),
        ("day", 1),
        ("isoWeekYear", 1970),
        ("isoWeek", 1),
        ("isoDayOfWeek", 1),
    ];
    let mut parts = [0i64; 11];
    let mut read = |indexes: Range<usize>| -> Result<bool> {
        for index in indexes {
            let (name, default) = NAMES[index];
            match part_value(args, index, name, default)? {
                Some(value) => parts[index] = value,
                None => return Ok(false),
            }
        }
        Ok(true)
    };
    if !read(TIME)? {
        return Ok(NULL);
    }
    let Some(zone) = zone(args, ZONE)? else {
        return Ok(NULL);
    };
    if !read(DAY)? {
        return Ok(NULL);
    }
    for (index, code) in [(5, 40523), (8, 31095)] {
        let (name, year) = (NAMES[index].0, parts[index]);
        if !(1..=9999).contains(&year) {
            return error(
                code,
                format!(
                    "'{name}' must evaluate to an integer in the range 1 to 9999, found {year}"
                ),
            );
        }
    }
    let [
        hour,
        minute,
        second,
        millisecond,
        _,
        year,
        month,
        day,
        iso_year,
        iso_week,
        iso_day,
    ] = parts;
    let days = if iso {
        iso_days(iso_year, iso_week, iso_day)
    } else {
        civil_days(year, month, day)
    };
    let Some(days) = days else {
        return out_of_range();
    };
    // What one part has too many another one may take away again.
    let local: i128 = [
        (days, DAY_MILLIS),
        (hour, 3_600_000),
        (minute, 60_000),
        (second, 1000),
        (millisecond, 1),
    ]
    .into_iter()
    .map(|(count, unit)| i128::from(count) * i128::from(unit))
    .sum();
    // MongoDB makes microseconds of the milliseconds.
    let in_micros = millisecond.checked_mul(1000);
    let local = in_micros.and_then(|_| i64::try_from(local).ok());
    let Some(local) = local else {
        return duration_overflow();
    };
    date(zone.millis(&Clock::at(local))?)
}

/// Days since 1970 of a date whose month and day may lie outside of their ranges.
fn civil_days(year: i64, month: i64, day: i64) -> Option<i64> {
    let months = year.checked_mul(12)?.checked_add(month - 1)?;
    let year = i32::try_from(months.div_euclid(12)).ok()?;
    let first = NaiveDate::from_ymd_opt(year, months.rem_euclid(12) as u32 + 1, 1)?;
    Some(days_since_1970(first) + day - 1)
}

fn iso_days(year: i64, week: i64, day: i64) -> Option<i64> {
    let year = i32::try_from(year).ok()?;
    let first = NaiveDate::from_isoywd_opt(year, 1, chrono::Weekday::Mon)?;
    Some(days_since_1970(first) + (week - 1) * 7 + day - 1)
}
