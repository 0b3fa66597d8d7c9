//! Errors that several parts of the router answer.

use banyan_query::{ErrorKind, QueryError};
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

/// An error of another process in the terms of what computes here.
pub fn failed(error: CommandError) -> QueryError {
    QueryError::new(
        ErrorKind::Location(error.code.code().unsigned_abs()),
        error.message,
    )
}
