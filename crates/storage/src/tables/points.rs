//! Values by their keys, one after another.
//!
//! The engine looks up each key from the top: its versions, the table, the table's index, the block. Here
//! what one lookup has opened serves the next ones that lie there as well.

use std::sync::Arc;

use fjall::Slice;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{InternalValue, SeqNo};

use super::memory::MemoryPoints;
use super::run::RunReader;
use super::state::State;

pub(crate) struct Points {
    state: Arc<State>,
    seqno: SeqNo,
    /// `None`: nothing lies in memory.
    memory: Option<MemoryPoints>,
    /// The newest first.
    runs: Vec<RunReader>,
}

impl Drop for Points {
    fn drop(&mut self) {
        let read = self.memory.as_ref().map_or(0, MemoryPoints::read);
        self.state.note_reads(read);
    }
}

impl Points {
    pub(crate) fn new(state: Arc<State>, seqno: SeqNo) -> Points {
        let runs = state.runs.iter();
        let runs = runs.map(|run| RunReader::new(run.clone())).collect();
        let memory = state.memory.clone().map(MemoryPoints::new);
        Points {
            state,
            seqno,
            memory,
            runs,
        }
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Slice>, lsm_tree::Error> {
        if let Some(memory) = &mut self.memory
            && let Some(known) = memory.get(key, self.seqno)
        {
            return Ok(known);
        }
        let hash = Builder::get_hash(key);
        for run in &mut self.runs {
            if let Some(found) = run.get(&self.state, key, hash, self.seqno)? {
                return Ok(kept(found));
            }
        }
        Ok(None)
    }
}

/// The value, unless it was removed.
fn kept(found: InternalValue) -> Option<Slice> {
    (!found.is_tombstone()).then_some(found.value)
}
