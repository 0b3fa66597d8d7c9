//! `explain` of a `mapReduce`: the plan that finds the documents, and the stages of the aggregation
//! that it comes to. What is executed writes nothing.

use std::time::Instant;

use banyan_execution::Executor;
use banyan_execution::tickets::blocking;
use banyan_node::commands::explanation::{Around, Verbosity, explain_run, finish};
use banyan_node::commands::table::{BoxFuture, CommandResult};
use banyan_node::context::CommandContext;
use banyan_script::MapReduceSpec;
use banyan_script::hosts::Counters;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::error::Failure;
use super::hosts::start;
use super::input::{self, Prepared};
use super::parameters::{self, Input, Mode, Out};
use super::reply::milliseconds;

/// Runs in the context of the `explain`.
pub fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move { blocking(|| explain(ctx)) })
}

fn explain(ctx: &CommandContext<'_>) -> CommandResult {
    let Some(RawBsonRef::Document(inner)) = ctx.argument() else {
        return Err(CommandError::new(ErrorCode::TypeMismatch, "no command"));
    };
    let verbosity = Verbosity::of(ctx)?;
    let Some(spec) = ctx.table.find("mapReduce") else {
        return Err(CommandError::new(ErrorCode::CommandNotFound, "mapReduce"));
    };
    let request = Request::command(ctx.database(), inner.to_owned());
    let explained = ctx.part(&request, spec, ctx.deadline, ctx.handle().clone())?;
    explain_parsed(&explained, inner, verbosity)
}

/// `ctx`: that of the command which is explained.
fn explain_parsed(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> CommandResult {
    parameters::check(ctx)?;
    let input = Input::parse(ctx)?;
    let functions = parameters::functions(ctx, true, input.collator(ctx))?;
    let out = Out::parse(ctx)?;
    let prepared = Prepared::new(ctx, &input)?;
    let stages = Stages::new(&functions, &out);
    // Without an order or a limit it is a part of the plan.
    let in_plan = input.sort.is_none() && input.limit.is_none();
    let around = Around {
        fails: true,
        projection: in_plan.then_some(&stages.emits),
        ..Around::default()
    };
    let started = Instant::now();
    let mut counters = Counters::default();
    let mut execute = |executor: &mut Executor| {
        counters = count(ctx, &functions, executor)
            .map_err(|failure| failure.into_error(ctx.interrupt()))?;
        Ok(u64::try_from(counters.input).unwrap_or_default())
    };
    let request = prepared.request();
    let cursor = explain_run(
        ctx,
        input.collection,
        request,
        around,
        verbosity,
        &mut execute,
    )?;
    let executed = (verbosity > Verbosity::Planner).then(|| Executed {
        counters,
        millis: milliseconds(started),
    });
    let mut explained = RawArrayBuf::new();
    for stage in stages.told(cursor, in_plan, executed.as_ref()) {
        explained.push(stage);
    }
    Ok(finish(ctx, inner, rawdoc! { "stages": explained }))
}

/// Maps and reduces what the plan finds, and only counts the results.
fn count(
    ctx: &CommandContext<'_>,
    functions: &MapReduceSpec,
    executor: &mut Executor,
) -> Result<Counters, Failure> {
    let mut job = start(ctx, functions)?;
    let feeders = job.start_mapping()?;
    input::feed_in_turn(executor, feeders)?;
    let mapped = job.finish_mapping()?;
    let mut counters = mapped.counters;
    let mut reduced = job.reduce(input::sorted(mapped.runs), true);
    while reduced.next_document()?.is_some() {
        counters.output += 1;
    }
    job.done();
    Ok(counters)
}

/// What an execution has come to.
struct Executed {
    counters: Counters,
    millis: i64,
}

/// The stages that do what the command does.
struct Stages {
    emits: RawDocumentBuf,
    group: RawDocumentBuf,
    finalize: Option<RawDocumentBuf>,
    output: Option<RawDocumentBuf>,
}

impl Stages {
    fn new(functions: &MapReduceSpec, out: &Out) -> Stages {
        let map = functions.map.as_deref().unwrap_or_default();
        let reduce = functions.reduce.as_str();
        let finalize = functions.finalize.as_deref().map(|finalize| {
            let call = rawdoc! { "body": finalize, "args": ["$_id", "$value"], "lang": "js" };
            rawdoc! { "$project": { "_id": true, "value": { "$function": call } } }
        });
        let reduced = rawdoc! { "$_internalJsReduce": { "data": "$emits", "eval": reduce } };
        Stages {
            emits: rawdoc! {
                "emits": { "$_internalJsEmit": { "eval": map, "this": "$$ROOT" } },
                "_id": false,
            },
            group: rawdoc! { "$group": { "_id": "$emits.k", "value": reduced } },
            finalize,
            output: output(functions, out),
        }
    }

    /// `in_plan`: the first of them is told with the plan.
    fn told(
        self,
        cursor: RawDocumentBuf,
        in_plan: bool,
        executed: Option<&Executed>,
    ) -> Vec<RawDocumentBuf> {
        let counters = executed.map(|executed| executed.counters);
        let Counters {
            input,
            emit,
            output,
            ..
        } = counters.unwrap_or_default();
        let mut stages = vec![(rawdoc! { "$cursor": cursor }, input)];
        if !in_plan {
            stages.push((rawdoc! { "$project": self.emits }, input));
        }
        stages.push((rawdoc! { "$unwind": { "path": "$emits" } }, emit));
        stages.push((self.group, output));
        stages.extend(self.finalize.map(|stage| (stage, output)));
        stages.extend(self.output.map(|stage| (stage, 0)));
        let told = stages.into_iter().map(|(mut stage, returned)| {
            if let Some(executed) = executed {
                stage.append(cstr!("nReturned"), returned);
                stage.append(cstr!("executionTimeMillisEstimate"), executed.millis);
            }
            stage
        });
        told.collect()
    }
}

/// The stage that writes the results. `None`: they are in the reply.
fn output(functions: &MapReduceSpec, out: &Out) -> Option<RawDocumentBuf> {
    let Out::Collection {
        mode,
        database,
        collection,
        ..
    } = out
    else {
        return None;
    };
    let target = rawdoc! { "db": database.as_str(), "coll": collection.as_str() };
    let reduced_anew = || {
        let call = rawdoc! {
            "args": ["$_id", ["$value", "$$new.value"]],
            "body": functions.reduce.as_str(),
            "lang": "js",
        };
        rawdoc! { "$project": { "value": { "$function": call } } }
    };
    Some(match mode {
        Mode::Replace => rawdoc! { "$out": target },
        Mode::Merge => rawdoc! { "$merge": {
            "into": target, "on": "_id", "whenMatched": "replace", "whenNotMatched": "insert",
        } },
        Mode::Reduce => rawdoc! { "$merge": {
            "into": target,
            "on": "_id",
            "let": { "new": "$$ROOT" },
            "whenMatched": [reduced_anew()],
            "whenNotMatched": "insert",
        } },
    })
}
