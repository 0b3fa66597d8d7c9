//! The time, the chance and the disks that a simulating thread sees, and the mistake that is planted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::disk::Disk;

/// A mistake that is made on purpose, to see whether the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A group of many that syncs by interval lets entries and votes count before they are synced.
    AcknowledgeBeforeSync,
    /// A vote is given and not written down.
    ForgetVote,
    /// A vote is given whatever the log of the candidate.
    SkipLogCheck,
    /// Of two batches of entries that wait, the later one is applied first.
    ApplyOutOfOrder,
    /// After a restart what was applied is applied again.
    ApplyTwice,
    /// A read index is answered without asking anybody.
    StaleRead,
}

impl Bug {
    pub const ALL: [Bug; 6] = [
        Bug::AcknowledgeBeforeSync,
        Bug::ForgetVote,
        Bug::SkipLogCheck,
        Bug::ApplyOutOfOrder,
        Bug::ApplyTwice,
        Bug::StaleRead,
    ];
}

struct World {
    start: Instant,
    now: Duration,
    chance: u64,
    /// By the directory that they serve.
    disks: HashMap<PathBuf, Arc<Disk>>,
    bug: Option<Bug>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// From now on time and chance are simulated for this thread.
pub fn enter(seed: u64, bug: Option<Bug>) {
    let world = World {
        start: Instant::now(),
        now: Duration::ZERO,
        chance: seed,
        disks: HashMap::new(),
        bug,
    };
    WORLD.with(|it| *it.borrow_mut() = Some(world));
}

pub fn leave() {
    WORLD.with(|it| *it.borrow_mut() = None);
}

/// Sets the simulated time, counted from the beginning.
pub fn set_time(now: Duration) {
    WORLD.with(|it| {
        if let Some(world) = &mut *it.borrow_mut() {
            world.now = now;
        }
    });
}

pub(crate) fn now() -> Option<Instant> {
    WORLD.with(|it| it.borrow().as_ref().map(|world| world.start + world.now))
}

/// The simulated wall clock.
pub fn wall_ms() -> Option<i64> {
    const BEGIN_MS: i64 = 1_700_000_000_000;
    WORLD.with(|it| {
        let now = it.borrow().as_ref()?.now;
        Some(BEGIN_MS + now.as_millis() as i64)
    })
}

pub(crate) fn random() -> Option<u64> {
    WORLD.with(|it| {
        let mut it = it.borrow_mut();
        let world = it.as_mut()?;
        world.chance = world.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = world.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    })
}

pub(crate) fn planted(bug: Bug) -> bool {
    WORLD.with(|it| {
        it.borrow()
            .as_ref()
            .is_some_and(|world| world.bug == Some(bug))
    })
}

pub(super) fn disk_of(dir: &Path) -> Option<Arc<Disk>> {
    WORLD.with(|it| it.borrow().as_ref()?.disks.get(dir).cloned())
}

/// The directory is served by that disk from now on.
pub(super) fn mount(dir: &Path, disk: Arc<Disk>) {
    WORLD.with(|it| {
        if let Some(world) = &mut *it.borrow_mut() {
            world.disks.insert(dir.to_owned(), disk);
        }
    });
}
