//! The accumulators of $group, $bucket, $bucketAuto and $setWindowFields.
//!
//! `table.rs` has a row for each: its name, how its argument is read, and whether it may run over
//! a window. What is read is a [`Kind`]; what that remembers of a group, how it is handed from a
//! shard to the router, and how it is merged there is up to its [`State`].

mod count;
mod document_key;
mod kind;
mod parse;
mod ranked;
mod script;
mod state;
mod table;
mod value;

use bson::RawBsonRef;

use super::field_name::check_field_name;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::error;
use crate::expression::{ComputedFields, Expression};
use crate::memory::{Limit, Memory};

pub(super) use count::Group;
pub(super) use kind::Kind;
pub(super) use state::State;
pub(super) use table::{Row, find};

/// One accumulated field.
#[derive(Debug)]
pub(super) struct Accumulator {
    pub(super) field: Box<str>,
    /// Its name, with the `$`.
    pub(super) operator: &'static str,
    pub(super) kind: Kind,
    /// What is accumulated, document by document.
    pub(super) argument: Expression,
}

impl Accumulator {
    /// The state of a group that has no documents yet.
    pub(super) fn start(&self, group: Group<'_>) -> Result<State, QueryError> {
        State::new(&self.kind, self.argument.collator(), group)
    }

    /// The same over documents in which these fields are not computed yet.
    pub(super) fn with_computed(&self, computed: &mut ComputedFields<'_>) -> Option<Accumulator> {
        let kind = match &self.kind {
            Kind::Sum => Kind::Sum,
            Kind::Avg => Kind::Avg,
            Kind::Min => Kind::Min,
            Kind::Max => Kind::Max,
            Kind::First => Kind::First,
            Kind::Last => Kind::Last,
            Kind::Push => Kind::Push,
            Kind::AddToSet => Kind::AddToSet,
            // What others are given is not all in the argument as it was written.
            _ => return None,
        };
        Some(Accumulator {
            field: self.field.clone(),
            operator: self.operator,
            kind,
            argument: self.argument.with_computed(computed)?,
        })
    }

    /// What its state of one group may hold; `None` if it holds no more than documents have.
    fn limit(&self) -> Option<Limit> {
        match self.kind {
            Kind::Push
            | Kind::ConcatArrays
            | Kind::MergeObjects
            | Kind::Percentile { .. }
            | Kind::Script(_) => Some(Limit::Push),
            Kind::AddToSet | Kind::SetUnion => Some(Limit::AddToSet),
            Kind::Positional { .. } | Kind::Ranked { .. } => Some(Limit::TopN),
            Kind::Sum
            | Kind::Avg
            | Kind::Min
            | Kind::Max
            | Kind::First
            | Kind::Last
            | Kind::StdDev { .. } => None,
        }
    }

    /// Fails if its state of one group holds more than it may: no disk helps there.
    pub(super) fn check(&self, bytes: usize, memory: &Memory) -> Result<(), QueryError> {
        let Some(limit) = self.limit() else {
            return Ok(());
        };
        let max = memory.limit(limit);
        if bytes <= max {
            return Ok(());
        }
        let why = match limit {
            Limit::TopN => "spilling to disk cannot reduce memory consumption any further",
            _ => "cannot spill to disk",
        };
        Err(QueryError::new(
            ErrorKind::ExceededMemoryLimit,
            format!(
                "{} used too much memory and {why}. Memory limit: {max} bytes",
                self.operator
            ),
        ))
    }
}

/// `field: {$op: argument}` of a group specification.
pub(super) fn parse(
    field: &str,
    spec: RawBsonRef<'_>,
    context: &Context,
) -> Result<Accumulator, QueryError> {
    let first = match spec {
        RawBsonRef::Document(document) => document.iter().next().and_then(Result::ok),
        _ => None,
    };
    let Some((name, argument)) = first.filter(|(name, _)| name.as_str().starts_with('$')) else {
        return error(
            40234,
            format!("The field '{field}' must be an accumulator object"),
        );
    };
    check_field_name(field)?;
    if let RawBsonRef::Document(document) = spec
        && document.iter().count() != 1
    {
        return error(
            40238,
            format!("The field '{field}' must specify one accumulator"),
        );
    }
    let name = name.as_str();
    if matches!(argument, RawBsonRef::Array(_)) {
        return error(40237, format!("The {name} accumulator is a unary operator"));
    }
    let Some(row) = table::find(name) else {
        return error(15952, format!("unknown group operator '{name}'"));
    };
    let (kind, argument) = row.parse(argument, context)?;
    Ok(Accumulator {
        field: field.into(),
        operator: row.name,
        kind,
        argument,
    })
}
