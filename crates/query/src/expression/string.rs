//! Operators over strings. "CP" counts code points, "Bytes" counts UTF-8 bytes.

use std::cmp::Ordering;

use bson::RawBsonRef;

use banyan_document::Number;

use super::arena::{ArrayBuilder, check_size};
use super::array::search_range;
use super::date;
use super::env::Env;
use super::node::{Arguments, Run};
use super::operator::{
    Form, NamedCodes, Operands, Operator, Parameter, Reading, optional, required,
};
use super::value::{Value, describe, error, format_double, is_nullish, type_name, whole_number};
use crate::error::QueryError;

const TRIM: &[Parameter] = &[required("input"), optional("chars")];
const TRIM_CODES: NamedCodes = NamedCodes {
    not_object: 50696,
    unknown: 50694,
    missing: &[50695],
};
const REPLACE: &[Parameter] = &[required("input"), required("find"), required("replacement")];
const REPLACE_CODES: NamedCodes = NamedCodes {
    not_object: 51751,
    unknown: 51750,
    missing: &[51749, 51748, 51747],
};

const fn named(
    name: &'static str,
    operands: Operands,
    parameters: &'static [Parameter],
    codes: NamedCodes,
    run: Run,
) -> Operator {
    Operator {
        name,
        form: Form::Named {
            operands,
            parameters,
            run,
            reading: Reading::AsWritten,
            codes,
        },
    }
}

pub(super) const OPERATORS: &[Operator] = &[
    Operator::associative("$concat", concat),
    Operator::asked("$indexOfBytes", 2, 4, index_of_bytes),
    Operator::asked("$indexOfCP", 2, 4, index_of_code_points),
    named("$ltrim", Operands::InTurn, TRIM, TRIM_CODES, |args, env| {
        trim(args, env, true, false)
    }),
    named(
        "$replaceAll",
        Operands::TogetherLater,
        REPLACE,
        REPLACE_CODES,
        |args, env| replace(args, env, usize::MAX),
    ),
    named(
        "$replaceOne",
        Operands::TogetherLater,
        REPLACE,
        REPLACE_CODES,
        |args, env| replace(args, env, 1),
    ),
    named("$rtrim", Operands::InTurn, TRIM, TRIM_CODES, |args, env| {
        trim(args, env, false, true)
    }),
    Operator::fixed("$split", 2, split),
    Operator::fixed("$strLenBytes", 1, |args, _| length(args, 34473, str::len)),
    Operator::fixed("$strLenCP", 1, |args, _| {
        length(args, 34471, |text| text.chars().count())
    }),
    Operator::fixed("$strcasecmp", 2, strcasecmp),
    Operator::fixed("$substr", 3, substr_bytes),
    Operator::fixed("$substrBytes", 3, substr_bytes),
    Operator::fixed("$substrCP", 3, substr_code_points),
    Operator::fixed("$toLower", 1, |args, env| {
        let text = coerce(args.get(0))?;
        env.string(&text.to_ascii_lowercase())
    }),
    Operator::fixed("$toUpper", 1, |args, env| {
        let text = coerce(args.get(0))?;
        env.string(&text.to_ascii_uppercase())
    }),
    named("$trim", Operands::InTurn, TRIM, TRIM_CODES, |args, env| {
        trim(args, env, true, true)
    }),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

/// A value as the text that $toUpper, $substr and their like work on; null is empty.
fn coerce(value: Value<'_>) -> Result<String> {
    match value {
        value if is_nullish(value) => Ok(String::new()),
        Some(RawBsonRef::String(text) | RawBsonRef::Symbol(text)) => Ok(text.into()),
        Some(RawBsonRef::JavaScriptCode(text)) => Ok(text.into()),
        Some(RawBsonRef::Double(f64::INFINITY)) => Ok("inf".into()),
        Some(RawBsonRef::Double(f64::NEG_INFINITY)) => Ok("-inf".into()),
        Some(RawBsonRef::Double(v)) => Ok(format_double(v)),
        Some(RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Decimal128(_)) => {
            Ok(describe(value))
        }
        Some(RawBsonRef::DateTime(v)) => date::text::iso_text(v.timestamp_millis()),
        Some(RawBsonRef::Timestamp(v)) => Ok(date::text::timestamp_text(v)),
        other => error(
            16007,
            format!(
                "can't convert from BSON type {} to String",
                type_name(other)
            ),
        ),
    }
}

fn int<'a>(value: usize) -> Result<Value<'a>> {
    Ok(Some(RawBsonRef::Int32(
        i32::try_from(value).unwrap_or(i32::MAX),
    )))
}

fn concat<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut joined = String::new();
    for value in &args.values {
        match value {
            Some(RawBsonRef::String(text)) => {
                joined.push_str(text);
                check_size(joined.len())?;
            }
            value if is_nullish(*value) => return Ok(NULL),
            other => {
                return error(
                    16702,
                    format!("$concat only supports strings, not {}", type_name(*other)),
                );
            }
        }
    }
    env.string(&joined)
}

fn length<'a>(args: &Arguments<'a>, code: u32, measure: fn(&str) -> usize) -> Result<Value<'a>> {
    match args.get(0) {
        Some(RawBsonRef::String(text)) => int(measure(text)),
        other => error(
            code,
            format!(
                "{} requires a string argument, found: {}",
                args.operator,
                type_name(other)
            ),
        ),
    }
}

fn strcasecmp<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let (a, b) = (coerce(args.get(0))?, coerce(args.get(1))?);
    let order = a.to_ascii_uppercase().cmp(&b.to_ascii_uppercase());
    Ok(Some(RawBsonRef::Int32(match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })))
}

/// The two strings of an $indexOf operator; `None` when the first is null.
fn index_operands<'a>(
    args: &Arguments<'a>,
    env: &Env<'a>,
    codes: (u32, u32),
) -> Result<Option<(&'a str, &'a str)>> {
    let text = match args.with(0, env)?.get(0) {
        value if is_nullish(value) => return Ok(None),
        Some(RawBsonRef::String(text)) => text,
        other => {
            return error(
                codes.0,
                format!(
                    "{} requires a string as the first argument, found: {}",
                    args.operator,
                    type_name(other)
                ),
            );
        }
    };
    match args.with(1, env)?.get(1) {
        Some(RawBsonRef::String(token)) => Ok(Some((text, token))),
        other => error(
            codes.1,
            format!(
                "{} requires a string as the second argument, found: {}",
                args.operator,
                type_name(other)
            ),
        ),
    }
}

fn index_of_bytes<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let Some((text, token)) = index_operands(args, env, (40091, 40092))? else {
        return Ok(NULL);
    };
    let (start, end) = search_range(args, env)?;
    // Nothing is found anywhere, also within a character.
    if token.is_empty() && start <= end.min(text.len()) {
        return Ok(Some(RawBsonRef::Int32(start as i32)));
    }
    // A match begins and ends where characters do.
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    let end = (0..=end.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    let (Some(start), Some(end)) = (start, end) else {
        return Ok(Some(RawBsonRef::Int32(-1)));
    };
    let found = text.get(start..end).and_then(|window| window.find(token));
    Ok(Some(RawBsonRef::Int32(
        found.map_or(-1, |index| (start + index) as i32),
    )))
}

fn index_of_code_points<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let Some((text, token)) = index_operands(args, env, (40093, 40094))? else {
        return Ok(NULL);
    };
    let (start, end) = search_range(args, env)?;
    if text.is_empty() && token.is_empty() && start == 0 {
        return Ok(Some(RawBsonRef::Int32(0)));
    }
    // A match begins at a character of the range; it may end after the range.
    let begin = text.char_indices().nth(start).map(|(at, _)| at);
    let found = begin.and_then(|begin| {
        let rest = &text[begin..];
        let at = rest.find(token)?;
        Some(start + rest[..at].chars().count())
    });
    Ok(Some(RawBsonRef::Int32(
        found
            .filter(|index| *index < end)
            .map_or(-1, |index| index as i32),
    )))
}

fn trim<'a>(args: &Arguments<'a>, _: &Env<'a>, left: bool, right: bool) -> Result<Value<'a>> {
    let operator = args.operator;
    let mut text = match args.get(0) {
        value if is_nullish(value) => return Ok(NULL),
        Some(RawBsonRef::String(text)) => text,
        other => {
            return error(
                50699,
                format!(
                    "{operator} requires its input to be a string, got {} (of type {}) instead.",
                    describe(other),
                    type_name(other)
                ),
            );
        }
    };
    let mut chars: Option<Vec<char>> = match args.get(1) {
        None if !args.is_given(1) => None,
        Some(RawBsonRef::String(chars)) => Some(chars.chars().collect()),
        value if is_nullish(value) => return Ok(NULL),
        other => {
            return error(
                50700,
                format!(
                    "{operator} requires 'chars' to be a string, got {} (of type {}) instead.",
                    describe(other),
                    type_name(other)
                ),
            );
        }
    };
    chars.iter_mut().for_each(|chars| chars.sort_unstable());
    let cut = |c: char| match &chars {
        Some(chars) => chars.binary_search(&c).is_ok(),
        None => c == '\0' || c.is_whitespace(),
    };
    if left {
        text = text.trim_start_matches(cut);
    }
    if right {
        text = text.trim_end_matches(cut);
    }
    Ok(Some(RawBsonRef::String(text)))
}

fn replace<'a>(args: &Arguments<'a>, env: &Env<'a>, count: usize) -> Result<Value<'a>> {
    let mut texts = [""; 3];
    for (index, name) in ["input", "find", "replacement"].into_iter().enumerate() {
        match args.get(index) {
            Some(RawBsonRef::String(text)) => texts[index] = text,
            value if is_nullish(value) => {}
            other => {
                let code = [51746, 51745, 51744][index];
                return error(
                    code,
                    format!(
                        "{} requires that '{name}' be a string, found: {}",
                        args.operator,
                        describe(other)
                    ),
                );
            }
        }
    }
    if args.any_nullish() {
        return Ok(NULL);
    }
    let [input, find, replacement] = texts;
    let matches = input.matches(find).take(count).count();
    check_size(matches.saturating_mul(replacement.len()))?;
    env.string(&input.replacen(find, replacement, count))
}

fn split<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    if args.any_nullish() {
        return Ok(NULL);
    }
    let Some(RawBsonRef::String(text)) = args.get(0) else {
        return error(
            40085,
            format!(
                "$split requires an expression that evaluates to a string as a first argument, \
                 found: {}",
                type_name(args.get(0))
            ),
        );
    };
    let Some(RawBsonRef::String(separator)) = args.get(1) else {
        return error(
            40086,
            format!(
                "$split requires an expression that evaluates to a string as a second argument, \
                 found: {}",
                type_name(args.get(1))
            ),
        );
    };
    if separator.is_empty() {
        return error(40087, "$split requires a non-empty separator");
    }
    let mut builder = ArrayBuilder::new();
    for part in text.split(separator) {
        env.budget.spend_bytes(part.len())?;
        builder.push_str(part);
    }
    env.array(builder)
}

fn substr_bytes<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let text = coerce(args.get(0))?;
    let number = |index: usize, code: u32, what: &str| {
        let value = args.get(index);
        let numeric = value.and_then(Number::from_raw);
        numeric.map_or_else(
            || {
                error(
                    code,
                    format!(
                        "$substrBytes:  {what} must be a numeric type (is BSON type {})",
                        type_name(value)
                    ),
                )
            },
            Ok,
        )
    };
    let start = number(1, 16034, "starting index")?;
    let length = number(2, 16035, "length")?;
    let start = whole_number(start)?;
    let Ok(start) = usize::try_from(start) else {
        return error(
            50752,
            format!("$substrBytes:  starting index must be non-negative (got: {start})"),
        );
    };
    let length = whole_number(length)?;
    // A negative length means the rest.
    let end = usize::try_from(length)
        .map_or(text.len(), |length| start.saturating_add(length))
        .min(text.len());
    if start >= text.len() {
        return env.string("");
    }
    if !text.is_char_boundary(start) {
        return error(
            28656,
            "$substrBytes:  Invalid range, starting index is a UTF-8 continuation byte.",
        );
    }
    if !text.is_char_boundary(end) {
        return error(
            28657,
            "$substrBytes:  Invalid range, ending index is in the middle of a UTF-8 character.",
        );
    }
    env.string(&text[start..end])
}

fn substr_code_points<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let text = coerce(args.get(0))?;
    let count = |index: usize, codes: [u32; 2], what: &str| -> Result<i32> {
        let value = args.get(index);
        let Some(number) = value.and_then(Number::from_raw) else {
            return error(
                codes[0],
                format!(
                    "$substrCP: {what} must be a numeric type (is BSON type {})",
                    type_name(value)
                ),
            );
        };
        number.to_i32_exact().map_or_else(
            || {
                error(
                    codes[1],
                    format!(
                        "$substrCP: {what} cannot be represented as a 32-bit integral value: {}",
                        describe(value)
                    ),
                )
            },
            Ok,
        )
    };
    let start = count(1, [34450, 34451], "starting index")?;
    let length = count(2, [34452, 34453], "length")?;
    let Ok(length) = usize::try_from(length) else {
        return error(34454, "$substrCP: length must be a nonnegative integer.");
    };
    let Ok(start) = usize::try_from(start) else {
        let message = "$substrCP: the starting index must be nonnegative integer.";
        return error(34455, message);
    };
    let part: String = text.chars().skip(start).take(length).collect();
    env.string(&part)
}
