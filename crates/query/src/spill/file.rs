//! The files that stages spill to, as whoever keeps them makes them.

use std::fmt;

use crate::error::{ErrorKind, QueryError};

/// Makes files that stages spill to.
pub trait SpillStore: fmt::Debug + Send + Sync {
    /// A new one, which is gone once it is dropped.
    fn create(&self) -> Result<Box<dyn SpillFile>, QueryError>;
}

/// A file of blocks that is written at its end and read anywhere.
pub trait SpillFile: Send + Sync {
    /// Appends a block, and says where it lies.
    fn append(&mut self, block: &[u8]) -> Result<u64, QueryError>;

    /// Reads the block that lies at `place`, and says where the next one lies.
    fn read(&self, place: u64, block: &mut Vec<u8>) -> Result<u64, QueryError>;
}

/// What was read from disk is not what was written.
pub(crate) fn damaged() -> QueryError {
    QueryError::new(
        ErrorKind::DataCorruptionDetected,
        "what was spilled to disk is damaged",
    )
}
