//! $sum $avg $min $max $stdDevPop $stdDevSamp $median $percentile as expressions
//!
//! Over their arguments, or over the elements if the one argument is an array.

use bson::RawBsonRef;

use banyan_document::Number;

use super::arena::{ArrayBuilder, byte_len};
use super::env::Env;
use super::node::Arguments;
use super::operator::{Form, NamedCodes, Operands, Operator, Reading, optional, required};
use super::sum::Sum;
use super::value::{Value, error, is_nullish, items};
use crate::error::{ErrorKind, QueryError};
use crate::merge_sort;

const CODES: NamedCodes = NamedCodes {
    not_object: 7436201,
    unknown: 40415,
    missing: &[40414],
};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::variadic("$avg", avg),
    Operator::commutative_together("$max", |args, env| extreme(args, env, true)),
    Operator {
        name: "$median",
        form: Form::Named {
            operands: Operands::Together,
            parameters: &[required("input"), required("method")],
            run: median,
            reading: Reading::AsWritten,
            codes: CODES,
        },
    },
    Operator::commutative_together("$min", |args, env| extreme(args, env, false)),
    Operator {
        name: "$percentile",
        form: Form::Named {
            operands: Operands::Together,
            parameters: &[required("input"), required("method"), optional("p")],
            run: percentiles,
            reading: Reading::AsWritten,
            codes: CODES,
        },
    },
    Operator::variadic("$stdDevPop", |args, env| deviation(args, env, false)),
    Operator::variadic("$stdDevSamp", |args, env| deviation(args, env, true)),
    Operator::commutative_together("$sum", sum),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

/// The arguments, or the elements of the only one.
fn values<'a>(args: &Arguments<'a>) -> Box<dyn Iterator<Item = Value<'a>> + 'a> {
    match args.values[..] {
        [Some(RawBsonRef::Array(array))] => Box::new(items(array).map(Some)),
        _ => Box::new(args.values.clone().into_iter()),
    }
}

fn numbers<'a>(args: &Arguments<'a>) -> impl Iterator<Item = Number> + 'a {
    values(args).filter_map(|value| value.and_then(Number::from_raw))
}

fn sum<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut sum = Sum::default();
    for number in numbers(args) {
        env.budget.spend(1)?;
        sum.add(number);
    }
    Ok(Some(sum.total().to_raw()))
}

fn avg<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let (mut sum, mut count) = (Sum::default(), 0);
    for number in numbers(args) {
        env.budget.spend(1)?;
        sum.add(number);
        count += 1;
    }
    Ok(if count == 0 {
        NULL
    } else {
        Some(sum.average(count).to_raw())
    })
}

fn extreme<'a>(args: &Arguments<'a>, env: &Env<'a>, greatest: bool) -> Result<Value<'a>> {
    let mut best = None;
    for value in values(args).filter(|value| !is_nullish(*value)).flatten() {
        env.budget.spend_bytes(byte_len(value))?;
        let better = best.is_none_or(|best| {
            let order = env.compare(value, best);
            if greatest {
                order.is_gt()
            } else {
                order.is_lt()
            }
        });
        if better {
            best = Some(value);
        }
    }
    Ok(best.or(NULL))
}

fn deviation<'a>(args: &Arguments<'a>, env: &Env<'a>, sample: bool) -> Result<Value<'a>> {
    let mut moments = super::moments::Moments::default();
    for number in numbers(args) {
        env.budget.spend(1)?;
        moments.add(number.to_f64());
    }
    Ok(moments.deviation(sample).map(RawBsonRef::Double).or(NULL))
}

/// The numbers of `input`, sorted.
fn sorted_input<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Vec<f64>> {
    if args.get(1) != Some(RawBsonRef::String("approximate")) {
        return Err(QueryError::new(
            ErrorKind::BadValue,
            "Currently only 'approximate' can be used as percentile 'method'.",
        ));
    }
    let input: Vec<_> = match args.get(0) {
        Some(RawBsonRef::Array(array)) => env.elements(array)?,
        other => other.into_iter().collect(),
    };
    let numbers: Vec<f64> = input
        .into_iter()
        .filter_map(Number::from_raw)
        .map(Number::to_f64)
        .filter(|v| !v.is_nan())
        .collect();
    merge_sort::sort(numbers, f64::total_cmp, |_| 0, env.budget)
}

/// The value that `fraction` of the sorted numbers do not exceed.
pub(crate) fn percentile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn median<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    Ok(percentile(&sorted_input(args, env)?, 0.5)
        .map(RawBsonRef::Double)
        .or(NULL))
}

fn percentiles<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let numbers = sorted_input(args, env)?;
    let Some(RawBsonRef::Array(fractions)) = args.get(2) else {
        return error(
            40414,
            "BSON field '$percentile.p' is missing but a required field",
        );
    };
    let mut builder = ArrayBuilder::new();
    for fraction in parse_fractions(fractions)? {
        let value = percentile(&numbers, fraction);
        builder.push(value.map_or(RawBsonRef::Null, RawBsonRef::Double));
    }
    env.array(builder)
}

/// `p` of $percentile.
pub(crate) fn parse_fractions(array: &bson::RawArray) -> Result<Vec<f64>> {
    let fractions: Vec<f64> = items(array)
        .map(|item| Number::from_raw(item).map_or(f64::NAN, Number::to_f64))
        .collect();
    if fractions.is_empty() || !fractions.iter().all(|p| (0.0..=1.0).contains(p)) {
        return error(
            7750301,
            "The $percentile 'p' field must be an array of numbers from [0.0, 1.0]",
        );
    }
    Ok(fractions)
}
