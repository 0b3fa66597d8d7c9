//! A batch that was read before anybody has asked for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_wire::CommandError;

use super::batch::{Batch, Filled};

/// Of batches that nobody has asked for yet, in the whole process.
const BYTES_MAX: usize = 128 << 20;

/// A batch that was read ahead.
pub struct Ahead {
    pub batch: Batch,
    /// How many documents it was to hold at most.
    pub documents: u64,
    /// `Filled::Stopped`: there is room in it still.
    pub filled: Result<Filled, CommandError>,
    _reserved: Reserved,
}

impl Ahead {
    pub fn new(
        batch: Batch,
        documents: u64,
        filled: Result<Filled, CommandError>,
        reserved: Reserved,
    ) -> Ahead {
        Ahead {
            batch,
            documents,
            filled,
            _reserved: reserved,
        }
    }
}

/// Some of the bytes that the process has for batches nobody has asked for yet.
pub struct Reserved {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Reserved {
    /// `None`: others have taken them.
    pub fn take(used: &Arc<AtomicUsize>, bytes: usize) -> Option<Reserved> {
        let reserve = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= BYTES_MAX);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
            .ok()?;
        Some(Reserved {
            used: used.clone(),
            bytes,
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
