//! `serverStatus`: the process in numbers.

use bson::{RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::number;
use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::info;

pub static SPEC: CommandSpec = CommandSpec::new("serverStatus", Run::Inline(run))
    .aliases(&["serverstatus"])
    .needs(Needs::Any)
    // Each section can be switched on or off by its name; all of them are cheap here.
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let uptime = node.info.started_instant.elapsed();
    let mut reply = rawdoc! {
        "host": node.info.address.as_str(),
        "version": info::COMPATIBLE_VERSION,
        "process": node.info.program.as_str(),
        "pid": i64::from(std::process::id()),
        "uptime": uptime.as_secs_f64(),
        "uptimeMillis": long(uptime.as_millis()),
        "uptimeEstimate": long(uptime.as_secs().into()),
        "localTime": bson::DateTime::now(),
    };
    reply.append(cstr!("asserts"), asserts(ctx));
    reply.append(cstr!("globalLock"), global_lock(ctx));
    reply.append(cstr!("queues"), queues(ctx));
    reply.append(cstr!("connections"), connections(ctx));
    reply.append(cstr!("network"), network(ctx));
    reply.append(cstr!("opcounters"), opcounters(ctx));
    reply.append(cstr!("mem"), memory());
    reply.append(cstr!("metrics"), metrics(ctx));
    if let Some(statistics) = node.role().and_then(|role| role.statistics()) {
        reply.append(cstr!("shardingStatistics"), statistics);
    }
    reply.append(
        cstr!("storageEngine"),
        rawdoc! {
            "name": "banyan",
            "supportsCommittedReads": true,
            "persistent": true,
            "supportsSnapshotReadConcern": true,
        },
    );
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn asserts(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    rawdoc! {
        "regular": 0, "warning": 0, "msg": 0,
        "user": ctx.node.counters.user_errors.get(),
        "rollovers": 0,
    }
}

/// Nothing waits for a lock of the whole process; what is told is what runs.
fn global_lock(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let operations = ctx.node.operations.all();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let writers = operations
        .iter()
        .filter(|operation| operation.writes)
        .count();
    rawdoc! {
        "totalTime": long(ctx.node.info.started_instant.elapsed().as_micros()),
        "currentQueue": { "total": 0, "readers": 0, "writers": 0 },
        "activeClients": {
            "total": count(operations.len()),
            "readers": count(operations.len() - writers),
            "writers": count(writers),
        },
    }
}

/// The tickets that large operations hold while they compute, and who waits for one: operations
/// that have only begun, and those that give way to others from time to time.
fn queues(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let tickets = &ctx.node.tickets;
    let figures = tickets.figures();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    rawdoc! {
        "execution": {
            "out": count(figures.out),
            "available": count(figures.total - figures.out),
            "totalTickets": count(figures.total),
            "queueLength": count(figures.fresh + figures.large),
            "queued": { "begun": count(figures.large), "new": count(figures.fresh) },
            "parkedThreads": count(tickets.parked()),
            "totalWaits": long(figures.waits.into()),
        },
    }
}

fn connections(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let Some(counters) = ctx.node.info.wire_counters.get() else {
        return RawDocumentBuf::new();
    };
    use std::sync::atomic::Ordering::Relaxed;
    let current = counters.current.load(Relaxed) as u64;
    let available =
        (banyan_wire::server::Options::default().connections_max as u64).saturating_sub(current);
    let count = |n: u64| number(i64::try_from(n).unwrap_or(i64::MAX));
    rawdoc! {
        "current": count(current),
        "available": count(available),
        "totalCreated": count(counters.total.load(Relaxed)),
        "rejected": count(counters.rejected.load(Relaxed)),
        "active": count(ctx.node.operations.all().len() as u64),
    }
}

fn network(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let Some(counters) = ctx.node.info.wire_counters.get() else {
        return RawDocumentBuf::new();
    };
    use std::sync::atomic::Ordering::Relaxed;
    rawdoc! {
        "bytesIn": long(counters.bytes_in.load(Relaxed).into()),
        "bytesOut": long(counters.bytes_out.load(Relaxed).into()),
        "numRequests": long(counters.requests.load(Relaxed).into()),
    }
}

fn opcounters(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let counters = &ctx.node.counters;
    rawdoc! {
        "insert": counters.insert.get(),
        "query": counters.query.get(),
        "update": counters.update.get(),
        "delete": counters.delete.get(),
        "getmore": counters.getmore.get(),
        "command": counters.command.get(),
    }
}

fn memory() -> RawDocumentBuf {
    rawdoc! {
        "bits": 64,
        "resident": i32::try_from(info::resident_megabytes()).unwrap_or(i32::MAX),
        "virtual": i32::try_from(info::virtual_megabytes()).unwrap_or(i32::MAX),
        "supported": true,
    }
}

fn metrics(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let counters = &ctx.node.counters;
    let cursors = ctx.node.cursors.counts();
    let applied = ctx.node.machine.apply_counts();
    rawdoc! {
        "cursor": {
            "timedOut": long(cursors.timed_out.into()),
            "totalOpened": long(cursors.opened.into()),
            "open": {
                "total": long(cursors.open.into()),
                "holdingSnapshots": long(cursors.holding_snapshots.into()),
            },
        },
        "document": {
            "deleted": counters.documents_deleted.get(),
            "inserted": counters.documents_inserted.get(),
            "returned": counters.documents_returned.get(),
            "updated": counters.documents_updated.get(),
        },
        "queryExecutor": {
            "scanned": counters.keys_examined.get(),
            "scannedObjects": counters.documents_examined.get(),
            "collectionScans": { "total": counters.collection_scans.get() },
        },
        "operation": { "slow": counters.slow_commands.get() },
        "repl": {
            "apply": {
                "batches": {
                    "num": long(applied.batches.into()),
                    "totalMillis": long(applied.total_millis.into()),
                },
                "ops": long(applied.operations.into()),
            },
        },
    }
}

fn long(value: u128) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
