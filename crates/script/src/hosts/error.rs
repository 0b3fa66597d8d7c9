//! Why a job has no result.

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JobError {
    /// A function threw, does not compile, or passed a bound. `code` is the wire's.
    #[error("{message}")]
    Script { code: i32, message: String },
    /// The host ran out of memory, and V8 ended it.
    #[error("the script used more memory than it may")]
    OutOfMemory,
    /// The host process ended in the middle of the job.
    #[error("the script host process ended unexpectedly ({how})")]
    HostDied { how: String },
    /// The caller's `interrupted` said so.
    #[error("the job was interrupted")]
    Interrupted,
    #[error("cannot start a script host: {reason}")]
    Start { reason: String },
    #[error("the values of one key are too large to be reduced together")]
    TooLarge,
    #[error("cannot keep partial results: {reason}")]
    Spill { reason: String },
    /// The host said something that makes no sense here.
    #[error("the script host broke its protocol")]
    Protocol,
}
