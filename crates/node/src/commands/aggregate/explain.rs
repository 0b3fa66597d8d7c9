//! `explain` of an aggregation.

use std::sync::Arc;

use banyan_execution::{Executor, Goal};
use banyan_query::QueryError;
use banyan_query::pipeline::{Execution, Flow, Pipeline};
use banyan_query::view::Resolved;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::leading::{Leading, put_count, take_leading};
use super::parameters::Parameters;
use crate::commands::explanation::{Around, Verbosity, explain_run, finish};
use crate::commands::pipeline_rows::{Gathering, Streaming};
use crate::commands::table::CommandResult;
use crate::commands::{change_stream, pipeline_sources};
use crate::context::CommandContext;
use crate::errors;
use crate::params;
use crate::views::{self, sharded};

/// Runs the stages behind a plan for what they come to: how many documents they were given, and
/// what `explain` tells of each. Nothing is written.
fn run_stages(
    ctx: &CommandContext<'_>,
    pipeline: &mut Pipeline,
    executor: &mut Executor,
    counts: bool,
) -> Result<(u64, Vec<RawDocumentBuf>), CommandError> {
    let mut count = None;
    if counts {
        let found = executor.count_up_to(u64::MAX).map_err(errors::query)?;
        put_count(pipeline, found).map_err(errors::query)?;
        count = Some(found);
    } else if executor.is_sample() {
        pipeline.remove_first();
    }
    let sources = pipeline_sources::of(ctx, pipeline, ctx.slot())?;
    let gathering = Gathering::of(pipeline, sources.as_ref());
    let streaming = Streaming::of(pipeline, sources.as_ref());
    let mut execution = pipeline.start_ahead(sources).map_err(errors::query)?;
    let run = || {
        if count.is_some_and(|count| count > 0) {
            execution.push(&rawdoc! {})?;
        } else if count.is_none()
            && let Some(gathering) = gathering
            && let Some(parts) = gathering.run(executor)?
        {
            parts
                .into_iter()
                .try_for_each(|part| execution.absorb(part))?;
        }
        let returned = push_all(executor, &mut execution, &streaming)?;
        while execution.drain()? {
            execution.discard()?;
        }
        Ok(returned)
    };
    let returned = run().map_err(errors::query)?;
    let found = match (count, pipeline.is_empty()) {
        (Some(count), _) => count,
        (None, true) => returned,
        (None, false) => execution.received(),
    };
    Ok((
        found,
        execution.explain(pipeline.stages(), executor.milliseconds()),
    ))
}

/// Has an execution see what is left of what a plan finds: how many results came at once.
fn push_all(
    executor: &mut Executor,
    execution: &mut Execution,
    streaming: &Arc<Streaming>,
) -> Result<u64, QueryError> {
    let (mut returned, mut streamed) = (0, None);
    loop {
        if streamed.is_none()
            && let Some(begun) = streaming.begin(executor)?
        {
            while execution.release()? == Flow::Full {
                returned += execution.discard()?;
            }
            execution.skip_stages(streaming.stages());
            streamed = Some(begun);
        }
        let row = match &mut streamed {
            Some(streamed) => streamed.next(executor),
            None => executor.next(),
        };
        let Some(row) = row else { break };
        let flow = execution.push(&row?)?;
        returned += execution.discard()?;
        if flow == Flow::Stop {
            break;
        }
    }
    execution.add_received(&streaming.received());
    Ok(returned)
}

/// What feeds the stages, with what it has returned, if it has run.
fn cursor_stage(name: &bson::raw::CStr, explained: RawDocumentBuf) -> RawDocumentBuf {
    let ran = explained.get_document("executionStats").ok();
    let told = |field| {
        let value = ran?.get(field).ok()??;
        params::number(value)
    };
    let counts = [told("nReturned"), told("executionTimeMillis")];
    let mut stage = RawDocumentBuf::new();
    stage.append(name, explained);
    if let [Some(returned), Some(milliseconds)] = counts {
        stage.append(cstr!("nReturned"), returned);
        stage.append(cstr!("executionTimeMillisEstimate"), milliseconds);
    }
    stage
}

/// Before an aggregation is explained: what it reads besides its collection has to be here.
/// `view`: what it was made of, if that is a view.
pub async fn prepare_explanation(
    ctx: &CommandContext<'_>,
    view: Option<(&str, &Resolved)>,
    body: &RawDocument,
) -> Result<(), CommandError> {
    let parameters = Parameters::parse(ctx.database(), body)?;
    if change_stream::starts(&parameters.stages) {
        return Ok(());
    }
    let context = parameters.context(ctx)?;
    let pipeline = parameters.pipeline(&context)?;
    sharded::check(ctx, view, &pipeline).await
}

/// `explain` of an aggregation of a collection: how the documents get into the pipeline, and its
/// stages.
pub fn explain(
    ctx: &CommandContext<'_>,
    body: &RawDocument,
    verbosity: Verbosity,
) -> CommandResult {
    let parameters = Parameters::parse(ctx.database(), body)?;
    if change_stream::starts(&parameters.stages) {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "explain of a $changeStream is not supported",
        ));
    }
    let context = parameters.context(ctx)?;
    let mut pipeline = parameters.pipeline(&context)?;
    if let Some(source) = pipeline.source() {
        pipeline_sources::check_place(ctx, source.name())?;
    }
    // What is wrong with the views among the other collections is told, whether or not they are read.
    views::foreign::of(ctx, &pipeline)?;
    let mut explained = RawArrayBuf::new();
    let mut stages = Vec::new();
    if let (Some(collection), None) = (parameters.collection, pipeline.source()) {
        let leading = Leading::of(ctx, collection, &pipeline)?;
        let name = match &leading.near {
            Some(_) => cstr!("$geoNearCursor"),
            None => cstr!("$cursor"),
        };
        let is_near = leading.near.is_some();
        let request = leading.request(ctx, &parameters);
        let counts = request.goal == Goal::Count;
        take_leading(&mut pipeline);
        let around = Around {
            fails: !pipeline.is_empty() && !parameters.only_projects(),
            ..Around::default()
        };
        let run = |executor: &mut Executor| {
            let (found, run) = run_stages(ctx, &mut pipeline, executor, counts)?;
            stages = run;
            Ok(found)
        };
        let cursor = explain_run(ctx, collection, request, around, verbosity, run)?;
        if pipeline.is_empty() && !is_near {
            return Ok(finish(ctx, body, cursor));
        }
        explained.push(cursor_stage(name, cursor));
    }
    let first = parameters.stages.first();
    let first = first.and_then(|stage| stage.iter().next()?.ok());
    let has_documents = first.is_some_and(|(name, _)| name.as_str() == "$documents");
    if has_documents && verbosity != Verbosity::Planner {
        // Nothing is told of how it went, but for what is wrong.
        let sources = pipeline_sources::of(ctx, &pipeline, ctx.slot())?;
        let mut execution = pipeline.start(sources).map_err(errors::query)?;
        while execution.drain().map_err(errors::query)? {
            execution.discard().map_err(errors::query)?;
        }
    }
    if stages.is_empty() {
        stages = pipeline.to_documents();
    }
    for stage in stages {
        explained.push(stage);
    }
    Ok(finish(ctx, body, rawdoc! { "stages": explained }))
}
