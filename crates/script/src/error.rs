//! What can go wrong in a script, and on a value's way in and out.

use thiserror::Error;

/// Nesting, in either direction. Documents may nest 100 deep; arguments wrap them.
pub const DEPTH_MAX: usize = 150;
/// A message holds no more than this.
pub const BYTES_MAX: usize = 48_000_000;

/// Why a value cannot cross.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConvertError {
    #[error("malformed BSON")]
    Malformed,
    #[error(
        "Exceeded depth limit of {DEPTH_MAX} when converting js object to BSON. Do you have a cycle?"
    )]
    TooDeep,
    #[error("cannot convert {what} to BSON")]
    Unrepresentable { what: &'static str },
    #[error("a field name contains a zero byte")]
    ZeroInName,
    #[error("the date is not valid")]
    InvalidDate,
    #[error("the converted object is larger than {BYTES_MAX} bytes")]
    TooLarge,
    #[error("a string is too long for JavaScript")]
    StringTooLong,
    /// A getter threw; the exception is pending.
    #[error("an exception was thrown while converting to BSON")]
    Threw,
}

/// What can go wrong in a script.
#[derive(Debug, Clone, Error)]
pub enum ScriptError {
    /// The source is not JavaScript.
    #[error("{message}")]
    Syntax { message: String },
    /// The script threw. `message` is the exception as text, `stack` its trace, if it has one.
    #[error("{message}")]
    Thrown {
        message: String,
        stack: Option<String>,
        code: Option<i32>,
    },
    /// The source is a value, but not a function.
    #[error("the source is not a function: {source_start}")]
    NotAFunction { source_start: String },
    /// Another thread ended the script: its time is over, or it was killed.
    #[error("the script was terminated")]
    Terminated,
    /// The heap came near its limit.
    #[error("the script used more than its {heap_bytes_max} bytes of memory")]
    OutOfMemory { heap_bytes_max: usize },
    /// A value has no form in BSON.
    #[error("{0}")]
    Convert(#[from] ConvertError),
}
