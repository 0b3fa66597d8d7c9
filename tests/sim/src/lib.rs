//! Whole sets on one thread, from one seed: simulated time, network, disks and crashes around the
//! code that ships.
//!
//! What runs is `banyan-consensus` itself, without its threads: the core, the driver's rounds, the
//! queue that applies, the log over `raft-engine` with its recovery. What is simulated is around
//! it. Read in this order:
//!
//! - [`simulation`]: the run: events in order of time, clients, readers, the checks at each step
//! - [`storm`]: what befalls the set, and what its operator does
//! - [`truth`]: what must hold
//! - [`life`]: a life of a member: decides about every effect, and may end between any two
//! - [`member`], [`network`], [`client`]: what surrounds them
//! - [`state`]: what is asked of a state machine; [`model`]: one in memory; [`stored`]: the node's
//!   own over a real store
//!
//! A failure names its seed; the same seed repeats it, event by event.

pub mod client;
pub mod life;
pub mod member;
pub mod model;
pub mod network;
pub mod random;
pub mod simulation;
pub mod state;
pub mod stored;
pub mod storm;
pub mod truth;

use std::any::Any;
use std::cell::Cell;
use std::path::Path;
use std::sync::Once;

pub use banyan_consensus::simulated::Bug;
pub use simulation::{Failure, Kind, Plan, Simulation, Summary};

use model::Model;
use stored::Stored;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a seed.
pub fn run(plan: Plan) -> Result<Summary, Failure> {
    // A member that finds its disk broken panics on purpose, and is caught: nobody wants to read it.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let seed = plan.seed;
    let outcome = match plan.kind {
        Kind::Memory => Simulation::<Model>::new(plan).map(Simulation::run),
        Kind::Store => Simulation::<Stored>::new(plan).map(Simulation::run),
    };
    QUIET.set(false);
    outcome.unwrap_or_else(|what| {
        Err(Failure {
            seed,
            at_ms: 0,
            what,
            trace: Vec::new(),
        })
    })
}

/// As [`run`]; a failing seed is run again, to tell what happened.
pub fn run_and_tell(plan: Plan) -> Result<Summary, Failure> {
    let failure = match run(plan.clone()) {
        Ok(summary) => return Ok(summary),
        Err(failure) => failure,
    };
    let again = run(Plan {
        narrate: true,
        ..plan
    });
    match again {
        Err(told) if told.what == failure.what => Err(told),
        Err(told) => Err(Failure {
            what: format!("{} (and the second time: {})", failure.what, told.what),
            ..told
        }),
        Ok(_) => Err(Failure {
            what: format!("{} (and not the second time)", failure.what),
            ..failure
        }),
    }
}

/// Where the members of a run live: in memory, if the system has a file system there.
fn home() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("banyan-sim-");
    match memory.is_dir() {
        true => builder.tempdir_in(memory),
        false => builder.tempdir(),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a word").to_owned()
}
