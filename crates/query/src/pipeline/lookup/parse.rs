//! Parsing a `$lookup`.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::field;

use super::specification::{self, Brought, Equality, Lookup, UNWIND, failed};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, show, type_name};
use crate::expression::{Expression, FieldPath, check_variable_name};
use crate::pipeline::foreign::From;
use crate::pipeline::matching::Match;
use crate::pipeline::pushdown;
use crate::pipeline::sequence::{ParseInner, Pipeline};
use crate::pipeline::source;
use crate::pipeline::stage::Stage;
use crate::pipeline::text_score;
use crate::pipeline::unwind::Unwind;

#[derive(Default)]
struct Arguments<'a> {
    from: Option<From>,
    output: Option<&'a str>,
    local: Option<&'a str>,
    foreign: Option<&'a str>,
    variables: Option<&'a RawDocument>,
    pipeline: Option<&'a bson::RawArray>,
    unwind: Option<&'a RawDocument>,
}

fn not_empty(path: &str) -> Option<&str> {
    Some(path).filter(|path| !path.is_empty())
}

impl<'a> Arguments<'a> {
    fn parse(document: &'a RawDocument) -> Result<Arguments<'a>, QueryError> {
        if let Ok(Some(RawBsonRef::Document(from))) = document.get("from") {
            From::check_form(from)?;
        }
        let mut arguments = Arguments::default();
        for (name, value) in document.iter().map_while(Result::ok) {
            arguments.argument(name.as_str(), value)?;
        }
        Ok(arguments)
    }

    fn argument(&mut self, name: &str, value: RawBsonRef<'a>) -> Result<(), QueryError> {
        match (name, value) {
            ("from", value) => self.from = Some(From::parse(value, "$lookup")?),
            ("as", RawBsonRef::String(path)) => self.output = not_empty(path),
            ("localField", RawBsonRef::String(path)) => self.local = not_empty(path),
            ("foreignField", RawBsonRef::String(path)) => self.foreign = not_empty(path),
            ("let", RawBsonRef::Document(document)) => self.variables = Some(document),
            ("pipeline", RawBsonRef::Array(array)) => self.pipeline = Some(array),
            (UNWIND, RawBsonRef::Document(unwind)) => self.unwind = Some(unwind),
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
            (Some(_), Some(_)) if self.pipeline.is_none() && self.variables.is_some() => {
                failed("$lookup with a 'let' argument must also specify 'pipeline'")
            }
            (Some(local), Some(foreign)) => {
                FieldPath::parse(foreign)?;
                Ok(Some(Equality {
                    local: FieldPath::parse(local)?,
                    foreign: foreign.into(),
                    takes_patterns: false,
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

pub(in crate::pipeline) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    parse_inner: ParseInner,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let document = specification::document("$lookup", value)?;
    let arguments = Arguments::parse(document)?;
    let Some(output) = arguments.output else {
        return failed("must specify 'as' field for a $lookup");
    };
    let equality = arguments.equality()?;
    let output = FieldPath::parse(output)?;
    if arguments.from.is_none() && arguments.pipeline.is_none() {
        return failed("must specify 'from' field for a $lookup");
    }
    let (mut names, mut variables) = (Vec::new(), Vec::new());
    context.as_written(|context| {
        for (name, value) in arguments.variables.into_iter().flatten().flatten() {
            check_variable_name(name.as_str(), true)?;
            names.push(name.as_str());
            let variable = Expression::parse(value, context)?;
            variables.push((name.as_str().into(), variable));
        }
        Ok(())
    })?;
    let (first, end) = (
        context.scope.next_slot(),
        context.scope.next_slot() + names.len(),
    );
    let inner = Context {
        scope: context.scope.with(names),
        text: arguments
            .from
            .as_ref()
            .and_then(|from| from.inner_text(context)),
        ..context.clone()
    };
    let (mut pipeline, constants) = match arguments.pipeline {
        // It may never run.
        Some(array) => context
            .folding
            .for_bindings(|| parse_inner("$lookup", array, &inner))?,
        None => (Pipeline::empty(context), Vec::new()),
    };
    if arguments.from.is_none() && pipeline.source().is_none() {
        return failed("must specify 'from' field for a $lookup");
    }
    source::check_inner(&pipeline, "$lookup")?;
    let take = || pushdown::take_leading(&mut pipeline, &inner);
    let leading = context.folding.ignoring_failures(take)?;
    if equality.is_some() && leading.is_near() {
        // The equality comes first.
        return error(
            40603,
            "$geoNear is only valid as the first stage in an optimized pipeline",
        );
    }
    if equality.is_some() && leading.searches() {
        return Err(text_score::not_first());
    }
    let mut independent = pipeline.independent(first, end);
    let brought = match (&equality, pipeline.source()) {
        (Some(_), Some(_)) if independent == 0 => Brought::ForEach,
        (Some(_), Some(_)) => Brought::Once,
        _ => Brought::Nothing,
    };
    if brought != Brought::Nothing {
        // The equality is behind the documents.
        independent = 1;
    } else if equality.is_some() {
        // The equality comes first; only filters may be moved before it.
        let stages = pipeline.stages().take(independent);
        independent = stages.take_while(|stage| stage.is::<Match>()).count();
    }
    let (before, within) = pipeline.split_at(independent);
    let unwind = match arguments.unwind {
        Some(stage) => match field(stage, "$unwind") {
            Some(unwind) => Some(Arc::new(Unwind::parse(unwind)?)),
            None => return failed(format!("{UNWIND} must hold an $unwind")),
        },
        None => None,
    };
    out.push(Arc::new(Lookup {
        from: arguments.from,
        output,
        equality,
        variables,
        leading,
        before,
        within,
        brought,
        has_pipeline: arguments.pipeline.is_some(),
        unwind,
        constants,
        collator: context.collator.clone(),
        cost: Arc::default(),
    }));
    Ok(())
}
