//! $expMovingAvg, $covariancePop and $covarianceSamp.

use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef};

use banyan_document::Number;
use banyan_document::number::Decimal;

use super::around::{Around, failed};
use super::bounds::Window;
use super::function::{Call, Function, Values};
use super::partition::Partition;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::sum::Sum;
use crate::expression::value::{items, show, type_name};
use crate::memory::Holding;

/// Each value counts `alpha`, and what was before the rest.
#[derive(Debug)]
struct MovingAverage {
    input: Expression,
    alpha: Decimal,
}

pub(super) fn parse_average(
    call: &Call<'_>,
    around: &Around<'_>,
) -> Result<Box<dyn Function>, QueryError> {
    let (RawBsonRef::Document(document), None) = (call.argument, call.window) else {
        return Err(failed(
            "$expMovingAvg must have exactly one argument that is an object",
        ));
    };
    if !around.has_order() {
        return Err(failed("$expMovingAvg requires an explicit 'sortBy'"));
    }
    let (mut input, mut alpha, mut fields) = (None, None, 0);
    for (name, value) in document.iter().map_while(Result::ok) {
        fields += 1;
        match name.as_str() {
            "input" => input = Some(Expression::parse(value, around.context)?),
            "N" => alpha = Some(alpha_of_count(value)?),
            "alpha" => alpha = Some(alpha_of(value)?),
            _ => {}
        }
    }
    match (input, alpha, fields) {
        (Some(input), Some(alpha), 2) => Ok(Box::new(MovingAverage { input, alpha })),
        _ => Err(failed(
            "$expMovingAvg sub object must have exactly two fields: An 'input' field, and either \
             an 'N' field or an 'alpha' field",
        )),
    }
}

fn alpha_of_count(value: RawBsonRef<'_>) -> Result<Decimal, QueryError> {
    let Some(number) = Number::from_raw(value) else {
        let found = type_name(Some(value));
        return Err(failed(format!(
            "'N' field must be an integer, but found type {found}"
        )));
    };
    // A number beyond all counts stands for the greatest one.
    let is_beyond = number.compare(Number::Int64(i64::MAX)).is_ge() && !number.is_nan();
    match number.to_i64_exact().or(is_beyond.then_some(i64::MAX)) {
        None => Err(failed(format!(
            "'N' field must be an integer, but found  N: {}. To use a non-integer, use the \
             'alpha' argument instead",
            show(value)
        ))),
        Some(count) if count <= 0 => Err(failed(format!(
            "'N' must be greater than zero. Got {count}"
        ))),
        Some(count) => {
            let two = Decimal::from_i64(2);
            Ok(two.divide(Decimal::from_i64(count.saturating_add(1))))
        }
    }
}

fn alpha_of(value: RawBsonRef<'_>) -> Result<Decimal, QueryError> {
    let number = Number::from_raw(value).ok_or_else(|| failed("'alpha' must be a number"))?;
    let within =
        number.compare(Number::Int32(0)).is_gt() && number.compare(Number::Int32(1)).is_lt();
    match within {
        true => Ok(number.to_decimal()),
        false => Err(failed(format!(
            "'alpha' must be between 0 and 1 (exclusive), found alpha: {}",
            show(value)
        ))),
    }
}

impl Function for MovingAverage {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        // In decimals, as MongoDB does; the result is one only where an input was.
        let rest = Number::Int32(1).subtract(Number::Decimal(self.alpha));
        let (rest, mut decimal) = (rest.to_decimal(), false);
        let mut average: Option<Decimal> = None;
        let inputs = partition.values(&self.input, holding)?;
        let averages = inputs.into_iter().map(|input| {
            let input = input.as_ref().map(RawBson::as_raw_bson_ref);
            if let Some(number) = input.and_then(Number::from_raw) {
                decimal |= matches!(number, Number::Decimal(_));
                let now = number.to_decimal();
                average = Some(match average {
                    None => now,
                    Some(before) => now.multiply(self.alpha).add(before.multiply(rest)),
                });
            }
            Some(match average.map(Number::Decimal) {
                None => RawBson::Null,
                Some(average) if decimal => average.to_raw().into(),
                Some(average) => RawBson::Double(average.to_f64()),
            })
        });
        Ok(averages.collect())
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.input.dependencies(paths)
    }
}

/// How two numbers of each document vary together.
#[derive(Debug)]
struct Covariance {
    /// An array of the two.
    pair: Expression,
    sample: bool,
    window: Window,
}

pub(super) fn parse_covariance(
    call: &Call<'_>,
    around: &Around<'_>,
) -> Result<Box<dyn Function>, QueryError> {
    Ok(Box::new(Covariance {
        pair: Expression::parse(call.argument, around.context)?,
        sample: call.name == "$covarianceSamp",
        window: Window::parse_or_whole(call.window, around)?,
    }))
}

/// Kept by Welford's method. Pairs with an infinity or NaN are no part of the means.
#[derive(Clone, Copy, Debug, Default)]
struct CoMoment {
    count: i64,
    mean_x: Sum,
    mean_y: Sum,
    products: Sum,
}

impl CoMoment {
    fn add(&mut self, (x, y): (Number, Number)) {
        if !(x.is_finite() && y.is_finite()) {
            self.products.add(marker(x));
            self.products.add(marker(y));
            return;
        }
        self.count += 1;
        let count = Number::Double(self.count as f64);
        let distance = x.subtract(self.mean_x.total());
        self.mean_x.add(distance.divide(count).unwrap_or(distance));
        let apart = y.subtract(self.mean_y.total());
        self.mean_y.add(apart.divide(count).unwrap_or(apart));
        self.products
            .add(distance.multiply(y.subtract(self.mean_y.total())));
    }

    fn covariance(&self, sample: bool) -> RawBson {
        let degrees = self.count - i64::from(sample);
        if degrees <= 0 {
            return RawBson::Null;
        }
        if self.count == 1 {
            return RawBson::Double(0.0);
        }
        let products = self.products.total();
        let covariance = products.divide(Number::Double(degrees as f64));
        covariance.map_or(RawBson::Null, |covariance| covariance.to_raw().into())
    }
}

/// What of a pair that is not finite makes the covariance an infinity or NaN. A NaN alone does not
/// make it a decimal.
fn marker(number: Number) -> Number {
    match number.is_nan() {
        true => Number::Double(f64::NAN),
        false => number,
    }
}

impl Function for Covariance {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let ranges = self.window.ranges(partition, holding)?;
        let wanted = ranges.covered(partition.len());
        let (ranges, pairs) = ranges.with_inputs(partition, &self.pair, &wanted, holding)?;
        let pairs: Vec<_> = pairs.iter().map(|value| pair(value.as_ref())).collect();
        let mut values = Vec::with_capacity(pairs.len());
        let (mut known, mut taken) = (CoMoment::default(), 0);
        for range in ranges {
            let mut moment = match self.window.is_left_unbounded() {
                true => known,
                false => CoMoment::default(),
            };
            let from = match self.window.is_left_unbounded() {
                true => taken,
                false => range.start,
            };
            let more = pairs.get(from..range.end.max(from)).unwrap_or_default();
            for pair in more.iter().flatten() {
                partition.budget.spend(4)?;
                moment.add(*pair);
            }
            (known, taken) = (moment, range.end.max(from));
            values.push(Some(moment.covariance(self.sample)));
        }
        Ok(values)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.pair.dependencies(paths) && self.window.dependencies(paths)
    }
}

/// Anything but two numbers is left out.
fn pair(value: Option<&RawBson>) -> Option<(Number, Number)> {
    let Some(RawBson::Array(array)) = value else {
        return None;
    };
    let mut numbers = items(array).map(Number::from_raw);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Some(x)), Some(Some(y)), None) => Some((x, y)),
        _ => None,
    }
}
