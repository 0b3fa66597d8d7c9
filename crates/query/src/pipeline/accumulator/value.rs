//! The values that states hold.

use bson::RawBson;

/// Null, where there is no value to give.
pub(super) fn null() -> RawBson {
    RawBson::Null
}

/// A rough size of an owned value.
pub(super) fn value_bytes(value: &RawBson) -> usize {
    match value {
        RawBson::String(v) => v.len() + 32,
        RawBson::Document(v) => v.as_bytes().len() + 32,
        RawBson::Array(v) => v.as_bytes().len() + 32,
        RawBson::Binary(v) => v.bytes.len() + 32,
        _ => 32,
    }
}
