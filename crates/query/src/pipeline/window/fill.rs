//! $locf and $linearFill: values for those that are null or missing.

use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef};

use banyan_document::Number;

use super::around::{Around, failed, require_single_order};
use super::function::{Call, Function, Values};
use super::partition::Partition;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::{Value, error, is_nullish, type_name};
use crate::memory::Holding;

pub(super) fn parse(call: &Call<'_>, around: &Around<'_>) -> Result<Box<dyn Function>, QueryError> {
    let input = Expression::parse(call.argument, around.context)?;
    if call.window.is_some() {
        let name = call.name;
        return Err(failed(format!("'window' field is not allowed in {name}")));
    }
    if call.name == "$locf" {
        return Ok(Box::new(LastObserved { input }));
    }
    require_single_order(call.name, 605001, around)?;
    match around.position()? {
        Some(position) => Ok(Box::new(Linear { input, position })),
        None => Err(failed("$linearFill requires a sortBy")),
    }
}

/// The last value that was observed.
#[derive(Debug)]
struct LastObserved {
    input: Expression,
}

impl Function for LastObserved {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let mut last = RawBson::Null;
        let inputs = partition.values(&self.input, holding)?;
        let filled = inputs.into_iter().map(|input| match input {
            Some(value) if !is_nullish(Some(value.as_raw_bson_ref())) => {
                last = value.clone();
                Some(value)
            }
            _ => Some(last.clone()),
        });
        Ok(filled.collect())
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.input.dependencies(paths)
    }
}

/// On the line between the values before and behind.
#[derive(Debug)]
struct Linear {
    input: Expression,
    position: Expression,
}

impl Function for Linear {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let positions = partition.values(&self.position, holding)?;
        let wanted = vec![true; positions.len()];
        let inputs = partition.outcomes(&self.input, &wanted, holding)?;
        let mut points: Vec<Number> = Vec::with_capacity(inputs.len());
        let mut values = Vec::with_capacity(inputs.len());
        for (value, input) in positions.iter().zip(inputs) {
            let input = input?;
            number(input.as_ref().map(RawBson::as_raw_bson_ref))?;
            let point = position(value.as_ref().map(RawBson::as_raw_bson_ref))?;
            if points
                .last()
                .is_some_and(|last| last.compare(point).is_eq())
            {
                return error(6050106, "There can be no repeated values in the sort field");
            }
            points.push(point);
            values.push(input);
        }
        let mut known: Option<(usize, Number)> = None;
        for at in 0..values.len() {
            let value = values[at].as_ref().map(RawBson::as_raw_bson_ref);
            let Some(y) = number(value)? else {
                values[at] = Some(RawBson::Null);
                continue;
            };
            if let Some((left, before)) = known {
                let (x1, x2) = (points[left], points[at]);
                let slope = y.subtract(before).divide(x2.subtract(x1));
                for between in left + 1..at {
                    partition.budget.spend(1)?;
                    let along = points[between].subtract(x1);
                    let filled = slope.map(|slope| before.add(along.multiply(slope)));
                    values[between] = Some(filled.map_or(RawBson::Null, |n| n.to_raw().into()));
                }
            }
            known = Some((at, y));
        }
        Ok(values)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.input.dependencies(paths) && self.position.dependencies(paths)
    }
}

fn position(value: Value<'_>) -> Result<Number, QueryError> {
    match value {
        Some(RawBsonRef::DateTime(date)) => Ok(Number::Int64(date.timestamp_millis())),
        other => other.and_then(Number::from_raw).ok_or_else(|| {
            let found = type_name(other);
            QueryError::new(
                ErrorKind::TypeMismatch,
                format!("Value of the sortBy field must be numeric or a date, but found {found}"),
            )
        }),
    }
}

/// A number; `None` for what is to be filled.
fn number(value: Value<'_>) -> Result<Option<Number>, QueryError> {
    if is_nullish(value) {
        return Ok(None);
    }
    match value.and_then(Number::from_raw) {
        Some(number) => Ok(Some(number)),
        None => Err(QueryError::new(
            ErrorKind::TypeMismatch,
            format!(
                "Value to be filled must be numeric or nullish, but found {}",
                type_name(value)
            ),
        )),
    }
}
