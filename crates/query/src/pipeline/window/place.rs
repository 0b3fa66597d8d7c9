//! Functions of where a document stands: $rank, $denseRank, $documentNumber and $shift.

use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{Collator, Number, compare_collated};

use super::around::{Around, failed, require_single_order};
use super::function::{Call, Function, Values};
use super::partition::{Partition, hold};
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::value::{error, show};
use crate::memory::Holding;

#[derive(Debug)]
struct Ranked {
    rank: Rank,
    position: Expression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// Equal ones share a number, and leave a gap behind.
    Gaps,
    /// Equal ones share a number.
    Dense,
    /// Each has its own.
    Number,
}

pub(super) fn parse_rank(
    call: &Call<'_>,
    around: &Around<'_>,
) -> Result<Box<dyn Function>, QueryError> {
    if call.window.is_some() {
        return error(
            5371601,
            "Rank style window functions take no other arguments",
        );
    }
    if !call
        .argument
        .as_document()
        .is_some_and(RawDocument::is_empty)
    {
        return error(
            5371603,
            format!("{} must be specified with '{{}}' as the value", call.name),
        );
    }
    require_single_order(call.name, 5371602, around)?;
    let rank = match call.name {
        "$rank" => Rank::Gaps,
        "$denseRank" => Rank::Dense,
        _ => Rank::Number,
    };
    match around.position()? {
        Some(position) => Ok(Box::new(Ranked { rank, position })),
        None => Err(failed(format!("{} requires a sortBy", call.name))),
    }
}

impl Function for Ranked {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let positions = partition.values(&self.position, holding)?;
        let collator = self.position.collator();
        let (mut ranks, mut rank) = (Vec::with_capacity(positions.len()), 0);
        let mut before: Option<&Option<RawBson>> = None;
        for (position, number) in positions.iter().zip(1_i64..) {
            partition.budget.spend(1)?;
            let repeats = before.is_some_and(|before| are_equal(before, position, collator));
            rank = match self.rank {
                Rank::Gaps | Rank::Dense if repeats => rank,
                Rank::Dense => rank + 1,
                Rank::Gaps | Rank::Number => number,
            };
            before = Some(position);
            ranks.push(Some(Number::narrow(rank).to_raw().into()));
        }
        Ok(ranks)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.position.dependencies(paths)
    }
}

/// What is missing is not null here.
fn are_equal(a: &Option<RawBson>, b: &Option<RawBson>, collator: Option<&Collator>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            compare_collated(a.as_raw_bson_ref(), b.as_raw_bson_ref(), collator).is_eq()
        }
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// The value of another document, so many places away.
#[derive(Debug)]
struct Shift {
    output: Expression,
    by: i64,
    /// Where there is no such document.
    default: Option<RawBson>,
}

pub(super) fn parse_shift(
    call: &Call<'_>,
    around: &Around<'_>,
) -> Result<Box<dyn Function>, QueryError> {
    let RawBsonRef::Document(document) = call.argument else {
        return Err(failed("Argument to $shift must be an object"));
    };
    let (mut output, mut by, mut default) = (None, None, Some(RawBson::Null));
    for (name, value) in document.iter().map_while(Result::ok) {
        match name.as_str() {
            "output" => output = Some(Expression::parse(value, around.context)?),
            "by" => {
                let number = Number::from_raw(value).and_then(Number::to_i32_exact);
                let Some(number) = number else {
                    let shown = show(value);
                    return Err(failed(format!(
                        "'$shift:by' field must be an integer, but found  by: {shown}"
                    )));
                };
                by = Some(i64::from(number));
            }
            "default" => {
                // What is wrong with a constant is told at once.
                let parse = || Expression::parse(value, around.context);
                let expression = around.context.folding.at_once(parse)?;
                let value = expression.as_constant();
                if expression.is_fixed() && value.is_none() {
                    expression.evaluate_owned(&RawDocumentBuf::new())?;
                }
                if value.is_none() && !expression.is_missing() {
                    return Err(failed(
                        "'$shift:default' expression must yield a constant value.",
                    ));
                }
                default = value.map(Into::into);
            }
            _ => return Err(failed("Unknown argument in $shift")),
        }
    }
    if call.window.is_some() {
        return Err(failed("$shift does not accept a 'window' field"));
    }
    if !around.has_order() {
        return Err(failed("'$shift' requires a sortBy"));
    }
    let output = output.ok_or_else(|| failed("$shift requires an 'output' expression."))?;
    let by = by.ok_or_else(|| failed("$shift requires 'by' as an integer value."))?;
    Ok(Box::new(Shift {
        output,
        by,
        default,
    }))
}

impl Function for Shift {
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError> {
        let count = partition.len();
        let other = |at: usize| usize::try_from(at as i64 + self.by).ok();
        let mut wanted = vec![false; count];
        for at in (0..count).filter_map(other) {
            if let Some(wanted) = wanted.get_mut(at) {
                *wanted = true;
            }
        }
        let outputs = partition.outcomes(&self.output, &wanted, holding)?;
        let mut shifted = Vec::with_capacity(count);
        for at in 0..count {
            let value = match other(at).and_then(|other| outputs.get(other)) {
                Some(value) => value.clone()?,
                None => self.default.clone(),
            };
            hold(value.as_ref(), holding)?;
            partition.budget.spend(1)?;
            shifted.push(value);
        }
        Ok(shifted)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.output.dependencies(paths)
    }
}
