//! The data node's side: a pool of script host processes, and the jobs that run in them.
//!
//! [`process`] starts a host, stripped of everything it does not need. [`job`] runs one
//! map-reduce in one host: documents go in on all lanes at once, sorted [`runs`] of partial
//! results come back, [`merge`] brings them together and the lanes reduce what shares a key.
//! [`session`] calls single functions. [`prints`] is what of their output is logged.
//! A host that fails in any way is ended and replaced; a job never sees another job's host.

mod error;
mod job;
mod merge;
mod prints;
mod process;
mod runs;
mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use banyan_document::Collator;
use parking_lot::{Condvar, Mutex};

pub use error::JobError;
pub use job::{Counters, Existing, Feeder, MapReduceJob, Mapped, Reduced};
pub use merge::{Group, Merge};
pub use runs::Run;
pub use session::Session;

use prints::Rate;
use process::Host;
use session::Callers;

/// Whether the command that a job belongs to has been ended: its time is over, or it was killed.
pub type Interrupted = Arc<dyn Fn() -> bool + Send + Sync>;

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

/// What to compute. Sources are function expressions, arrow functions or function bodies.
#[derive(Debug, Clone, Default)]
pub struct MapReduceSpec {
    /// None: only partial results of others are reduced.
    pub map: Option<String>,
    pub reduce: String,
    pub finalize: Option<String>,
    /// Variables of all three functions.
    pub scope: Option<bson::RawDocumentBuf>,
    /// Which keys are one; without one, strings are compared by their bytes.
    pub collator: Option<Collator>,
}

/// The pool.
#[derive(Clone)]
pub struct Hosts {
    inner: Arc<Pool>,
    callers: Arc<Callers>,
    rate: Arc<Rate>,
}

struct Pool {
    options: HostOptions,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Host>,
    busy: usize,
}

/// How often a waiting job looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(50);

impl Hosts {
    /// Starts nothing yet: the first job does, or [`Hosts::warm_up`].
    pub fn new(options: HostOptions) -> Hosts {
        let callers = Arc::new(Callers::new(&options));
        let inner = Pool {
            options,
            state: Mutex::default(),
            returned: Condvar::new(),
        };
        Hosts {
            inner: Arc::new(inner),
            callers,
            rate: Arc::default(),
        }
    }

    pub fn options(&self) -> &HostOptions {
        &self.inner.options
    }

    /// Has a host ready for the next job.
    pub fn warm_up(&self) -> Result<(), JobError> {
        let never: Interrupted = Arc::new(|| false);
        let host = self.acquire(&never)?;
        self.release(host);
        Ok(())
    }

    /// Begins a map-reduce job: on return every lane has been given the functions.
    pub fn map_reduce(
        &self,
        spec: &MapReduceSpec,
        interrupted: Interrupted,
    ) -> Result<MapReduceJob, JobError> {
        let host = self.acquire(&interrupted)?;
        MapReduceJob::start(self.clone(), host, spec, interrupted)
    }

    fn acquire(&self, interrupted: &Interrupted) -> Result<Host, JobError> {
        let mut state = self.inner.state.lock();
        loop {
            // The last one used is the warmest.
            while let Some(mut host) = state.idle.pop() {
                // One that died while it was idle is not worth an error.
                if host.is_alive() {
                    state.busy += 1;
                    return Ok(host);
                }
            }
            if state.busy < self.inner.options.hosts_max {
                state.busy += 1;
                drop(state);
                return Host::start(&self.inner.options).inspect_err(|_| self.forget());
            }
            if interrupted() {
                return Err(JobError::Interrupted);
            }
            self.inner.returned.wait_for(&mut state, WAIT_STEP);
        }
    }

    fn release(&self, host: Host) {
        let mut state = self.inner.state.lock();
        state.busy -= 1;
        state.idle.push(host);
        self.inner.returned.notify_one();
    }

    /// A host is gone; its place is free.
    fn forget(&self) {
        self.inner.state.lock().busy -= 1;
        self.inner.returned.notify_one();
    }

    /// The process ids of the hosts that wait for work.
    pub fn idle_process_ids(&self) -> Vec<u32> {
        let mut ids = self.callers.idle_process_ids();
        let state = self.inner.state.lock();
        ids.extend(state.idle.iter().map(Host::process_id));
        ids
    }
}
