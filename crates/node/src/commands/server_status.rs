//! `serverStatus`: the process in numbers.
//!
//! What has no meaning here (a storage engine's own figures, locks, transactions of many
//! statements) is left out.

use banyan_access::check::Access;
use banyan_process::figures::{Counter, LatencySum, OperationClass, may_be_rejected, usage};
use banyan_process::machine;
use banyan_replication::set::hello::Asked;
use banyan_security::Action;
use banyan_wire::tls::operating;
use bson::raw::{CStr, CString};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::catalog_figures;
use super::coll_stats::{described_latency, number};
use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::counters::Counters;
use crate::info;
use crate::stored_defaults;

pub static SPEC: CommandSpec = CommandSpec::new("serverStatus", Run::Inline(run))
    .access(Access::Cluster(Action::ServerStatus))
    .aliases(&["serverstatus"])
    .needs(Needs::Any)
    // Each section can be switched off by its name.
    .lenient();

/// A section; `None` where it has nothing to tell.
type Section = (
    &'static CStr,
    for<'a> fn(&CommandContext<'a>) -> Option<RawDocumentBuf>,
);

static SECTIONS: &[Section] = &[
    (cstr!("activeIndexBuilds"), |ctx| {
        let catalog = ctx.node.replica.store.catalog();
        let builds: usize = catalog.collections().map(|known| known.builds.len()).sum();
        let builds = i32::try_from(builds).unwrap_or(i32::MAX);
        Some(rawdoc! { "total": builds })
    }),
    (cstr!("asserts"), |ctx| Some(asserts(ctx))),
    (cstr!("catalogStats"), |ctx| {
        Some(catalog_figures::collections(
            &ctx.node.replica.store.catalog(),
        ))
    }),
    (cstr!("connections"), connections),
    (cstr!("defaultRWConcern"), default_concerns),
    (cstr!("extra_info"), |_| extra_info()),
    (cstr!("globalLock"), |ctx| Some(global_lock(ctx))),
    (cstr!("indexStats"), |ctx| {
        Some(catalog_figures::indexes(&ctx.node.replica.store.catalog()))
    }),
    (cstr!("logicalSessionRecordCache"), |ctx| {
        let sessions = i32::try_from(ctx.node.sessions.count()).unwrap_or(i32::MAX);
        Some(rawdoc! { "activeSessionsCount": sessions })
    }),
    (cstr!("network"), network),
    (cstr!("queues"), |ctx| Some(queues(ctx))),
    (cstr!("shardingStatistics"), |ctx| {
        ctx.node.role()?.statistics()
    }),
    (cstr!("opLatencies"), |ctx| Some(latencies(ctx))),
    (cstr!("opcounters"), |ctx| Some(opcounters(ctx))),
    (cstr!("opcountersRepl"), |ctx| Some(opcounters_repl(ctx))),
    (cstr!("repl"), repl),
    (cstr!("security"), |_| security()),
    (cstr!("storageEngine"), |_| Some(storage_engine())),
    (cstr!("transactions"), |ctx| Some(transactions(ctx))),
    (cstr!("transportSecurity"), |_| {
        Some(operating::transport_security())
    }),
    (cstr!("mem"), |_| Some(memory())),
    (cstr!("metrics"), |ctx| Some(metrics(ctx))),
];

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let uptime = node.info.started_instant.elapsed();
    let mut reply = rawdoc! {
        "host": node.info.address.as_str(),
        "version": info::COMPATIBLE_VERSION,
        "process": node.info.program.as_str(),
        "pid": i64::from(std::process::id()),
        // Whole seconds as a double: tools read it as an integer.
        "uptime": uptime.as_secs() as f64,
        "uptimeMillis": long(uptime.as_millis()),
        "uptimeEstimate": long(uptime.as_secs().into()),
        "localTime": bson::DateTime::now(),
    };
    for (name, section) in SECTIONS {
        if is_wanted(ctx.body(), name)
            && let Some(section) = section(ctx)
        {
            reply.append(*name, section);
        }
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn is_wanted(body: &RawDocument, section: &CStr) -> bool {
    match body.get(section.as_str()) {
        Ok(Some(value)) => banyan_document::is_true(value),
        _ => true,
    }
}

fn sum(ctx: &CommandContext<'_>, counter: fn(&Counters) -> &Counter) -> i64 {
    ctx.node.counters.sum(counter)
}

fn asserts(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    rawdoc! {
        "regular": 0, "warning": 0, "msg": 0,
        "user": number(sum(ctx, |counters| &counters.user_errors)),
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

fn connections(ctx: &CommandContext<'_>) -> Option<RawDocumentBuf> {
    let counters = ctx.node.info.wire_counters.get()?;
    use std::sync::atomic::Ordering::Relaxed;
    let current = counters.current.load(Relaxed) as u64;
    let most = counters.connections_max.load(Relaxed) as u64;
    let available = most.saturating_sub(current);
    let count = |n: u64| number(i64::try_from(n).unwrap_or(i64::MAX));
    Some(rawdoc! {
        "current": count(current),
        "available": count(available),
        "totalCreated": count(counters.total.load(Relaxed)),
        "rejected": count(counters.rejected.load(Relaxed)),
        "active": count(ctx.node.operations.all().len() as u64),
    })
}

fn security() -> Option<RawDocumentBuf> {
    let mut section = RawDocumentBuf::new();
    operating::append_security(&mut section);
    (!section.is_empty()).then_some(section)
}

/// Of a set or of the config servers, which have some.
fn default_concerns(ctx: &CommandContext<'_>) -> Option<RawDocumentBuf> {
    let node = ctx.node;
    stored_defaults::check_supported(node, SPEC.name).ok()?;
    let known = stored_defaults::known(node);
    Some(known.describe(false, node.defaults.read_at()))
}

fn extra_info() -> Option<RawDocumentBuf> {
    let usage = usage()?;
    Some(rawdoc! {
        "note": "fields vary by platform",
        "user_time_us": usage.user_time_us,
        "system_time_us": usage.system_time_us,
        "maximum_resident_set_kb": usage.maximum_resident_set_kb,
        "input_blocks": usage.input_blocks,
        "output_blocks": usage.output_blocks,
        "page_reclaims": usage.page_reclaims,
        "page_faults": usage.page_faults,
        "voluntary_context_switches": usage.voluntary_context_switches,
        "involuntary_context_switches": usage.involuntary_context_switches,
    })
}

fn network(ctx: &CommandContext<'_>) -> Option<RawDocumentBuf> {
    let counters = ctx.node.info.wire_counters.get()?;
    use std::sync::atomic::Ordering::Relaxed;
    Some(rawdoc! {
        "bytesIn": long(counters.bytes_in.load(Relaxed).into()),
        "bytesOut": long(counters.bytes_out.load(Relaxed).into()),
        "numRequests": long(counters.requests.load(Relaxed).into()),
    })
}

/// With `{opLatencies: {histograms: true}}` the distributions as well.
fn latencies(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let histograms = ctx
        .body()
        .get_document("opLatencies")
        .and_then(|options| options.get_bool("histograms"))
        .unwrap_or(false);
    let of = |class: OperationClass| {
        let parts = ctx.node.counters.all();
        let sum = LatencySum::of(parts.map(|part| part.latencies.of(class)));
        described_latency(&sum, histograms)
    };
    rawdoc! {
        "reads": of(OperationClass::Read),
        "writes": of(OperationClass::Write),
        "commands": of(OperationClass::Command),
    }
}

fn opcounters(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    rawdoc! {
        "insert": sum(ctx, |counters| &counters.operations.insert),
        "query": sum(ctx, |counters| &counters.operations.query),
        "update": sum(ctx, |counters| &counters.operations.update),
        "delete": sum(ctx, |counters| &counters.operations.delete),
        "getmore": sum(ctx, |counters| &counters.operations.getmore),
        "command": sum(ctx, |counters| &counters.operations.command),
    }
}

/// What was applied of the entries of others. A lone server has none: it applies its own again.
fn opcounters_repl(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let is_member = ctx.node.replication.is_replica_set();
    let applied = is_member.then(|| ctx.node.replica.machine.apply_counts().tally);
    let tally = applied.unwrap_or_default();
    rawdoc! {
        "insert": long(tally.inserts.into()),
        "query": 0_i64,
        "update": long(tally.updates.into()),
        "delete": long(tally.deletes.into()),
        "getmore": 0_i64,
        "command": long(tally.commands.into()),
    }
}

/// What the set is and this member in it, as `hello` tells.
fn repl(ctx: &CommandContext<'_>) -> Option<RawDocumentBuf> {
    let replication = &ctx.node.replication;
    if !replication.is_replica_set() {
        return None;
    }
    let asked = Asked {
        old_name: false,
        hello_ok: false,
        connection: ctx.conn.id,
        session_minutes: 0,
    };
    let hello = replication.hello(asked).ok()?;
    let mut out = RawDocumentBuf::new();
    for (name, value) in hello.iter().flatten() {
        match name.as_str() {
            "isWritablePrimary" => {
                // Older tools know it by its first name.
                out.append(cstr!("ismaster"), value);
                out.append(name, value);
            }
            "setName" | "setVersion" | "secondary" | "hosts" | "passives" | "arbiters"
            | "primary" | "me" | "electionId" | "lastWrite" | "arbiterOnly" | "passive"
            | "hidden" | "tags" | "topologyVersion" | "isreplicaset" | "info" => {
                out.append(name, value);
            }
            _ => {}
        }
    }
    Some(out)
}

fn storage_engine() -> RawDocumentBuf {
    rawdoc! {
        "name": "banyan",
        "supportsCommittedReads": true,
        "persistent": true,
        "supportsSnapshotReadConcern": true,
    }
}

/// Statements that were sent again under their numbers.
fn transactions(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    rawdoc! {
        "retriedCommandsCount": sum(ctx, |counters| &counters.retried_commands),
        "retriedStatementsCount": sum(ctx, |counters| &counters.retried_statements),
    }
}

fn memory() -> RawDocumentBuf {
    rawdoc! {
        "bits": 64,
        "resident": i32::try_from(machine::resident_megabytes()).unwrap_or(i32::MAX),
        "virtual": i32::try_from(machine::virtual_megabytes()).unwrap_or(i32::MAX),
        "supported": true,
    }
}

fn metrics(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let cursors = ctx.node.cursors.counts();
    let applied = ctx.node.replica.machine.apply_counts();
    let scans = sum(ctx, |counters| &counters.collection_scans);
    let tailable = sum(ctx, |counters| &counters.tailable_scans);
    rawdoc! {
        "commands": commands(ctx),
        "cursor": {
            "timedOut": long(cursors.timed_out.into()),
            "totalOpened": long(cursors.opened.into()),
            "open": {
                "total": long(cursors.open.into()),
                "holdingSnapshots": long(cursors.holding_snapshots.into()),
            },
        },
        "document": {
            "deleted": sum(ctx, |counters| &counters.deleted),
            "inserted": sum(ctx, |counters| &counters.inserted),
            "returned": sum(ctx, |counters| &counters.returned),
            "updated": sum(ctx, |counters| &counters.updated),
        },
        "query": query(ctx),
        "queryStats": ctx.node.parameters.query_stats.figures(),
        "operation": { "scanAndOrder": sum(ctx, |counters| &counters.sorts) },
        "queryExecutor": {
            "scanned": sum(ctx, |counters| &counters.keys_examined),
            "scannedObjects": sum(ctx, |counters| &counters.documents_examined),
            "collectionScans": {
                "nonTailable": scans.saturating_sub(tailable),
                "total": scans,
            },
        },
        "repl": {
            "apply": {
                "batches": {
                    "num": long(applied.batches.into()),
                    "totalMillis": long(applied.total_millis.into()),
                },
                "ops": long(applied.operations.into()),
            },
        },
        "ttl": {
            "deletedDocuments": sum(ctx, |counters| &counters.ttl_deleted),
            "passes": sum(ctx, |counters| &counters.ttl_passes),
        },
    }
}

/// What did not fit into memory.
fn query(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let memory = &ctx.node.parameters.memory;
    let figures = &memory.figures;
    let long = |figure: &AtomicU64| long(figure.load(Relaxed).into());
    rawdoc! {
        "allowDiskUseFalse": long(&figures.disk_refused),
        "memoryHeldBytes": i64::try_from(memory.held()).unwrap_or(i64::MAX),
        "group": {
            "spills": long(&figures.group_spills),
            "spilledBytes": long(&figures.group_bytes_spilled),
            "spilledRecords": long(&figures.groups_spilled),
        },
        "sort": {
            "spillToDisk": long(&figures.sort_spills),
            "totalBytesSorted": long(&figures.bytes_sorted),
            "totalKeysSorted": long(&figures.keys_sorted),
        },
    }
}

/// The commands that have been used.
fn commands(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    let unknown = sum(ctx, |counters| &counters.unknown_commands);
    out.append(cstr!("<UNKNOWN>"), unknown);
    for (name, [total, failed, rejected]) in ctx.table.used() {
        let mut counts = rawdoc! { "failed": failed };
        if may_be_rejected(name) {
            counts.append(cstr!("rejected"), rejected);
        }
        counts.append(cstr!("total"), total);
        if let Ok(name) = CString::try_from(name) {
            out.append(name, counts);
        }
    }
    out
}

fn long(value: u128) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
