//! The engine's snapshot, and the state of the tables that belongs to it.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use lsm_tree::SeqNo;

use crate::keyspaces::{Keyspace, Keyspaces, LargeKeyspaces};
use crate::tables::State;

pub(crate) struct View {
    snapshot: fjall::Snapshot,
    /// Found out when the first scan begins. `None`: it is not at hand.
    states: LargeKeyspaces<OnceLock<Option<Arc<State>>>>,
}

impl View {
    pub(crate) fn new(snapshot: fjall::Snapshot) -> View {
        View {
            snapshot,
            states: LargeKeyspaces::default(),
        }
    }

    /// What it reads of a keyspace, if that is at hand. `visible` is the seqno that a snapshot would
    /// have now.
    pub(crate) fn state(
        &self,
        keyspaces: &Keyspaces,
        keyspace: Keyspace,
        visible: impl Fn() -> SeqNo,
    ) -> Option<&Arc<State>> {
        let known = self.states.of(keyspace)?;
        let state = known.get_or_init(|| {
            let states = keyspaces.states.of(keyspace)?;
            let state = states.capture(keyspaces.of(keyspace), self.seqno(), visible)?;
            Some(Arc::new(state))
        });
        state.as_ref()
    }
}

impl Deref for View {
    type Target = fjall::Snapshot;

    fn deref(&self) -> &fjall::Snapshot {
        &self.snapshot
    }
}
