//! $convert, the $to operators, $type, $isNumber and $toHashedIndexKey

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{DateTime, RawBinaryRef, RawBsonRef};

use banyan_document::Number;
use banyan_document::number::{Decimal, Rounding};

use super::date;
use super::env::Env;
use super::node::{Arguments, ExpressionNode, Run};
use super::operator::{Form, NamedCodes, Operands, Operator, Reading, fallback, required};
use super::parse::{NO_LIMIT, Parser};
use super::value::{Value, describe, error, is_nullish, is_true, type_name};
use crate::error::{ErrorKind, QueryError};

/// FailedToParse, which has a number of its own.
const CODES: NamedCodes = NamedCodes {
    not_object: 9,
    unknown: 9,
    missing: &[9],
};

macro_rules! to {
    ($name:literal, $target:ident) => {
        Operator::special($name, |value, parser| {
            let run: Run = |args, env| shorthand(args, env, Target::$target);
            parse_shorthand($name, run, value, parser)
        })
    };
}

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$convert",
        form: Form::Named {
            operands: Operands::Backward,
            parameters: &[
                required("input"),
                required("to"),
                fallback("onError"),
                fallback("onNull"),
            ],
            run: convert,
            reading: Reading::AsWritten,
            codes: CODES,
        },
    },
    Operator::fixed("$isNumber", 1, |args, _| {
        let number = args.get(0).and_then(Number::from_raw).is_some();
        Ok(Some(RawBsonRef::Boolean(number)))
    }),
    to!("$toBool", Bool),
    to!("$toDate", Date),
    to!("$toDecimal", Decimal),
    to!("$toDouble", Double),
    Operator::special("$toHashedIndexKey", |value, parser| {
        // An array is its one operand and not a list of them.
        let operand = parser.operand_as_it_is(value)?;
        let run: Run = |args, _| {
            let hash = banyan_document::key::hash(args.get(0).unwrap_or(RawBsonRef::Null));
            Ok(Some(RawBsonRef::Int64(hash)))
        };
        let operands = vec![operand];
        Ok(ExpressionNode::call("$toHashedIndexKey", run, operands, 1).not_folded())
    }),
    to!("$toInt", Int),
    to!("$toLong", Long),
    to!("$toObjectId", ObjectId),
    to!("$toString", String),
    to!("$toUUID", BinData),
    Operator::fixed("$type", 1, |args, env| env.string(type_name(args.get(0)))),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Double,
    String,
    BinData,
    ObjectId,
    Bool,
    Date,
    Int,
    Long,
    Decimal,
    /// A type that nothing can be converted to.
    Other(&'static str),
}

const TYPES: &[(i64, &str)] = &[
    (-1, "minKey"),
    (0, "missing"),
    (1, "double"),
    (2, "string"),
    (3, "object"),
    (4, "array"),
    (5, "binData"),
    (6, "undefined"),
    (7, "objectId"),
    (8, "bool"),
    (9, "date"),
    (10, "null"),
    (11, "regex"),
    (12, "dbPointer"),
    (13, "javascript"),
    (14, "symbol"),
    (15, "javascriptWithScope"),
    (16, "int"),
    (17, "timestamp"),
    (18, "long"),
    (19, "decimal"),
    (127, "maxKey"),
];

impl Target {
    fn parse(value: RawBsonRef<'_>) -> Result<Target> {
        let name = match value {
            RawBsonRef::String(name) => match TYPES.iter().find(|(_, known)| *known == name) {
                Some((_, name)) => *name,
                None => {
                    return Err(QueryError::new(
                        ErrorKind::BadValue,
                        format!("Unknown type name: {name}"),
                    ));
                }
            },
            other => {
                let code = Number::from_raw(other).and_then(Number::to_i64_exact);
                match code.and_then(|code| TYPES.iter().find(|(known, _)| *known == code)) {
                    Some((_, name)) => *name,
                    None if Number::from_raw(other).is_some() => {
                        return Err(QueryError::new(
                            ErrorKind::FailedToParse,
                            format!(
                                "In $convert, numeric value for 'to' does not correspond to a \
                                 BSON type: {}",
                                describe(Some(other))
                            ),
                        ));
                    }
                    None => {
                        return Err(QueryError::new(
                            ErrorKind::FailedToParse,
                            format!(
                                "$convert's 'to' argument must be a string or number, but is {}",
                                type_name(Some(other))
                            ),
                        ));
                    }
                }
            }
        };
        Ok(match name {
            "double" => Target::Double,
            "string" => Target::String,
            "binData" => Target::BinData,
            "objectId" => Target::ObjectId,
            "bool" => Target::Bool,
            "date" => Target::Date,
            "int" => Target::Int,
            "long" => Target::Long,
            "decimal" => Target::Decimal,
            other => Target::Other(other),
        })
    }

    fn name(self) -> &'static str {
        match self {
            Target::Double => "double",
            Target::String => "string",
            Target::BinData => "binData",
            Target::ObjectId => "objectId",
            Target::Bool => "bool",
            Target::Date => "date",
            Target::Int => "int",
            Target::Long => "long",
            Target::Decimal => "decimal",
            Target::Other(name) => name,
        }
    }
}

fn convert<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let input = args.get(0);
    let to = args.get(1);
    let target = match to {
        value if is_nullish(value) => None,
        value => value.map(Target::parse).transpose()?,
    };
    if is_nullish(input) {
        return args.fallback(3, env).unwrap_or(Ok(NULL));
    }
    let (Some(input), Some(target)) = (input, target) else {
        return Ok(NULL);
    };
    match run(input, target, env) {
        Err(problem) if problem.kind == ErrorKind::ConversionFailure => {
            args.fallback(2, env).unwrap_or(Err(problem))
        }
        other => other,
    }
}

/// The one operand of `$toInt` and its like.
fn parse_shorthand(
    name: &'static str,
    run: Run,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<ExpressionNode> {
    let operands = parser.arguments(name, 0, NO_LIMIT, value)?;
    if operands.len() != 1 {
        return error(
            50723,
            format!("{name} requires a single argument, got {}", operands.len()),
        );
    }
    Ok(ExpressionNode::call(name, run, operands, u32::MAX))
}

fn shorthand<'a>(args: &Arguments<'a>, env: &Env<'a>, target: Target) -> Result<Value<'a>> {
    match args.get(0) {
        value if is_nullish(value) => Ok(NULL),
        Some(value) => run(value, target, env),
        None => Ok(NULL),
    }
}

fn failed<T>(message: String) -> Result<T> {
    Err(QueryError::new(ErrorKind::ConversionFailure, message))
}

fn unsupported<T>(value: RawBsonRef<'_>, target: Target) -> Result<T> {
    failed(format!(
        "Unsupported conversion from {} to {} in $convert with no onError value",
        type_name(Some(value)),
        target.name()
    ))
}

fn unparsable<T>(text: &str, why: &str) -> Result<T> {
    failed(format!(
        "Failed to parse number '{text}' in $convert with no onError value: {why}"
    ))
}

fn overflow<T>(value: RawBsonRef<'_>) -> Result<T> {
    failed(format!(
        "Conversion would overflow target type in $convert with no onError value: {}",
        describe(Some(value))
    ))
}

fn run<'a>(value: RawBsonRef<'a>, target: Target, env: &Env<'a>) -> Result<Value<'a>> {
    Ok(Some(match target {
        Target::Bool => RawBsonRef::Boolean(is_true(Some(value))),
        Target::Int => match integer(value, target)? {
            // A double is held against the range before its fraction goes, a decimal behind that.
            Some(_) if matches!(value, RawBsonRef::Double(v) if !INT32.contains(&v)) => {
                return overflow(value);
            }
            Some(v) => match i32::try_from(v) {
                Ok(v) => RawBsonRef::Int32(v),
                Err(_) => match value {
                    RawBsonRef::String(text) => return unparsable(text, "Overflow"),
                    _ => return overflow(value),
                },
            },
            None => return overflow(value),
        },
        Target::Long => match (value, integer(value, target)?) {
            (_, Some(v)) => RawBsonRef::Int64(v),
            (_, None) => return overflow(value),
        },
        Target::Double => RawBsonRef::Double(to_double(value)?),
        Target::Decimal => RawBsonRef::Decimal128(to_decimal(value)?.to_bson()),
        Target::String => return to_string(value, env),
        Target::Date => RawBsonRef::DateTime(DateTime::from_millis(to_date(value)?)),
        Target::ObjectId => match value {
            RawBsonRef::ObjectId(_) => value,
            RawBsonRef::String(text) => RawBsonRef::ObjectId(parse_object_id(text)?),
            _ => return unsupported(value, target),
        },
        Target::BinData => match value {
            RawBsonRef::Binary(_) => value,
            RawBsonRef::String(text) => {
                let bytes = parse_uuid(text)?;
                let bytes = env.arena.bytes(&bytes)?;
                RawBsonRef::Binary(RawBinaryRef {
                    subtype: BinarySubtype::Uuid,
                    bytes,
                })
            }
            _ => return unsupported(value, target),
        },
        Target::Other(_) => return unsupported(value, target),
    }))
}

const INT32: std::ops::RangeInclusive<f64> = i32::MIN as f64..=i32::MAX as f64;

/// The integer part; `None` where it does not fit 64 bits.
fn integer(value: RawBsonRef<'_>, target: Target) -> Result<Option<i64>> {
    match value {
        RawBsonRef::Boolean(v) => Ok(Some(i64::from(v))),
        RawBsonRef::DateTime(v) if target == Target::Long => Ok(Some(v.timestamp_millis())),
        RawBsonRef::String(text) => parse_integer(text).map(Some),
        _ => {
            let Some(number) = Number::from_raw(value) else {
                return unsupported(value, target);
            };
            if number.is_nan() {
                return failed(
                    "Attempt to convert NaN value to integer type in $convert with no onError \
                     value"
                        .into(),
                );
            }
            if number.is_infinite() {
                return failed(
                    "Attempt to convert infinity value to integer type in $convert with no \
                     onError value"
                        .into(),
                );
            }
            Ok(match number {
                Number::Int32(v) => Some(i64::from(v)),
                Number::Int64(v) => Some(v),
                Number::Double(v) => Number::Double(v.trunc()).to_i64_exact(),
                Number::Decimal(v) => v.round_to(0, Rounding::Truncate).to_i64_exact(),
            })
        }
    }
}

fn parse_integer(text: &str) -> Result<i64> {
    if text.starts_with("0x") || text.starts_with("0X") {
        return failed(format!(
            "Illegal hexadecimal input in $convert with no onError value: {text}"
        ));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() {
        return unparsable(text, "No digits");
    }
    let numeric = digits.bytes().take_while(u8::is_ascii_digit).count();
    if numeric < digits.len() {
        return unparsable(text, "Did not consume whole string.");
    }
    match text.parse() {
        Ok(value) => Ok(value),
        Err(_) => unparsable(text, "Overflow"),
    }
}

/// Whether a number has another digit than zero before its exponent.
fn has_value(number: &str) -> bool {
    let digits = number.split(['e', 'E']).next().unwrap_or_default();
    digits.bytes().any(|digit| matches!(digit, b'1'..=b'9'))
}

fn to_double(value: RawBsonRef<'_>) -> Result<f64> {
    match value {
        RawBsonRef::Boolean(v) => Ok(f64::from(u8::from(v))),
        RawBsonRef::DateTime(v) => Ok(v.timestamp_millis() as f64),
        RawBsonRef::String(text) => {
            if text.starts_with("0x") || text.starts_with("0X") {
                return failed(format!(
                    "Illegal hexadecimal input in $convert with no onError value: {text}"
                ));
            }
            if text.starts_with(char::is_whitespace) {
                return unparsable(text, "Leading whitespace");
            }
            match text.parse::<f64>() {
                Ok(v) if v.is_infinite() && text.bytes().any(|b| b.is_ascii_digit()) => {
                    unparsable(text, "Out of range")
                }
                // Too small for a double is as wrong as too large.
                Ok(v) if v == 0.0 && has_value(text) => unparsable(text, "Out of range"),
                Ok(v) => Ok(v),
                Err(_) if text.is_empty() => unparsable(text, "Empty string"),
                Err(_) => unparsable(text, "Did not consume any digits"),
            }
        }
        _ => match Number::from_raw(value) {
            Some(Number::Decimal(decimal)) => {
                let double = decimal.to_f64();
                let too_large = double.is_infinite() && !decimal.is_infinite();
                let too_small = double.abs() < f64::MIN_POSITIVE && !decimal.is_zero();
                if too_large || too_small {
                    return overflow(value);
                }
                Ok(double)
            }
            Some(number) => Ok(number.to_f64()),
            None => unsupported(value, Target::Double),
        },
    }
}

fn to_decimal(value: RawBsonRef<'_>) -> Result<Decimal> {
    match value {
        RawBsonRef::Boolean(v) => Ok(Decimal::from_i64(i64::from(v))),
        RawBsonRef::DateTime(v) => Ok(Decimal::from_i64(v.timestamp_millis())),
        RawBsonRef::String(text) => match Decimal::parse(text) {
            Some(decimal) => Ok(decimal),
            None => unparsable(text, "Failed to parse string to decimal"),
        },
        _ => match Number::from_raw(value) {
            Some(number) => Ok(number.to_decimal()),
            None => unsupported(value, Target::Decimal),
        },
    }
}

fn to_string<'a>(value: RawBsonRef<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    match value {
        RawBsonRef::String(_) => Ok(Some(value)),
        RawBsonRef::Double(v) => env.string(&super::value::format_double(v)),
        RawBsonRef::Boolean(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Decimal128(_)
        | RawBsonRef::ObjectId(_) => env.string(&describe(Some(value))),
        RawBsonRef::DateTime(v) => env.string(&date::text::iso_text(v.timestamp_millis())?),
        _ => unsupported(value, Target::String),
    }
}

/// Milliseconds since 1970.
fn to_date(value: RawBsonRef<'_>) -> Result<i64> {
    match value {
        RawBsonRef::DateTime(v) => Ok(v.timestamp_millis()),
        RawBsonRef::ObjectId(v) => Ok(v.timestamp().timestamp_millis()),
        RawBsonRef::Timestamp(v) => Ok(i64::from(v.time) * 1000),
        RawBsonRef::String(text) => date::text::parse(text, None),
        RawBsonRef::Int64(_) | RawBsonRef::Double(_) | RawBsonRef::Decimal128(_) => {
            match integer(value, Target::Date)? {
                Some(millis) => Ok(millis),
                None => overflow(value),
            }
        }
        _ => unsupported(value, Target::Date),
    }
}

fn parse_object_id(text: &str) -> Result<ObjectId> {
    let why = if text.len() == 24 {
        match ObjectId::parse_str(text) {
            Ok(id) => return Ok(id),
            Err(_) => "Invalid character found in hex string".to_string(),
        }
    } else {
        format!(
            "Invalid string length for parsing to OID, expected 24 but found {}",
            text.len()
        )
    };
    failed(format!(
        "Failed to parse objectId '{text}' in $convert with no onError value: {why}"
    ))
}

fn parse_uuid(text: &str) -> Result<Vec<u8>> {
    match bson::Uuid::parse_str(text) {
        Ok(uuid) if text.len() == 36 => Ok(uuid.bytes().to_vec()),
        _ => failed(format!(
            "Failed to parse BinData '{text}' in $convert with no onError value: Input is not a \
             valid UUID"
        )),
    }
}
