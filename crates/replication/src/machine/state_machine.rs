//! What the group asks of the state.

use std::io;
use std::sync::atomic::Ordering;

use banyan_consensus::{ApplyError, Committed, LogBarrier, Position, SnapshotMeta, StateMachine};
use banyan_storage::Batch;

use super::{LogPoint, Machine, Prepared};
use crate::entry::{self, Header};
use crate::incoming::Announced;
use crate::latches::Held;

impl StateMachine for Machine {
    type Prepared = Prepared;

    fn applied(&self) -> Position {
        self.applied.lock().position
    }

    fn check(&self, data: &[u8]) -> Result<(), String> {
        entry::check(data).map_err(|error| error.to_string())
    }

    fn seal(&self, data: &mut [u8]) {
        entry::seal(data, &self.clock);
    }

    fn written_ms(&self, data: &[u8]) -> Option<i64> {
        Header::read(data).map(|header| header.wall_ms)
    }

    fn apply(&self, mut entries: Vec<Committed<Prepared>>) -> Result<(), ApplyError> {
        let prepared = entries
            .iter_mut()
            .filter_map(|entry| entry.prepared.as_mut());
        let held: Vec<(Held, Option<Announced>)> = prepared
            .map(|prepared| (prepared.latches.hand_over(), prepared.announced.take()))
            .collect();
        let applied = self.take_committed(entries);
        if applied.is_err() {
            // The process is about to end. Until it has, whoever got in would decide on a state that
            // lacks what is committed, and the log might still carry that to the other members.
            for (latches, announced) in held {
                latches.keep_forever();
                announced.into_iter().for_each(Announced::keep_forever);
            }
        }
        applied
    }

    fn keep_behind_log(&self, barrier: LogBarrier) {
        self.store.keep_behind_log(barrier);
    }

    fn durable(&self) -> u64 {
        self.store.durable_position()
    }

    fn make_durable(&self) -> io::Result<u64> {
        self.store.persist().map_err(io::Error::other)?;
        Ok(self.durable())
    }

    fn install_snapshot(&self, meta: SnapshotMeta) -> Result<(), ApplyError> {
        let fetched = match &*self.snapshots.read() {
            Some(fetch) => fetch(&meta, self.import_scope()),
            None => Err("nobody to fetch a snapshot from".to_owned()),
        };
        self.load().map_err(|error| ApplyError(error.to_string()))?;
        self.installs.fetch_add(1, Ordering::AcqRel);
        fetched.map_err(ApplyError)?;
        self.has_leftovers.store(false, Ordering::Release);
        let mut batch = Batch::new();
        self.base.set(&mut batch, self.last_applied());
        self.store
            .commit(batch)
            .map_err(|error| ApplyError(error.to_string()))?;
        self.make_durable()
            .map_err(|error| ApplyError(error.to_string()))?;
        for watched in &*self.watched.read() {
            watched.tell_of_all();
        }
        self.tell_of_point(&LogPoint::Installed);
        self.tell_of_definitions();
        if let Some(listener) = &*self.on_config.read() {
            listener();
        }
        Ok(())
    }
}

impl Machine {
    fn take_committed(&self, entries: Vec<Committed<Prepared>>) -> Result<(), ApplyError> {
        self.remove_leftovers()
            .map_err(|error| ApplyError(format!("cannot remove half a snapshot: {error}")))?;
        self.take(entries)
            .map_err(|error| ApplyError(format!("cannot apply the log: {error}")))
    }
}
