//! `hostInfo`: the machine.

use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("hostInfo", "what the machine is", run!(run)).aliases(&["hostinfo"]);

/// The machine's name.
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.to_owned()
    }
}

/// A field of a file in /proc that is given in kB, in megabytes.
pub fn proc_megabytes(file: &str, field: &str) -> i64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    number
        .and_then(|number| number.parse::<i64>().ok())
        .unwrap_or(0)
        / 1024
}

async fn run(_: &Context<'_>) -> CommandResult {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as i32;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(rawdoc! {
        "system": {
            "currentTime": bson::DateTime::now(),
            "hostname": hostname(),
            "cpuAddrSize": 64,
            "memSizeMB": proc_megabytes("/proc/meminfo", "MemTotal"),
            "numCores": cores,
            "cpuArch": std::env::consts::ARCH,
        },
        "os": {"type": "Linux", "name": "Linux", "version": kernel.trim()},
        "extra": {"kernelVersion": kernel.trim(), "pageSize": 4096i64},
        "ok": 1.0,
    })
}
