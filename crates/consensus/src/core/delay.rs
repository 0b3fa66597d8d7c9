//! A state that follows later: that of a delayed member, which lets its state follow only after a
//! while, and one that is built more slowly than the log grows. What is committed and not yet due,
//! or has no room, stays in the log and is read from there when its time has come.

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};

use super::{Core, Decided, Outlet};
use crate::log::{Disk, LogError};
use crate::machine::Position;

/// Read and handed over at once, at most.
const RELEASE_BYTES_MAX: u64 = 4 << 20;

impl<D: Disk> Core<D> {
    /// A delayed member never campaigns.
    pub fn set_delayed(&mut self, delayed: bool) {
        self.delayed = delayed;
    }

    /// Entries that are committed are not handed over at once, or older ones were not.
    pub(super) fn holds_back(&self, index: u64) -> bool {
        self.delayed || self.released + 1 < index
    }

    /// Something that is committed was not handed over yet.
    pub fn is_holding_back(&self) -> bool {
        self.released < self.handed_over()
    }

    /// The last entry handed over.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Hands over entries that were held back, in order, up to the first that is not due or has no
    /// room. Some at a time: it is called again.
    pub fn release(
        &mut self,
        due: impl Fn(&[u8]) -> bool,
        outlet: &mut impl Outlet,
    ) -> Result<(), LogError> {
        let committed = self.handed_over();
        if self.released >= committed || self.needs_snapshot || self.installing {
            return Ok(());
        }
        let first = self.released + 1;
        if self.delayed {
            // Most often it is not due, and what follows would be read for nothing.
            let next = self.log().read(first, first + 1, 1)?;
            if next.iter().any(|entry| self.waits(entry, &due)) {
                return Ok(());
            }
        }
        let entries = self.log().read(first, committed + 1, RELEASE_BYTES_MAX)?;
        for entry in entries {
            if !outlet.has_room() || self.waits(&entry, &due) {
                break;
            }
            let data = match entry.get_entry_type() {
                EntryType::EntryNormal => entry.data,
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => Bytes::new(),
            };
            self.released = entry.index;
            let position = Position {
                term: entry.term,
                index: entry.index,
            };
            let newest = entry.index == self.membership().index;
            outlet.decided(Decided {
                position,
                data,
                membership: newest.then(|| self.membership().clone()),
            });
        }
        Ok(())
    }

    fn waits(&self, entry: &Entry, due: &impl Fn(&[u8]) -> bool) -> bool {
        let says_when = entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty();
        self.delayed && says_when && !due(&entry.data)
    }
}
