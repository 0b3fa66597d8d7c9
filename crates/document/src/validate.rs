//! The full check of untrusted bytes: after it, reading a document cannot fail.
//!
//! Lengths, terminators, element types, UTF-8 of names and strings, booleans, and nesting are
//! looked at once, where bytes enter the process; the rest of the code reads validated documents
//! and treats an unreadable element as the end of the document.

use bson::RawDocument;
use thiserror::Error;

/// The largest document that a user may store.
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;
/// What commands and internal documents may have on top of a user's document.
pub const COMMAND_SLACK_BYTES: usize = 16 * 1024;
/// The largest message on the wire.
pub const MAX_MESSAGE_BYTES: usize = 48_000_000;
/// How many documents and arrays may lie inside one another in the outermost document.
pub const MAX_DEPTH: usize = 200;
/// How many of them, the outermost included, a user may store, as in MongoDB: what reads it back may put
/// something around it.
pub const MAX_STORED_DEPTH: usize = 180;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Invalid {
    #[error("document of {actual} bytes says that it has {stated}")]
    Length { stated: i64, actual: usize },
    #[error("document does not end with a zero byte")]
    Unterminated,
    #[error("element at byte {at} runs past the end of its document")]
    Truncated { at: usize },
    #[error("unrecognized BSON type {kind} at byte {at}")]
    UnknownType { kind: u8, at: usize },
    #[error("text at byte {at} is not valid UTF-8")]
    Utf8 { at: usize },
    #[error("malformed value of type {kind} at byte {at}")]
    Value { kind: u8, at: usize },
    #[error("BSONObj exceeds maximum nested object depth: {max}")]
    TooDeep { max: usize },
}

/// Checks one document that fills `bytes` exactly.
pub fn validate(bytes: &[u8]) -> Result<&RawDocument, Invalid> {
    validate_with_depth(bytes, MAX_DEPTH)
}

/// The same with another bound on nesting, for commands that wrap a user's documents.
pub fn validate_with_depth(bytes: &[u8], depth_max: usize) -> Result<&RawDocument, Invalid> {
    check_document(bytes, 0, depth_max + 1, depth_max)?;
    RawDocument::from_bytes(bytes).map_err(|_| Invalid::Unterminated)
}

/// The length that the document at the head of `bytes` states, if it can be one.
pub fn stated_length(bytes: &[u8]) -> Option<usize> {
    let stated = i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    usize::try_from(stated).ok().filter(|length| *length >= 5)
}

/// `at` is where `bytes` lies in the whole, for messages.
fn check_document(
    bytes: &[u8],
    at: usize,
    depth_left: usize,
    depth_max: usize,
) -> Result<(), Invalid> {
    let Some(depth_left) = depth_left.checked_sub(1) else {
        return Err(Invalid::TooDeep { max: depth_max });
    };
    if stated_length(bytes) != Some(bytes.len()) {
        let stated = bytes
            .get(..4)
            .and_then(|b| b.try_into().ok())
            .map_or(0, i32::from_le_bytes);
        return Err(Invalid::Length {
            stated: i64::from(stated),
            actual: bytes.len(),
        });
    }
    if bytes.last() != Some(&0) {
        return Err(Invalid::Unterminated);
    }
    let body = &bytes[..bytes.len() - 1];
    let mut next = 4;
    while next < body.len() {
        let start = next;
        let kind = body[start];
        next = cstring_end(body, start + 1, at)?;
        let size = value_size(kind, &body[next..]).ok_or_else(|| {
            let (at, known) = (at + start, is_known(kind));
            if known {
                Invalid::Truncated { at }
            } else {
                Invalid::UnknownType { kind, at }
            }
        })?;
        let value = body
            .get(next..next.saturating_add(size))
            .ok_or(Invalid::Truncated { at: at + start })?;
        check_value(kind, value, at + next, depth_left, depth_max)?;
        next += size;
    }
    Ok(())
}

fn is_known(kind: u8) -> bool {
    matches!(kind, 0x01..=0x13 | 0x7f | 0xff)
}

/// What the first bytes of a value say of its size, by its type.
const SIZES: [Size; 256] = sizes();

#[derive(Clone, Copy)]
enum Size {
    Fixed(u8),
    /// A length, and so many bytes that it does not count.
    Stated(u8),
    /// Two texts, each up to a zero byte.
    Texts,
    Unknown,
}

const fn sizes() -> [Size; 256] {
    let mut sizes = [Size::Unknown; 256];
    sizes[0x01] = Size::Fixed(8);
    sizes[0x02] = Size::Stated(4);
    sizes[0x03] = Size::Stated(0);
    sizes[0x04] = Size::Stated(0);
    sizes[0x05] = Size::Stated(5);
    sizes[0x06] = Size::Fixed(0);
    sizes[0x07] = Size::Fixed(12);
    sizes[0x08] = Size::Fixed(1);
    sizes[0x09] = Size::Fixed(8);
    sizes[0x0a] = Size::Fixed(0);
    sizes[0x0b] = Size::Texts;
    sizes[0x0c] = Size::Stated(16);
    sizes[0x0d] = Size::Stated(4);
    sizes[0x0e] = Size::Stated(4);
    sizes[0x0f] = Size::Stated(0);
    sizes[0x10] = Size::Fixed(4);
    sizes[0x11] = Size::Fixed(8);
    sizes[0x12] = Size::Fixed(8);
    sizes[0x13] = Size::Fixed(16);
    sizes[0x7f] = Size::Fixed(0);
    sizes[0xff] = Size::Fixed(0);
    sizes
}

/// The bytes that a value takes, from its type and its own head; `None` if there are too few.
#[inline]
pub(crate) fn value_size(kind: u8, rest: &[u8]) -> Option<usize> {
    match SIZES[usize::from(kind)] {
        Size::Fixed(size) => Some(usize::from(size)),
        Size::Stated(more) => {
            let stated = i32::from_le_bytes(*rest.first_chunk()?);
            Some(usize::try_from(stated).ok()? + usize::from(more))
        }
        Size::Texts => texts_size(rest),
        Size::Unknown => None,
    }
}

#[cold]
fn texts_size(rest: &[u8]) -> Option<usize> {
    let text = |from: usize| {
        let end = rest.get(from..)?.iter().position(|byte| *byte == 0)?;
        Some(from + end + 1)
    };
    text(text(0)?)
}

fn check_value(
    kind: u8,
    value: &[u8],
    at: usize,
    depth_left: usize,
    depth_max: usize,
) -> Result<(), Invalid> {
    let malformed = Invalid::Value { kind, at };
    match kind {
        0x02 | 0x0d | 0x0e => check_string(value, kind, at),
        0x03 | 0x04 => check_document(value, at, depth_left, depth_max),
        0x05 => {
            // The old binary subtype repeats the length inside.
            if value.get(4) != Some(&2) {
                return Ok(());
            }
            let inner = value
                .get(5..9)
                .and_then(|b| b.try_into().ok())
                .map(u32::from_le_bytes);
            if inner.is_some_and(|n| n as usize == value.len() - 9) {
                Ok(())
            } else {
                Err(malformed)
            }
        }
        0x08 => {
            if value.first().is_some_and(|byte| *byte > 1) {
                return Err(malformed);
            }
            Ok(())
        }
        0x0b => check_utf8(value, at),
        0x0c => check_string(&value[..value.len() - 12], kind, at),
        0x0f => {
            let code = value.get(4..).ok_or(malformed.clone())?;
            let size = value_size(0x02, code).ok_or(malformed.clone())?;
            let (code, scope) = code.split_at_checked(size).ok_or(malformed)?;
            check_string(code, kind, at + 4)?;
            check_document(scope, at + 4 + size, depth_left, depth_max)
        }
        _ => Ok(()),
    }
}

/// A length, the text, and a zero byte that the length counts.
fn check_string(value: &[u8], kind: u8, at: usize) -> Result<(), Invalid> {
    match value.get(4..) {
        Some([text @ .., 0]) => check_utf8(text, at),
        _ => Err(Invalid::Value { kind, at }),
    }
}

fn cstring_end(body: &[u8], start: usize, at: usize) -> Result<usize, Invalid> {
    let name = body.get(start..).unwrap_or_default();
    let length = name
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(Invalid::Truncated { at: at + start })?;
    check_utf8(&name[..length], at + start)?;
    Ok(start + length + 1)
}

fn check_utf8(text: &[u8], at: usize) -> Result<(), Invalid> {
    match std::str::from_utf8(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(Invalid::Utf8 { at }),
    }
}

/// A document with a field of every type.
#[cfg(test)]
pub(crate) fn everything() -> bson::RawDocumentBuf {
    use bson::{Bson, Document, RawDocumentBuf, doc};
    let document: Document = doc! {
        "double": 1.5, "string": "é\0x", "document": {"a": {"b": 1}}, "array": [1, "x", [2]],
        "binary": Bson::Binary(bson::Binary { subtype: 0.into(), bytes: vec![1, 2] }),
        "old": Bson::Binary(bson::Binary { subtype: 2.into(), bytes: vec![1, 2] }),
        "undefined": Bson::Undefined, "oid": bson::oid::ObjectId::new(), "bool": true,
        "date": bson::DateTime::from_millis(-1), "null": Bson::Null,
        "regex": bson::Regex { pattern: "a+".try_into().unwrap(),
            options: "i".try_into().unwrap() },
        "code": Bson::JavaScriptCode("x".into()), "symbol": Bson::Symbol("s".into()),
        "scoped": bson::JavaScriptCodeWithScope { code: "y".into(), scope: doc! {"z": 1} },
        "int": 1, "timestamp": bson::Timestamp { time: 1, increment: 2 }, "long": 1i64,
        "decimal": Bson::Decimal128("1.5".parse().unwrap()),
        "min": Bson::MinKey, "max": Bson::MaxKey,
    };
    let mut bytes = RawDocumentBuf::try_from(&document).unwrap().into_bytes();
    // Nothing but bytes makes a pointer.
    bytes.pop();
    for name in [b"pointer\0", b"another\0"] {
        bytes.push(0x0c);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(b"\x04\0\0\0d.c\0");
        bytes.extend_from_slice(b"twelve bytes");
    }
    bytes.push(0);
    let length = i32::try_from(bytes.len()).unwrap().to_le_bytes();
    bytes[..4].copy_from_slice(&length);
    RawDocumentBuf::from_bytes(bytes).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, rawdoc};

    #[test]
    fn accepts_every_type() {
        validate(everything().as_bytes()).unwrap();
    }

    /// Whatever one damaged byte does, an accepted document can be read to its end.
    #[test]
    fn what_is_accepted_can_be_read() {
        let whole = everything();
        for at in 0..whole.as_bytes().len() {
            for change in [0x01, 0x02, 0x0f, 0x80, 0xff] {
                let mut bytes = whole.as_bytes().to_vec();
                bytes[at] ^= change;
                if let Ok(document) = validate(&bytes) {
                    Document::try_from(document).unwrap();
                }
            }
        }
        for length in 0..whole.as_bytes().len() {
            assert!(validate(&whole.as_bytes()[..length]).is_err());
        }
    }

    #[test]
    fn bounds_nesting() {
        let mut document = rawdoc! {};
        for _ in 0..MAX_DEPTH {
            document = rawdoc! {"a": document};
        }
        validate(document.as_bytes()).unwrap();
        let deeper = rawdoc! {"a": document};
        assert_eq!(
            validate(deeper.as_bytes()),
            Err(Invalid::TooDeep { max: MAX_DEPTH })
        );
        validate_with_depth(deeper.as_bytes(), MAX_DEPTH + 1).unwrap();
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(
            validate(b""),
            Err(Invalid::Length {
                stated: 0,
                actual: 0
            })
        );
        let unknown = b"\x08\0\0\0\x20\0\0\0";
        assert_eq!(
            validate(unknown),
            Err(Invalid::UnknownType { kind: 0x20, at: 4 })
        );
        let boolean = b"\x09\0\0\0\x08a\0\x02\0";
        assert_eq!(validate(boolean), Err(Invalid::Value { kind: 8, at: 7 }));
        let name = b"\x08\0\0\0\x0a\xff\0\0";
        assert_eq!(validate(name), Err(Invalid::Utf8 { at: 5 }));
    }
}
