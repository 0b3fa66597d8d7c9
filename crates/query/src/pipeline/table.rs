//! The stages by name: one row for each.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use bson::{RawArray, RawBsonRef, RawDocument};

use super::stage::Stage;
use super::{
    Pipeline, bucket, bucket_auto, densify, documents, facet, fill, group, limit, lookup, matching,
    output, project, redact, replace, sample, sort, source, union, unwind, window,
};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items};

/// Parses a stage's argument. Some are short for several stages.
type Parse = fn(RawBsonRef<'_>, &Context, &mut Vec<Arc<dyn Stage>>) -> Result<(), QueryError>;

struct Row {
    name: &'static str,
    place: Place,
    /// Whether it may stand in a `$facet`.
    in_facet: bool,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Anywhere,
    First,
    Last,
}

enum Form {
    Parsed(Parse),
    /// Answered by the node.
    Source,
    /// MongoDB has it, this server does not yet.
    Missing,
}

const fn row(name: &'static str, parse: Parse) -> Row {
    Row {
        name,
        place: Place::Anywhere,
        in_facet: true,
        form: Form::Parsed(parse),
    }
}

/// Reads from elsewhere than the collection.
const fn first(name: &'static str, parse: Parse) -> Row {
    Row {
        place: Place::First,
        in_facet: false,
        ..row(name, parse)
    }
}

/// Writes.
const fn last(name: &'static str, parse: Parse) -> Row {
    Row {
        place: Place::Last,
        in_facet: false,
        ..row(name, parse)
    }
}

const fn source(name: &'static str) -> Row {
    Row {
        name,
        place: Place::First,
        in_facet: false,
        form: Form::Source,
    }
}

const fn missing(name: &'static str) -> Row {
    Row {
        name,
        place: Place::Anywhere,
        in_facet: true,
        form: Form::Missing,
    }
}

const ROWS: &[Row] = &[
    row(densify::INTERNAL, densify::parse_sorted),
    row("$addFields", project::parse_add_fields),
    row("$bucket", bucket::parse),
    row("$bucketAuto", bucket_auto::parse),
    source("$changeStream"),
    missing("$changeStreamSplitLargeEvent"),
    source("$collStats"),
    row("$count", group::parse_count),
    source("$currentOp"),
    row("$densify", densify::parse),
    first("$documents", documents::parse),
    Row {
        in_facet: false,
        ..row("$facet", facet::parse)
    },
    row("$fill", fill::parse),
    missing("$geoNear"),
    row("$graphLookup", lookup::parse_graph),
    row("$group", group::parse),
    source("$indexStats"),
    row("$limit", limit::parse_limit),
    missing("$listCatalog"),
    missing("$listClusterCatalog"),
    source("$listLocalSessions"),
    missing("$listSampledQueries"),
    missing("$listSearchIndexes"),
    source("$listSessions"),
    row("$lookup", lookup::parse),
    row("$match", matching::parse),
    last("$merge", output::parse_merge),
    last("$out", output::parse_out),
    source("$planCacheStats"),
    row("$project", project::parse_project),
    missing("$querySettings"),
    missing("$queryStats"),
    missing("$rankFusion"),
    row("$redact", redact::parse),
    row("$replaceRoot", replace::parse_root),
    row("$replaceWith", replace::parse_with),
    row("$sample", sample::parse),
    missing("$score"),
    missing("$scoreFusion"),
    missing("$search"),
    missing("$searchMeta"),
    row("$set", project::parse_set),
    row("$setWindowFields", window::parse),
    missing("$shardedDataDistribution"),
    row("$skip", limit::parse_skip),
    row("$sort", sort::parse),
    row("$sortByCount", group::parse_sort_by_count),
    row("$unionWith", union::parse),
    row("$unset", project::parse_unset),
    row("$unwind", unwind::parse),
    missing("$vectorSearch"),
];

static TABLE: LazyLock<HashMap<&'static str, &'static Row>> =
    LazyLock::new(|| ROWS.iter().map(|row| (row.name, row)).collect());

/// Where a stage stands in what the user wrote.
#[derive(Clone, Copy)]
pub(super) struct Position {
    pub first: bool,
    pub last: bool,
}

/// Parses one stage; some are short for several.
pub(super) fn parse(
    stage: &RawDocument,
    position: Position,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let mut elements = stage.iter().map_while(Result::ok);
    let (Some((name, argument)), None) = (elements.next(), elements.next()) else {
        return error(
            40323,
            "A pipeline stage specification object must contain exactly one field.",
        );
    };
    let name = name.as_str();
    let Some(row) = TABLE.get(name) else {
        return error(40324, format!("Unrecognized pipeline stage name: '{name}'"));
    };
    match row.place {
        Place::First if !position.first => {
            return error(
                40602,
                format!("{name} is only valid as the first stage in a pipeline"),
            );
        }
        Place::Last if !position.last => {
            return error(
                40601,
                format!("{name} can only be the final stage in the pipeline"),
            );
        }
        _ => {}
    }
    match row.form {
        Form::Parsed(parse) => parse(argument, context, out),
        Form::Source => source::parse(row.name, argument, out),
        Form::Missing => Err(QueryError::new(
            ErrorKind::NotImplemented,
            format!("the stage {name} is not implemented yet"),
        )),
    }
}

/// Parses the stages of a nested pipeline (`$facet`, `$lookup`, `$unionWith`).
pub(super) fn parse_nested(
    operator: &str,
    array: &RawArray,
    context: &Context,
) -> Result<Pipeline, QueryError> {
    let (mut stages, mut rows) = (Vec::new(), Vec::new());
    for item in items(array) {
        let RawBsonRef::Document(stage) = item else {
            return Err(QueryError::new(
                ErrorKind::TypeMismatch,
                "Each element of the 'pipeline' array must be an object",
            ));
        };
        stages.push(stage);
        let name = stage.iter().next().and_then(Result::ok);
        let row = name.and_then(|(name, _)| TABLE.get(name.as_str()).copied());
        rows.extend(row);
    }
    let code = if operator == "$facet" { 40600 } else { 51047 };
    let check = |is_refused: fn(&Row) -> bool| match rows.iter().find(|row| is_refused(row)) {
        None => Ok(()),
        Some(row) => error(
            code,
            format!(
                "{} is not allowed to be used within a {operator} stage",
                row.name
            ),
        ),
    };
    check(|row| row.place == Place::Last || row.name == "$changeStream")?;
    let pipeline = Pipeline::parse(&stages, context)?;
    if operator == "$facet" {
        check(|row| !row.in_facet)?;
    }
    Ok(pipeline)
}
