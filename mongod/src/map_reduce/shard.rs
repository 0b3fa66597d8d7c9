//! The two parts of a map-reduce over several shards, as the router asks for them.

use std::sync::Arc;
use std::time::Instant;

use banyan_access::check::Access;
use banyan_execution::tickets::blocking;
use banyan_execution::{InterruptSlot, Listed, Row, Rows};
use banyan_node::collation::Asked;
use banyan_node::commands::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use banyan_node::context::CommandContext;
use banyan_node::cursors::Cursor;
use banyan_node::cursors::first::{self, BatchOptions};
use banyan_query::{ErrorKind, QueryError};
use banyan_script::hosts::{Counters, Run as SortedRun, SortedDocuments};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf};

use super::command::{FIELDS, finish_reply, job_error, write};
use super::error::Failure;
use super::hosts::start;
use super::input::Prepared;
use super::parameters::{self, Input, Out};
use super::reply;
use super::shard_cursor::{CursorAddress, ShardCursor};

/// `{_shardMapReduce: "<collection>", …}` with all that the client gave: the router leaves it to
/// the shards to say what is wrong with it. Answers a cursor over `{_id, value}` in key order,
/// `host` (where that cursor is), `counts` and `timeMillis`.
pub static MAP_SPEC: CommandSpec = CommandSpec::new("_shardMapReduce", Run::Future(map))
    .access(Access::Member)
    .help("internal: one shard's part of a map-reduce")
    .parsed_as("mapReduce")
    .fields(&FIELDS);

/// `{_shardMapReduceFinish: "<collection>", reduce, finalize, scope, collation, out, inputs: [{host,
/// cursor, ns}]}` reduces the partial results of all shards and writes the outcome.
pub static FINISH_SPEC: CommandSpec =
    CommandSpec::new("_shardMapReduceFinish", Run::Future(finish))
        .access(Access::Member)
        .help("internal: the end of a map-reduce over several shards")
        .takes_concern_with_output()
        .needs(Needs::Readable)
        .fields(&[
            "reduce",
            "finalize",
            "scope",
            "out",
            "inputs",
            "verbose",
            "collation",
        ]);

fn map<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move { blocking(|| map_shard(ctx)) })
}

fn map_shard(ctx: &CommandContext<'_>) -> CommandResult {
    let started = Instant::now();
    parameters::check(ctx)?;
    let input = Input::parse(ctx)?;
    let functions = parameters::functions(ctx, true, input.collator(ctx))?;
    // Only the last part writes; what is wrong with it must not be found out there.
    Out::parse(ctx)?;
    let prepared = Prepared::new(ctx, &input)?;
    let interrupt = ctx.interrupt();
    let mut job = start(ctx, &functions)?;
    let mapped = prepared
        .map(&mut job, interrupt)
        .map_err(|e| e.into_error(interrupt))?;
    let mut counters = mapped.counters;
    // Merged here and now: the cursor must not keep a script host busy.
    let (partials, count) = job
        .merge_runs(mapped.runs)
        .map_err(|error| job_error(error, interrupt))?;
    counters.output = count;
    counters.reduce += job.reduces();
    job.done();
    let mut answer = open_cursor(ctx, input.collection, partials)?;
    answer.append(bson::cstr!("host"), ctx.node.info.address.as_str());
    answer.append(bson::cstr!("counts"), reply::counts(counters));
    answer.append(bson::cstr!("timeMillis"), reply::milliseconds(started));
    Ok(answer)
}

/// A cursor of which nothing has been read.
fn open_cursor(ctx: &CommandContext<'_>, collection: &str, partials: SortedRun) -> CommandResult {
    let namespace = format!("{}.{collection}", ctx.database());
    let rows: Rows = Box::new(Listed(partials.documents().map(|document| {
        document
            .map(Row::Owned)
            .map_err(|error| QueryError::new(ErrorKind::Location(96), error.to_string()))
    })));
    let slot = Arc::new(InterruptSlot::default());
    let cursor = Cursor::new(namespace, rows, slot);
    first::reply(
        ctx,
        cursor,
        BatchOptions {
            size: Some(0),
            ..BatchOptions::default()
        },
    )
}

fn finish<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move { blocking(|| finish_shards(ctx)) })
}

fn finish_shards(ctx: &CommandContext<'_>) -> CommandResult {
    let started = Instant::now();
    // The router names the one that the parts were made with.
    let collation = ctx
        .field("collation")
        .map_or(Ok(Asked::default()), Asked::parse)?;
    let collator = match collation {
        Asked::Named(collator) => collator,
        Asked::Inherited => None,
    };
    let functions = parameters::functions(ctx, false, collator)?;
    let out = Out::parse(ctx)?;
    if matches!(out, Out::Collection { .. }) {
        ctx.node.replica.writable_term()?;
    }
    let mut addresses = Vec::new();
    for input in ctx.required("inputs")?.array()?.into_iter().flatten() {
        let RawBsonRef::Document(input) = input else {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "'inputs' holds documents",
            ));
        };
        addresses.push(CursorAddress::parse(input, ctx.generic.lsid)?);
    }
    let (interrupt, client) = (ctx.interrupt(), ctx.client());
    let inputs = addresses
        .into_iter()
        .map(|address| {
            let cursor = ShardCursor::open(address, interrupt, client.clone());
            Box::new(cursor) as Box<dyn SortedDocuments<Failure>>
        })
        .collect();
    let mut job = start(ctx, &functions)?;
    let mut answer = RawDocumentBuf::new();
    let written = write(ctx, job.reduce(inputs, true), &out, &mut answer);
    let output = written.map_err(|failure| failure.into_error(interrupt))?;
    let counters = Counters {
        reduce: job.reduces(),
        output,
        ..Counters::default()
    };
    job.done();
    finish_reply(&mut answer, started, counters, None);
    Ok(answer)
}
