//! The data node's side: a pool of script host processes, and the jobs that run in them.
//!
//! [`process`] starts a host, stripped of everything it does not need; [`pool`] keeps those of
//! jobs, and [`channel`] speaks with one lane. [`job`] runs one map-reduce in one host: documents
//! go in on all lanes at once ([`feeder`]), sorted [`runs`] of partial results come back, [`merge`] brings them
//! together and the lanes reduce what shares a key.
//! [`session`] calls single functions. [`prints`] is what of their output is logged.
//! A host that fails in any way is ended and replaced; a job never sees another job's host.

mod channel;
mod error;
mod feeder;
mod job;
mod merge;
mod options;
mod pool;
mod prints;
mod process;
mod runs;
mod session;

use std::sync::Arc;

pub use channel::Interrupted;
pub use error::JobError;
pub use feeder::Feeder;
pub use job::{Counters, Existing, MapReduceJob, MapReduceSpec, Mapped, Reduced};
pub use merge::SortedDocuments;
pub use options::HostOptions;
pub use runs::Run;
pub use session::{BegunCall, Session};

use crate::host::sandbox;
use pool::Pool;
use prints::{Prints, Rate};
use session::Callers;

/// All script hosts of a data node.
#[derive(Clone)]
pub struct Hosts {
    pool: Arc<Pool>,
    callers: Arc<Callers>,
    rate: Arc<Rate>,
}

impl Hosts {
    /// Starts nothing yet: the first job does, or [`Hosts::warm_up`].
    pub fn new(options: HostOptions) -> Hosts {
        let missing = sandbox::missing();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            tracing::warn!(
                missing,
                "script hosts run with more privileges than they need"
            );
        }
        Hosts {
            callers: Arc::new(Callers::new(&options)),
            pool: Arc::new(Pool::new(options)),
            rate: Arc::default(),
        }
    }

    pub fn options(&self) -> &HostOptions {
        self.pool.options()
    }

    /// Has a host ready for the next job.
    pub fn warm_up(&self) -> Result<(), JobError> {
        let never: Interrupted = Arc::new(|| false);
        let host = self.pool.acquire(&never)?;
        self.pool.release(host);
        Ok(())
    }

    /// Begins a map-reduce job: on return every lane has been given the functions.
    pub fn map_reduce(
        &self,
        spec: &MapReduceSpec,
        interrupted: Interrupted,
    ) -> Result<MapReduceJob, JobError> {
        let prints = Prints::new(&self.rate);
        MapReduceJob::start(&self.pool, spec, interrupted, prints)
    }

    /// Calls of functions that share variables.
    pub fn session(&self) -> Session {
        Session::new(&self.callers, Prints::new(&self.rate))
    }

    /// The process ids of the hosts that wait for work.
    pub fn idle_process_ids(&self) -> Vec<u32> {
        let mut ids = self.callers.idle_process_ids();
        ids.extend(self.pool.idle_process_ids());
        ids
    }
}
