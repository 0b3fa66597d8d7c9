//! Errors that several parts of the router answer.

use banyan_query::QueryError;
use banyan_wire::{CommandError, ErrorCode};

pub fn query_error(error: QueryError) -> CommandError {
    CommandError::new(ErrorCode::from_code(error.kind.code()), error.message)
}

/// The client's time is over.
pub fn expired() -> CommandError {
    CommandError::new(ErrorCode::MaxTimeMSExpired, "operation exceeded time limit")
}

/// A database that vanished between being made and being used.
pub fn no_database() -> CommandError {
    CommandError::new(
        ErrorCode::NamespaceNotFound,
        "the database was dropped meanwhile",
    )
}
