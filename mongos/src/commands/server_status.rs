//! `serverStatus`: the process in numbers.

use banyan_access::check::Access;
use banyan_security::Action;
use std::sync::atomic::Ordering::Relaxed;

use banyan_process::figures::{CommandCounts, Counter, may_be_rejected, usage};
use banyan_process::machine;
use banyan_wire::tls::operating;
use banyan_wire::version::COMPATIBLE_VERSION;
use bson::raw::{CStr, CString};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use crate::figures::Figures;
use crate::router::Router;

pub const SPEC: CommandSpec = CommandSpec::new("serverStatus", "the process in numbers", run!(run))
    .access(Access::Cluster(Action::ServerStatus))
    .aliases(&["serverstatus"]);

/// A section; `None` where it has nothing to tell.
type Section = (&'static CStr, fn(&Context<'_>) -> Option<RawDocumentBuf>);

static SECTIONS: &[Section] = &[
    (cstr!("asserts"), |context| Some(asserts(context.router))),
    (cstr!("connections"), |context| {
        Some(connections(context.router))
    }),
    (cstr!("extra_info"), |_| extra_info()),
    (cstr!("network"), |context| Some(network(context.router))),
    (cstr!("opcounters"), |context| {
        Some(opcounters(context.router))
    }),
    (cstr!("security"), |_| security()),
    (cstr!("sharding"), |context| Some(sharding(context.router))),
    (cstr!("transportSecurity"), |_| {
        Some(operating::transport_security())
    }),
    (cstr!("mem"), |_| Some(memory())),
    (cstr!("metrics"), |context| Some(metrics(context))),
];

async fn run(context: &Context<'_>) -> CommandResult {
    let router = context.router;
    let uptime = router.identity.started_instant.elapsed();
    let mut reply = rawdoc! {
        "host": router.identity.address.as_str(),
        "version": COMPATIBLE_VERSION,
        "process": "mongos",
        "pid": i64::from(std::process::id()),
        // Whole seconds as a double: tools read it as an integer.
        "uptime": uptime.as_secs() as f64,
        "uptimeMillis": uptime.as_millis() as i64,
        "uptimeEstimate": uptime.as_secs() as i64,
        "localTime": bson::DateTime::now(),
    };
    for (name, section) in SECTIONS {
        if is_wanted(&context.request.body, name)
            && let Some(section) = section(context)
        {
            reply.append(*name, section);
        }
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn is_wanted(body: &RawDocument, section: &CStr) -> bool {
    fields::get(body, section.as_str()).is_none_or(banyan_document::is_true)
}

fn long(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn sum(router: &Router, counter: fn(&Figures) -> &Counter) -> i64 {
    router.figures.sum(counter)
}

fn asserts(router: &Router) -> RawDocumentBuf {
    rawdoc! {
        "regular": 0, "warning": 0, "msg": 0,
        "user": sum(router, |figures| &figures.user_errors),
        "rollovers": 0,
    }
}

fn connections(router: &Router) -> RawDocumentBuf {
    let counters = &router.counters;
    let current = counters.current.load(Relaxed) as u64;
    let room = counters.connections_max.load(Relaxed) as u64;
    rawdoc! {
        "current": long(current),
        "available": long(room.saturating_sub(current)),
        "totalCreated": long(counters.total.load(Relaxed)),
        "rejected": long(counters.rejected.load(Relaxed)),
    }
}

fn security() -> Option<RawDocumentBuf> {
    let mut section = RawDocumentBuf::new();
    operating::append_security(&mut section);
    (!section.is_empty()).then_some(section)
}

fn extra_info() -> Option<RawDocumentBuf> {
    let usage = usage()?;
    Some(rawdoc! {
        "note": "fields vary by platform",
        "user_time_us": usage.user_time_us,
        "system_time_us": usage.system_time_us,
        "maximum_resident_set_kb": usage.maximum_resident_set_kb,
        "page_reclaims": usage.page_reclaims,
        "page_faults": usage.page_faults,
        "voluntary_context_switches": usage.voluntary_context_switches,
        "involuntary_context_switches": usage.involuntary_context_switches,
    })
}

fn network(router: &Router) -> RawDocumentBuf {
    let counters = &router.counters;
    rawdoc! {
        "bytesIn": long(counters.bytes_in.load(Relaxed)),
        "bytesOut": long(counters.bytes_out.load(Relaxed)),
        "numRequests": long(counters.requests.load(Relaxed)),
    }
}

fn opcounters(router: &Router) -> RawDocumentBuf {
    rawdoc! {
        "insert": sum(router, |figures| &figures.operations.insert),
        "query": sum(router, |figures| &figures.operations.query),
        "update": sum(router, |figures| &figures.operations.update),
        "delete": sum(router, |figures| &figures.operations.delete),
        "getmore": sum(router, |figures| &figures.operations.getmore),
        "command": sum(router, |figures| &figures.operations.command),
    }
}

fn sharding(router: &Router) -> RawDocumentBuf {
    rawdoc! { "configsvrConnectionString": router.shards.config().address.as_str() }
}

fn memory() -> RawDocumentBuf {
    rawdoc! {
        "bits": 64,
        "resident": i32::try_from(machine::resident_megabytes()).unwrap_or(i32::MAX),
        "virtual": i32::try_from(machine::virtual_megabytes()).unwrap_or(i32::MAX),
        "supported": true,
    }
}

fn metrics(context: &Context<'_>) -> RawDocumentBuf {
    let router = context.router;
    let mut commands = RawDocumentBuf::new();
    let unknown = sum(router, |figures| &figures.unknown_commands);
    commands.append(cstr!("<UNKNOWN>"), unknown);
    let mut used: Vec<_> = context
        .commands
        .all()
        .enumerate()
        .filter_map(|(place, spec)| {
            let of = |counter: fn(&CommandCounts) -> &Counter| {
                let figures = &router.figures;
                figures.sum(|figures| counter(&figures.commands[place]))
            };
            let total = of(|counts| &counts.total);
            let (failed, rejected) = (of(|c| &c.failed), of(|c| &c.rejected));
            (total > 0).then_some((spec.name, [total, failed, rejected]))
        })
        .collect();
    used.sort_unstable();
    for (name, [total, failed, rejected]) in used {
        let mut counts = rawdoc! { "failed": failed };
        if may_be_rejected(name) {
            counts.append(cstr!("rejected"), rejected);
        }
        counts.append(cstr!("total"), total);
        if let Ok(name) = CString::try_from(name) {
            commands.append(name, counts);
        }
    }
    rawdoc! {
        "commands": commands,
        "cursor": { "open": { "total": long(router.cursors.len() as u64) } },
        "queryStats": router.query_stats.figures(),
    }
}
