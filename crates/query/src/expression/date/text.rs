//! $dateToString and $dateFromString, and what $toDate reads

use std::fmt::Write;

use bson::RawBsonRef;
use chrono::{Datelike, NaiveDateTime, Timelike};

use super::calendar::{MONTHS, NULL, Result, date, millis, week};
use super::reader::{Fields, Reader};
use super::written::{self, Unread};
use super::zone::{Zone, zone};
use crate::error::{ErrorKind, QueryError};
use crate::expression::env::Env;
use crate::expression::node::Arguments;
use crate::expression::operator::{
    Form, NamedCodes, Operands, Operator, Reading, fallback, optional, required,
};
use crate::expression::value::{Value, describe, error, is_nullish, type_name};

pub(in crate::expression) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$dateFromString",
        form: Form::Named {
            operands: Operands::Asked,
            parameters: &[
                required("dateString"),
                optional("format"),
                optional("timezone"),
                fallback("onError"),
                fallback("onNull"),
            ],
            run: from_string,
            reading: Reading::Own(&[0, 2, 1, 4, 3]),
            codes: NamedCodes {
                not_object: 40540,
                unknown: 40541,
                missing: &[40542],
            },
        },
    },
    Operator {
        name: "$dateToString",
        form: Form::Named {
            operands: Operands::Asked,
            parameters: &[
                required("date"),
                optional("format"),
                optional("timezone"),
                fallback("onNull"),
            ],
            run: to_string,
            reading: Reading::Forward,
            codes: NamedCodes {
                not_object: 18629,
                unknown: 18534,
                missing: &[18628],
            },
        },
    },
];

/// `format`: `Some(None)` if it is not given, `None` for null.
fn format_argument<'a>(
    args: &Arguments<'a>,
    operator: &str,
    code: u32,
) -> Result<Option<Option<&'a str>>> {
    match args.get(1) {
        None if !args.is_given(1) => Ok(Some(None)),
        value if is_nullish(value) => Ok(None),
        Some(RawBsonRef::String(format)) => Ok(Some(Some(format))),
        other => error(
            code,
            format!(
                "{operator} requires that 'format' be a string, found: {} with value {}",
                type_name(other),
                describe(other)
            ),
        ),
    }
}

fn to_string<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let args = &args.with(0, env)?.with(1, env)?;
    let format = format_argument(args, "$dateToString", 18533)?;
    if let Some(Some(format)) = format {
        check_format(format, WRITTEN)?;
    }
    let args = &args.with(2, env)?;
    let zone = zone(args, 2)?;
    // A date that is null comes before other arguments that are.
    if is_nullish(args.get(0)) {
        return args.fallback(3, env).unwrap_or(Ok(NULL));
    }
    let (Some(zone), Some(format)) = (zone, format) else {
        return Ok(NULL);
    };
    let Some(millis) = millis(args.get(0))? else {
        return Ok(NULL);
    };
    let format = format.unwrap_or("%Y-%m-%dT%H:%M:%S.%LZ");
    env.string(&print(format, millis, zone)?)
}

/// What formats may name.
const WRITTEN: &str = "%YmdHMSLjwuUVGzZbB";
const READ: &str = "%YmdHMSLjuVGzZbB";

fn check_format(format: &str, known: &str) -> Result<()> {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        match chars.next() {
            Some(specifier) if known.contains(specifier) => {}
            Some(other) => {
                return error(
                    18536,
                    format!("Invalid format character '%{other}' in format string"),
                );
            }
            None => return error(18535, "Unmatched '%' at end of format string"),
        }
    }
    Ok(())
}

fn print(format: &str, millis: i64, zone: Zone) -> Result<String> {
    let local = zone.local(millis);
    let offset_minutes = zone.offset_seconds(millis) / 60;
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        // Writing into a string cannot fail.
        let _ = match chars.next() {
            Some('Y') => write!(text, "{:04}", four_digits(local.year())?),
            Some('m') => write!(text, "{:02}", local.month()),
            Some('d') => write!(text, "{:02}", local.day()),
            Some('H') => write!(text, "{:02}", local.hour()),
            Some('M') => write!(text, "{:02}", local.minute()),
            Some('S') => write!(text, "{:02}", local.second()),
            Some('L') => write!(text, "{:03}", local.nanosecond() / 1_000_000),
            Some('j') => write!(text, "{:03}", local.ordinal()),
            Some('w') => write!(text, "{}", local.weekday().number_from_sunday()),
            Some('u') => write!(text, "{}", local.weekday().number_from_monday()),
            Some('U') => write!(text, "{:02}", week(&local)),
            Some('V') => write!(text, "{:02}", local.iso_week().week()),
            Some('G') => write!(text, "{:04}", four_digits(local.iso_year())?),
            Some('b') => write!(text, "{}", &MONTHS[local.month0() as usize][..3]),
            Some('B') => write!(text, "{}", MONTHS[local.month0() as usize]),
            Some('z') => {
                let sign = if offset_minutes < 0 { '-' } else { '+' };
                let minutes = offset_minutes.abs();
                write!(text, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
            }
            Some('Z') => write!(text, "{offset_minutes}"),
            other => write!(text, "{}", other.unwrap_or('%')),
        };
    }
    Ok(text)
}

fn four_digits(year: i64) -> Result<i64> {
    if (0..=9999).contains(&year) {
        return Ok(year);
    }
    error(
        18537,
        format!("Could not convert date to string: year {year} is not one of 0 to 9999"),
    )
}

/// A date as `$toString` and its like write it.
pub(in crate::expression) fn iso_text(millis: i64) -> Result<String> {
    print("%Y-%m-%dT%H:%M:%S.%LZ", millis, Zone::Utc)
}

/// A timestamp as `$toUpper` and its like write it.
pub(in crate::expression) fn timestamp_text(timestamp: bson::Timestamp) -> String {
    let time = chrono::DateTime::from_timestamp(i64::from(timestamp.time), 0).unwrap_or_default();
    format!("{}:{}", time.format("%b %e %H:%M:%S"), timestamp.increment)
}

fn failed<T>(message: String) -> Result<T> {
    Err(QueryError::new(ErrorKind::ConversionFailure, message))
}

fn from_string<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let args = &args.with(0, env)?.with(1, env)?;
    let format = format_argument(args, "$dateFromString", 40684)?;
    if let Some(Some(format)) = format {
        check_format(format, READ)?;
    }
    let args = &args.with(2, env)?;
    let zone = zone(args, 2)?;
    let parsed = match args.get(0) {
        value if is_nullish(value) => {
            return args.fallback(4, env).unwrap_or(Ok(NULL));
        }
        Some(RawBsonRef::String(text)) => {
            let (Some(zone), Some(format)) = (zone, format) else {
                return Ok(NULL);
            };
            let zone = args.is_given(2).then_some(zone);
            match format {
                Some(format) => parse_with(text, format, zone),
                None => parse(text, zone),
            }
        }
        other => failed(format!(
            "$dateFromString requires that 'dateString' be a string, found: {} with value {}",
            type_name(other),
            describe(other)
        )),
    };
    match parsed {
        Ok(millis) => date(millis),
        Err(problem) if problem.kind == ErrorKind::ConversionFailure => {
            args.fallback(3, env).unwrap_or(Err(problem))
        }
        Err(problem) => Err(problem),
    }
}

/// A date as people write it, as milliseconds since 1970.
pub(in crate::expression) fn parse(text: &str, zone: Option<Zone>) -> Result<i64> {
    match written::read(text) {
        Ok(read) => finish(text, Some(read.local), read.zone, zone),
        Err(Unread::Incomplete) => failed(format!(
            "an incomplete date/time string has been found, with elements missing: \"{text}\""
        )),
        Err(Unread::Form) => failed(format!("Error parsing date string '{text}'")),
    }
}

/// `own` is the zone that the text itself names.
fn finish(
    text: &str,
    local: Option<NaiveDateTime>,
    own: Option<Zone>,
    zone: Option<Zone>,
) -> Result<i64> {
    if own.is_some() && zone.is_some_and(|zone| !matches!(zone, Zone::Offset(0))) {
        return failed(format!(
            "you cannot pass in a date/time string with GMT offset together with a timezone \
             argument: '{text}'"
        ));
    }
    let Some(local) = local else {
        return failed(format!(
            "Error parsing date string '{text}'; The parsed date was invalid"
        ));
    };
    let zone = own.or(zone).unwrap_or(Zone::Utc);
    zone.millis(&local.into())
}

fn parse_with(text: &str, format: &str, zone: Option<Zone>) -> Result<i64> {
    let mut reader = Reader { rest: text };
    let mut fields = Fields::default();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        let read = match c {
            '%' => read_field(chars.next().unwrap_or('%'), &mut reader, &mut fields),
            literal => reader.eat(literal),
        };
        if read.is_none() {
            return failed(format!(
                "Error parsing date string '{text}'; it does not match the format '{format}'"
            ));
        }
    }
    if !reader.rest.is_empty() {
        return failed(format!("Error parsing date string '{text}'; Trailing data"));
    }
    finish(text, fields.local(), fields.zone, zone)
}

/// So many minutes are no more seconds than an offset has room for.
const OFFSET_DIGITS_MAX: usize = 7;

fn read_field(specifier: char, reader: &mut Reader<'_>, fields: &mut Fields) -> Option<()> {
    match specifier {
        'Y' => fields.year = Some(reader.number(4, 4)? as i32),
        'm' => fields.month = Some(reader.number(1, 2)?),
        'd' => fields.day = Some(reader.number(1, 2)?),
        'H' => fields.hour = reader.number(1, 2)?,
        'M' => fields.minute = reader.number(1, 2)?,
        'S' => fields.second = reader.number(1, 2)?,
        'L' => fields.millisecond = reader.number(1, 3)?,
        'j' => fields.ordinal = Some(reader.number(1, 3)?),
        'G' => fields.iso_year = Some(reader.number(4, 4)? as i32),
        'V' => {
            let week = reader.number(1, 2).filter(|week| (1..=53).contains(week));
            fields.iso_week = Some(week?);
        }
        'u' => {
            let day = reader.number(1, 1).filter(|day| (1..=7).contains(day));
            fields.iso_day = Some(day?);
        }
        'b' | 'B' => {
            let length = if specifier == 'b' { 3 } else { usize::MAX };
            let name = |month: &str| month[..length.min(month.len())].to_string();
            let found = MONTHS.iter().position(|month| {
                reader
                    .rest
                    .get(..name(month).len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(&name(month)))
            })?;
            reader.rest = &reader.rest[name(MONTHS[found]).len()..];
            fields.month = Some(found as u32 + 1);
        }
        'z' => fields.zone = Some(reader.zone()?),
        'Z' => {
            // There is no offset without a sign, and one of zero minutes without digits.
            let sign = match reader.eat('-') {
                Some(()) => -1,
                None => reader.eat('+').map(|()| 1)?,
            };
            let minutes = reader.number(1, OFFSET_DIGITS_MAX).unwrap_or(0);
            fields.zone = Some(Zone::Offset(sign * minutes as i32 * 60));
        }
        '%' => reader.eat('%')?,
        _ => return None,
    }
    Some(())
}
