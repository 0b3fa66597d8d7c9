//! What `encrypt` and `encryptMetadata` say of values that clients encrypt. A server checks it, and does
//! nothing with it.

use banyan_document::element::items;
use banyan_document::kind;
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument};

use super::type_names::types;
use crate::error::{ErrorKind, QueryError};

const ALGORITHMS: [&str; 2] = [
    "AEAD_AES_256_CBC_HMAC_SHA_512-Deterministic",
    "AEAD_AES_256_CBC_HMAC_SHA_512-Random",
];
const UUID_BYTES: usize = 16;

/// # Errors
/// MongoDB's, where a field is unknown or its value not what it has to be.
pub(super) fn check(keyword: &'static str, how: &RawDocument) -> Result<(), QueryError> {
    for (name, value) in how.iter().flatten() {
        match (name.as_str(), keyword) {
            ("algorithm", _) => check_algorithm(keyword, value)?,
            ("keyId", _) => check_key(value)?,
            ("bsonType", "encrypt") => types("bsonType", value, Ok).map(drop)?,
            (name, _) => {
                return Err(QueryError::new(
                    ErrorKind::Location(40415),
                    format!("BSON field '{keyword}.{name}' is an unknown field."),
                ));
            }
        }
    }
    Ok(())
}

fn check_algorithm(keyword: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => Ok(()),
        RawBsonRef::String(name) if ALGORITHMS.contains(&name) => Ok(()),
        RawBsonRef::String(name) => Err(QueryError::new(
            ErrorKind::BadValue,
            format!(
                "Enumeration value '{name}' for field '{keyword}.algorithm' is not a valid value."
            ),
        )),
        other => Err(QueryError::new(
            ErrorKind::TypeMismatch,
            format!(
                "BSON field '{keyword}.algorithm' is the wrong type '{}', expected type 'string'",
                kind::name(&other)
            ),
        )),
    }
}

/// A JSON pointer to the name of a key, or the ids of keys.
fn check_key(value: RawBsonRef<'_>) -> Result<(), QueryError> {
    match value {
        RawBsonRef::String(pointer) => check_pointer(pointer),
        RawBsonRef::Array(ids) => items(ids).try_for_each(|id| check_key_id(id.value())),
        other => Err(QueryError::new(
            ErrorKind::Location(51085),
            format!(
                "Expected either string or array of UUID for EncryptSchemaKeyId, found {}",
                kind::name(&other)
            ),
        )),
    }
}

fn check_key_id(id: RawBsonRef<'_>) -> Result<(), QueryError> {
    let RawBsonRef::Binary(id) = id else {
        return Err(QueryError::new(
            ErrorKind::Location(51088),
            format!(
                "Encryption schema 'keyId' array elements must have type BinData, found {}",
                kind::name(&id)
            ),
        ));
    };
    if id.subtype != BinarySubtype::Uuid {
        return Err(QueryError::new(
            ErrorKind::Location(51084),
            format!(
                "Encryption schema 'keyId' array elements must have BinData type UUID, found {}",
                u8::from(id.subtype)
            ),
        ));
    }
    if id.bytes.len() != UUID_BYTES {
        return Err(QueryError::new(
            ErrorKind::Location(207),
            "uuid must be a 16-byte binary field with UUID (4) subtype",
        ));
    }
    Ok(())
}

/// RFC 6901: `~` stands only before 0 or 1.
fn check_pointer(pointer: &str) -> Result<(), QueryError> {
    let refused = |code, message: &str| Err(QueryError::new(ErrorKind::Location(code), message));
    if pointer.is_empty() {
        return refused(51064, "Empty JSONPointers are not supported");
    }
    if !pointer.starts_with('/') {
        return refused(51065, "JSONPointer must start with a '/'");
    }
    let mut after_tilde = pointer.split('~').skip(1);
    if after_tilde.any(|rest| !rest.starts_with(['0', '1'])) {
        return refused(51063, "JSONPointer cannot contain unescaped ~ character");
    }
    Ok(())
}
