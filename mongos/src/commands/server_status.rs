//! `serverStatus`: the process in numbers.

use std::sync::atomic::Ordering::Relaxed;

use banyan_wire::version::COMPATIBLE_VERSION;
use bson::rawdoc;

use super::{CommandResult, CommandSpec, Context, host_info, run};

pub const SPEC: CommandSpec = CommandSpec::new("serverStatus", "the process in numbers", run!(run))
    .aliases(&["serverstatus"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let router = context.router;
    let uptime = router.identity.started_instant.elapsed();
    let counters = &router.counters;
    let long = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let memory = |field| host_info::proc_megabytes("/proc/self/status", field);
    let current = counters.current.load(Relaxed) as u64;
    let room = banyan_wire::Options::default().connections_max as u64;
    Ok(rawdoc! {
        "host": router.identity.address.as_str(),
        "version": COMPATIBLE_VERSION,
        "process": "mongos",
        "pid": i64::from(std::process::id()),
        "uptime": uptime.as_secs_f64(),
        "uptimeMillis": uptime.as_millis() as i64,
        "uptimeEstimate": uptime.as_secs() as i64,
        "localTime": bson::DateTime::now(),
        "connections": {
            "current": long(current),
            "available": long(room.saturating_sub(current)),
            "totalCreated": long(counters.total.load(Relaxed)),
            "rejected": long(counters.rejected.load(Relaxed)),
        },
        "network": {
            "bytesIn": long(counters.bytes_in.load(Relaxed)),
            "bytesOut": long(counters.bytes_out.load(Relaxed)),
            "numRequests": long(counters.requests.load(Relaxed)),
        },
        "mem": {
            "bits": 64,
            "resident": memory("VmRSS") as i32,
            "virtual": memory("VmSize") as i32,
            "supported": true,
        },
        "metrics": {"cursor": {"open": {"total": long(router.cursors.len() as u64)}}},
        "sharding": {"configsvrConnectionString": router.shards.config().address.as_str()},
        "ok": 1.0,
    })
}
