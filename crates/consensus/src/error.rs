//! Why a call on a group fails.

use crate::machine::PeerId;

/// Why a group could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Open(String),
    #[error("the group has stopped")]
    Stopped,
    #[error("this member is not the leader")]
    NotLeader { leader: Option<PeerId> },
    #[error("{0}")]
    Refused(String),
    #[error("no answer in time")]
    Timeout,
    /// Entries of the log cannot be read; it says which.
    #[error("the log is damaged: {0}")]
    Damaged(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The entry was not accepted; propose it at the leader.
    #[error("this member is not the leader")]
    NotLeader { leader: Option<PeerId> },
    /// The entry was accepted, then leadership was lost: it may or may not be committed.
    #[error("leadership was lost before the entry was known to be committed")]
    Unknown,
    #[error("the group has stopped")]
    Stopped,
    #[error("the entry is too large")]
    TooLarge,
    #[error("too much waits to be committed")]
    Busy,
}
