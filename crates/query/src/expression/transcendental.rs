//! $exp $ln $log $log10 $pow $sqrt $sigmoid, the trigonometric functions, and degrees
//!
//! Doubles only, apart from $sqrt: functions over decimals would have to be right in 34 digits.

use std::f64::consts::PI;

use banyan_document::number::{Decimal, Number};

use super::arithmetic::{NULL, numeric};
use super::env::Env;
use super::node::Arguments;
use super::operator::Operator;
use super::value::{Value, describe, error, type_name};
use crate::error::{ErrorKind, QueryError};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$acos", 1, |args, _| bounded(args, f64::acos, -1.0, 1.0)),
    Operator::fixed("$acosh", 1, |args, _| {
        bounded(args, f64::acosh, 1.0, f64::INFINITY)
    }),
    Operator::fixed("$asin", 1, |args, _| bounded(args, f64::asin, -1.0, 1.0)),
    Operator::fixed("$asinh", 1, |args, _| unary(args, f64::asinh)),
    Operator::fixed("$atan", 1, |args, _| unary(args, f64::atan)),
    Operator::fixed("$atan2", 2, atan2),
    Operator::fixed("$atanh", 1, |args, _| bounded(args, f64::atanh, -1.0, 1.0)),
    Operator::fixed("$cos", 1, |args, _| finite(args, f64::cos)),
    Operator::fixed("$cosh", 1, |args, _| unary(args, f64::cosh)),
    Operator::fixed("$degreesToRadians", 1, |args, _| {
        unary(args, |v| v * (PI / 180.0))
    }),
    Operator::fixed("$exp", 1, |args, _| unary(args, f64::exp)),
    Operator::fixed("$ln", 1, ln),
    Operator::fixed("$log", 2, log),
    Operator::fixed("$log10", 1, log10),
    Operator::fixed("$pow", 2, pow),
    Operator::fixed("$radiansToDegrees", 1, |args, _| {
        unary(args, |v| v * (180.0 / PI))
    }),
    Operator::fixed("$sigmoid", 1, |args, _| {
        unary(args, |v| 1.0 / (1.0 + (-v).exp()))
    }),
    Operator::fixed("$sin", 1, |args, _| finite(args, f64::sin)),
    Operator::fixed("$sinh", 1, |args, _| unary(args, f64::sinh)),
    Operator::fixed("$sqrt", 1, sqrt),
    Operator::fixed("$tan", 1, |args, _| finite(args, f64::tan)),
    Operator::fixed("$tanh", 1, |args, _| unary(args, f64::tanh)),
];

type Result<T> = std::result::Result<T, QueryError>;

fn double<'a>(value: f64) -> Result<Value<'a>> {
    // One NaN: what the functions return may carry a sign.
    let value = if value.is_nan() { f64::NAN } else { value };
    Ok(Some(Number::Double(value).to_raw()))
}

fn no_decimals(operator: &str, numbers: &[Number]) -> Result<()> {
    if numbers.iter().any(|n| matches!(n, Number::Decimal(_))) {
        return Err(QueryError::new(
            ErrorKind::NotImplemented,
            format!("{operator} is not implemented for decimals yet"),
        ));
    }
    Ok(())
}

fn unary<'a>(args: &Arguments<'a>, f: fn(f64) -> f64) -> Result<Value<'a>> {
    let Some(number) = numeric(args)? else {
        return NULL;
    };
    no_decimals(args.operator, &[number])?;
    double(f(number.to_f64()))
}

/// Functions that have no value at infinity.
fn finite<'a>(args: &Arguments<'a>, f: fn(f64) -> f64) -> Result<Value<'a>> {
    if let Some(number) = numeric(args)?
        && number.is_infinite()
    {
        return error(
            50989,
            format!(
                "cannot apply {} to {}, value must be in (-inf,inf)",
                args.operator,
                short(number)
            ),
        );
    }
    unary(args, f)
}

fn bounded<'a>(args: &Arguments<'a>, f: fn(f64) -> f64, low: f64, high: f64) -> Result<Value<'a>> {
    if let Some(number) = numeric(args)? {
        let value = number.to_f64();
        if value < low || value > high {
            let high = if high.is_infinite() {
                "inf]".into()
            } else {
                format!("{high}]")
            };
            return error(
                50989,
                format!(
                    "cannot apply {} to {}, value must be in [{low},{high}",
                    args.operator,
                    short(number)
                ),
            );
        }
    }
    unary(args, f)
}

fn short(number: Number) -> String {
    match number.to_f64() {
        v if v == f64::INFINITY => "inf".into(),
        v if v == f64::NEG_INFINITY => "-inf".into(),
        _ => describe(Some(number.to_raw())),
    }
}

/// Both numbers of a binary function; `None` if either is null.
fn pair(args: &Arguments<'_>, codes: [u32; 2], what: [&str; 2]) -> Result<Option<[Number; 2]>> {
    if args.any_nullish() {
        return Ok(None);
    }
    let mut numbers = [Number::Int32(0); 2];
    for index in 0..2 {
        let value = args.get(index);
        match value.and_then(Number::from_raw) {
            Some(number) => numbers[index] = number,
            None => {
                return error(
                    codes[index],
                    format!(
                        "{}'s {} must be numeric, not {}",
                        args.operator,
                        what[index],
                        type_name(value)
                    ),
                );
            }
        }
    }
    no_decimals(args.operator, &numbers)?;
    Ok(Some(numbers))
}

fn atan2<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    match pair(args, [51044, 51045], ["first argument", "second argument"])? {
        None => NULL,
        Some([y, x]) => double(y.to_f64().atan2(x.to_f64())),
    }
}

fn positive(number: Number, code: u32, operator: &str, what: &str) -> Result<()> {
    if number.to_f64() <= 0.0 {
        let shown = describe(Some(number.to_raw()));
        return error(
            code,
            format!("{operator}'s {what} must be a positive number, but is {shown}"),
        );
    }
    Ok(())
}

fn ln<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    if let Some(number) = numeric(args)? {
        positive(number, 28766, "$ln", "argument")?;
    }
    unary(args, f64::ln)
}

fn log10<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    if let Some(number) = numeric(args)? {
        positive(number, 28761, "$log10", "argument")?;
    }
    unary(args, f64::log10)
}

fn log<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some([value, base]) = pair(args, [28756, 28757], ["argument", "base"])? else {
        return NULL;
    };
    positive(value, 28758, "$log", "argument")?;
    let b = base.to_f64();
    if b <= 0.0 || b == 1.0 {
        let shown = describe(Some(base.to_raw()));
        return error(
            28759,
            format!("$log's base must be a positive number not equal to 1, but is {shown}"),
        );
    }
    double(value.to_f64().ln() / b.ln())
}

fn pow<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some([base, exponent]) = pair(args, [28762, 28763], ["base", "exponent"])? else {
        return NULL;
    };
    if base.is_zero() && exponent.to_f64() < 0.0 {
        return error(
            28764,
            "$pow cannot take a base of 0 and a negative exponent",
        );
    }
    let (Number::Int32(_) | Number::Int64(_), Number::Int32(_) | Number::Int64(_)) =
        (base, exponent)
    else {
        return double(base.to_f64().powf(exponent.to_f64()));
    };
    let (b, e) = (
        base.to_i64_exact().unwrap_or(0),
        exponent.to_i64_exact().unwrap_or(0),
    );
    let exact = match (b, u32::try_from(e)) {
        (_, Ok(e)) => b.checked_pow(e),
        (1, _) => Some(1),
        (-1, _) => Some(if e % 2 == 0 { 1 } else { -1 }),
        _ => None,
    };
    let narrow = matches!((base, exponent), (Number::Int32(_), Number::Int32(_)));
    match exact {
        Some(v) if narrow => Ok(Some(Number::narrow(v).to_raw())),
        Some(v) => Ok(Some(Number::Int64(v).to_raw())),
        None => double((b as f64).powf(e as f64)),
    }
}

fn sqrt<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some(number) = numeric(args)? else {
        return NULL;
    };
    if number.compare(Number::Int32(0)).is_lt() && !number.is_nan() {
        return error(28714, "$sqrt's argument must be greater than or equal to 0");
    }
    match number {
        Number::Decimal(v) => Ok(Some(Number::Decimal(Decimal::sqrt(v)).to_raw())),
        other => double(other.to_f64().sqrt()),
    }
}
