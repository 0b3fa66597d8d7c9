//! What is computed before an entry is committed.

use banyan_storage::Batch;

use crate::incoming::Announced;
use crate::latches::Held;

/// What a proposer hands over with its entry: the batch, and what keeps others away until the
/// batch is in.
pub struct Prepared {
    pub batch: Batch,
    pub latches: Held,
    /// What others are told of it meanwhile.
    pub announced: Option<Announced>,
}
