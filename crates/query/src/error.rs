//! What can be wrong with a filter, an expression, an update or a pipeline, or go wrong in one.

use std::fmt;

/// A kind of error, each with one code of MongoDB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InternalError,
    BadValue,
    NoSuchKey,
    FailedToParse,
    TypeMismatch,
    Overflow,
    InvalidLength,
    IllegalOperation,
    EmptyFieldName,
    InvalidBson,
    PathNotViable,
    CannotBackfillArray,
    ConflictingUpdateOperators,
    DollarPrefixedFieldName,
    DottedFieldName,
    NotSingleValueField,
    NotExactValueField,
    InvalidNamespace,
    ImmutableField,
    InvalidIdField,
    InvalidOptions,
    JsInterpreterFailure,
    ExceededMemoryLimit,
    GraphContainsCycle,
    ViewDepthLimitExceeded,
    OptionNotSupportedOnView,
    InvalidViewDefinition,
    ViewPipelineMaxSizeExceeded,
    InvalidPipelineOperator,
    QueryFeatureNotAllowed,
    NotImplemented,
    ConversionFailure,
    NoQueryExecutionPlans,
    QueryExceededMemoryLimitNoDiskUseAllowed,
    BsonObjectTooLarge,
    MaxTimeMSExpired,
    QueryPlanKilled,
    CappedPositionLost,
    CursorKilled,
    ClientDisconnect,
    DataCorruptionDetected,
    OutOfDiskSpace,
    InterruptedAtShutdown,
    Interrupted,
    InterruptedDueToReplStateChange,
    UnknownError,
    /// An error that has a number and no name.
    Location(u32),
}

impl ErrorKind {
    /// MongoDB's code.
    pub fn code(self) -> i32 {
        match self {
            ErrorKind::InternalError => 1,
            ErrorKind::BadValue => 2,
            ErrorKind::NoSuchKey => 4,
            ErrorKind::UnknownError => 8,
            ErrorKind::FailedToParse => 9,
            ErrorKind::TypeMismatch => 14,
            ErrorKind::Overflow => 15,
            ErrorKind::InvalidLength => 16,
            ErrorKind::IllegalOperation => 20,
            ErrorKind::InvalidBson => 22,
            ErrorKind::PathNotViable => 28,
            ErrorKind::CannotBackfillArray => 34,
            ErrorKind::ConflictingUpdateOperators => 40,
            ErrorKind::DollarPrefixedFieldName => 52,
            ErrorKind::NotSingleValueField => 54,
            ErrorKind::NotExactValueField => 111,
            ErrorKind::EmptyFieldName => 56,
            ErrorKind::DottedFieldName => 57,
            ErrorKind::ImmutableField => 66,
            ErrorKind::InvalidIdField => 53,
            ErrorKind::InvalidOptions => 72,
            ErrorKind::InvalidNamespace => 73,
            ErrorKind::JsInterpreterFailure => 139,
            ErrorKind::ExceededMemoryLimit => 146,
            ErrorKind::GraphContainsCycle => 5,
            ErrorKind::ViewDepthLimitExceeded => 165,
            ErrorKind::OptionNotSupportedOnView => 167,
            ErrorKind::InvalidPipelineOperator => 168,
            ErrorKind::InvalidViewDefinition => 182,
            ErrorKind::ViewPipelineMaxSizeExceeded => 195,
            ErrorKind::QueryFeatureNotAllowed => 224,
            ErrorKind::NotImplemented => 238,
            ErrorKind::ConversionFailure => 241,
            ErrorKind::NoQueryExecutionPlans => 291,
            ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed => 292,
            ErrorKind::BsonObjectTooLarge => 10334,
            ErrorKind::MaxTimeMSExpired => 50,
            ErrorKind::QueryPlanKilled => 175,
            ErrorKind::CappedPositionLost => 136,
            ErrorKind::CursorKilled => 237,
            ErrorKind::ClientDisconnect => 279,
            ErrorKind::DataCorruptionDetected => 301,
            ErrorKind::OutOfDiskSpace => 14031,
            ErrorKind::InterruptedAtShutdown => 11600,
            ErrorKind::Interrupted => 11601,
            ErrorKind::InterruptedDueToReplStateChange => 11602,
            ErrorKind::Location(code) => code as i32,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    pub kind: ErrorKind,
    pub message: String,
}

impl QueryError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> QueryError {
        QueryError {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn bad_value(message: impl Into<String>) -> QueryError {
        QueryError::new(ErrorKind::BadValue, message)
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for QueryError {}
