//! $sum $avg $min $max $stdDevPop $stdDevSamp $median $percentile as expressions
//!
//! Over their arguments, or over the elements if the one argument is an array.

use bson::RawBsonRef;

use banyan_document::{Number, compare};

use super::env::{ArrayBuilder, Env};
use super::operator::{Arguments, Form, NamedCodes, Operator, optional, required};
use super::sum::Sum;
use super::value::{Value, error, is_nullish, items};
use crate::error::{ErrorKind, QueryError};

const CODES: NamedCodes = NamedCodes {
    not_object: 7436201,
    unknown: 40415,
    missing: 40414,
};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::variadic("$avg", avg),
    Operator::variadic("$max", |args, _| Ok(extreme(args, true))),
    Operator {
        name: "$median",
        form: Form::Named {
            parameters: &[required("input"), required("method")],
            run: median,
            codes: CODES,
        },
    },
    Operator::variadic("$min", |args, _| Ok(extreme(args, false))),
    Operator {
        name: "$percentile",
        form: Form::Named {
            parameters: &[required("input"), required("method"), optional("p")],
            run: percentiles,
            codes: CODES,
        },
    },
    Operator::variadic("$stdDevPop", |args, _| Ok(deviation(args, false))),
    Operator::variadic("$stdDevSamp", |args, _| Ok(deviation(args, true))),
    Operator::variadic("$sum", sum),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

fn values<'a>(args: &Arguments<'a>) -> Vec<Value<'a>> {
    match args.values[..] {
        [Some(RawBsonRef::Array(array))] => items(array).map(Some).collect(),
        _ => args.values.clone(),
    }
}

fn numbers<'a>(args: &Arguments<'a>) -> impl Iterator<Item = Number> + 'a {
    values(args)
        .into_iter()
        .filter_map(|value| value.and_then(Number::from_raw))
}

fn sum<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let mut sum = Sum::default();
    numbers(args).for_each(|number| sum.add(number));
    Ok(Some(sum.total().to_raw()))
}

fn avg<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let (mut sum, mut count) = (Sum::default(), 0);
    for number in numbers(args) {
        sum.add(number);
        count += 1;
    }
    Ok(if count == 0 {
        NULL
    } else {
        Some(sum.average(count).to_raw())
    })
}

fn extreme<'a>(args: &Arguments<'a>, greatest: bool) -> Value<'a> {
    let candidates = values(args)
        .into_iter()
        .filter(|v| !is_nullish(*v))
        .flatten();
    let best = candidates.reduce(|best, value| {
        let order = compare(value, best);
        let better = if greatest {
            order.is_gt()
        } else {
            order.is_lt()
        };
        if better { value } else { best }
    });
    best.or(NULL)
}

fn deviation<'a>(args: &Arguments<'a>, sample: bool) -> Value<'a> {
    let mut moments = super::moments::Moments::default();
    numbers(args).for_each(|number| moments.add(number.to_f64()));
    moments.deviation(sample).map(RawBsonRef::Double).or(NULL)
}

/// The numbers of `input`, sorted.
fn sorted_input(args: &Arguments<'_>) -> Result<Vec<f64>> {
    if args.get(1) != Some(RawBsonRef::String("approximate")) {
        return Err(QueryError::new(
            ErrorKind::BadValue,
            "Currently only 'approximate' can be used as percentile 'method'.",
        ));
    }
    let input: Vec<_> = match args.get(0) {
        Some(RawBsonRef::Array(array)) => items(array).collect(),
        other => other.into_iter().collect(),
    };
    let mut numbers: Vec<f64> = input
        .into_iter()
        .filter_map(Number::from_raw)
        .map(Number::to_f64)
        .filter(|v| !v.is_nan())
        .collect();
    numbers.sort_by(f64::total_cmp);
    Ok(numbers)
}

/// The value that `fraction` of the sorted numbers do not exceed.
pub(crate) fn percentile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn median<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    Ok(percentile(&sorted_input(args)?, 0.5)
        .map(RawBsonRef::Double)
        .or(NULL))
}

fn percentiles<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let numbers = sorted_input(args)?;
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
