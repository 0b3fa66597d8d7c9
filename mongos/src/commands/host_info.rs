//! `hostInfo`: the machine.

use banyan_access::check::Access;
use banyan_process::machine;
use banyan_security::Action;
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("hostInfo", "what the machine is", run!(run))
    .access(Access::Cluster(Action::HostInfo))
    .aliases(&["hostinfo"]);

async fn run(_: &Context<'_>) -> CommandResult {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as i32;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(rawdoc! {
        "system": {
            "currentTime": bson::DateTime::now(),
            "hostname": machine::hostname(),
            "cpuAddrSize": 64,
            "memSizeMB": machine::megabytes(machine::memory_bytes()),
            "memLimitMB": machine::megabytes(machine::memory_limit_bytes()),
            "numCores": cores,
            "cpuArch": std::env::consts::ARCH,
        },
        "os": {"type": "Linux", "name": "Linux", "version": kernel.trim()},
        "extra": {"kernelVersion": kernel.trim(), "pageSize": 4096i64},
        "ok": 1.0,
    })
}
