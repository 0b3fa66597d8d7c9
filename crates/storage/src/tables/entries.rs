//! Where entries come from.

use std::ops::Bound;

use lsm_tree::SeqNo;

use super::chunk::Chunk;
use super::state::State;

/// What a source has behind what it has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    More,
    /// Nothing within the range.
    Behind,
    Ended,
}

/// The entries of one source in one direction, older versions of a key and removals among them.
pub(super) trait Entries {
    /// Goes, once it is asked for more, to the first key from this one on; backward to the last key before
    /// this one. `None`: to where they begin in this direction.
    fn seek(&mut self, key: Option<&[u8]>);

    /// Takes what comes next into the chunk, about so many entries.
    fn fill(
        &mut self,
        state: &State,
        chunk: &mut Chunk,
        seqno: SeqNo,
        end: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Result<Rest, lsm_tree::Error>;

    /// How many entries in memory were read.
    fn read_in_memory(&self) -> u64 {
        0
    }
}
