//! $lookup: for each document the documents of another collection that belong to it
//!
//! The inner pipeline is parsed once; `let` binds its variables for each document. What the stage
//! knows of the foreign documents that a document can get, a value that they have at a path, comes
//! from `localField` and `foreignField` or from an equality in the pipeline's first `$match`.
//! `join.rs` finds them by it.

mod join;

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, field};

use super::Pipeline;
use super::execute::{Flow, Next, Start, Step};
use super::foreign::{From, Reader};
use super::pushdown::{self, Leading};
use super::stage::{Stage, parse_nested};
use super::unwind::write_at;
use crate::budget::Holding;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{items, show, type_name};
use crate::expression::{Arena, Expression, FieldPath, check_variable_name};
use crate::variables::Variables;

use join::Join;

#[derive(Debug)]
pub struct Lookup {
    from: Option<From>,
    output: FieldPath,
    equality: Option<Equality>,
    /// What `let` binds, in the order of the slots.
    variables: Vec<Expression>,
    leading: Leading,
    /// What the documents that no variable has a part in go through,
    before: Pipeline,
    /// and what they go through for each document.
    within: Pipeline,
}

#[derive(Debug)]
struct Equality {
    local: FieldPath,
    foreign: Box<str>,
}

#[derive(Default)]
struct Arguments<'a> {
    from: Option<From>,
    output: Option<FieldPath>,
    local: Option<&'a str>,
    foreign: Option<&'a str>,
    variables: Option<&'a RawDocument>,
    pipeline: Option<&'a bson::RawArray>,
}

fn failed<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::FailedToParse, message))
}

fn not_empty(path: &str) -> Option<&str> {
    Some(path).filter(|path| !path.is_empty())
}

impl<'a> Arguments<'a> {
    fn parse(document: &'a RawDocument) -> Result<Arguments<'a>, QueryError> {
        let mut arguments = Arguments::default();
        for (name, value) in document.iter().map_while(Result::ok) {
            arguments.argument(name.as_str(), value)?;
        }
        Ok(arguments)
    }

    fn argument(&mut self, name: &str, value: RawBsonRef<'a>) -> Result<(), QueryError> {
        match (name, value) {
            ("from", value) => self.from = Some(From::parse(value, "$lookup")?),
            ("as", RawBsonRef::String(path)) => self.output = Some(FieldPath::parse(path)?),
            ("localField", RawBsonRef::String(path)) => self.local = not_empty(path),
            ("foreignField", RawBsonRef::String(path)) => self.foreign = not_empty(path),
            ("let", RawBsonRef::Document(document)) => self.variables = Some(document),
            ("pipeline", RawBsonRef::Array(array)) => self.pipeline = Some(array),
            ("pipeline", _) => {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    "'pipeline' option must be specified as an array",
                ));
            }
            ("as" | "localField" | "foreignField" | "let", other) => {
                let wanted = if name == "let" {
                    "an object"
                } else {
                    "a string"
                };
                return failed(format!(
                    "$lookup argument '{name}: {}' must be {wanted}, is type {}",
                    show(other),
                    type_name(Some(other))
                ));
            }
            (other, _) => return failed(format!("unknown argument to $lookup: {other}")),
        }
        Ok(())
    }

    fn equality(&self) -> Result<Option<Equality>, QueryError> {
        match (self.local, self.foreign) {
            (Some(local), Some(foreign)) => {
                FieldPath::parse(foreign)?;
                Ok(Some(Equality {
                    local: FieldPath::parse(local)?,
                    foreign: foreign.into(),
                }))
            }
            (None, None) if self.pipeline.is_some() => Ok(None),
            _ => failed(
                "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be \
                 specified",
            ),
        }
    }
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return failed(format!(
            "the $lookup stage specification must be an object, but found {}",
            type_name(Some(value))
        ));
    };
    let mut arguments = Arguments::parse(document)?;
    let Some(output) = arguments.output.take() else {
        return failed("must specify 'as' field for a $lookup");
    };
    let equality = arguments.equality()?;
    if arguments.from.is_none() && arguments.pipeline.is_none() {
        return failed("must specify 'from' field for a $lookup");
    }
    let (mut names, mut variables) = (Vec::new(), Vec::new());
    for (name, value) in arguments.variables.into_iter().flatten().flatten() {
        check_variable_name(name.as_str(), true)?;
        names.push(name.as_str());
        variables.push(Expression::parse(value, context)?);
    }
    let (first, end) = (
        context.scope.next_slot(),
        context.scope.next_slot() + names.len(),
    );
    let inner = Context {
        scope: context.scope.with(names),
        ..context.clone()
    };
    let mut pipeline = match arguments.pipeline {
        Some(array) => parse_nested("$lookup", array, &inner)?,
        None if arguments.variables.is_some() => {
            return failed("$lookup with a 'let' argument must also specify 'pipeline'");
        }
        None => Pipeline::empty(context),
    };
    if arguments.from.is_none() && pipeline.source().is_none() {
        return failed("must specify 'from' field for a $lookup");
    }
    let leading = pushdown::take_leading(&mut pipeline, &inner)?;
    let mut independent = pipeline.independent(first, end);
    if equality.is_some() {
        // The equality comes first; only filters may be moved before it.
        let stages = pipeline.stages().iter().take(independent);
        independent = stages
            .take_while(|stage| matches!(stage, Stage::Match(_)))
            .count();
    }
    let (before, within) = pipeline.split_at(independent);
    out.push(Stage::Lookup(Arc::new(Lookup {
        from: arguments.from,
        output,
        equality,
        variables,
        leading,
        before,
        within,
    })));
    Ok(())
}

impl Lookup {
    pub(super) fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        if let Some(from) = &self.from {
            names.push((from.database.clone(), from.collection.clone()));
        }
        names.extend(self.before.collections_read());
        names.extend(self.within.collections_read());
    }

    pub(super) fn step(self: &Arc<Self>, start: &Start<'_>) -> Result<Box<dyn Step>, QueryError> {
        let reader = Reader::new(self.from.as_ref(), start.sources, "$lookup")?;
        let variables = self.variables.iter();
        Ok(Box::new(LookupStep {
            variables: variables.map(|v| v.bind(start.variables)).collect(),
            outer: start.variables.clone(),
            join: Join::new(self.clone(), reader, start)?,
            holding: start.budget.holding("$lookup").fails_with(4568),
            lookup: self.clone(),
            arena: Arena::new(),
        }))
    }
}

struct LookupStep {
    lookup: Arc<Lookup>,
    join: Join,
    variables: Vec<Expression>,
    /// The variables of the `$lookup` stages around.
    outer: Variables,
    arena: Arena,
    holding: Holding,
}

impl Step for LookupStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let found = self.found(document)?;
        let array = field(&found, "").unwrap_or(RawBsonRef::Null);
        let bytes = document.as_bytes().len() + found.as_bytes().len();
        let mut writer = DocumentWriter::with_capacity(bytes);
        write_at(document, &self.lookup.output, array, &mut writer);
        next.push(&writer.finish())
    }
}

impl LookupStep {
    /// An array of what belongs to `document`, in the field without a name.
    fn found(&mut self, document: &RawDocument) -> Result<bson::RawDocumentBuf, QueryError> {
        self.arena.reset();
        let variables = self.bind(document)?;
        let mut local = Vec::new();
        if let Some(equality) = &self.lookup.equality {
            local_values(document, equality.local.parts(), &mut local);
            if local.is_empty() {
                local.push(RawBsonRef::Null);
            }
            if local.contains(&RawBsonRef::Undefined) {
                return Err(QueryError::new(
                    ErrorKind::BadValue,
                    "cannot compare to undefined",
                ));
            }
        }
        let mut writer = DocumentWriter::new();
        writer.begin_array("");
        let holding = &mut self.holding;
        holding.set(0)?;
        self.join.find(&local, &variables, &mut |found| {
            holding.add(found.as_bytes().len())?;
            writer.push(RawBsonRef::Document(found));
            Ok(())
        })?;
        writer.end();
        Ok(writer.finish())
    }

    fn bind(&self, document: &RawDocument) -> Result<Variables, QueryError> {
        if self.variables.is_empty() {
            return Ok(self.outer.clone());
        }
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            values.push(variable.evaluate(document, &self.arena)?);
        }
        Ok(self.outer.with(values))
    }
}

/// The values that `localField` joins by: an array at its end stands for its items, one on the way
/// for its documents. What is missing is passed over.
fn local_values<'d>(
    document: &'d RawDocument,
    parts: &[Box<str>],
    values: &mut Vec<RawBsonRef<'d>>,
) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    match field(document, first) {
        None => {}
        Some(RawBsonRef::Array(array)) if rest.is_empty() => values.extend(items(array)),
        Some(value) if rest.is_empty() => values.push(value),
        Some(RawBsonRef::Document(inner)) => local_values(inner, rest, values),
        Some(RawBsonRef::Array(array)) => {
            for item in items(array) {
                if let RawBsonRef::Document(inner) = item {
                    local_values(inner, rest, values);
                }
            }
        }
        Some(_) => {}
    }
}
