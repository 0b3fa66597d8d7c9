//! Stages whose documents the router makes itself: `$queryStats`, `$querySettings`. What follows them
//! in the pipeline runs here, too.

use banyan_query::pipeline::{Pipeline, outside_admin};
use banyan_query::query_settings;
use banyan_query::query_stats::Transform;
use banyan_wire::{CommandError, Doc, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::context::{CommandResult, Context};
use crate::cursors::{Cursor, Source, first_batch_size, reply};
use crate::errors::query_error;
use crate::fields;
use crate::javascript::RemoteEngine;

const STATS: &str = "$queryStats";
const SETTINGS: &str = "$querySettings";

/// Whether the pipeline begins with one of them.
pub fn are_asked_for(stages: &[&RawDocument]) -> bool {
    let named = |stage: &&RawDocument| {
        fields::get(stage, STATS).is_some() || fields::get(stage, SETTINGS).is_some()
    };
    stages.first().is_some_and(named)
}

pub async fn run(context: &Context<'_>, stages: &[&RawDocument]) -> CommandResult {
    let stage = stages.first().and_then(|stage| stage.iter().next()?.ok());
    let Some((name, argument)) = stage else {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "an empty stage",
        ));
    };
    let name = name.as_str();
    let of_collection = matches!(context.request.first_value(), Some(RawBsonRef::String(_)));
    if context.request.database != "admin" || of_collection {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            outside_admin(name),
        ));
    }
    let RawBsonRef::Document(argument) = argument else {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            format!("the argument of {name} must be an object"),
        ));
    };
    let documents = match name {
        STATS => stats(context, argument)?,
        _ => {
            let known = context.router.cluster_parameters.query_settings();
            query_settings::documents(&known, argument).map_err(query_error)?
        }
    };
    piped(context, &stages[1..], documents).await
}

fn stats(
    context: &Context<'_>,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let transform = Transform::parse(argument).map_err(query_error)?;
    let as_of = context.router.gossip.latest();
    Ok(context.router.query_stats.documents(&transform, as_of))
}

/// Answers with what the stages make of the documents.
pub async fn piped(
    context: &Context<'_>,
    stages: &[&RawDocument],
    documents: Vec<RawDocumentBuf>,
) -> CommandResult {
    let inner = banyan_query::Context {
        javascript: RemoteEngine::of(context.router, &context.ending()),
        ..banyan_query::Context::default()
    };
    let pipeline = Pipeline::parse(stages, &inner);
    let mut execution = pipeline.and_then(|p| p.start(None)).map_err(query_error)?;
    for document in &documents {
        execution.push(document).map_err(query_error)?;
    }
    while execution.drain().map_err(query_error)? {}
    let mut results: Vec<Doc> = Vec::new();
    while let Some(document) = execution.pop().map_err(query_error)? {
        results.push(document.into());
    }
    let ns = format!("{}.$cmd.aggregate", context.request.database);
    let body = &context.request.body;
    let source = Source::Listed(results.into_iter());
    let mut cursor = Cursor::new(ns.clone(), source, body).owned_by(context.owner());
    let options = fields::document(body, "cursor")?;
    let batch = cursor.batch(first_batch_size(body, options)).await?;
    if cursor.is_done() {
        return Ok(reply("firstBatch", &batch, 0, &ns));
    }
    let id = context
        .router
        .cursors
        .insert(cursor.within(context.deadline));
    Ok(reply("firstBatch", &batch, id, &ns))
}
