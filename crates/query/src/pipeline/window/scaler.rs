//! $minMaxScaler: where a number lies between the least and the greatest of its window.

use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef, RawDocument};

use banyan_document::Number;

use super::around::{Around, failed};
use super::bounds::Window;
use super::function::{Call, Function, Values};
use super::partition::Partition;
use super::sliding::{Gather, Sliding, slides};
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::value::{error, items, type_name};
use crate::memory::Holding;

#[derive(Debug)]
struct Scaler {
    input: Expression,
    /// What the least and the greatest number of a window become.
    low: Number,
    high: Number,
    window: Window,
}

pub(super) fn parse(call: &Call<'_>, around: &Around<'_>) -> Result<Box<dyn Function>, QueryError> {
    let (mut low, mut high) = (Number::Int32(0), Number::Int32(1));
    let input = match call.argument {
        RawBsonRef::Document(options) if !is_expression(options) => {
            let (input, ends) = parse_options(options, around)?;
            if let Some(ends) = ends {
                (low, high) = ends;
            }
            input
        }
        expression => Expression::parse(expression, around.context)?,
    };
    if let Some(window) = call.window {
        check_current_is_within(window)?;
    }
    Ok(Box::new(Scaler {
        input,
        low,
        high,
        window: Window::parse_or_whole(call.window, around)?,
    }))
}

fn is_expression(document: &RawDocument) -> bool {
    let first = document.iter().next().and_then(Result::ok);
    first.is_some_and(|(name, _)| name.as_str().starts_with('$'))
}

type Ends = (Number, Number);

/// `{input: expression, min: number, max: number}`, the last two together or not at all.
fn parse_options(
    options: &RawDocument,
    around: &Around<'_>,
) -> Result<(Expression, Option<Ends>), QueryError> {
    let (mut input, mut low, mut high) = (None, None, None);
    for (name, value) in options.iter().map_while(Result::ok) {
        match name.as_str() {
            "input" => input = Some(Expression::parse(value, around.context)?),
            "min" => low = Some(constant(value, "min", around)?),
            "max" => high = Some(constant(value, "max", around)?),
            other => {
                let message = format!("BSON field '$minMaxScaler.{other}' is an unknown field.");
                return error(40415, message);
            }
        }
    }
    let Some(input) = input else {
        return error(
            40414,
            "BSON field '$minMaxScaler.input' is missing but a required field",
        );
    };
    match (low, high) {
        (None, None) => Ok((input, None)),
        (Some(low), Some(high)) if low.compare(high).is_lt() => Ok((input, Some((low, high)))),
        (Some(_), Some(_)) => Err(failed("$minMaxScaler needs 'max' to be greater than 'min'")),
        _ => Err(failed(
            "$minMaxScaler takes both 'min' and 'max', or neither of them",
        )),
    }
}

fn constant(value: RawBsonRef<'_>, name: &str, around: &Around<'_>) -> Result<Number, QueryError> {
    let expression = Expression::parse(value, around.context)?;
    let number = expression.as_constant().and_then(Number::from_raw);
    number.ok_or_else(|| {
        failed(format!(
            "'{name}' of $minMaxScaler must be a constant number"
        ))
    })
}

/// Of a window without its own document the scale is not known.
fn check_current_is_within(window: RawBsonRef<'_>) -> Result<(), QueryError> {
    let Some(window) = window.as_document() else {
        return Ok(());
    };
    for bounds in ["documents", "range"] {
        let Ok(Some(RawBsonRef::Array(bounds))) = window.get(bounds) else {
            continue;
        };
        let mut ends = items(bounds).map(Number::from_raw);
        let zero = Number::Int32(0);
        let begins_behind = ends
            .next()
            .flatten()
            .is_some_and(|low| low.compare(zero).is_gt());
        let ends_before = ends
            .next()
            .flatten()
            .is_some_and(|high| high.compare(zero).is_lt());
        if begins_behind || ends_before {
            return Err(failed(
                "'window' bounds of $minMaxScaler must include the current document",
            ));
        }
    }
    Ok(())
}

impl Function for Scaler {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let inputs = partition.values(&self.input, holding)?;
        let numbers = inputs.iter().map(|input| self.number(input.as_ref()));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let ranges = self.window.ranges(partition, holding)?.complete()?;
        let slides = slides(&ranges);
        let mut sliding = Sliding::new(Extremes(&numbers));
        let mut values = Vec::with_capacity(numbers.len());
        for (range, number) in ranges.into_iter().zip(&numbers) {
            if !slides {
                sliding = Sliding::new(Extremes(&numbers));
            }
            let extremes = sliding.go_to(range, partition.budget, holding)?;
            let scaled = extremes.map(|extremes| self.scale(*number, extremes));
            values.push(Some(scaled.map_or(RawBson::Null, |n| n.to_raw().into())));
        }
        Ok(values)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.input.dependencies(paths) && self.window.dependencies(paths)
    }
}

impl Scaler {
    fn number(&self, input: Option<&RawBson>) -> Result<Number, QueryError> {
        let input = input.map(RawBson::as_raw_bson_ref);
        let code = match &self.window {
            window if !window.is_left_unbounded() => 10_487_000,
            Window::Documents(..) => 10_487_001,
            Window::Range { .. } => 10_487_004,
        };
        match input.and_then(Number::from_raw) {
            Some(number) => Ok(number),
            None => error(
                code,
                format!(
                    "'input' of $minMaxScaler must evaluate to a number, but is of type {}",
                    type_name(input)
                ),
            ),
        }
    }

    fn scale(&self, number: Number, (least, greatest): Ends) -> Number {
        let width = greatest.subtract(least);
        match number.subtract(least).divide(width) {
            Some(part) if !width.is_zero() => {
                part.multiply(self.high.subtract(self.low)).add(self.low)
            }
            _ => self.low,
        }
    }
}

/// The least and the greatest number.
struct Extremes<'n>(&'n [Number]);

impl Gather for Extremes<'_> {
    type Part = Ends;

    fn one(&self, at: usize) -> Ends {
        let number = self.0.get(at).copied().unwrap_or(Number::Int32(0));
        (number, number)
    }

    fn join(&self, (least, greatest): Ends, (other_least, other_greatest): Ends) -> Ends {
        let least = match other_least.compare(least).is_lt() {
            true => other_least,
            false => least,
        };
        let greatest = match other_greatest.compare(greatest).is_gt() {
            true => other_greatest,
            false => greatest,
        };
        (least, greatest)
    }
}
