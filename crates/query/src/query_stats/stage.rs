//! `$queryStats`: what it is asked, and how it shows what is known.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::store::Entry;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::type_name;
use crate::shape::{Names, show};

const STAGE: &str = "$queryStats";
const ALGORITHM: &str = "hmac-sha-256";

/// What becomes of clients' names.
#[derive(Debug, Clone, Default)]
pub struct Transform {
    /// What they are hashed with; `None`: nothing becomes of them.
    key: Option<Vec<u8>>,
}

impl Transform {
    /// Of the stage's argument.
    pub fn parse(argument: &RawDocument) -> Result<Transform, QueryError> {
        let mut transform = None;
        for element in banyan_document::elements(argument) {
            match element.name() {
                "transformIdentifiers" => transform = Some(element.value()),
                other => return Err(unknown(STAGE, other)),
            }
        }
        let parser = format!("{STAGE}.transformIdentifiers");
        match transform {
            None => Ok(Transform::default()),
            Some(RawBsonRef::Document(identifiers)) => Transform::identifiers(&parser, identifiers),
            Some(other) => Err(wrong_type(&parser, other, "object")),
        }
    }

    fn identifiers(parser: &str, identifiers: &RawDocument) -> Result<Transform, QueryError> {
        let (mut algorithm, mut key) = (None, None);
        for element in banyan_document::elements(identifiers) {
            let name = format!("{parser}.{}", element.name());
            match (element.name(), element.value()) {
                ("algorithm", RawBsonRef::String(ALGORITHM)) => algorithm = Some(ALGORITHM),
                ("algorithm", RawBsonRef::String(other)) => {
                    return Err(QueryError::new(
                        ErrorKind::BadValue,
                        format!(
                            "Enumeration value '{other}' for field '{name}' is not a valid value."
                        ),
                    ));
                }
                ("algorithm", other) => return Err(wrong_type(&name, other, "string")),
                ("hmacKey", RawBsonRef::Binary(binary)) => key = Some(secret(&name, binary)?),
                ("hmacKey", other) => return Err(wrong_type(&name, other, "binData")),
                (other, _) => return Err(unknown(parser, other)),
            }
        }
        if algorithm.is_none() {
            return Err(QueryError::new(
                ErrorKind::Location(40414),
                format!("BSON field '{parser}.algorithm' is missing but a required field"),
            ));
        }
        let key = key.ok_or_else(|| {
            QueryError::new(
                ErrorKind::FailedToParse,
                format!(
                    "The 'hmacKey' parameter of the {STAGE} stage must be specified when applying \
                     the {ALGORITHM} algorithm"
                ),
            )
        })?;
        Ok(Transform { key: Some(key) })
    }

    /// An entry as the stage yields it.
    pub(super) fn show(&self, entry: &Entry, as_of: Timestamp) -> RawDocumentBuf {
        let hide;
        let names = match &self.key {
            Some(key) => {
                hide = |name: &str| hidden(key, name);
                Names::Hidden(&hide)
            }
            None => Names::AsTheyAre,
        };
        rawdoc! {
            "key": show(&entry.key.document, &names),
            "keyHash": STANDARD.encode(entry.key.hash),
            "queryShapeHash": entry.key.shape_hash.as_str(),
            "metrics": entry.metrics.show(),
            "asOf": as_of,
        }
    }
}

/// Of a key as short as a word the names could be guessed, but that is the operator's choice.
fn secret(name: &str, binary: RawBinaryRef<'_>) -> Result<Vec<u8>, QueryError> {
    match binary.subtype {
        BinarySubtype::Sensitive => Ok(binary.bytes.to_vec()),
        other => Err(QueryError::new(
            ErrorKind::TypeMismatch,
            format!(
                "BSON field '{name}' is the wrong binData type '{}', expected type 'sensitive'",
                subtype_name(other)
            ),
        )),
    }
}

fn subtype_name(subtype: BinarySubtype) -> &'static str {
    match subtype {
        BinarySubtype::Generic => "general",
        BinarySubtype::Function => "function",
        BinarySubtype::BinaryOld => "byte",
        BinarySubtype::UuidOld => "UUID",
        BinarySubtype::Uuid => "UUID",
        BinarySubtype::Md5 => "MD5",
        BinarySubtype::Encrypted => "encrypt",
        BinarySubtype::Column => "column",
        BinarySubtype::Sensitive => "sensitive",
        BinarySubtype::Vector => "vector",
        _ => "Custom",
    }
}

fn hidden(key: &[u8], name: &str) -> String {
    // A key of any length is one.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return String::new();
    };
    mac.update(name.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

fn unknown(parser: &str, field: &str) -> QueryError {
    QueryError::new(
        ErrorKind::Location(40415),
        format!("BSON field '{parser}.{field}' is an unknown field."),
    )
}

fn wrong_type(field: &str, value: RawBsonRef<'_>, expected: &str) -> QueryError {
    QueryError::new(
        ErrorKind::TypeMismatch,
        format!(
            "BSON field '{field}' is the wrong type '{}', expected type '{expected}'",
            type_name(Some(value))
        ),
    )
}
