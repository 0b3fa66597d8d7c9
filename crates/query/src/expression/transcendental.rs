//! $exp $ln $log $log10 $pow $sqrt $sigmoid, the trigonometric functions, and degrees
//!
//! Of a decimal they are decimals, of any other number doubles.

use std::f64::consts::{LN_2, PI};

use banyan_document::number::{Decimal, Number};

use super::arithmetic::{NULL, numeric};
use super::env::Env;
use super::node::Arguments;
use super::operator::Operator;
use super::value::{Value, describe, error, is_nullish, type_name};
use crate::error::QueryError;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$acos", 1, |args, _| bounded(args, ACOS, -1, Some(1))),
    Operator::fixed("$acosh", 1, |args, _| bounded(args, ACOSH, 1, None)),
    Operator::fixed("$asin", 1, |args, _| bounded(args, ASIN, -1, Some(1))),
    Operator::fixed("$asinh", 1, |args, _| unary(args, ASINH)),
    Operator::fixed("$atan", 1, |args, _| unary(args, ATAN)),
    Operator::in_turn("$atan2", 2, 2, atan2),
    Operator::fixed("$atanh", 1, |args, _| bounded(args, ATANH, -1, Some(1))),
    Operator::fixed("$cos", 1, |args, _| finite(args, COS)),
    Operator::fixed("$cosh", 1, |args, _| unary(args, COSH)),
    Operator::fixed("$degreesToRadians", 1, |args, _| unary(args, TO_RADIANS)),
    Operator::fixed("$exp", 1, |args, _| unary(args, EXP)),
    Operator::fixed("$ln", 1, |args, _| logarithm(args, LN, 28766)),
    Operator::fixed("$log", 2, log),
    Operator::fixed("$log10", 1, |args, _| logarithm(args, LOG10, 28761)),
    Operator::fixed("$pow", 2, pow),
    Operator::fixed("$radiansToDegrees", 1, |args, _| unary(args, TO_DEGREES)),
    Operator::fixed("$sigmoid", 1, |args, _| unary(args, SIGMOID)),
    Operator::fixed("$sin", 1, |args, _| finite(args, SIN)),
    Operator::fixed("$sinh", 1, |args, _| unary(args, SINH)),
    Operator::fixed("$sqrt", 1, sqrt),
    Operator::fixed("$tan", 1, |args, _| finite(args, TAN)),
    Operator::fixed("$tanh", 1, |args, _| unary(args, TANH)),
];

/// From here on adding one to a square changes nothing.
const LARGE: f64 = 268_435_456.0;

/// By other formulas for small and for large numbers, as the C library has it: its last digits are
/// what MongoDB answers.
fn acosh(value: f64) -> f64 {
    if !(1.0..f64::INFINITY).contains(&value) {
        return value.acosh();
    }
    if value > LARGE {
        return value.ln() + LN_2;
    }
    if value > 2.0 {
        let root = (value * value - 1.0).sqrt();
        return (2.0 * value - 1.0 / (value + root)).ln();
    }
    let above = value - 1.0;
    (above + (2.0 * above + above * above).sqrt()).ln_1p()
}

fn asinh(value: f64) -> f64 {
    let size = value.abs();
    if !size.is_finite() || size < 1.0 / LARGE {
        return value;
    }
    let square = value * value;
    let result = if size > LARGE {
        size.ln() + LN_2
    } else if size > 2.0 {
        (2.0 * size + 1.0 / ((square + 1.0).sqrt() + size)).ln()
    } else {
        (size + square / (1.0 + (1.0 + square).sqrt())).ln_1p()
    };
    result.copysign(value)
}

fn atanh(value: f64) -> f64 {
    let size = value.abs();
    if !(1.0 / LARGE..1.0).contains(&size) {
        return value.atanh();
    }
    let double = size + size;
    let result = match size < 0.5 {
        true => 0.5 * (double + double * size / (1.0 - size)).ln_1p(),
        false => 0.5 * (double / (1.0 - size)).ln_1p(),
    };
    result.copysign(value)
}

/// A function of one number.
#[derive(Clone, Copy)]
struct Function {
    doubles: fn(f64) -> f64,
    decimals: fn(Decimal) -> Decimal,
}

const ACOS: Function = of(f64::acos, Decimal::acos);
const ACOSH: Function = of(acosh, Decimal::acosh);
const ASIN: Function = of(f64::asin, Decimal::asin);
const ASINH: Function = of(asinh, Decimal::asinh);
const ATAN: Function = of(f64::atan, Decimal::atan);
const ATANH: Function = of(atanh, Decimal::atanh);
const COS: Function = of(f64::cos, Decimal::cos);
const COSH: Function = of(f64::cosh, Decimal::cosh);
const EXP: Function = of(f64::exp, Decimal::exp);
const LN: Function = of(f64::ln, Decimal::ln);
const LOG10: Function = of(f64::log10, Decimal::log10);
const SIGMOID: Function = of(|v| 1.0 / (1.0 + (-v).exp()), sigmoid);
const SIN: Function = of(f64::sin, Decimal::sin);
const SINH: Function = of(f64::sinh, Decimal::sinh);
const TAN: Function = of(f64::tan, Decimal::tan);
const TANH: Function = of(f64::tanh, Decimal::tanh);
const TO_DEGREES: Function = of(|v| v * (180.0 / PI), Decimal::to_degrees);
const TO_RADIANS: Function = of(|v| v * (PI / 180.0), Decimal::to_radians);

const fn of(doubles: fn(f64) -> f64, decimals: fn(Decimal) -> Decimal) -> Function {
    Function { doubles, decimals }
}

fn sigmoid(value: Decimal) -> Decimal {
    let one = Decimal::from_i64(1);
    one.divide(one.add(value.negate().exp()))
}

type Result<T> = std::result::Result<T, QueryError>;

fn double<'a>(value: f64) -> Result<Value<'a>> {
    // One NaN: what the functions return may carry a sign.
    let value = if value.is_nan() { f64::NAN } else { value };
    Ok(Some(Number::Double(value).to_raw()))
}

fn decimal<'a>(value: Decimal) -> Result<Value<'a>> {
    Ok(Some(Number::Decimal(value).to_raw()))
}

fn unary<'a>(args: &Arguments<'a>, function: Function) -> Result<Value<'a>> {
    match numeric(args)? {
        None => NULL,
        Some(Number::Decimal(value)) => decimal((function.decimals)(value)),
        Some(number) => double((function.doubles)(number.to_f64())),
    }
}

/// Functions that have no value at infinity.
fn finite<'a>(args: &Arguments<'a>, function: Function) -> Result<Value<'a>> {
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
    unary(args, function)
}

/// Functions that have no value below or above a whole number.
fn bounded<'a>(
    args: &Arguments<'a>,
    function: Function,
    low: i32,
    high: Option<i32>,
) -> Result<Value<'a>> {
    if let Some(number) = numeric(args)?
        && !number.is_nan()
    {
        let below = number.compare(Number::Int32(low)).is_lt();
        let above = high.is_some_and(|high| number.compare(Number::Int32(high)).is_gt());
        if below || above {
            let high = high.map_or("inf".into(), |high| high.to_string());
            return error(
                50989,
                format!(
                    "cannot apply {} to {}, value must be in [{low},{high}]",
                    args.operator,
                    short(number)
                ),
            );
        }
    }
    unary(args, function)
}

fn short(number: Number) -> String {
    match number {
        Number::Double(v) if v == f64::INFINITY => "inf".into(),
        Number::Double(v) if v == f64::NEG_INFINITY => "-inf".into(),
        _ => describe(Some(number.to_raw())),
    }
}

/// Both numbers of a binary function; `None` if either is null.
fn pair(args: &Arguments<'_>, codes: [u32; 2], what: [&str; 2]) -> Result<Option<[Number; 2]>> {
    if args.any_nullish() {
        return Ok(None);
    }
    let first = operand(args, 0, codes[0], what[0])?;
    Ok(Some([first, operand(args, 1, codes[1], what[1])?]))
}

fn operand(args: &Arguments<'_>, index: usize, code: u32, what: &str) -> Result<Number> {
    let value = args.get(index);
    match value.and_then(Number::from_raw) {
        Some(number) => Ok(number),
        None => error(
            code,
            format!(
                "{}'s {what} must be numeric, not {}",
                args.operator,
                type_name(value)
            ),
        ),
    }
}

/// The first operand is looked at before the second, even where that is null.
fn atan2<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    if is_nullish(args.get(0)) {
        return NULL;
    }
    let y = operand(args, 0, 51044, "first argument")?;
    if is_nullish(args.get(1)) {
        return NULL;
    }
    match [y, operand(args, 1, 51045, "second argument")?] {
        [y @ Number::Decimal(_), x] | [y, x @ Number::Decimal(_)] => {
            decimal(y.to_decimal().atan2(x.to_decimal()))
        }
        [y, x] => double(y.to_f64().atan2(x.to_f64())),
    }
}

fn positive(number: Number, code: u32, operator: &str, what: &str) -> Result<()> {
    if !number.is_nan() && number.compare(Number::Int32(0)).is_le() {
        let shown = short(Number::Double(number.to_f64()));
        return error(
            code,
            format!("{operator}'s {what} must be a positive number, but is {shown}"),
        );
    }
    Ok(())
}

/// That of a decimal NaN is the double one, as in the reference.
fn logarithm<'a>(args: &Arguments<'a>, function: Function, code: u32) -> Result<Value<'a>> {
    if let Some(number) = numeric(args)? {
        positive(number, code, args.operator, "argument")?;
        if number.is_nan() {
            return double(f64::NAN);
        }
    }
    unary(args, function)
}

fn log<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some([value, base]) = pair(args, [28756, 28757], ["argument", "base"])? else {
        return NULL;
    };
    positive(value, 28758, "$log", "argument")?;
    if !base.is_nan()
        && (base.compare(Number::Int32(0)).is_le() || base.compare(Number::Int32(1)).is_eq())
    {
        let shown = short(Number::Double(base.to_f64()));
        return error(
            28759,
            format!("$log's base must be a positive number not equal to 1, but is {shown}"),
        );
    }
    if let (Number::Decimal(_), _) | (_, Number::Decimal(_)) = (value, base)
        && !value.is_nan()
        && !base.is_nan()
    {
        return decimal(log_of_decimals(value.to_decimal(), base.to_decimal()));
    }
    double(value.to_f64().ln() / base.to_f64().ln())
}

/// Exact for the powers of the bases that have a function of their own.
fn log_of_decimals(value: Decimal, base: Decimal) -> Decimal {
    let is = |whole| base.compare(Decimal::from_i64(whole)).is_eq();
    if is(2) {
        value.log2()
    } else if is(10) {
        value.log10()
    } else {
        value.ln().divide(base.ln())
    }
}

const ZERO_TO_NEGATIVE: &str = "$pow cannot take a base of 0 and a negative exponent";

fn pow<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let Some([base, exponent]) = pair(args, [28762, 28763], ["base", "exponent"])? else {
        return NULL;
    };
    if base.is_zero() && !exponent.is_nan() && exponent.compare(Number::Int32(0)).is_lt() {
        return error(28764, ZERO_TO_NEGATIVE);
    }
    if let (Number::Decimal(_), _) | (_, Number::Decimal(_)) = (base, exponent) {
        let exponent = exponent.to_decimal();
        // MongoDB takes the sign of a zero as well.
        if base.is_zero() && !exponent.is_nan() && exponent.is_negative() {
            return error(28764, ZERO_TO_NEGATIVE);
        }
        return decimal(base.to_decimal().pow(exponent));
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
        // An exponent below zero was refused.
        (0, _) => Some(0),
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
