//! A simulated group: the code of this crate, without its threads, over a clock, chance and disks of
//! the simulation's own. Compiled for `tests/sim` only.
//!
//! A thread that calls [`enter`] sees simulated time; a group that is opened with [`open`] on it
//! has a simulated disk, and does something only when its [`Stepper`] tells it to. Other threads notice
//! nothing.

pub mod disk;
pub(crate) mod files;
mod stepper;
pub(crate) mod world;

use std::path::Path;
use std::sync::Arc;

pub use disk::{Disk, Effect, Fate, Outcome};
pub use stepper::{LogEntry, LogView, Stepper, describe};
pub use world::{Bug, enter, leave, set_time, wall_ms};

use crate::error::Error;
use crate::group::Group;
use crate::machine::{StateMachine, Transport};
use crate::options::Options;

/// Opens a group over a simulated disk. It has no threads: it moves when its stepper is told to.
pub fn open<S: StateMachine>(
    dir: &Path,
    disk: Arc<Disk>,
    options: Options,
    machine: Arc<S>,
    transport: Arc<dyn Transport>,
) -> Result<(Group<S>, Stepper<S>), Error> {
    world::mount(dir, disk);
    let group = Group::open_idle(dir, options, machine, transport)?;
    let stepper = Stepper::new(group.shared_for_simulation());
    Ok((group, stepper))
}
