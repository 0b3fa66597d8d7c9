//! The hosts of map-reduce jobs, one job in a host at a time.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::channel::Interrupted;
use super::error::JobError;
use super::options::HostOptions;
use super::process::Host;

/// How often a waiting job looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(50);

pub struct Pool {
    options: HostOptions,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Host>,
    busy: usize,
}

impl Pool {
    /// Starts nothing yet.
    pub fn new(options: HostOptions) -> Pool {
        Pool {
            options,
            state: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    pub fn options(&self) -> &HostOptions {
        &self.options
    }

    pub fn acquire(&self, interrupted: &Interrupted) -> Result<Host, JobError> {
        let mut state = self.state.lock();
        loop {
            // The last one used is the warmest.
            while let Some(mut host) = state.idle.pop() {
                // One that died while it was idle is not worth an error.
                if host.is_alive() {
                    state.busy += 1;
                    return Ok(host);
                }
            }
            if state.busy < self.options.hosts_max {
                state.busy += 1;
                drop(state);
                return Host::start(&self.options).inspect_err(|_| self.forget());
            }
            if interrupted() {
                return Err(JobError::Interrupted);
            }
            self.returned.wait_for(&mut state, WAIT_STEP);
        }
    }

    pub fn release(&self, host: Host) {
        let mut state = self.state.lock();
        state.busy -= 1;
        state.idle.push(host);
        self.returned.notify_one();
    }

    /// A host is gone; its place is free.
    pub fn forget(&self) {
        self.state.lock().busy -= 1;
        self.returned.notify_one();
    }

    /// The process ids of the hosts that wait for work.
    pub fn idle_process_ids(&self) -> Vec<u32> {
        let state = self.state.lock();
        state.idle.iter().map(Host::process_id).collect()
    }
}
