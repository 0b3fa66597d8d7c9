//! Accumulators over windows.

use std::collections::BTreeSet;
use std::ops::Range;

use bson::{RawBson, RawBsonRef, RawDocumentBuf};

use banyan_document::{Collator, Number, compare_collated};

use super::around::Around;
use super::bounds::Window;
use super::function::{Function, Values};
use super::partition::{Partition, hold};
use super::sliding::{self, Gather, Sliding};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::sum::Sum;
use crate::expression::value::is_nullish;
use crate::memory::Holding;
use crate::pipeline::accumulator::{self, Kind, State};

/// An accumulator over the window of each document.
#[derive(Debug)]
struct Accumulated {
    kind: Kind,
    argument: Expression,
    window: Window,
}

pub(super) fn parse(
    row: &accumulator::Row,
    argument: RawBsonRef<'_>,
    window: Option<RawBsonRef<'_>>,
    around: &Around<'_>,
) -> Result<Box<dyn Function>, QueryError> {
    let (kind, argument) = row.parse(argument, around.context)?;
    Ok(Box::new(Accumulated {
        kind,
        argument,
        window: Window::parse_or_whole(window, around)?,
    }))
}

/// What an accumulator is given of each document.
struct Inputs<'i> {
    values: &'i [Option<RawBson>],
    /// The documents, if it looks at them.
    roots: &'i [RawDocumentBuf],
    budget: &'i Budget,
}

impl Function for Accumulated {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let ranges = self.window.ranges(partition, holding)?;
        let wanted = match self.kind {
            Kind::First => ranges.first(partition.len()),
            Kind::Last => ranges.last(partition.len()),
            _ => ranges.covered(partition.len()),
        };
        let inputs = ranges.with_inputs(partition, &self.argument, &wanted, holding);
        let (ranges, inputs) = inputs?;
        let roots = match self.kind.reads_root() {
            true => partition.roots(holding)?,
            false => Vec::new(),
        };
        let inputs = Inputs {
            values: &inputs,
            roots: &roots,
            budget: partition.budget,
        };
        if matches!(self.kind, Kind::First | Kind::Last) {
            let edges = ranges
                .into_iter()
                .map(|range| self.edge(range, inputs.values));
            return Ok(edges.collect());
        }
        if self.window.is_left_unbounded() {
            return self.grow(ranges, &inputs, holding);
        }
        match self.kind {
            Kind::Sum | Kind::Avg if sliding::slides(&ranges) => {
                self.slide(Numbers(inputs.values), ranges, inputs.budget, holding)
            }
            Kind::Min | Kind::Max if sliding::slides(&ranges) => {
                let extremes = Extremes {
                    values: inputs.values,
                    greatest: matches!(self.kind, Kind::Max),
                    collator: self.argument.collator(),
                };
                self.slide(extremes, ranges, inputs.budget, holding)
            }
            _ => self.gather_anew(ranges, &inputs, holding),
        }
    }

    fn check(&self) -> Result<(), QueryError> {
        self.state().map(drop)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.argument.dependencies(paths)
            && self.kind.dependencies(paths)
            && self.window.dependencies(paths)
    }
}

impl Accumulated {
    fn state(&self) -> Result<State, QueryError> {
        State::new(
            &self.kind,
            self.argument.collator(),
            accumulator::Group::none(),
        )
    }

    /// The values over windows that only grow: what was gathered is gone on with.
    fn grow(
        &self,
        ranges: Vec<Range<usize>>,
        inputs: &Inputs<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let mut values = Vec::with_capacity(ranges.len());
        let (mut state, mut taken) = (self.state()?, 0);
        let mut last: Option<(usize, RawBson)> = None;
        for range in ranges {
            self.take(&mut state, taken..range.end, inputs)?;
            taken = taken.max(range.end);
            let value = match &last {
                Some((end, value)) if *end == taken => value.clone(),
                _ => {
                    inputs.budget.spend_bytes(state.memory_bytes())?;
                    state.clone().finish(&self.kind, inputs.budget)?
                }
            };
            last = Some((taken, value.clone()));
            hold(Some(&value), holding)?;
            values.push(Some(value));
        }
        Ok(values)
    }

    /// The values over windows of which each is gathered by itself.
    fn gather_anew(
        &self,
        ranges: Vec<Range<usize>>,
        inputs: &Inputs<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let mut values = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut state = self.state()?.sliding();
            let window = inputs.values.get(range.clone()).unwrap_or_default();
            self.take(&mut state, range, inputs)?;
            let value = state.finish(&self.kind, inputs.budget)?;
            let value = match self.kind {
                Kind::StdDev { sample } => deviation(value, sample, window),
                _ => self.narrowed(value),
            };
            hold(Some(&value), holding)?;
            values.push(Some(value));
        }
        Ok(values)
    }

    /// The values over windows that slide.
    fn slide<G: Gather + Finish>(
        &self,
        gather: G,
        ranges: Vec<Range<usize>>,
        budget: &Budget,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let mut values = Vec::with_capacity(ranges.len());
        let mut sliding = Sliding::new(gather);
        for range in ranges {
            let part = sliding.go_to(range, budget, holding)?;
            let mut state = self.state()?;
            if let Some(part) = part {
                sliding.gather().finish(part, &mut state);
            }
            let value = state.finish(&self.kind, budget)?;
            let value = self.narrowed(value);
            hold(Some(&value), holding)?;
            values.push(Some(value));
        }
        Ok(values)
    }

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
        inputs: &Inputs<'_>,
    ) -> Result<(), QueryError> {
        let none = RawDocumentBuf::new();
        for (input, at) in inputs
            .values
            .get(range.clone())
            .into_iter()
            .flatten()
            .zip(range)
        {
            let value = input.as_ref().map(RawBson::as_raw_bson_ref);
            let root = inputs.roots.get(at).unwrap_or(&none);
            state.add(&self.kind, value, root, inputs.budget)?;
        }
        Ok(())
    }

    /// As MongoDB gives the sums of windows that slide: as the narrowest type.
    fn narrowed(&self, value: RawBson) -> RawBson {
        match (&self.kind, value) {
            (Kind::Sum, RawBson::Int64(sum)) => Number::narrow(sum).to_raw().into(),
            (_, value) => value,
        }
    }
}

/// As MongoDB gives the deviations of windows that slide: none where a number is an infinity or
/// NaN, that of one number as an integer, and the sample's deviation of no numbers as a zero.
fn deviation(value: RawBson, sample: bool, window: &[Option<RawBson>]) -> RawBson {
    let inputs = window.iter().flatten();
    let numbers = inputs.filter_map(|input| Number::from_raw(input.as_raw_bson_ref()));
    if numbers.clone().any(|number| !number.is_finite()) {
        return RawBson::Null;
    }
    match (numbers.take(2).count(), value) {
        (1, RawBson::Double(0.0)) if !sample => RawBson::Int32(0),
        // No deviations are divided by one less than no numbers.
        (0, RawBson::Null) if sample => RawBson::Double(-0.0),
        (_, value) => value,
    }
}

/// What was gathered as the state of an accumulator.
trait Finish: Gather {
    fn finish(&self, part: Self::Part, state: &mut State);
}

/// Sums of numbers, and how many there are.
struct Numbers<'i>(&'i [Option<RawBson>]);

impl Gather for Numbers<'_> {
    type Part = (Sum, i64);

    fn one(&self, at: usize) -> (Sum, i64) {
        let mut sum = Sum::default();
        let value = self.0.get(at).and_then(Option::as_ref);
        let number = value.and_then(|value| Number::from_raw(value.as_raw_bson_ref()));
        if let Some(number) = number {
            sum.add(number);
        }
        (sum, i64::from(number.is_some()))
    }

    fn join(&self, (mut sum, count): (Sum, i64), (other, more): (Sum, i64)) -> (Sum, i64) {
        sum.merge(&other);
        (sum, count + more)
    }
}

impl Finish for Numbers<'_> {
    fn finish(&self, (sum, count): (Sum, i64), state: &mut State) {
        match state {
            State::Avg { .. } => *state = State::Avg { sum, count },
            _ => *state = State::Sum(sum),
        }
    }
}

/// The places of the least or the greatest values; of equal ones, of the first and of the last.
struct Extremes<'i> {
    values: &'i [Option<RawBson>],
    greatest: bool,
    collator: Option<&'i Collator>,
}

impl Extremes<'_> {
    fn value(&self, at: usize) -> Option<RawBsonRef<'_>> {
        let value = self.values.get(at)?.as_ref()?.as_raw_bson_ref();
        (!is_nullish(Some(value))).then_some(value)
    }
}

impl Gather for Extremes<'_> {
    type Part = usize;

    fn one(&self, at: usize) -> usize {
        at
    }

    fn join(&self, earlier: usize, later: usize) -> usize {
        let (Some(a), Some(b)) = (self.value(earlier), self.value(later)) else {
            return match self.value(earlier) {
                Some(_) => earlier,
                None => later,
            };
        };
        let order = compare_collated(b, a, self.collator);
        let better = match self.greatest {
            true => order.is_ge(),
            false => order.is_lt(),
        };
        if better { later } else { earlier }
    }
}

impl Finish for Extremes<'_> {
    fn finish(&self, part: usize, state: &mut State) {
        if let State::Extreme { value, .. } = state {
            *value = self.value(part).map(Into::into);
        }
    }
}
