//! `mapReduce`: map, reduce and output on one node.

use std::time::Instant;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_execution::Interrupt;
use banyan_execution::tickets::blocking;
use banyan_node::commands::table::{BoxFuture, CommandResult, CommandSpec, Run};
use banyan_node::context::CommandContext;
use banyan_node::forms;
use banyan_script::JobError;
use banyan_script::hosts::{Counters, Reduced};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::error::Failure;
use super::explain;
use super::hosts::start;
use super::input::{self, Prepared};
use super::output::{self, Writer};
use super::parameters::{self, BYPASS, Input, Mode, Out};
use super::reply;

pub static SPEC: CommandSpec = CommandSpec::new("mapReduce", Run::Future(run))
    .access(Access::Checked(reads_and_writes::map_reduce))
    .aliases(&["mapreduce"])
    .help("map, reduce and finalize in JavaScript")
    .takes_concern_with_output()
    .explained(forms::of_explained_read)
    .explained_by(Run::Future(explain::run))
    .fields(&FIELDS);

/// The fields of the command; the parts of one over several shards know them as well.
pub const FIELDS: [&str; 12] = [
    "map",
    "reduce",
    "finalize",
    "scope",
    "query",
    "sort",
    "limit",
    "out",
    "verbose",
    "jsMode",
    "collation",
    BYPASS,
];

/// Inline results have to fit into the reply.
const INLINE_BYTES_MAX: usize = banyan_document::MAX_DOCUMENT_BYTES;

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move { blocking(|| map_reduce(ctx)) })
}

fn map_reduce(ctx: &CommandContext<'_>) -> CommandResult {
    let started = Instant::now();
    parameters::check(ctx)?;
    let input = Input::parse(ctx)?;
    let functions = parameters::functions(ctx, true, input.collator(ctx))?;
    let out = Out::parse(ctx)?;
    let verbose = parameters::is_verbose(ctx)?;
    if matches!(out, Out::Collection { .. }) {
        ctx.node.replica.writable_term()?;
    }
    let prepared = Prepared::new(ctx, &input)?;
    let interrupt = ctx.interrupt();
    let mut job = start(ctx, &functions)?;
    let mapped = prepared
        .map(&mut job, interrupt)
        .map_err(|e| e.into_error(interrupt))?;
    let map_ms = reply::milliseconds(started);
    let mut counters = mapped.counters;
    let inputs = input::sorted(mapped.runs);
    let mut reply = RawDocumentBuf::new();
    let written = write(ctx, job.reduce(inputs, true), &out, &mut reply);
    counters.output = written.map_err(|failure| failure.into_error(interrupt))?;
    counters.reduce += job.reduces();
    job.done();
    finish_reply(&mut reply, started, counters, verbose.then_some(map_ms));
    Ok(reply)
}

/// Puts the results where they belong; gives back how many there were.
pub fn write(
    ctx: &CommandContext<'_>,
    mut reduced: Reduced<'_, Failure>,
    out: &Out,
    reply: &mut RawDocumentBuf,
) -> Result<i64, Failure> {
    match out {
        Out::Inline => {
            let (results, count) = inline(&mut reduced)?;
            reply.append(bson::cstr!("results"), results);
            Ok(count)
        }
        Out::Collection {
            mode,
            database,
            collection,
            ..
        } => {
            let mut reduced = match mode {
                Mode::Reduce => {
                    reduced.with_existing(output::existing(ctx.node, database, collection))
                }
                Mode::Replace | Mode::Merge => reduced,
            };
            let bypass = parameters::flag(ctx, BYPASS)?;
            let mut writer = Writer::open(ctx.node, *mode, database, collection, bypass)?;
            while let Some(document) = reduced.next_document()? {
                writer.push(document)?;
            }
            let written = writer.finish()?;
            reply::append_result(reply, out);
            Ok(written)
        }
    }
}

fn inline(reduced: &mut Reduced<'_, Failure>) -> Result<(RawArrayBuf, i64), Failure> {
    let mut results = RawArrayBuf::new();
    let mut bytes = 0;
    let mut count = 0;
    while let Some(document) = reduced.next_document()? {
        bytes += document.as_bytes().len() + 8;
        if bytes > INLINE_BYTES_MAX {
            return Err(CommandError::new(
                ErrorCode::BSONObjectTooLarge,
                "the inline results of map-reduce do not fit into a reply; \
                 give it a collection to write to",
            )
            .into());
        }
        results.push(document);
        count += 1;
    }
    Ok((results, count))
}

pub fn finish_reply(
    reply: &mut RawDocumentBuf,
    started: Instant,
    counters: Counters,
    map_ms: Option<i64>,
) {
    let total = reply::milliseconds(started);
    reply.append(bson::cstr!("timeMillis"), total);
    if let Some(map) = map_ms {
        let timing = rawdoc! { "mapTime": map, "reduceTime": total - map, "total": total };
        reply.append(bson::cstr!("timing"), timing);
    }
    reply.append(bson::cstr!("counts"), reply::counts(counters));
    reply.append(bson::cstr!("ok"), 1.0);
}

/// For callers that have no results to reduce with others.
pub fn job_error(error: JobError, interrupt: &Interrupt) -> CommandError {
    Failure::Job(error).into_error(interrupt)
}
