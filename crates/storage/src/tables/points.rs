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
    memory: MemoryPoints,
    /// The newest first.
    runs: Vec<RunReader>,
    /// How many were found in memory.
    in_memory: u64,
}

impl Drop for Points {
    fn drop(&mut self) {
        self.state.note_reads(self.in_memory);
    }
}

impl Points {
    pub(crate) fn new(state: Arc<State>, seqno: SeqNo) -> Points {
        let runs = state.runs.iter();
        let runs = runs.map(|run| RunReader::new(run.clone())).collect();
        Points {
            state,
            seqno,
            memory: MemoryPoints::default(),
            runs,
            in_memory: 0,
        }
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Slice>, lsm_tree::Error> {
        if let Some(memory) = &self.state.memory
            && let Some(found) = self.memory.get(memory, key, self.seqno)
        {
            self.in_memory += 1;
            return Ok(kept(found));
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
