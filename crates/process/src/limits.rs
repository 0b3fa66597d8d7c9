//! What the system gives a process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// Fewer files than MongoDB asks for.
const OPEN_FILES_WANTED: u64 = 64_000;
/// Connections take four fifths of the files that may be open, as in MongoDB; the rest is for data.
const CONNECTIONS_SHARE: (u64, u64) = (4, 5);
/// Fewer would leave no room for a member's peers.
pub const CONNECTIONS_MIN: usize = 5;
const CONNECTIONS_DEFAULT: usize = 20_000;

/// Has as many files open as the system allows. What is too little is told in the log.
pub(crate) fn raise_open_files() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    if soft < hard {
        match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            Ok(()) => info!(from = soft, to = hard, "more files may be open"),
            Err(error) => warn!(soft, hard, %error, "the limit of open files cannot be raised"),
        }
    }
    let now = open_files();
    if now < OPEN_FILES_WANTED {
        warn!(
            currentValue = now,
            recommendedMinimum = OPEN_FILES_WANTED,
            "Soft rlimits for open file descriptors too low"
        );
    }
}

fn open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// How many connections are served at once, if so many are asked for.
pub fn connections_max(asked: Option<usize>) -> usize {
    let possible = possible_connections(open_files());
    if let Some(asked) = asked.filter(|asked| *asked > possible) {
        warn!(
            asked,
            possible, "--maxConns is more than the open files allow"
        );
    }
    asked.unwrap_or(CONNECTIONS_DEFAULT).min(possible)
}

fn possible_connections(open_files: u64) -> usize {
    let (part, whole) = CONNECTIONS_SHARE;
    let possible = open_files / whole * part;
    usize::try_from(possible).map_or(usize::MAX, |possible| possible.max(CONNECTIONS_MIN))
}

/// The machine's memory; where it cannot be found out, that of a small one.
pub fn machine_bytes() -> usize {
    const SMALL: usize = 1 << 30;
    let kilobytes = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let mut lines = text.lines();
        let total = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
        total.split_whitespace().next()?.parse::<usize>().ok()
    };
    kilobytes().map_or(SMALL, |kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_data() {
        assert_eq!(possible_connections(1000), 800);
        assert_eq!(possible_connections(3), CONNECTIONS_MIN);
        assert!(possible_connections(u64::MAX) > 1 << 60);
        assert_eq!(connections_max(Some(7)), 7);
    }
}
