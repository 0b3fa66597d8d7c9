//! Errors of the crates below, as commands answer them.

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::StorageError;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

pub fn query(error: QueryError) -> CommandError {
    CommandError::new(ErrorCode::from_code(error.kind.code()), error.message)
}

/// A read that failed says what was found where; it is logged too, since no client can act on it.
pub fn storage(error: StorageError) -> CommandError {
    tracing::error!(%error, "cannot read");
    let code = match error {
        StorageError::Damaged { .. } => ErrorCode::DataCorruptionDetected,
        _ => ErrorCode::InternalError,
    };
    CommandError::new(code, error.to_string())
}

/// Parses a filter outside of any command's variables.
pub fn parse_filter(filter: &RawDocument) -> Result<Filter, CommandError> {
    Filter::parse(filter, &banyan_query::Context::default()).map_err(query)
}
