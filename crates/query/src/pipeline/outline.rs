//! The outline of a pipeline: which stages there are, and whether those that read or hold other
//! pipelines say so in the right form. MongoDB looks it through before it parses any stage, so what
//! is wrong there is told before anything else.

use bson::{RawArray, RawBsonRef, RawDocument};

use banyan_document::field;

use super::foreign::From;
use super::merge::Specification;
use super::table::{self, Row};
use super::write::out_target;
use crate::error::{ErrorKind, QueryError};
use crate::expression::field::check_name;
use crate::expression::value::{error, is_nullish, items, show, type_name};

pub(super) fn check(stages: &[&RawDocument]) -> Result<(), QueryError> {
    stages.iter().try_for_each(|stage| check_stage(stage))
}

fn failed<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::FailedToParse, message))
}

fn mismatch<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::TypeMismatch, message))
}

/// The only field of a stage: what it is called, what it is given and what is known of it.
pub(super) fn only_field(
    stage: &RawDocument,
) -> Result<(&'static Row, RawBsonRef<'_>), QueryError> {
    let mut elements = stage.iter().map_while(Result::ok);
    let (Some((name, argument)), None) = (elements.next(), elements.next()) else {
        return error(
            40323,
            "A pipeline stage specification object must contain exactly one field.",
        );
    };
    let name = name.as_str();
    match table::find(name) {
        Some(row) => Ok((row, argument)),
        None => error(40324, format!("Unrecognized pipeline stage name: '{name}'")),
    }
}

fn check_stage(stage: &RawDocument) -> Result<(), QueryError> {
    let (row, argument) = only_field(stage)?;
    match row.name {
        "$facet" => check_facet(argument),
        "$graphLookup" => check_graph_lookup(argument),
        "$lookup" => check_lookup(argument),
        "$merge" => Specification::parse(argument, check).map(drop),
        "$out" => out_target(argument).map(drop),
        "$unionWith" => check_union(argument),
        _ => Ok(()),
    }
}

fn is_string_or_object(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::String(_) | RawBsonRef::Document(_))
}

fn object<'a>(name: &str, argument: RawBsonRef<'a>) -> Result<&'a RawDocument, QueryError> {
    match argument {
        RawBsonRef::Document(document) => Ok(document),
        other => failed(format!(
            "the {name} stage specification must be an object, but found {}",
            type_name(Some(other))
        )),
    }
}

/// The pipelines of a `$facet`, each of objects.
fn check_facet(argument: RawBsonRef<'_>) -> Result<(), QueryError> {
    let facets = match argument {
        RawBsonRef::Document(facets) if !facets.is_empty() => facets,
        other => {
            return error(
                40169,
                format!(
                    "the $facet specification must be a non-empty object, but found: $facet: {}",
                    show(other)
                ),
            );
        }
    };
    for (name, pipeline) in facets.iter().map_while(Result::ok) {
        let name = name.as_str();
        check_name(name)?;
        let RawBsonRef::Array(pipeline) = pipeline else {
            return error(
                40170,
                format!(
                    "arguments to $facet must be arrays, {name} is type {}",
                    type_name(Some(pipeline))
                ),
            );
        };
        for item in items(pipeline) {
            if !matches!(item, RawBsonRef::Document(_)) {
                return error(
                    40171,
                    format!(
                        "elements of arrays in $facet spec must be non-empty objects, {name} \
                         argument contained an element of type {}",
                        type_name(Some(item))
                    ),
                );
            }
        }
    }
    let pipelines = facets.iter().map_while(Result::ok);
    let mut stages = pipelines
        .filter_map(|(_, pipeline)| pipeline.as_array())
        .flat_map(items)
        .filter_map(|stage| stage.as_document());
    stages.try_for_each(check_stage)
}

fn check_graph_lookup(argument: RawBsonRef<'_>) -> Result<(), QueryError> {
    match field(object("$graphLookup", argument)?, "from") {
        Some(from @ RawBsonRef::String(_)) => From::parse(from, "$graphLookup").map(drop),
        Some(from) => {
            from.as_document().map_or(Ok(()), From::check_form)?;
            failed(format!(
                "$graphLookup 'from' field must be a string, but found {}",
                type_name(Some(from))
            ))
        }
        None => failed("missing 'from' option to $graphLookup stage specification"),
    }
}

fn check_lookup(argument: RawBsonRef<'_>) -> Result<(), QueryError> {
    let lookup = object("$lookup", argument)?;
    let from = field(lookup, "from");
    if let Some(from) = from.filter(|from| !is_string_or_object(*from)) {
        return failed(format!(
            "$lookup 'from' field must be a string, but found {}",
            type_name(Some(from))
        ));
    }
    if let Some(from) = from {
        from.as_document().map_or(Ok(()), From::check_form)?;
        From::parse(from, "$lookup")?;
    }
    let pipeline = match field(lookup, "pipeline") {
        None if from.is_none() => return failed("must specify 'pipeline' when 'from' is empty"),
        None => return Ok(()),
        Some(RawBsonRef::Array(pipeline)) => pipeline,
        Some(_) => return mismatch("'pipeline' option must be specified as an array"),
    };
    check_inner("$lookup", from.is_some(), pipeline)
}

fn check_union(argument: RawBsonRef<'_>) -> Result<(), QueryError> {
    let union = match argument {
        RawBsonRef::String(name) => return From::check_name(name),
        RawBsonRef::Document(union) => union,
        other => {
            return failed(format!(
                "the $unionWith stage specification must be an object or string, but found {}",
                type_name(Some(other))
            ));
        }
    };
    let (mut from, mut pipeline) = (false, None);
    for (name, value) in union.iter().map_while(Result::ok) {
        match (name.as_str(), value) {
            ("coll", value) if is_nullish(Some(value)) => {}
            ("coll", value) if is_string_or_object(value) => {
                value.as_str().map_or(Ok(()), From::check_name)?;
                from = true;
            }
            ("coll", value) => return wrong_type("coll", value, "string"),
            ("pipeline", RawBsonRef::Array(array)) => pipeline = Some(array),
            ("pipeline", RawBsonRef::Null | RawBsonRef::Undefined) => {
                return error(10065, "invalid parameter: expected an object (pipeline)");
            }
            ("pipeline", value) => return wrong_type("pipeline", value, "array"),
            (other, _) => {
                return error(
                    40415,
                    format!("BSON field '$unionWith.{other}' is an unknown field."),
                );
            }
        }
    }
    match pipeline {
        Some(pipeline) => check_inner("$unionWith", from, pipeline),
        None if from => Ok(()),
        None => no_documents("$unionWith"),
    }
}

fn wrong_type<T>(name: &str, value: RawBsonRef<'_>, expected: &str) -> Result<T, QueryError> {
    mismatch(format!(
        "BSON field '$unionWith.{name}' is the wrong type '{}', expected type '{expected}'",
        type_name(Some(value))
    ))
}

/// The pipeline of a stage that reads from elsewhere.
fn check_inner(name: &str, from: bool, pipeline: &RawArray) -> Result<(), QueryError> {
    let first = items(pipeline).next().and_then(|stage| stage.as_document());
    let first = first.and_then(|stage| stage.iter().next()?.ok());
    for item in items(pipeline) {
        let RawBsonRef::Document(stage) = item else {
            return mismatch("Each element of the 'pipeline' array must be an object");
        };
        check_stage(stage)?;
    }
    match first {
        _ if from => Ok(()),
        Some((name, _)) if name.as_str() == "$documents" => Ok(()),
        _ => no_documents(name),
    }
}

fn no_documents<T>(name: &str) -> Result<T, QueryError> {
    failed(format!(
        "{name} stage without explicit collection must have a pipeline with $documents as first \
         stage"
    ))
}

/// Whether a stage, or one of a pipeline inside of it, has no place in a `$facet`.
pub(super) fn is_kept_out_of_facets(stage: &RawDocument) -> bool {
    let Some((name, argument)) = stage.iter().next().and_then(Result::ok) else {
        return false;
    };
    let refused = table::find(name.as_str()).is_some_and(|row| !row.in_facet);
    let pipeline = argument
        .as_document()
        .and_then(|argument| field(argument, "pipeline"))
        .and_then(|pipeline| pipeline.as_array())
        .filter(|_| matches!(name.as_str(), "$lookup" | "$unionWith"));
    let mut inner = pipeline.into_iter().flat_map(items);
    let is_refused = |stage: RawBsonRef<'_>| stage.as_document().is_some_and(is_kept_out_of_facets);
    refused || names_documents(stage) || inner.any(is_refused)
}

/// Whether a stage reads no collection, but documents that it names itself.
fn names_documents(stage: &RawDocument) -> bool {
    let Some((name, RawBsonRef::Document(argument))) = stage.iter().next().and_then(Result::ok)
    else {
        return false;
    };
    match name.as_str() {
        "$lookup" => field(argument, "from").is_none(),
        "$unionWith" => is_nullish(field(argument, "coll")),
        _ => false,
    }
}
