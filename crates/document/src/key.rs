//! Values as bytes that sort as the values do, and the index keys of a document.
//!
//! `memcmp(encode(a), encode(b))` is `compare(a, b)`, for values of all types; values that compare
//! as equal (`1`, `1.0`, `NumberDecimal("1.00")`) encode as equal. No encoding is a prefix of
//! another, so encodings can follow one another in a compound key, and something else can follow
//! the key. A descending field has all its bits inverted.
//!
//! A value is a tag, in the order of types, and a payload:
//!
//! | type | payload |
//! | --- | --- |
//! | MinKey, undefined, null, MaxKey | none |
//! | numbers | see [`number`]: the tag says sign and length |
//! | strings, symbols, code | bytes, 00 as 01 01 and 01 as 01 02; ended by 00 |
//! | strings and symbols under a collation | the bytes of their key string, in the same way |
//! | documents | per field the rank of its type, its name, 00, its value; ended by 00 |
//! | arrays | the items; ended by 00 |
//! | binary | length (u32), subtype, bytes |
//! | ObjectId, booleans | the bytes |
//! | dates, timestamps | u64 (dates with the sign inverted) |
//! | regular expressions | pattern, 00, options, 00 |
//!
//! A key that is read again ([`KeyReader`]) has type bits beside it, which say what the bytes do not
//! ([`types`]).

mod builder;
mod combined;
mod decode;
mod hash;
mod number;
mod order;
mod pattern;
mod types;

pub use builder::{KeyBuilder, KeyField};
pub use combined::{Compute, Computed, cell_of_plane};
pub use decode::{FieldValue, KeyReader, Unreadable};
pub use hash::{hash, hash_collated};
pub use order::FieldOrder;
pub use pattern::{KeyError, KeyPattern, KeyPatternError, Keys, SPHERE_OF_COLUMN};
pub use types::Key;

use bson::{RawArray, RawBsonRef, RawDocument};

use crate::collation::{Collator, Simple, StringOrder};
use crate::compare::canonical_rank;
use crate::element::{elements, items};
use crate::number::Number;
use crate::writer;
use types::{NoTypes, SYMBOL, TypeSink};

mod tag {
    pub const MIN_KEY: u8 = 0x04;
    pub const UNDEFINED: u8 = 0x08;
    pub const NULL: u8 = 0x0c;
    // Numbers take 0x10 to 0x2f.
    pub const STRING: u8 = 0x40;
    pub const DOCUMENT: u8 = 0x48;
    pub const ARRAY: u8 = 0x50;
    pub const BINARY: u8 = 0x58;
    pub const OBJECT_ID: u8 = 0x60;
    pub const BOOLEAN: u8 = 0x68;
    pub const DATE: u8 = 0x70;
    pub const TIMESTAMP: u8 = 0x78;
    pub const REGEX: u8 = 0x80;
    pub const DB_POINTER: u8 = 0x88;
    pub const CODE: u8 = 0x90;
    pub const CODE_WITH_SCOPE: u8 = 0x98;
    pub const MAX_KEY: u8 = 0xf0;
}

/// Ends what has no length of its own. Below every tag and every byte of escaped text.
const END: u8 = 0x00;

/// Appends the encoding of `value`.
pub fn encode(value: RawBsonRef<'_>, out: &mut Vec<u8>) {
    encode_by(value, Simple, &mut NoTypes, out);
}

/// Appends the encoding of `value` in the order of a collation; without one, in the simple order.
pub fn encode_collated(value: RawBsonRef<'_>, collator: Option<&Collator>, out: &mut Vec<u8>) {
    encode_typed(value, collator, &mut NoTypes, out);
}

fn encode_typed(
    value: RawBsonRef<'_>,
    collator: Option<&Collator>,
    types: &mut impl TypeSink,
    out: &mut Vec<u8>,
) {
    match collator {
        None => encode_by(value, Simple, types, out),
        Some(collator) => encode_by(value, collator, types, out),
    }
}

fn encode_by(
    value: RawBsonRef<'_>,
    strings: impl StringOrder,
    types: &mut impl TypeSink,
    out: &mut Vec<u8>,
) {
    match value {
        RawBsonRef::MinKey => out.push(tag::MIN_KEY),
        RawBsonRef::Undefined => out.push(tag::UNDEFINED),
        RawBsonRef::Null => out.push(tag::NULL),
        RawBsonRef::MaxKey => out.push(tag::MAX_KEY),
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => {
            if let Some(n) = Number::from_raw(value) {
                number::encode(n, out);
                number::note_type(value, types);
            }
        }
        RawBsonRef::String(v) | RawBsonRef::Symbol(v) => {
            match value {
                RawBsonRef::Symbol(_) => types.other(SYMBOL, &[]),
                _ => types.usual(),
            }
            out.push(tag::STRING);
            strings.with_sort_key(v, |bytes| encode_text(bytes, out));
        }
        RawBsonRef::Document(v) => {
            out.push(tag::DOCUMENT);
            encode_fields(v, strings, types, out);
        }
        RawBsonRef::Array(v) => {
            out.push(tag::ARRAY);
            encode_items(v, strings, types, out);
        }
        RawBsonRef::Binary(v) => {
            let subtype = u8::from(v.subtype);
            // The old subtype carries a second length, which counts.
            let length = v.bytes.len() as u32 + if subtype == 2 { 4 } else { 0 };
            out.push(tag::BINARY);
            out.extend_from_slice(&length.to_be_bytes());
            out.push(subtype);
            out.extend_from_slice(v.bytes);
        }
        RawBsonRef::ObjectId(v) => {
            out.push(tag::OBJECT_ID);
            out.extend_from_slice(&v.bytes());
        }
        RawBsonRef::Boolean(v) => out.extend_from_slice(&[tag::BOOLEAN, u8::from(v)]),
        RawBsonRef::DateTime(v) => {
            out.push(tag::DATE);
            out.extend_from_slice(&(v.timestamp_millis() ^ i64::MIN).to_be_bytes());
        }
        RawBsonRef::Timestamp(v) => {
            out.push(tag::TIMESTAMP);
            out.extend_from_slice(&v.time.to_be_bytes());
            out.extend_from_slice(&v.increment.to_be_bytes());
        }
        RawBsonRef::RegularExpression(v) => {
            out.push(tag::REGEX);
            encode_name(v.pattern.as_str(), out);
            encode_name(v.options.as_str(), out);
        }
        RawBsonRef::DbPointer(_) => {
            out.push(tag::DB_POINTER);
            let mut bytes = Vec::new();
            writer::append_value(&mut bytes, value);
            out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            out.extend_from_slice(&bytes);
        }
        RawBsonRef::JavaScriptCode(v) => {
            out.push(tag::CODE);
            encode_text(v.as_bytes(), out);
        }
        RawBsonRef::JavaScriptCodeWithScope(v) => {
            out.push(tag::CODE_WITH_SCOPE);
            encode_text(v.code.as_bytes(), out);
            encode_fields(v.scope, strings, types, out);
        }
    }
}

/// Appends the encoding that sorts the other way round.
pub fn encode_descending(value: RawBsonRef<'_>, out: &mut Vec<u8>) {
    encode_descending_collated(value, None, out);
}

/// As [`encode_descending`], in the order of a collation.
pub fn encode_descending_collated(
    value: RawBsonRef<'_>,
    collator: Option<&Collator>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    encode_collated(value, collator, out);
    for byte in &mut out[start..] {
        *byte = !*byte;
    }
}

/// The lowest and the highest encoding of values that have the type (in comparison) of `value`:
/// every one of them lies in `low..high`.
pub fn type_range(value: &RawBsonRef<'_>) -> (Vec<u8>, Vec<u8>) {
    let (low, high) = match value {
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => (number::LOWEST, number::HIGHEST + 1),
        other => {
            let mut bytes = Vec::new();
            encode(*other, &mut bytes);
            let tag = bytes.first().copied().unwrap_or(tag::NULL);
            (tag, tag + 1)
        }
    };
    (vec![low], vec![high])
}

fn encode_text(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.iter().all(|byte| *byte > 0x01) {
        out.extend_from_slice(bytes);
    } else {
        for byte in bytes {
            match byte {
                0x00 => out.extend_from_slice(&[0x01, 0x01]),
                0x01 => out.extend_from_slice(&[0x01, 0x02]),
                other => out.push(*other),
            }
        }
    }
    out.push(END);
}

/// Text that cannot hold a zero byte.
fn encode_name(name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.push(END);
}

fn encode_fields(
    document: &RawDocument,
    strings: impl StringOrder,
    types: &mut impl TypeSink,
    out: &mut Vec<u8>,
) {
    for element in elements(document) {
        let value = element.value();
        // The type decides before the name does. No rank may look like the end.
        out.push(canonical_rank(&value) + 1);
        encode_name(element.name(), out);
        encode_by(value, strings, types, out);
    }
    out.push(END);
}

fn encode_items(
    array: &RawArray,
    strings: impl StringOrder,
    types: &mut impl TypeSink,
    out: &mut Vec<u8>,
) {
    for item in items(array) {
        encode_by(item.value(), strings, types, out);
    }
    out.push(END);
}

#[cfg(test)]
mod tests;
