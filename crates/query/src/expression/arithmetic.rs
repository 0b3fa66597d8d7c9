//! $abs $add $ceil $divide $floor $mod $multiply $round $subtract $trunc

use bson::{DateTime, RawBsonRef};

use banyan_document::number::{Decimal, Number, Rounding};

use super::env::Env;
use super::node::Arguments;
use super::operator::Operator;
use super::sum::Sum;
use super::value::{Value, error, is_nullish, type_name, whole_number};
use crate::error::{ErrorKind, QueryError};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$abs", 1, abs),
    Operator::commutative("$add", add),
    Operator::fixed("$ceil", 1, ceil),
    Operator::backward("$divide", divide),
    Operator::fixed("$floor", 1, floor),
    Operator::fixed("$mod", 2, remainder),
    Operator::commutative("$multiply", multiply),
    Operator::in_turn("$round", 1, 2, round),
    Operator::backward("$subtract", subtract),
    Operator::in_turn("$trunc", 1, 2, trunc),
];

type Result<T> = std::result::Result<T, QueryError>;

pub(super) const NULL: Result<Value<'static>> = Ok(Some(RawBsonRef::Null));

fn raw<'a>(number: Number) -> Result<Value<'a>> {
    Ok(Some(number.to_raw()))
}

fn type_mismatch<T>(message: String) -> Result<T> {
    Err(QueryError::new(ErrorKind::TypeMismatch, message))
}

/// The one argument of a numeric operator; `None` for null.
pub(super) fn numeric(args: &Arguments<'_>) -> Result<Option<Number>> {
    let value = args.get(0);
    if is_nullish(value) {
        return Ok(None);
    }
    match value.and_then(Number::from_raw) {
        Some(number) => Ok(Some(number)),
        None => error(
            28765,
            format!(
                "{} only supports numeric types, not {}",
                args.operator,
                type_name(value)
            ),
        ),
    }
}

fn abs<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some(number) = numeric(args)? else {
        return NULL;
    };
    raw(match number {
        Number::Int64(i64::MIN) => return error(28680, "can't take $abs of long long min"),
        Number::Int32(v) if v < 0 => number.negate(),
        Number::Int64(v) if v < 0 => number.negate(),
        Number::Double(v) => Number::Double(v.abs()),
        Number::Decimal(v) => Number::Decimal(v.abs()),
        other => other,
    })
}

fn add<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let mut sum = Sum::default();
    let mut date = None;
    for value in &args.values {
        if is_nullish(*value) {
            return NULL;
        }
        match value {
            Some(RawBsonRef::DateTime(v)) => {
                if date.replace(v.timestamp_millis()).is_some() {
                    return error(16612, "only one date allowed in an $add expression");
                }
            }
            _ => match value.and_then(Number::from_raw) {
                Some(number) => sum.add(number),
                None => {
                    return error(
                        16554,
                        format!(
                            "$add only supports numeric or date types, not {}",
                            type_name(*value)
                        ),
                    );
                }
            },
        }
    }
    let total = sum.total();
    let Some(date) = date else { return raw(total) };
    let millis = match total {
        Number::Double(total) => later_by(date, total),
        // Added up as decimals, and then converted as `whole_number` does.
        Number::Decimal(total) => {
            let sum = total.add(Decimal::from_i64(date));
            Some(whole_number(Number::Decimal(sum))?)
        }
        total => date.checked_add(total.to_i64_saturating()),
    };
    match millis {
        Some(millis) => Ok(Some(RawBsonRef::DateTime(DateTime::from_millis(millis)))),
        None => Err(QueryError::new(
            ErrorKind::Overflow,
            "date overflow in $add",
        )),
    }
}

/// A date so much later: the sum is rounded, halves toward zero. `None` for what does not fit.
fn later_by(date: i64, millis: f64) -> Option<i64> {
    // Both together may fit where one does not.
    if millis.is_nan() || millis.abs() > 2f64.powi(64) {
        return None;
    }
    let sum = i128::from(date) + millis.floor() as i128;
    let rest = millis - millis.floor();
    let is_later = rest > 0.5 || rest == 0.5 && sum < 0;
    i64::try_from(sum + i128::from(is_later)).ok()
}

fn subtract<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let (left, right) = (args.get(0), args.get(1));
    if args.any_nullish() {
        return NULL;
    }
    if let (Some(a), Some(b)) = (
        left.and_then(Number::from_raw),
        right.and_then(Number::from_raw),
    ) {
        return raw(a.subtract(b));
    }
    if let Some(RawBsonRef::DateTime(a)) = left {
        let a = a.timestamp_millis();
        if let Some(RawBsonRef::DateTime(b)) = right {
            // What does not fit is cut off, as in the reference.
            let apart = a.wrapping_sub(b.timestamp_millis());
            return Ok(Some(RawBsonRef::Int64(apart)));
        }
        if let Some(b) = right.and_then(Number::from_raw) {
            let b = whole_number(b)?;
            if b == i64::MIN {
                return error(159, "Cannot negate the minimum duration");
            }
            return match a.checked_sub(b) {
                Some(millis) => Ok(Some(RawBsonRef::DateTime(DateTime::from_millis(millis)))),
                None => error(159, format!("Overflow while subtracting {b}ms from {a}ms")),
            };
        }
    }
    type_mismatch(format!(
        "can't $subtract {} from {}",
        type_name(right),
        type_name(left)
    ))
}

fn multiply<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let mut product = Number::Int32(1);
    // Of whole numbers, for the first double among them: with it, MongoDB multiplies doubles from the
    // beginning.
    let mut in_doubles = 1.0;
    for value in &args.values {
        if is_nullish(*value) {
            return NULL;
        }
        match value.and_then(Number::from_raw) {
            Some(number) => {
                let so_far = match (product, number) {
                    (Number::Int32(_) | Number::Int64(_), Number::Double(_)) => {
                        Number::Double(in_doubles)
                    }
                    _ => product,
                };
                product = so_far.multiply(number);
                in_doubles *= number.to_f64();
            }
            None => {
                return type_mismatch(format!(
                    "$multiply only supports numeric types, not {}",
                    type_name(*value)
                ));
            }
        }
    }
    raw(product)
}

fn divide<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    if args.any_nullish() {
        return NULL;
    }
    let (left, right) = (args.get(0), args.get(1));
    match (
        left.and_then(Number::from_raw),
        right.and_then(Number::from_raw),
    ) {
        (Some(a), Some(b)) => match a.divide(b) {
            Some(quotient) => raw(quotient),
            None => Err(QueryError::new(
                ErrorKind::BadValue,
                "can't $divide by zero",
            )),
        },
        _ => type_mismatch(format!(
            "$divide only supports numeric types, not {} and {}",
            type_name(left),
            type_name(right)
        )),
    }
}

/// A double that is a 32-bit integer divides integers as one: the remainder is exact, and an integer.
fn as_integer_divisor(dividend: Number, divisor: Number) -> Number {
    match (dividend, divisor) {
        (Number::Int32(_) | Number::Int64(_), Number::Double(_)) => {
            divisor.to_i32_exact().map_or(divisor, Number::Int32)
        }
        _ => divisor,
    }
}

fn remainder<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    if args.any_nullish() {
        return NULL;
    }
    let (left, right) = (args.get(0), args.get(1));
    match (
        left.and_then(Number::from_raw),
        right.and_then(Number::from_raw),
    ) {
        (Some(a), Some(b)) => match a.remainder(as_integer_divisor(a, b)) {
            Some(rest) => raw(rest),
            None if matches!((a, b), (Number::Decimal(_), _) | (_, Number::Decimal(_))) => {
                error(5733415, "can't $mod by zero")
            }
            None => error(16610, "can't $mod by zero"),
        },
        _ => error(
            16611,
            format!(
                "$mod only supports numeric types, not {} and {}",
                type_name(left),
                type_name(right)
            ),
        ),
    }
}

fn ceil<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    whole(args, f64::ceil, Rounding::Ceiling)
}

fn floor<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    whole(args, f64::floor, Rounding::Floor)
}

fn whole<'a>(
    args: &Arguments<'a>,
    doubles: fn(f64) -> f64,
    decimals: Rounding,
) -> Result<Value<'a>> {
    let Some(number) = numeric(args)? else {
        return NULL;
    };
    raw(match number {
        Number::Double(v) => Number::Double(doubles(v)),
        Number::Decimal(v) => Number::Decimal(match v.round_to(0, decimals) {
            // There is no room for all digits of a whole number: MongoDB has none then.
            Decimal::Finite(whole) if whole.exponent > 0 => Decimal::NaN,
            Decimal::Infinity { .. } => Decimal::NaN,
            whole => whole,
        }),
        integer => integer,
    })
}

fn round<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    to_place(args, Rounding::HalfEven)
}

fn trunc<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    to_place(args, Rounding::Truncate)
}

fn to_place<'a>(args: &Arguments<'a>, rounding: Rounding) -> Result<Value<'a>> {
    let operator = args.operator;
    if is_nullish(args.get(0)) {
        return NULL;
    }
    let Some(number) = args.get(0).and_then(Number::from_raw) else {
        return error(
            51081,
            format!(
                "{operator} only supports numeric types, not {}",
                type_name(args.get(0))
            ),
        );
    };
    if args.values.len() > 1 && is_nullish(args.get(1)) {
        return NULL;
    }
    let place = match args.get(1) {
        None => 0,
        Some(value) if Number::from_raw(value).is_none() => {
            return error(
                16004,
                format!(
                    "can't convert from BSON type {} to long",
                    type_name(Some(value))
                ),
            );
        }
        Some(RawBsonRef::Double(value)) if whole_number(Number::Double(value)).is_err() => {
            return error(
                31109,
                format!("Can't coerce out of range value {value} to long"),
            );
        }
        Some(value) => match Number::from_raw(value).and_then(Number::to_i32_exact) {
            Some(place @ -20..=100) => place,
            Some(place) => {
                return error(
                    51083,
                    format!(
                        "cannot apply {operator} with precision value {place} value must be in \
                         [-20, 100]"
                    ),
                );
            }
            None => {
                return error(
                    51082,
                    format!("precision argument to  {operator} must be a integral value"),
                );
            }
        },
    };
    raw(match number {
        Number::Int32(_) | Number::Int64(_) if place >= 0 => number,
        Number::Int32(_) | Number::Int64(_) => {
            match number.to_decimal().round_to(place, rounding).to_i64_exact() {
                Some(v) if matches!(number, Number::Int32(_)) => Number::narrow(v),
                Some(v) => Number::Int64(v),
                None => {
                    return error(
                        51080,
                        format!("invalid conversion from Decimal128 result in {operator}"),
                    );
                }
            }
        }
        Number::Double(v) if place == 0 && rounding == Rounding::HalfEven => {
            Number::Double(v.round_ties_even())
        }
        Number::Double(v) if place == 0 => Number::Double(v.trunc()),
        Number::Double(v) if !v.is_finite() => number,
        Number::Double(v) => Number::Double(
            Decimal::from_f64_exact(v)
                .round_to(place, rounding)
                .to_f64(),
        ),
        Number::Decimal(v) => Number::Decimal(v.round_to(place, rounding)),
    })
}
