//! Errors of the crates below, as commands answer them.

use banyan_document::key::KeyError;
use banyan_query::bounds::describe_value;
use banyan_query::filter::Filter;
use banyan_query::{ErrorKind, QueryError};
use banyan_storage::StorageError;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

pub fn query(error: QueryError) -> CommandError {
    CommandError::new(ErrorCode::from_code(error.kind.code()), error.message)
}

/// A command's error on its way through the query crate; its code survives.
pub fn within_query(error: CommandError) -> QueryError {
    let code = error.code.code().unsigned_abs();
    QueryError::new(ErrorKind::Location(code), error.message)
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

/// A document has no keys in an index. One with a shape that is none is shown, if it is short.
pub fn no_keys(error: KeyError, document: &RawDocument) -> CommandError {
    const SHOWN_BYTES_MAX: usize = 16 << 10;
    let code = ErrorCode::from_code(error.code());
    let message = match &error {
        KeyError::Geo(reason) if document.as_bytes().len() <= SHOWN_BYTES_MAX => {
            let document = shown(bson::RawBsonRef::Document(document));
            format!("Can't extract geo keys: {document}  {reason}")
        }
        _ => error.to_string(),
    };
    CommandError::new(code, message)
}

/// Something that should not happen to a request, whatever it says.
pub fn internal(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InternalError, message)
}

/// `$where` without an engine for JavaScript.
const NO_ENGINE: ErrorCode = ErrorCode::Location(6_108_304);

/// Parses a filter outside of any command's variables, where there is no engine for JavaScript.
pub fn parse_filter(filter: &RawDocument) -> Result<Filter, CommandError> {
    let parsed = Filter::parse(filter, &banyan_query::Context::default()).map_err(query);
    parsed.map_err(|error| match error.code {
        NO_ENGINE => {
            CommandError::new(ErrorCode::BadValue, "$where is not allowed in this context")
        }
        _ => error,
    })
}

/// A value as MongoDB's messages show it.
pub fn shown(value: bson::RawBsonRef<'_>) -> String {
    describe_value(value, false)
}
