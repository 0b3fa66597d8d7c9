//! The threads of a server.
//!
//! The tasks run on tokio's multi-threaded runtime with one worker per core: a command that computes
//! or has to wait for a disk says so with `block_in_place`, and the connections of that worker go on
//! elsewhere. Runtimes pinned to a core each would save some wake-ups, and one slow read would then
//! hold up every connection that shares its core.
//!
//! What holds a cluster together must not wait for any of that, and has a small runtime of its own.
//! Neither may wait for those who arrive: a thousand clients that log in at once have no more than
//! half of the cores.

use std::io;
use std::time::Duration;

use banyan_process::scheduling;
use tokio::runtime::{Builder, Handle, Runtime};
use tracing::debug;

/// Threads that compute or wait for a disk, most of them parked until it is their turn. A worker
/// that hands its connections over must find one: were there none, nobody would serve them.
const BLOCKING_THREADS_MAX: usize = 4096;
/// Two, so that one that waits for a lock holds nobody up.
const VITAL_WORKERS: usize = 2;
/// A core answers some ten thousand logins a second.
const LOGIN_WORKERS_MAX: usize = 4;

/// How long what still runs may take when a server ends.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Who is served already waits for no slice of a thread that lets others in.
fn give_way() {
    if let Err(error) = scheduling::give_way() {
        debug!(%error, "threads for logins are scheduled like others");
    }
}

/// The runtimes that a program serves on.
pub struct Runtimes {
    ordinary: Runtime,
    vital: Runtime,
    logins: Runtime,
}

/// Where connections are served that are kept apart from the ordinary ones.
#[derive(Clone, Debug)]
pub struct Apart {
    /// While they carry vital commands only.
    pub vital: Handle,
    /// Where they are accepted, say hello and log in.
    pub logins: Handle,
}

impl Runtimes {
    /// # Errors
    /// The system gives no threads.
    pub fn start() -> io::Result<Runtimes> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let of = |name: &str, workers: usize| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(workers).thread_name(name);
            builder.enable_all();
            builder
        };
        Ok(Runtimes {
            ordinary: of("worker", cores.max(2))
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .build()?,
            vital: of("vital", VITAL_WORKERS).build()?,
            logins: of("login", (cores / 2).clamp(1, LOGIN_WORKERS_MAX))
                .on_thread_start(give_way)
                .build()?,
        })
    }

    pub fn apart(&self) -> Apart {
        Apart {
            vital: self.vital.handle().clone(),
            logins: self.logins.handle().clone(),
        }
    }

    /// Runs a program on the ordinary threads.
    pub fn block_on<F: Future>(&self, program: F) -> F::Output {
        self.ordinary.block_on(program)
    }

    /// Whatever still runs has nothing to say to anybody.
    pub fn shut_down(self) {
        for runtime in [self.ordinary, self.vital, self.logins] {
            runtime.shutdown_timeout(ENDS_WITHIN);
        }
    }
}
