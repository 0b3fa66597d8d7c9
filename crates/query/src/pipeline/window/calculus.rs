//! $derivative and $integral: of an input by the field that `sortBy` names.

use std::collections::BTreeSet;
use std::ops::Range;

use bson::{RawBson, RawBsonRef};

use banyan_document::Number;

use super::around::{Around, failed};
use super::bounds::Window;
use super::function::{Call, Function, Values};
use super::partition::{Outcome, Partition};
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::sum::Sum;
use crate::expression::value::{Value, error, is_nullish, show, type_name};
use crate::memory::Holding;

#[derive(Debug)]
struct Calculus {
    is_integral: bool,
    input: Expression,
    position: Expression,
    /// How many milliseconds are one unit, where the field is a date.
    unit_millis: Option<i64>,
    window: Window,
}

pub(super) fn parse(call: &Call<'_>, around: &Around<'_>) -> Result<Box<dyn Function>, QueryError> {
    let name = call.name;
    if !around.has_order() {
        return Err(failed(format!("{name} requires a sortBy")));
    }
    let Some(position) = around.position()? else {
        return Err(failed(format!("{name} requires a non-compound sortBy")));
    };
    let window = call.window.map(|window| Window::parse(window, around));
    let window = window.transpose()?;
    let RawBsonRef::Document(document) = call.argument else {
        let found = type_name(Some(call.argument));
        let shown = show(call.argument);
        return Err(failed(format!(
            "{name} expects an object, but got a {found}: {name}: {shown}"
        )));
    };
    let (mut input, mut unit_millis) = (None, None);
    for (option, value) in document.iter().map_while(Result::ok) {
        match option.as_str() {
            "input" => input = Some(Expression::parse(value, around.context)?),
            "unit" => unit_millis = Some(parse_unit(value)?),
            other => return Err(failed(format!("{name} got unexpected argument: {other}"))),
        }
    }
    let input = input.ok_or_else(|| failed(format!("{name} requires an 'input' expression")))?;
    let is_integral = name == "$integral";
    let window = match window {
        Some(window) => window,
        None if is_integral => Window::whole(),
        None => return Err(failed(format!("{name} requires explicit window bounds"))),
    };
    Ok(Box::new(Calculus {
        is_integral,
        input,
        position,
        unit_millis,
        window,
    }))
}

fn parse_unit(value: RawBsonRef<'_>) -> Result<i64, QueryError> {
    let RawBsonRef::String(unit) = value else {
        let found = type_name(Some(value));
        return Err(failed(format!("unit' must be a string, but got {found}")));
    };
    Ok(match unit {
        "week" => 7 * 24 * 3_600_000,
        "day" => 24 * 3_600_000,
        "hour" => 3_600_000,
        "minute" => 60_000,
        "second" => 1_000,
        "millisecond" => 1,
        "year" | "quarter" | "month" => {
            return error(5490710, "unit must be 'week' or smaller");
        }
        other => return Err(failed(format!("unknown time unit value: {other}"))),
    })
}

/// Both values between which a slope lies: numbers, or dates.
fn ends(from: Value<'_>, to: Value<'_>) -> Result<(Number, Number), QueryError> {
    let is_date = |value| matches!(value, Some(RawBsonRef::DateTime(_)));
    let mismatch = |message| Err(QueryError::new(ErrorKind::TypeMismatch, message));
    match (number(from), number(to)) {
        (Some(_), Some(_)) if is_date(to) && !is_date(from) => {
            mismatch("$divide only supports numeric types, not date".into())
        }
        (Some(first), Some(last)) if is_date(to) == is_date(from) => Ok((first, last)),
        _ => mismatch(format!(
            "can't $subtract {} from {}",
            type_name(from),
            type_name(to)
        )),
    }
}

/// A number; a date counts in milliseconds.
fn number(value: Value<'_>) -> Option<Number> {
    match value? {
        RawBsonRef::DateTime(date) => Some(Number::Int64(date.timestamp_millis())),
        value => Number::from_raw(value),
    }
}

impl Function for Calculus {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let ranges = self.window.ranges(partition, holding)?;
        let count = partition.len();
        let wanted = match self.is_integral {
            true => ranges.covered(count),
            false => either(&ranges.first(count), &ranges.last(count)),
        };
        let points = Points {
            of: self,
            inputs: &partition.outcomes(&self.input, &wanted, holding)?,
            positions: &partition.values(&self.position, holding)?,
        };
        let found = ranges.found();
        let values = match self.is_integral {
            true => points.integrals(found, &wanted, partition)?,
            false => {
                let slopes = found.iter().map(|range| points.derivative(range.clone()));
                slopes
                    .map(|slope| slope.map(Some))
                    .collect::<Result<_, _>>()?
            }
        };
        ranges.complete()?;
        Ok(values)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.input.dependencies(paths)
            && self.position.dependencies(paths)
            && self.window.dependencies(paths)
    }
}

fn either(these: &[bool], those: &[bool]) -> Vec<bool> {
    let pairs = these.iter().zip(those);
    pairs.map(|(this, that)| *this || *that).collect()
}

struct Points<'a> {
    of: &'a Calculus,
    inputs: &'a [Outcome],
    positions: &'a [Option<RawBson>],
}

impl Points<'_> {
    fn input(&self, at: usize) -> Result<Value<'_>, QueryError> {
        match self.inputs.get(at) {
            Some(Ok(value)) => Ok(value.as_ref().map(RawBson::as_raw_bson_ref)),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }

    fn position(&self, at: usize) -> Value<'_> {
        self.positions
            .get(at)?
            .as_ref()
            .map(RawBson::as_raw_bson_ref)
    }

    /// The slope from the first document of the window to the last one.
    fn derivative(&self, range: Range<usize>) -> Result<RawBson, QueryError> {
        if range.is_empty() {
            return Ok(RawBson::Null);
        }
        let (first, last) = (range.start, range.end - 1);
        let (x1, x2) = (self.slope_position(first)?, self.slope_position(last)?);
        let (y1, y2) = (self.input(first)?, self.input(last)?);
        if is_nullish(y1) || is_nullish(y2) {
            return error(5624903, "$derivative input must not be null or missing");
        }
        let (from, to) = ends(y1, y2)?;
        let run = x2.subtract(x1);
        if run.is_zero() {
            return Ok(RawBson::Null);
        }
        let slope = to.subtract(from).divide(run);
        let slope = match self.of.unit_millis {
            Some(millis) => slope.map(|slope| slope.multiply(Number::Int64(millis))),
            None => slope,
        };
        Ok(slope.map_or(RawBson::Null, |slope| slope.to_raw().into()))
    }

    fn slope_position(&self, at: usize) -> Result<Number, QueryError> {
        let value = self.position(at);
        let is_date = matches!(value, Some(RawBsonRef::DateTime(_)));
        match (self.of.unit_millis.is_some(), is_date) {
            (true, false) => error(
                5624900,
                "$derivative with 'unit' expects the sortBy field to be a Date",
            ),
            (false, true) => error(
                5624901,
                "$derivative where the sortBy is a Date requires an 'unit'",
            ),
            _ => number(value).map_or_else(
                || {
                    error(
                        5624902,
                        "$derivative (with no 'unit') expects the sortBy field to be numeric",
                    )
                },
                Ok,
            ),
        }
    }

    /// The areas under the lines between the documents of each window.
    fn integrals(
        &self,
        ranges: &[Range<usize>],
        wanted: &[bool],
        partition: &Partition<'_>,
    ) -> Result<Values, QueryError> {
        let mut values = Vec::with_capacity(ranges.len());
        let zero = Number::Int32(0);
        // No window has those that are not wanted.
        let (mut end, mut points) = (0, Vec::new());
        // How many of the points before each one are NaN.
        let mut nans = vec![0_usize];
        let mut area = Area::default();
        for range in ranges {
            while end < range.end {
                partition.budget.spend(1)?;
                let (x, y) = match wanted.get(end) {
                    Some(true) => self.point(end)?,
                    _ => (zero, zero),
                };
                let before = nans.last().copied().unwrap_or_default();
                nans.push(before + usize::from(x.is_nan() || y.is_nan()));
                points.push((x, y));
                end += 1;
            }
            if range.is_empty() {
                values.push(Some(RawBson::Null));
                continue;
            }
            if nans.get(range.start) != nans.get(range.end) {
                values.push(Some(RawBson::Double(f64::NAN)));
                continue;
            }
            area.go_to(range.clone(), &points, partition.budget)?;
            let sum = area.sum.total();
            let value = match self.of.unit_millis {
                Some(millis) => sum.divide(Number::Int64(millis)),
                None => Some(sum),
            };
            values.push(Some(
                value.map_or(RawBson::Null, |value| value.to_raw().into()),
            ));
        }
        Ok(values)
    }

    fn point(&self, at: usize) -> Result<(Number, Number), QueryError> {
        let value = self.position(at);
        let is_date = matches!(value, Some(RawBsonRef::DateTime(_)));
        let y = self.input(at)?.and_then(Number::from_raw);
        let (Some(x), Some(y)) = (number(value), y) else {
            return error(
                5423900,
                "The input value of $integral window function must be a vector of 2 value, the \
                 first value must be numeric or date type and the second must be numeric.",
            );
        };
        match (self.of.unit_millis.is_some(), is_date) {
            (true, false) => error(
                5423901,
                "$integral with 'unit' expects the sortBy field to be a Date",
            ),
            (false, true) => error(
                5423902,
                "$integral (with no 'unit') expects the sortBy field to be numeric",
            ),
            _ => Ok((x, y)),
        }
    }
}

/// The area below a window of points that slides on.
#[derive(Default)]
struct Area {
    sum: Sum,
    /// The points that it is of.
    points: Range<usize>,
}

impl Area {
    /// What comes in is added before what has left is taken away, as MongoDB has it: the last digits
    /// depend on that.
    fn go_to(
        &mut self,
        range: Range<usize>,
        points: &[(Number, Number)],
        budget: &Budget,
    ) -> Result<(), QueryError> {
        let is_decimal = |at| matches!(below(points, at), Number::Decimal(_));
        let keeps_type = |at| !is_decimal(at) || is_decimal(range.start);
        let can_leave = |at| below(points, at).is_finite() && keeps_type(at);
        // Below one point there is nothing, of no type.
        let follows =
            self.points.contains(&range.start) && self.points.end <= range.end && range.len() > 1;
        let left = self.points.start..range.start;
        // An infinity cannot be taken away, and the last decimal leaves its type behind.
        let goes_on = follows && left.clone().all(can_leave);
        let known = match goes_on {
            true => self.points.end,
            false => {
                self.sum = Sum::default();
                range.start + 1
            }
        };
        for at in known..range.end {
            budget.spend(1)?;
            self.sum.add(below(points, at - 1));
        }
        for at in left.filter(|_| goes_on) {
            budget.spend(1)?;
            self.sum.add(Number::Int32(0).subtract(below(points, at)));
        }
        self.points = range;
        Ok(())
    }
}

/// The area below the line from a point to the next one.
fn below(points: &[(Number, Number)], at: usize) -> Number {
    match points.get(at..at + 2) {
        Some([(x1, y1), (x2, y2)]) => {
            let twice = x2.subtract(*x1).multiply(y1.add(*y2));
            twice.divide(Number::Double(2.0)).unwrap_or(twice)
        }
        _ => Number::Int32(0),
    }
}
