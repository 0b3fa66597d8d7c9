//! The accumulators by name: one row for each.

use bson::RawBsonRef;

use super::kind::{Kind, Parsed};
use super::parse::{count, n_values, percentile, script, top};
use crate::context::Context;
use crate::expression::Expression;

pub(in crate::pipeline) struct Row {
    pub name: &'static str,
    form: Form,
    /// Whether it may run over the window of a document, as a function of $setWindowFields.
    pub in_windows: bool,
}

enum Form {
    /// Takes one expression.
    Unary(fn() -> Kind),
    /// Takes an argument of its own form.
    Other(fn(&'static str, RawBsonRef<'_>, &Context) -> Parsed),
}

use Form::{Other, Unary};

const fn row(name: &'static str, form: Form) -> Row {
    Row {
        name,
        form,
        in_windows: true,
    }
}

/// Of groups alone.
const fn grouping(name: &'static str, form: Form) -> Row {
    Row {
        in_windows: false,
        ..row(name, form)
    }
}

static ROWS: &[Row] = &[
    grouping("$accumulator", Other(script)),
    row("$addToSet", Unary(|| Kind::AddToSet)),
    row("$avg", Unary(|| Kind::Avg)),
    row("$bottom", Other(top)),
    row("$bottomN", Other(top)),
    row("$concatArrays", Unary(|| Kind::ConcatArrays)),
    row("$count", Other(count)),
    row("$first", Unary(|| Kind::First)),
    row("$firstN", Other(n_values)),
    row("$last", Unary(|| Kind::Last)),
    row("$lastN", Other(n_values)),
    row("$max", Unary(|| Kind::Max)),
    row("$maxN", Other(n_values)),
    row("$median", Other(percentile)),
    grouping("$mergeObjects", Unary(|| Kind::MergeObjects)),
    row("$min", Unary(|| Kind::Min)),
    row("$minN", Other(n_values)),
    row("$percentile", Other(percentile)),
    row("$push", Unary(|| Kind::Push)),
    row("$setUnion", Unary(|| Kind::SetUnion)),
    row("$stdDevPop", Unary(|| Kind::StdDev { sample: false })),
    row("$stdDevSamp", Unary(|| Kind::StdDev { sample: true })),
    row("$sum", Unary(|| Kind::Sum)),
    row("$top", Other(top)),
    row("$topN", Other(top)),
];

pub(in crate::pipeline) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

impl Row {
    pub fn parse(&self, argument: RawBsonRef<'_>, context: &Context) -> Parsed {
        match self.form {
            Unary(kind) => Ok((kind(), Expression::parse(argument, context)?)),
            Other(parse) => parse(self.name, argument, context),
        }
    }
}
