//! What the machine has, and what this process takes of it.

use std::fs;

/// Where the kernel says what a control group may use, in its second and its first version.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// The machine's name, as members call each other when nothing else was said.
pub fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.to_owned()
    }
}

/// Bytes of memory that the machine has. `None` where the kernel does not say.
pub fn memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    kilobytes(&meminfo, "MemTotal").map(|kilobytes| kilobytes << 10)
}

/// Bytes of memory that this process may use: those of the machine, or of its container where that
/// has fewer.
pub fn memory_limit_bytes() -> Option<u64> {
    let limits = LIMITS.iter().filter_map(|file| {
        let limit = fs::read_to_string(file).ok()?;
        // Without a limit it says `max`, or a number beyond any machine.
        limit.trim().parse().ok()
    });
    limits.chain(memory_bytes()).min()
}

/// Megabytes of memory that this process holds.
pub fn resident_megabytes() -> i64 {
    own_megabytes("VmRSS")
}

/// Megabytes of addresses that this process has mapped.
pub fn virtual_megabytes() -> i64 {
    own_megabytes("VmSize")
}

fn own_megabytes(field: &str) -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kilobytes(&status, field).map_or(0, |kilobytes| {
        i64::try_from(kilobytes >> 10).unwrap_or(i64::MAX)
    })
}

/// Bytes as the megabytes that `hostInfo` shows; 0 where they are not known.
pub fn megabytes(bytes: Option<u64>) -> i64 {
    bytes.map_or(0, |bytes| i64::try_from(bytes >> 20).unwrap_or(i64::MAX))
}

/// A field of a text such as `/proc/meminfo`: `MemTotal:   24676204 kB`.
fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "VmPeak:\t  300 kB\nVmRSSx:\t 1 kB\nVmRSS:\t  2048 kB\n";
        assert_eq!(kilobytes(text, "VmRSS"), Some(2048));
        assert_eq!(kilobytes(text, "VmSwap"), None);
        assert_eq!(kilobytes("VmRSS: much", "VmRSS"), None);
    }

    #[test]
    fn the_limit_is_never_above_the_machine() {
        assert!(memory_limit_bytes() <= memory_bytes());
        assert!(resident_megabytes() > 0);
    }
}
