//! What a `$lookup` says.

use std::sync::Arc;

use banyan_document::Collator;
use bson::{RawBsonRef, RawDocument};

use crate::context::BoundConstant;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::type_name;
use crate::expression::{Expression, FieldPath};
use crate::pipeline::foreign::From;
use crate::pipeline::pushdown::Leading;
use crate::pipeline::read_cost::ReadCost;
use crate::pipeline::sequence::Pipeline;
use crate::pipeline::unwind::Unwind;

/// What a router calls the `$unwind` that the stage does.
pub(super) const UNWIND: &str = "$_internalUnwind";

#[derive(Clone, Debug)]
pub struct Lookup {
    pub(super) from: Option<From>,
    pub(super) output: FieldPath,
    pub(super) equality: Option<Equality>,
    /// What `let` binds, in the order of the slots.
    pub(super) variables: Vec<(Box<str>, Expression)>,
    pub(super) leading: Leading,
    /// What the documents that no variable has a part in go through,
    pub(super) before: Pipeline,
    /// and what they go through for each document.
    pub(super) within: Pipeline,
    pub(super) brought: Brought,
    /// Whether one was written at all.
    pub(super) has_pipeline: bool,
    /// The `$unwind` of the field with the results, which then need not be put into one array.
    pub(super) unwind: Option<Arc<Unwind>>,
    /// What in its pipeline is constant for each document, and may fail.
    pub(super) constants: Vec<Arc<dyn BoundConstant>>,
    /// How the values that join are compared as strings.
    pub(super) collator: Option<Collator>,
    /// What all its runs have cost.
    pub(super) cost: Arc<ReadCost>,
}

/// The documents that the pipeline of a stage with an equality brings itself, in its first stage, which
/// is what is before all others then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    Nothing,
    /// The same ones for each document.
    Once,
    /// Variables have a part in them.
    ForEach,
}

#[derive(Clone, Debug)]
pub(super) struct Equality {
    pub(super) local: FieldPath,
    pub(super) foreign: Box<str>,
    /// Whether a regular expression among the values asks for what it matches.
    pub(super) takes_patterns: bool,
}

impl Lookup {
    /// The stage together with an `$unwind` behind it, if that unwinds its results.
    pub(in crate::pipeline) fn unwinding(&self, unwind: &Unwind) -> Option<Lookup> {
        let fits = self.unwind.is_none() && unwind.path == self.output;
        fits.then(|| Lookup {
            unwind: Some(Arc::new(unwind.clone())),
            ..self.clone()
        })
    }
}

/// The document that says what a stage does.
pub(super) fn document<'a>(
    stage: &str,
    value: RawBsonRef<'a>,
) -> Result<&'a RawDocument, QueryError> {
    match value {
        RawBsonRef::Document(document) => Ok(document),
        _ => failed(format!(
            "the {stage} stage specification must be an object, but found {}",
            type_name(Some(value))
        )),
    }
}

pub(super) fn failed<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::FailedToParse, message))
}
