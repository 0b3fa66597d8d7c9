//! The functions of $setWindowFields: one row for each, and the accumulators that may run over
//! windows.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::Range;

use bson::{RawBson, RawBsonRef, RawDocument};

use banyan_document::Number;

use super::bounds::Window;
use super::partition::{Partition, hold};
use super::{Around, calculus, failed, fill, moving, place, window_of};
use crate::budget::Holding;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::pipeline::accumulator::{self, Kind, State};

/// The values of each document of a partition.
pub(super) type Values = Vec<Option<RawBson>>;

pub(super) trait Function: Debug + Send + Sync {
    /// The values of the documents; `None` sets no field.
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError>;

    /// Adds the paths that it reads; false if it may look at anything.
    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool;
}

/// A function as it was written.
pub(super) struct Call<'a> {
    pub name: &'static str,
    pub argument: RawBsonRef<'a>,
    pub window: Option<RawBsonRef<'a>>,
}

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
    let (kind, argument) = row.parse(argument, around.context)?;
    Ok(Box::new(Accumulated {
        kind,
        argument,
        window: window_of(window, around)?,
    }))
}

/// An accumulator over the window of each document.
#[derive(Debug)]
struct Accumulated {
    kind: Kind,
    argument: Expression,
    window: Window,
}

impl Function for Accumulated {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let inputs = partition.values(&self.argument, holding)?;
        let ranges = self.window.ranges(partition, holding)?;
        if matches!(self.kind, Kind::First | Kind::Last) {
            let edges = ranges.into_iter().map(|range| self.edge(range, &inputs));
            return Ok(edges.collect());
        }
        let mut values = Vec::with_capacity(inputs.len());
        if self.window.is_left_unbounded() {
            // The windows only grow: what was gathered is gone on with.
            let (mut state, mut taken) = (State::new(&self.kind, self.argument.collator()), 0);
            let mut last: Option<(usize, RawBson)> = None;
            for range in ranges {
                self.take(&mut state, taken..range.end, &inputs, partition)?;
                taken = taken.max(range.end);
                let value = match &last {
                    Some((end, value)) if *end == taken => value.clone(),
                    _ => {
                        partition.budget.spend_bytes(state.memory_bytes())?;
                        state.clone().finish(&self.kind, partition.budget)?
                    }
                };
                last = Some((taken, value.clone()));
                hold(Some(&value), holding)?;
                values.push(Some(value));
            }
            return Ok(values);
        }
        for range in ranges {
            let mut state = State::new(&self.kind, self.argument.collator());
            let numbers = inputs.get(range.clone()).unwrap_or_default();
            let numbers = numbers.iter().flatten().filter(|input| is_number(input));
            let numbers = numbers.take(2).count();
            self.take(&mut state, range, &inputs, partition)?;
            let value = state.finish(&self.kind, partition.budget)?;
            let value = self.narrowed(value, numbers);
            hold(Some(&value), holding)?;
            values.push(Some(value));
        }
        Ok(values)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.argument.dependencies(paths)
            && self.kind.dependencies(paths)
            && self.window.dependencies(paths)
    }
}

impl Accumulated {
    /// The value of the first or the last document of a window; none where that has no value.
    fn edge(&self, range: Range<usize>, inputs: &[Option<RawBson>]) -> Option<RawBson> {
        let window = inputs.get(range).unwrap_or_default();
        let edge = match self.kind {
            Kind::First => window.first(),
            _ => window.last(),
        };
        edge.map_or(Some(RawBson::Null), Option::clone)
    }

    fn take(
        &self,
        state: &mut State,
        range: Range<usize>,
        inputs: &[Option<RawBson>],
        partition: &Partition<'_>,
    ) -> Result<(), QueryError> {
        let (Some(inputs), Some(placed)) = (inputs.get(range.clone()), partition.placed.get(range))
        else {
            return Ok(());
        };
        for (input, placed) in inputs.iter().zip(placed) {
            let value = input.as_ref().map(RawBson::as_raw_bson_ref);
            state.add(&self.kind, value, &placed.document, partition.budget)?;
        }
        Ok(())
    }

    /// As MongoDB gives the results of windows that slide: sums as the narrowest type, and the
    /// deviation of one number as an integer.
    fn narrowed(&self, value: RawBson, numbers: usize) -> RawBson {
        match (&self.kind, value) {
            (Kind::Sum, RawBson::Int64(sum)) => Number::narrow(sum).to_raw().into(),
            (Kind::StdDev { sample: false }, RawBson::Double(0.0)) if numbers == 1 => {
                RawBson::Int32(0)
            }
            (_, value) => value,
        }
    }
}

fn is_number(value: &RawBson) -> bool {
    Number::from_raw(value.as_raw_bson_ref()).is_some()
}
