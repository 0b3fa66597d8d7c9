//! Errors while a validator runs: some are about the document, some about the operation.

use crate::error::{ErrorKind, QueryError};

/// What MongoDB calls an error of this code.
pub type CodeName<'a> = &'a dyn Fn(i32) -> String;

/// An evaluation that failed counts as no match, unless the operation has to end.
pub(super) fn refuted(outcome: Result<bool, QueryError>) -> Result<bool, QueryError> {
    match outcome {
        Err(error) if !ends_operation(error.kind) => Ok(false),
        outcome => outcome,
    }
}

/// Whether an error is about the operation rather than about a document.
pub fn ends_operation(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::MaxTimeMSExpired
            | ErrorKind::QueryPlanKilled
            | ErrorKind::CursorKilled
            | ErrorKind::ClientDisconnect
            | ErrorKind::Interrupted
            | ErrorKind::InterruptedAtShutdown
            | ErrorKind::InterruptedDueToReplStateChange
            | ErrorKind::InternalError
    )
}
