//! Snapshots that clients were told the time of, kept so that a later read can name it.
//!
//! A driver's snapshot session takes the time out of its first read's reply and asks for the same
//! time in those that follow. Bounded in number and in age: each keeps old versions alive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_storage::{Catalog, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::Timestamp;
use parking_lot::Mutex;

use crate::clock;
use crate::errors;
use crate::replica::Replica;

const KEPT_MAX: usize = 4096;
/// A catalog that keeps changing while a snapshot is taken is tried again so often.
const TRIES: usize = 100;

/// The state as of one time.
#[derive(Clone)]
pub struct PointInTime {
    pub catalog: Arc<Catalog>,
    pub snapshot: Snapshot,
    pub time: Timestamp,
}

#[derive(Default)]
pub struct Snapshots {
    /// By [`clock::to_bits`].
    kept: Mutex<BTreeMap<u64, Kept>>,
    /// The last one that every member keeps.
    point: Mutex<Option<PointInTime>>,
    /// Held by whoever has one made; when the last one was begun.
    pointing: tokio::sync::Mutex<Option<Instant>>,
}

struct Kept {
    view: PointInTime,
    used: Instant,
}

impl Snapshots {
    /// The newest state, kept.
    pub fn take(&self, replica: &Replica, keep: Duration) -> Result<PointInTime, CommandError> {
        let view = newest(replica)?;
        self.keep(view.clone(), keep);
        Ok(view)
    }

    /// Called where the log asks every member to keep the state as it is.
    pub fn reached_point(&self, replica: &Replica, keep: Duration) {
        match self.take(replica, keep) {
            Ok(view) => *self.point.lock() = Some(view),
            Err(error) => tracing::warn!(%error, "cannot keep a snapshot that others keep"),
        }
    }

    pub fn newest_point(&self) -> Option<PointInTime> {
        self.point.lock().clone()
    }

    pub async fn pointing(&self) -> tokio::sync::MutexGuard<'_, Option<Instant>> {
        self.pointing.lock().await
    }

    /// One that was kept.
    pub fn find(&self, time: Timestamp, keep: Duration) -> Option<PointInTime> {
        let mut kept = self.kept.lock();
        forget_old(&mut kept, keep);
        kept.get(&clock::to_bits(time))
            .map(|kept| kept.view.clone())
    }

    /// The state as of a time that is applied here. It can be had if it was kept, or if nothing
    /// has changed since.
    pub fn at(
        &self,
        replica: &Replica,
        time: Timestamp,
        keep: Duration,
    ) -> Result<PointInTime, CommandError> {
        if let Some(view) = self.find(time, keep) {
            return Ok(view);
        }
        let mut view = newest(replica)?;
        if clock::to_bits(view.time) != clock::to_bits(time) {
            let kept_from = self.kept.lock().keys().next().copied();
            let code = match kept_from {
                Some(first) if clock::to_bits(time) >= first => ErrorCode::SnapshotUnavailable,
                _ => ErrorCode::SnapshotTooOld,
            };
            return Err(CommandError::new(
                code,
                format!(
                    "Read timestamp Timestamp({}, {}) is not one that this member keeps a snapshot \
                     of; please retry the operation.",
                    time.time, time.increment
                ),
            ));
        }
        view.time = time;
        self.keep(view.clone(), keep);
        Ok(view)
    }

    fn keep(&self, view: PointInTime, keep: Duration) {
        let mut kept = self.kept.lock();
        forget_old(&mut kept, keep);
        while kept.len() >= KEPT_MAX {
            kept.pop_first();
        }
        let used = Instant::now();
        kept.entry(clock::to_bits(view.time))
            .or_insert(Kept { view, used });
    }

    /// Lets go of what is too old; to be called now and then.
    pub fn reap(&self, keep: Duration) {
        let mut kept = self.kept.lock();
        forget_old(&mut kept, keep);
        let mut point = self.point.lock();
        let time = point.as_ref().map(|view| clock::to_bits(view.time));
        if time.is_some_and(|time| !kept.contains_key(&time)) {
            *point = None;
        }
    }

    pub fn count(&self) -> usize {
        self.kept.lock().len()
    }
}

fn forget_old(kept: &mut BTreeMap<u64, Kept>, keep: Duration) {
    let now = Instant::now();
    while let Some(first) = kept.first_entry() {
        if now.duration_since(first.get().used) <= keep {
            break;
        }
        first.remove();
    }
}

/// The newest state with its exact time: the applied position is part of what a snapshot sees.
fn newest(replica: &Replica) -> Result<PointInTime, CommandError> {
    for _ in 0..TRIES {
        let catalog = replica.store.catalog();
        let snapshot = replica.store.snapshot();
        let time = replica
            .machine
            .time_of(&snapshot)
            .map_err(errors::storage)?;
        // The catalog is the one of this snapshot if it was the same before and after.
        if Arc::ptr_eq(&catalog, &replica.store.catalog()) {
            return Ok(PointInTime {
                catalog,
                snapshot,
                time,
            });
        }
    }
    Err(CommandError::new(
        ErrorCode::SnapshotUnavailable,
        "Unable to read from a snapshot due to pending collection catalog changes; please retry \
         the operation.",
    ))
}
