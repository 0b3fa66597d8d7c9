//! The functions of $setWindowFields by name: one row for each, and the accumulators that may run
//! over windows.

use bson::{RawBsonRef, RawDocument};

use super::around::{Around, failed};
use super::function::{Call, Function};
use super::{accumulated, calculus, fill, moving, place, scaler};
use crate::error::QueryError;
use crate::pipeline::accumulator;

type Parse = fn(&Call<'_>, &Around<'_>) -> Result<Box<dyn Function>, QueryError>;

struct Row {
    name: &'static str,
    parse: Parse,
}

const fn row(name: &'static str, parse: Parse) -> Row {
    Row { name, parse }
}

/// The functions that are no accumulators.
static ROWS: &[Row] = &[
    row("$covariancePop", moving::parse_covariance),
    row("$covarianceSamp", moving::parse_covariance),
    row("$denseRank", place::parse_rank),
    row("$derivative", calculus::parse),
    row("$documentNumber", place::parse_rank),
    row("$expMovingAvg", moving::parse_average),
    row("$integral", calculus::parse),
    row("$linearFill", fill::parse),
    row("$locf", fill::parse),
    row("$minMaxScaler", scaler::parse),
    row("$rank", place::parse_rank),
    row("$shift", place::parse_shift),
];

/// `{$function: argument, window: {...}}`.
pub(super) fn parse(
    spec: &RawDocument,
    around: &Around<'_>,
) -> Result<Box<dyn Function>, QueryError> {
    let mut elements = spec.iter().map_while(Result::ok);
    let Some((name, argument)) = elements.next() else {
        return Err(failed("Expected a $-prefixed window function"));
    };
    let name = name.as_str();
    if !name.starts_with('$') {
        return Err(failed(format!(
            "Expected a $-prefixed window function, {name}"
        )));
    }
    let own = ROWS.iter().find(|row| row.name == name);
    let accumulator = accumulator::find(name).filter(|row| row.in_windows);
    if own.is_none() && accumulator.is_none() {
        return Err(failed(format!("Unrecognized window function, {name}")));
    }
    let mut window = None;
    for (name, value) in elements {
        match name.as_str() {
            "window" => window = Some(value),
            name if name.starts_with('$') => {
                return Err(failed(
                    "Cannot specify two functions in window function spec",
                ));
            }
            name => {
                return Err(failed(format!(
                    "Window function found an unknown argument: {name}"
                )));
            }
        }
    }
    if let Some(row) = own {
        let name = row.name;
        let call = Call {
            name,
            argument,
            window,
        };
        return (row.parse)(&call, around);
    }
    let Some(row) = accumulator else {
        return Err(failed(format!("Unrecognized window function, {name}")));
    };
    let is_empty = |value: RawBsonRef<'_>| value.as_document().is_some_and(RawDocument::is_empty);
    if name == "$count" && !is_empty(argument) {
        return Err(failed("$count only accepts an empty object as input"));
    }
    accumulated::parse(row, argument, window, around)
}
