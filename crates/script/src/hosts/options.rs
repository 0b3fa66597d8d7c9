//! How hosts are run.

use std::path::PathBuf;

#[derive(Debug, Clone)]
pub struct HostOptions {
    /// The program that becomes a script host when started with `arguments`.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Isolates per host, and so per job.
    pub lanes: usize,
    pub heap_bytes_max: usize,
    /// Jobs that may run at once, and as many calls of functions; others wait.
    pub hosts_max: usize,
    /// Where partial results go that do not fit into memory. The files have no names.
    pub spill_directory: PathBuf,
    pub spill_memory_bytes_max: usize,
}

impl HostOptions {
    /// One isolate for each core, of at most 512 MB each, and two jobs at once.
    pub fn new(program: PathBuf, arguments: Vec<String>, spill_directory: PathBuf) -> Self {
        let lanes = std::thread::available_parallelism().map_or(2, usize::from);
        HostOptions {
            program,
            arguments,
            lanes,
            heap_bytes_max: 512 << 20,
            hosts_max: 4,
            spill_directory,
            spill_memory_bytes_max: 64 << 20,
        }
    }
}
