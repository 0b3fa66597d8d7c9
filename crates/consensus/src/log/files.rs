//! The file system that the log's engine works on.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

#[cfg(not(feature = "simulation"))]
pub(crate) use raft_engine::env::DefaultFileSystem as Files;

#[cfg(feature = "simulation")]
pub(crate) use crate::simulated::files::Files;

/// Threads that read the log when it is opened.
const RECOVERY_THREADS: usize = 2;

/// The file system of a log directory, and how many threads read it when the log is opened.
#[cfg(not(feature = "simulation"))]
pub(crate) fn at(_dir: &Path) -> (Arc<Files>, usize) {
    (Arc::new(Files), RECOVERY_THREADS)
}

#[cfg(feature = "simulation")]
pub(crate) fn at(dir: &Path) -> (Arc<Files>, usize) {
    let files = Files::at(dir);
    let threads = if files.is_simulated() {
        1
    } else {
        RECOVERY_THREADS
    };
    (Arc::new(files), threads)
}

/// Syncs a file that the engine holds open.
pub(crate) fn sync(path: &Path) -> std::io::Result<()> {
    #[cfg(feature = "simulation")]
    if let Some(outcome) = crate::simulated::files::sync(path) {
        return outcome;
    }
    File::open(path)?.sync_data()
}
