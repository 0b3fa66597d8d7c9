//! Pipelines as a router reads them, and how they are divided between the shards and itself.

use std::sync::Arc;

use banyan_document::{Collator, DocumentWriter};
use banyan_query::let_variables;
use banyan_query::pipeline::{Pipeline, Split};
use banyan_query::text::{SearchedIndex, TextContext};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::catalog::Route;
use crate::collation;
use crate::context::Context;
use crate::ending::Ending;
use crate::errors::query_error;
use crate::fields;
use crate::javascript::RemoteEngine;

pub fn stage_name(stage: &RawDocument) -> &str {
    stage
        .iter_elements()
        .next()
        .and_then(Result::ok)
        .map_or("", |element| element.key().as_str())
}

pub fn is_output(stage: &RawDocument) -> bool {
    matches!(stage_name(stage), "$out" | "$merge")
}

fn query_context(
    context: &Context<'_>,
    collator: Option<Collator>,
    ending: &Arc<Ending>,
) -> Result<banyan_query::Context, CommandError> {
    let body = &context.request.body;
    let budget = ending.budget();
    if let Some(RawBsonRef::Boolean(allowed)) = fields::get(body, "allowDiskUse") {
        budget.allow_disk(allowed);
    }
    let mut own = banyan_query::Context {
        collator,
        budget,
        database: Some(context.request.database.as_str().into()),
        text: Some(TextContext::new(SearchedIndex::Elsewhere)),
        javascript: RemoteEngine::of(context.router, ending),
        ..banyan_query::Context::default()
    };
    if let Some(RawBsonRef::Document(variables)) = fields::get(body, "let") {
        let_variables::define(&mut own, variables).map_err(query_error)?;
    }
    Ok(own)
}

/// What is parsed: a pipeline, or all of one that is run over a collection, where what begins with
/// documents of its own is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    Stages,
    OfCollection,
}

pub fn parse(
    context: &Context<'_>,
    stages: &[&RawDocument],
    parsed: Parsed,
    collator: Option<Collator>,
    ending: &Arc<Ending>,
) -> Result<Pipeline, CommandError> {
    let own = query_context(context, collator, ending)?;
    match parsed {
        Parsed::Stages => Pipeline::parse(stages, &own),
        Parsed::OfCollection => Pipeline::parse_of_command(stages, &own, true),
    }
    .map_err(query_error)
}

/// Whether the pipeline begins with what every shard says of itself.
pub fn begins_on_each_shard(stages: &[&RawDocument]) -> bool {
    let first = stages.first().map(|stage| stage_name(stage));
    matches!(
        first,
        Some("$collStats" | "$indexStats" | "$listCatalog" | "$planCacheStats")
    )
}

pub fn without_output<'a, 'b>(stages: &'b [&'a RawDocument]) -> &'b [&'a RawDocument] {
    match stages.split_last() {
        Some((last, rest)) if is_output(last) => rest,
        _ => stages,
    }
}

/// The stages by which each shard tells of itself, and the division of the others.
pub async fn divided<'a, 'b>(
    context: &Context<'_>,
    route: &Route,
    stages: &'b [&'a RawDocument],
    ending: &Arc<Ending>,
) -> Result<(&'b [&'a RawDocument], Split), CommandError> {
    let (own, rest) = match begins_on_each_shard(stages) {
        true => stages.split_at(1),
        false => stages.split_at(0),
    };
    let parsed = match own {
        [] => Parsed::OfCollection,
        _ => Parsed::Stages,
    };
    let collator = collation::resolved(context, route, &context.request.body).await?;
    let split = parse(context, without_output(rest), parsed, collator, ending)?.split();
    if split.asks_metadata() && !split.asks_sort_key_alone() {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "a router does not know this $meta of documents that it merges",
        ));
    }
    Ok((own, split))
}

/// What of a pipeline shards do, and what the router does with what they send, to be shown.
pub struct Division {
    pub shards: Vec<RawDocumentBuf>,
    pub router: Vec<RawDocumentBuf>,
}

/// How the request's pipeline is divided between shards and the router.
pub async fn division(
    context: &Context<'_>,
    route: &Route,
    stages: &[&RawDocument],
) -> Result<Division, CommandError> {
    let (own, split) = divided(context, route, stages, &context.ending()).await?;
    let mut shards: Vec<_> = own
        .iter()
        .map(|stage| RawDocument::to_owned(stage))
        .collect();
    shards.extend(split.shard);
    let mut merged = DocumentWriter::new();
    merged.begin_document("$mergeCursors");
    if let Some(order) = &split.order {
        merged.append_doc("sort", &order.source);
    }
    merged.append_str("nss", &route.ns);
    merged.append_bool("allowPartialResults", false);
    merged.end();
    let mut router = vec![merged.finish()];
    router.extend(split.merge.to_documents());
    let output = stages.last().filter(|stage| is_output(stage));
    router.extend(output.map(|stage| RawDocument::to_owned(stage)));
    Ok(Division { shards, router })
}
