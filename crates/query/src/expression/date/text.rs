//! $dateToString and $dateFromString, and what $toDate reads

use std::fmt::Write;

use bson::RawBsonRef;
use chrono::{Datelike, NaiveDate, NaiveDateTime, Timelike};

use super::calendar::{NULL, Result, date, millis, week};
use super::zone::{Zone, zone};
use crate::error::{ErrorKind, QueryError};
use crate::expression::env::Env;
use crate::expression::node::Arguments;
use crate::expression::operator::{Form, NamedCodes, Operator, optional, required};
use crate::expression::value::{Value, describe, error, is_nullish, type_name};

pub(in crate::expression) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$dateFromString",
        form: Form::Named {
            parameters: &[
                required("dateString"),
                optional("format"),
                optional("timezone"),
                optional("onError"),
                optional("onNull"),
            ],
            run: from_string,
            codes: NamedCodes {
                not_object: 40540,
                unknown: 40541,
                missing: 40542,
            },
        },
    },
    Operator {
        name: "$dateToString",
        form: Form::Named {
            parameters: &[
                required("date"),
                optional("format"),
                optional("timezone"),
                optional("onNull"),
            ],
            run: to_string,
            codes: NamedCodes {
                not_object: 18629,
                unknown: 18534,
                missing: 18628,
            },
        },
    },
];

const MONTHS: [&str; 12] = [
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
    let Some(format) = format_argument(args, "$dateToString", 18533)? else {
        return Ok(NULL);
    };
    if let Some(format) = format {
        check_format(format)?;
    }
    let Some(zone) = zone(args, 2)? else {
        return Ok(NULL);
    };
    let Some(millis) = millis(args.get(0))? else {
        return Ok(if args.is_given(3) { args.get(3) } else { NULL });
    };
    let format = format.unwrap_or("%Y-%m-%dT%H:%M:%S.%LZ");
    env.string(&print(format, millis, zone)?)
}

fn check_format(format: &str) -> Result<()> {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        match chars.next() {
            Some(
                '%' | 'Y' | 'm' | 'd' | 'H' | 'M' | 'S' | 'L' | 'j' | 'w' | 'u' | 'U' | 'V' | 'G'
                | 'z' | 'Z' | 'b' | 'B',
            ) => {}
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
    let local = zone.local(millis)?;
    let offset_minutes = zone.offset_seconds(millis)? / 60;
    if !(0..=9999).contains(&local.year()) {
        return error(
            18537,
            format!(
                "$dateToString is only defined on year 0-9999, tried to use year {}",
                local.year()
            ),
        );
    }
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        // Writing into a string cannot fail.
        let _ = match chars.next() {
            Some('Y') => write!(text, "{:04}", local.year()),
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
            Some('G') => write!(text, "{:04}", local.iso_week().year()),
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

fn failed<T>(message: String) -> Result<T> {
    Err(QueryError::new(ErrorKind::ConversionFailure, message))
}

fn from_string<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some(format) = format_argument(args, "$dateFromString", 40684)? else {
        return Ok(NULL);
    };
    let Some(zone) = zone(args, 2)? else {
        return Ok(NULL);
    };
    let zone = args.is_given(2).then_some(zone);
    let parsed = match args.get(0) {
        value if is_nullish(value) => {
            return Ok(if args.is_given(4) { args.get(4) } else { NULL });
        }
        Some(RawBsonRef::String(text)) => match format {
            Some(format) => parse_with(text, format, zone),
            None => parse(text, zone),
        },
        other => failed(format!(
            "$dateFromString requires that 'dateString' be a string, found: {} with value {}",
            type_name(other),
            describe(other)
        )),
    };
    match parsed {
        Ok(millis) => date(millis),
        Err(problem) if problem.kind == ErrorKind::ConversionFailure && args.is_given(3) => {
            Ok(args.get(3))
        }
        Err(problem) => Err(problem),
    }
}

/// What a text says about a time.
#[derive(Default)]
struct Fields {
    year: Option<i32>,
    month: Option<u32>,
    day: Option<u32>,
    ordinal: Option<u32>,
    iso_year: Option<i32>,
    iso_week: Option<u32>,
    iso_day: Option<u32>,
    hour: u32,
    minute: u32,
    second: u32,
    millisecond: u32,
    zone: Option<Zone>,
}

impl Fields {
    fn local(&self) -> Option<NaiveDateTime> {
        let day = match (self.iso_year, self.ordinal) {
            (Some(year), _) => {
                let weekday =
                    chrono::Weekday::try_from(self.iso_day.unwrap_or(1) as u8 - 1).ok()?;
                NaiveDate::from_isoywd_opt(year, self.iso_week?, weekday)?
            }
            (None, Some(ordinal)) => NaiveDate::from_yo_opt(self.year?, ordinal)?,
            (None, None) => NaiveDate::from_ymd_opt(self.year?, self.month?, self.day?)?,
        };
        day.and_hms_milli_opt(self.hour, self.minute, self.second, self.millisecond)
    }
}

/// Reads a text from the left.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn eat(&mut self, literal: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(literal)?;
        Some(())
    }

    /// A number of at least `min` and at most `max` digits.
    fn number(&mut self, min: usize, max: usize) -> Option<u32> {
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
    fn fraction(&mut self) -> Option<u32> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return None;
        }
        let (digits, rest) = self.rest.split_at(digits);
        self.rest = rest;
        format!("{digits:0<3}").get(..3)?.parse().ok()
    }

    /// `Z`, `UTC`, `GMT` or an offset.
    fn zone(&mut self) -> Option<Zone> {
        for name in ["UTC", "GMT", "Z"] {
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                return Some(Zone::Utc);
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

/// A date in the usual forms of ISO 8601, as milliseconds since 1970.
pub(in crate::expression) fn parse(text: &str, zone: Option<Zone>) -> Result<i64> {
    match parse_iso(text) {
        Some(fields) => finish(text, &fields, zone),
        None if text.len() < 8 => failed(format!(
            "an incomplete date/time string has been found, with elements missing: \"{text}\""
        )),
        None => failed(format!("Error parsing date string '{text}'")),
    }
}

fn parse_iso(text: &str) -> Option<Fields> {
    let mut reader = Reader { rest: text.trim() };
    let mut fields = Fields {
        year: Some(reader.number(4, 4)? as i32),
        ..Fields::default()
    };
    let dashed = reader.eat('-').is_some();
    fields.month = Some(reader.number(if dashed { 1 } else { 2 }, 2)?);
    if dashed {
        reader.eat('-')?;
    }
    fields.day = Some(reader.number(if dashed { 1 } else { 2 }, 2)?);
    if reader.rest.is_empty() {
        return Some(fields);
    }
    reader.eat('T').or_else(|| reader.eat(' '))?;
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
    if !reader.rest.is_empty() {
        fields.zone = Some(reader.zone()?);
    }
    reader.rest.is_empty().then_some(fields)
}

fn finish(text: &str, fields: &Fields, zone: Option<Zone>) -> Result<i64> {
    if fields.zone.is_some() && zone.is_some_and(|zone| !matches!(zone, Zone::Utc)) {
        return failed(format!(
            "you cannot pass in a date/time string with GMT offset together with a timezone \
             argument: '{text}'"
        ));
    }
    let Some(local) = fields.local() else {
        return failed(format!(
            "Error parsing date string '{text}'; The parsed date was invalid"
        ));
    };
    fields.zone.or(zone).unwrap_or(Zone::Utc).millis(&local)
}

fn parse_with(text: &str, format: &str, zone: Option<Zone>) -> Result<i64> {
    check_format(format)?;
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
    finish(text, &fields, zone)
}

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
        'V' => fields.iso_week = Some(reader.number(1, 2)?),
        'u' => fields.iso_day = Some(reader.number(1, 1)?).filter(|day| (1..=7).contains(day)),
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
            let sign = if reader.eat('-').is_some() { -1 } else { 1 };
            let _ = reader.eat('+');
            fields.zone = Some(Zone::Offset(sign * reader.number(1, 4)? as i32 * 60));
        }
        '%' => reader.eat('%')?,
        _ => return None,
    }
    Some(())
}
