//! Why a job has no result.

use parking_lot::Mutex;
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

/// The first error of the job; the others follow from it.
#[derive(Default)]
pub struct FirstError(Mutex<Option<JobError>>);

impl FirstError {
    pub fn set(&self, error: JobError) {
        self.0.lock().get_or_insert(error);
    }

    pub fn get(&self) -> Option<JobError> {
        self.0.lock().clone()
    }
}
