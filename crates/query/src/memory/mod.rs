//! Memory: what the stages of operations hold, what they may hold, and where they go beyond.
//!
//! A stage counts what it holds in a [`Holding`], one addition a document. The bytes are reserved
//! in portions from the operation ([`Budget`](crate::Budget)) and from the process ([`Memory`]),
//! each of which has a limit as the stage has. A stage over its limit spills to disk
//! ([`crate::spill`]) if it can and may, and fails otherwise ([`Consumer`]).

pub mod consumer;
mod holding;
mod limits;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

pub use consumer::Consumer;
pub use holding::{Holding, Together};
pub use limits::{DISK_BY_DEFAULT, LIMITS, Limit, Row};

use crate::spill::file::SpillStore;

/// The memory of a process that queries may use, and the limits of their stages.
#[derive(Debug)]
pub struct Memory {
    limits: [AtomicUsize; Limit::COUNT],
    /// What all operations may hold together where no parameter says so.
    process_bytes_max: usize,
    pub(crate) held: AtomicUsize,
    /// Whether operations may use the disk that do not say so themselves.
    disk_by_default: AtomicBool,
    /// Where stages spill to; without one, no operation may use the disk.
    store: Option<Box<dyn SpillStore>>,
    pub figures: Figures,
}

/// What sorting and grouping came to since the process began.
#[derive(Debug, Default)]
pub struct Figures {
    /// Runs that sorts have written.
    pub sort_spills: AtomicU64,
    pub keys_sorted: AtomicU64,
    pub bytes_sorted: AtomicU64,
    /// Runs that groups have written, the groups in them, and their bytes.
    pub group_spills: AtomicU64,
    pub groups_spilled: AtomicU64,
    pub group_bytes_spilled: AtomicU64,
    /// Operations that were told not to use the disk.
    pub disk_refused: AtomicU64,
}

impl Memory {
    pub fn new(store: Option<Box<dyn SpillStore>>, process_bytes_max: usize) -> Memory {
        Memory {
            limits: std::array::from_fn(|at| {
                AtomicUsize::new(limits::bytes(LIMITS.get(at).map_or(0, |row| row.default)))
            }),
            process_bytes_max,
            held: AtomicUsize::new(0),
            disk_by_default: AtomicBool::new(true),
            store,
            figures: Figures::default(),
        }
    }

    /// The limits that MongoDB has, and no disk: for what belongs to no process with parameters.
    pub(crate) fn detached() -> Arc<Memory> {
        static DETACHED: OnceLock<Arc<Memory>> = OnceLock::new();
        DETACHED
            .get_or_init(|| Arc::new(Memory::new(None, usize::MAX)))
            .clone()
    }

    pub fn limit(&self, limit: Limit) -> usize {
        let bytes = self.limits[limit as usize].load(Ordering::Relaxed);
        match (limit, bytes) {
            (Limit::Process, 0) => self.process_bytes_max,
            _ => bytes,
        }
    }

    /// Takes over the value of a parameter; false if it is none of those of memory.
    pub fn set_parameter(&self, name: &str, value: i64) -> bool {
        if name == limits::DISK_BY_DEFAULT {
            self.disk_by_default.store(value != 0, Ordering::Relaxed);
            return true;
        }
        let row = LIMITS.iter().find(|row| row.parameter == name);
        if let Some(row) = row {
            let bytes = limits::bytes(value);
            self.limits[row.limit as usize].store(bytes, Ordering::Relaxed);
        }
        row.is_some()
    }

    /// Every parameter's name and value.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static Row, i64)> {
        let value = |row: &Row| {
            let bytes = self.limits[row.limit as usize].load(Ordering::Relaxed);
            i64::try_from(bytes).unwrap_or(i64::MAX)
        };
        LIMITS.iter().map(move |row| (row, value(row)))
    }

    pub fn disk_by_default(&self) -> bool {
        self.disk_by_default.load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self) -> Option<&dyn SpillStore> {
        self.store.as_deref()
    }

    /// What all operations hold now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// Adds to a figure.
pub(crate) fn count(figure: &AtomicU64, by: u64) {
    figure.fetch_add(by, Ordering::Relaxed);
}
