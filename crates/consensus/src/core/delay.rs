//! A delayed member: it keeps up with the log, and lets its state follow only after a while. What is
//! committed and not yet due stays in the log and is read from there when its time has come.

use bytes::Bytes;
use raft::eraftpb::EntryType;

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

    /// The last entry handed over.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Hands over entries that were held back, in order, up to the first that is not due. Some at a
    /// time: it is called again.
    pub fn release(
        &mut self,
        due: impl Fn(&[u8]) -> bool,
        outlet: &mut impl Outlet,
    ) -> Result<(), LogError> {
        let committed = self.handed_over();
        if self.released >= committed || self.needs_snapshot || self.installing {
            return Ok(());
        }
        let entries = self
            .log()
            .read(self.released + 1, committed + 1, RELEASE_BYTES_MAX)?;
        for entry in entries {
            let data = match entry.get_entry_type() {
                EntryType::EntryNormal => entry.data,
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => Bytes::new(),
            };
            if self.delayed && !data.is_empty() && !due(&data) {
                break;
            }
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
}
