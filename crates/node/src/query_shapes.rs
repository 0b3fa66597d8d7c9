//! What a command that queries has because of its shape: settings, and a place in the statistics.
//!
//! A shape costs a pass over the command, so nobody looks for it while there are neither settings nor
//! a wish for statistics.

use std::sync::Arc;

use banyan_query::query_settings::{self, QuerySettings};
use banyan_query::query_stats::{Asked, Batch, Key, Work};
use banyan_query::shape::QueryShape;
use banyan_replication::views::{is_view, may_be};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode, OWN_CONNECTION_ID};
use bson::{RawBsonRef, RawDocument};

use crate::context::{CommandContext, CommandResult};
use crate::errors;
use crate::info::ClusterRole;
use crate::query_notes::QueryNotes;

/// What is to be known of the command's query before it runs. Fails where its settings have it refused.
pub fn note(ctx: &CommandContext<'_>) -> Result<QueryNotes, CommandError> {
    let node = ctx.node;
    let stats = &node.parameters.query_stats;
    let explains = match ctx.spec.name {
        "explain" => true,
        "aggregate" => {
            banyan_document::field(ctx.body(), "explain").is_some_and(banyan_document::is_true)
        }
        _ => false,
    };
    let versions = ctx.versions();
    // Elsewhere no router has looked, whatever a client says.
    let is_routed = node.info.role == ClusterRole::Shard
        && (versions.shard.is_some() || versions.database.is_some());
    let has_settings = node.cluster_parameters.have_query_settings(&node.replica);
    if !explains && !has_settings && !stats.is_on() && !is_routed {
        return Ok(QueryNotes::default());
    }
    let body = match (ctx.spec.name, ctx.argument()) {
        ("find" | "aggregate" | "distinct", _) => ctx.body(),
        ("explain", Some(RawBsonRef::Document(inner))) => inner,
        _ => return Ok(QueryNotes::default()),
    };
    if ctx.conn.id == OWN_CONNECTION_ID {
        return Ok(QueryNotes::default());
    }
    let mut notes = QueryNotes::default();
    // A router has looked, and counts.
    if is_routed {
        notes.settings = told(body)?;
        return Ok(notes);
    }
    let Some(shape) = QueryShape::of(ctx.database(), body) else {
        return Ok(notes);
    };
    if has_settings && !is_by_id(ctx, body) {
        let known = node.cluster_parameters.known(&node.replica);
        let found = known.query_settings.find(shape.hash());
        notes.settings = found.map(|found| Arc::new(found.settings.clone()));
        if !explains && found.is_some_and(|found| found.settings.rejects()) {
            tracing::debug!(shape = %shape, "query rejected by its settings");
            return Err(rejected());
        }
    }
    if !explains && stats.sample() {
        let asked = Asked {
            database: ctx.database(),
            body,
            client: ctx.conn.metadata().map(|client| &**client),
            collection_type: collection_type(ctx, body)?,
        };
        let recording = Arc::new(stats.record(Key::new(&shape, &asked)));
        notes.go_on(&Some(recording));
    }
    notes.shape = Some(shape);
    Ok(notes)
}

pub fn rejected() -> CommandError {
    CommandError::new(
        ErrorCode::QueryRejectedBySettings,
        "Query rejected by admin query settings",
    )
}

/// The settings that a router has found.
fn told(body: &RawDocument) -> Result<Option<Arc<QuerySettings>>, CommandError> {
    match banyan_document::field(body, query_settings::PARAMETER) {
        Some(RawBsonRef::Document(settings)) => {
            let settings = QuerySettings::parse(query_settings::PARAMETER, settings);
            settings
                .map(|settings| Some(Arc::new(settings)))
                .map_err(errors::query)
        }
        _ => Ok(None),
    }
}

/// What is found by its `_id` alone has no settings.
fn is_by_id(ctx: &CommandContext<'_>, body: &RawDocument) -> bool {
    ctx.spec.name == "find" && is_id_query(body)
}

/// Whether a command is a `find` of one `_id` and nothing else.
pub fn is_id_query(body: &RawDocument) -> bool {
    let filter = banyan_document::field(body, "filter").and_then(|filter| filter.as_document());
    filter.is_some_and(|filter| banyan_execution::plan::id_lookup(filter).is_some())
        && banyan_document::field(body, "collation").is_none()
        && banyan_document::field(body, "sort").is_none()
}

/// What kind of collection is read, in the words of `$queryStats`.
fn collection_type(
    ctx: &CommandContext<'_>,
    body: &RawDocument,
) -> Result<&'static str, CommandError> {
    let Some(RawBsonRef::String(name)) = banyan_document::first_value(body) else {
        return Ok("virtual");
    };
    let first = match banyan_document::field(body, "pipeline") {
        Some(RawBsonRef::Array(stages)) => stages.into_iter().next(),
        _ => None,
    };
    if let Some(Ok(RawBsonRef::Document(stage))) = first
        && banyan_document::field(stage, "$changeStream").is_some()
    {
        return Ok("changeStream");
    }
    let catalog = ctx.node.replica.store.catalog();
    if catalog.get(ctx.database(), name).is_some() {
        return Ok("collection");
    }
    if !may_be(&catalog, ctx.database(), name) {
        return Ok("nonExistent");
    }
    let buckets = format!("system.buckets.{name}");
    if catalog.get(ctx.database(), &buckets).is_some() {
        return Ok("timeseries");
    }
    Ok(
        match is_view(&ctx.node.replica, &Namespace::new(ctx.database(), name))? {
            true => "view",
            false => "nonExistent",
        },
    )
}

/// A command has ended: what it has done counts.
pub fn settle(ctx: &CommandContext<'_>, result: &CommandResult) {
    let Some(recording) = ctx.query.recording() else {
        return;
    };
    if result.is_err() {
        recording.discard();
        return;
    }
    let stats = ctx.work.plan();
    let choice = stats.as_ref().and_then(|stats| stats.choice());
    recording.add(&Batch {
        took: ctx.started.elapsed(),
        returned: ctx.work.returned.value(),
        work: Some(Work {
            time: ctx.busy(),
            keys_examined: ctx.work.keys_examined.value(),
            documents_examined: ctx.work.documents_examined.value(),
            sorted: ctx.work.sorts.value() > 0,
            used_disk: ctx.used_disk(),
            from_multi_planner: choice.is_some_and(|choice| choice.from_multi_planner),
            from_plan_cache: choice.is_some_and(|choice| !choice.from_multi_planner),
        }),
    });
}
