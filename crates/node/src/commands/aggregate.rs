//! `aggregate`: a pipeline over a collection, as a cursor.

mod explain;
mod leading;
mod parameters;

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_execution::{Goal, InterruptSlot, PlanSummaryStats, Row, Rows};
use banyan_query::pipeline::{self, Output, Pipeline};
use banyan_query::query_settings::PARAMETER;
use banyan_query::view::Resolved;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use self::leading::{Leading, put_count, take_leading};
use self::parameters::{check_explained, check_form};
use super::explanation::Verbosity;
use super::pipeline_rows::{Input, PipelineRows};
use super::table::{self, BoxFuture, CommandResult, CommandSpec};
use super::validation::BYPASS;
use super::{change_stream, out, pipeline_sources};
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::cursors::Cursor;
use crate::cursors::first::{self, BatchOptions};
use crate::errors;
use crate::read_concern;
use crate::reads;
use crate::views::sharded;

pub use self::explain::{explain, prepare_explanation};
pub use self::parameters::Parameters;

pub static SPEC: CommandSpec = CommandSpec::new("aggregate", table::Run::Future(run))
    .access(Access::Checked(reads_and_writes::aggregate))
    .in_transaction()
    .fields(&[
        "pipeline",
        "cursor",
        "explain",
        "hint",
        "let",
        "collation",
        "allowDiskUse",
        "needsMerge",
        BYPASS,
        collection_uuid::FIELD,
    ])
    .ignored(&[
        PARAMETER,
        "fromMongos",
        "includeQueryStatsMetrics",
        "isMapReduceCommand",
        "runtimeConstants",
    ])
    .form(check_form)
    .explained(check_explained)
    .takes_concern()
    .computes();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        match parameters.collection {
            Some(name) => collection_uuid::check(ctx, name)?,
            None if collection_uuid::is_asked(ctx) => {
                return Err(CommandError::new(
                    ErrorCode::Location(4928901),
                    "collectionUUID is not supported for a collectionless aggregation",
                ));
            }
            None => {}
        }
        match (parameters.collection, parameters.resolved(ctx)?) {
            (Some(name), Some(view)) => {
                // What is wrong with the stages' outlines is told before the view is looked at.
                Pipeline::check_outlines(&parameters.stages).map_err(errors::query)?;
                let body = view.of_aggregate(ctx.body()).map_err(errors::query)?;
                of_view(ctx, name, &view, &body).await
            }
            _ => answer(ctx, ctx.body(), &parameters).await,
        }
    })
}

/// Answers the aggregation that a read of a view comes to.
pub async fn of_view(
    ctx: &CommandContext<'_>,
    name: &str,
    view: &Resolved,
    body: &RawDocument,
) -> CommandResult {
    let parameters = Parameters {
        view: Some((name, view)),
        ..Parameters::parse(ctx.database(), body)?
    };
    answer(ctx, body, &parameters).await
}

/// The one document in which the aggregation ends that a read of a view comes to.
pub async fn one_of_view(
    ctx: &CommandContext<'_>,
    name: &str,
    view: &Resolved,
    body: &RawDocument,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let parameters = Parameters {
        view: Some((name, view)),
        ..Parameters::parse(ctx.database(), body)?
    };
    let context = parameters.context(ctx)?;
    let pipeline = parameters.pipeline(&context)?;
    sharded::check(ctx, parameters.view, &pipeline).await?;
    ctx.compute(|| {
        let mut rows = rows(ctx, &parameters, pipeline)?.rows;
        let mut batch = VecDeque::new();
        rows.next_batch(1, &mut batch).map_err(errors::query)?;
        Ok(batch.pop_front().map(Row::into_owned))
    })
    .await
}

async fn answer(
    ctx: &CommandContext<'_>,
    body: &RawDocument,
    parameters: &Parameters<'_>,
) -> CommandResult {
    if parameters.explain {
        return ctx.compute(|| explain(ctx, body, Verbosity::Planner)).await;
    }
    if !parameters.has_cursor {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
    }
    let options = BatchOptions::from_cursor_field(SPEC.name, body)?;
    let context = parameters.context(ctx)?;
    if change_stream::starts(&parameters.stages) {
        let open = || {
            let cursor = change_stream::open(
                ctx,
                parameters.collection,
                parameters.namespace(ctx.database()),
                &parameters.stages,
                &context,
            )?;
            first::reply(ctx, cursor, options)
        };
        return ctx.compute(open).await;
    }
    let pipeline = parameters.pipeline(&context)?;
    sharded::check(ctx, parameters.view, &pipeline).await?;
    let namespace = parameters.namespace(ctx.database());
    if let Some(output) = pipeline.output().cloned() {
        read_concern::check_output(ctx, output.stage_name())?;
        let reads_target = reads_target(ctx, parameters, &pipeline, &output);
        let Results { rows, slot, .. } = ctx.compute(|| rows(ctx, parameters, pipeline)).await?;
        let results = out::Results::new(rows, slot, reads_target);
        out::write(ctx, &output, context.collator.as_ref(), results).await?;
        return crate::cursors::batch::single(&namespace, []);
    }
    let open = || {
        let Results { rows, slot, stats } = rows(ctx, parameters, pipeline)?;
        let mut cursor = Cursor::new(namespace, rows, slot);
        cursor.stats = stats;
        first::reply(ctx, cursor, options)
    };
    ctx.compute(open).await
}

/// Whether a pipeline reads the collection that its results go into document by document.
fn reads_target(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    pipeline: &Pipeline,
    output: &Output,
) -> bool {
    let Output::Merge(merge) = output else {
        return false;
    };
    let own = parameters.collection.map(|name| (None, name.to_owned()));
    let database = |named: &Option<String>| named.clone().unwrap_or(ctx.database().to_owned());
    let target = database(&merge.database);
    let mut read = own.into_iter().chain(pipeline.collections_read());
    read.any(|(named, collection)| collection == merge.collection && database(&named) == target)
}

/// What comes out of a pipeline, before it is batched.
pub struct Results {
    pub rows: Rows,
    pub slot: Arc<InterruptSlot>,
    pub stats: Option<Arc<PlanSummaryStats>>,
}

/// Plans and starts a pipeline.
pub fn rows(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    mut pipeline: Pipeline,
) -> Result<Results, CommandError> {
    ctx.interrupt();
    let slot = ctx.slot().clone();
    let (input, stats) = match pipeline.source() {
        Some(source) => match source.get::<pipeline::Source>() {
            Some(source) => {
                let (name, argument) = (source.name, &source.argument);
                let documents =
                    pipeline_sources::documents(ctx, parameters.collection, name, argument)?;
                pipeline.remove_first();
                let rows = documents.into_iter();
                let rows = rows.map(|document| Ok(Row::Owned(document)));
                (Input::Listed(Box::new(rows)), None)
            }
            None => (Input::Listed(Box::new(std::iter::empty())), None),
        },
        None => {
            let Some(collection) = parameters.collection else {
                let text = "a collection is required";
                return Err(CommandError::new(ErrorCode::InvalidNamespace, text));
            };
            open(ctx, parameters, collection, &mut pipeline)?
        }
    };
    let sources = pipeline_sources::of(ctx, &pipeline, &slot)?;
    let rows = PipelineRows::new(&pipeline, input, sources).map_err(errors::query)?;
    Ok(Results {
        rows: Box::new(rows),
        slot,
        stats,
    })
}

/// Plans what the first stages ask of the collection, and takes the stages off that the plan has
/// taken over.
fn open(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    collection: &str,
    pipeline: &mut Pipeline,
) -> Result<(Input, Option<Arc<PlanSummaryStats>>), CommandError> {
    let leading = Leading::of(ctx, collection, pipeline)?;
    let asks_nothing = leading.filter.is_empty() && parameters.hint.is_none();
    let request = leading.request(ctx, parameters);
    let counts = request.goal == Goal::Count;
    take_leading(pipeline);
    let known = match counts && asks_nothing {
        true => reads::known_count(ctx, collection)?,
        false => None,
    };
    let (count, stats) = match known {
        Some(count) => (count, None),
        None => {
            let mut executor = reads::plan(ctx, collection, request)?.open(ctx)?;
            let stats = Some(executor.stats.clone());
            if executor.is_sample() {
                pipeline.remove_first();
            }
            if !counts {
                return Ok((Input::Plan(Box::new(executor)), stats));
            }
            let count = executor.count_up_to(u64::MAX).map_err(errors::query)?;
            (count, stats)
        }
    };
    put_count(pipeline, count).map_err(errors::query)?;
    // No documents make no group.
    let documents = (count > 0).then(|| Ok(Row::Owned(rawdoc! {})));
    Ok((Input::Listed(Box::new(documents.into_iter())), stats))
}
