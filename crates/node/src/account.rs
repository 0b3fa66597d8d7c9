//! What is noted of a command when it has ended: in the counters, in `top`, in the log if it was
//! slow.

use std::time::Duration;

use banyan_access::redaction;
use banyan_execution::work::Work;
use banyan_process::figures::{Ending, class_of};
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocumentBuf;

use crate::commands::table::{CommandResult, CommandSpec};
use crate::context::CommandContext;
use crate::counters::Counters;
use crate::operations::operation_word;
use crate::profiling::{self, collection_of, returns_documents};
use crate::query_shapes;
use crate::shape;
use crate::top::{Kind, Operation, Scans};

/// A command that a client sent, or the process itself, has ended.
pub fn settle(ctx: &CommandContext<'_>, place: usize, result: &CommandResult) {
    let took = ctx.busy();
    ctx.work.settle();
    query_shapes::settle(ctx, result);
    let counters = ctx.node.counters.local();
    if let Some(command) = ctx.table.counts(place) {
        command.note(match result {
            Ok(_) => Ending::Well,
            Err(error) if error.code == ErrorCode::QueryRejectedBySettings => Ending::Rejected,
            Err(_) => Ending::Failed,
        });
    }
    count_operation(counters, ctx.spec);
    // What only looks at memory touches no documents, and names no collection.
    if !ctx.spec.vital {
        count_statements(counters, &ctx.work);
        // What an explanation runs is no work of its own, as in MongoDB.
        if ctx.spec.name != "explain" {
            count_documents(counters, ctx.spec, &ctx.work);
        }
        note_top(ctx, took);
    }
    counters.user_errors.add(u64::from(result.is_err()));
    counters.latencies.note(class_of(ctx.spec.name), took);
    note_slow(ctx, took, result);
}

/// A command has ended that ran as a part of another one.
pub fn settle_part(whole: &CommandContext<'_>, part: &CommandContext<'_>, result: &CommandResult) {
    whole.work.absorb(&part.work);
    note_top(part, part.busy());
    profiling::keep_part(whole, part, result);
}

/// A request has ended before there was a command to run.
pub fn refused(counters: &Counters, is_known: bool) {
    counters.unknown_commands.add(u64::from(!is_known));
    counters.user_errors.add(u64::from(is_known));
}

fn count_operation(counters: &Counters, spec: &CommandSpec) {
    let operations = &counters.operations;
    match spec.name {
        "find" => operations.query.add(1),
        "getMore" => operations.getmore.add(1),
        "insert" | "update" | "delete" => {}
        _ => operations.command.add(1),
    }
}

/// An aggregation with an output writes by statements, too.
fn count_statements(counters: &Counters, work: &Work) {
    let operations = &counters.operations;
    operations.insert.add(work.insert_tried.value());
    operations.update.add(work.update_tried.value());
    operations.delete.add(work.delete_tried.value());
    counters.user_errors.add(work.write_errors.value());
}

fn count_documents(counters: &Counters, spec: &CommandSpec, work: &Work) {
    if returns_documents(spec) {
        counters.returned.add(work.returned.value());
    }
    counters.inserted.add(work.inserted.value());
    counters.updated.add(work.matched.value());
    counters.deleted.add(work.deleted.value());
    counters.keys_examined.add(work.keys_examined.value());
    counters
        .documents_examined
        .add(work.documents_examined.value());
    counters.collection_scans.add(work.collection_scans.value());
    counters.tailable_scans.add(work.tailable_scans.value());
    counters.sorts.add(work.sorts.value());
    let retried = work.retried.value();
    counters.retried_statements.add(retried);
    counters.retried_commands.add(u64::from(retried > 0));
}

/// What kind of operation a command is, where it works on a collection that it names.
fn kind_of(spec: &CommandSpec) -> Kind {
    match spec.name {
        "find" => Kind::Queries,
        "getMore" => Kind::GetMore,
        "insert" => Kind::Insert,
        "update" => Kind::Update,
        "delete" => Kind::Remove,
        _ => Kind::Commands,
    }
}

fn note_top(ctx: &CommandContext<'_>, took: Duration) {
    let Some(collection) = collection_of(ctx) else {
        return;
    };
    let catalog = ctx.node.replica.store.catalog();
    let Some(found) = catalog.get(ctx.database(), collection) else {
        return;
    };
    let kind = kind_of(ctx.spec);
    let count = match kind {
        Kind::Update => ctx.work.update_tried.value().max(1),
        Kind::Remove => ctx.work.delete_tried.value().max(1),
        _ => 1,
    };
    let operation = Operation {
        kind,
        class: class_of(ctx.spec.name),
        writes: ctx.spec.writes,
        count,
        took,
        scans: Scans {
            total: ctx.work.collection_scans.value(),
            tailable: ctx.work.tailable_scans.value(),
        },
    };
    ctx.node.top.note(found.id, &operation);
}

fn note_slow(ctx: &CommandContext<'_>, took: Duration, result: &CommandResult) {
    // Drivers ask to be answered when something has changed.
    if ctx.spec.name == "hello" {
        return;
    }
    let verdict = profiling::judge(ctx, took);
    if !profiling::keep(ctx, took, result, &verdict) {
        return;
    }
    let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    let (database, work) = (ctx.database(), &ctx.work);
    let stats = work.plan();
    let choice = stats.as_ref().and_then(|stats| stats.choice());
    let hash = |hash: Option<u32>| hash.map(|hash| format!("{hash:08X}"));
    let name = collection_of(ctx).unwrap_or("$cmd");
    let plan = work.plan_summary();
    let some = |counter: &banyan_process::figures::Counter| {
        Some(counter.value()).filter(|value| *value > 0)
    };
    let examined = plan.is_some() || work.documents_examined.value() > 0;
    let returned = returns_documents(ctx.spec);
    let error: Option<&CommandError> = result.as_ref().err();
    let reply: Option<&RawDocumentBuf> = result.as_ref().ok();
    tracing::info!(
        connection = ctx.conn.id,
        r#type = operation_word(ctx.spec.name),
        ns = format_args!("{database}.{name}"),
        command = shape::logged(&redaction::redacted(ctx.request)),
        planSummary = plan,
        keysExamined = examined.then(|| work.keys_examined.value()),
        docsExamined = examined.then(|| work.documents_examined.value()),
        fromMultiPlanner = choice.and_then(|c| c.from_multi_planner.then_some(true)),
        replanned = choice.and_then(|c| c.replan_reason.is_some().then_some(true)),
        replanReason = choice.and_then(|c| c.replan_reason.as_deref()),
        queryHash = hash(stats.as_ref().and_then(|stats| stats.query_hash())),
        queryShapeHash = ctx.query.shape.as_ref().map(|shape| shape.to_string()),
        planCacheKey = hash(stats.as_ref().and_then(|stats| stats.plan_cache_key())),
        hasSortStage = (work.sorts.value() > 0).then_some(true),
        usedDisk = ctx.used_disk().then_some(true),
        nreturned = returned.then(|| work.returned.value()),
        nMatched = some(&work.matched),
        nModified = some(&work.modified),
        nUpserted = some(&work.upserted),
        ninserted = some(&work.inserted),
        ndeleted = some(&work.deleted),
        latchWaitMicros = some(&work.latch_wait),
        commitWaitMicros = some(&work.commit_wait),
        writeConcernWaitMicros = some(&work.concern_wait).filter(|micros| *micros > 1_000),
        reslen = reply.map(|reply| reply.as_bytes().len()),
        errCode = error.map(|error| error.code.code()),
        errMsg = error.map(|error| shape::shortened(&error.message).into_owned()),
        remote = %ctx.conn.peer,
        durationMillis = took_ms,
        "Slow query"
    );
}
