//! What names a logical session.

use banyan_document::kind;
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use banyan_wire::params;

/// The UUID in `lsid`. Who the user is is no part of it while nobody logs in.
pub type SessionId = [u8; 16];

/// SHA-256 of no name at all: the `uid` of every session while nobody logs in.
const NOBODY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// The same, as messages show it.
pub const NOBODY_BASE64: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

pub fn nobody() -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: NOBODY.to_vec(),
    }
}

/// A session as messages name it.
pub fn shown(session: &SessionId) -> String {
    let id = uuid::Uuid::from_bytes(*session);
    format!("{id} - {NOBODY_BASE64} -  - ")
}

/// `{id, uid}`, as MongoDB keeps sessions by.
pub fn document(session: &SessionId) -> RawDocumentBuf {
    rawdoc! { "id": params::uuid(session), "uid": nobody() }
}

/// The session that `lsid` names.
pub fn parse(lsid: &RawDocument) -> Result<SessionId, CommandError> {
    const ID: &str = "OperationSessionInfo.lsid.id";
    let mismatch = |text| CommandError::new(ErrorCode::TypeMismatch, text);
    let mut session = None;
    for (name, value) in lsid.iter().flatten() {
        match (name.as_str(), value) {
            ("id", RawBsonRef::Binary(RawBinaryRef { subtype, bytes })) => {
                if subtype != BinarySubtype::Uuid {
                    return Err(mismatch(format!(
                        "BSON field '{ID}' is the wrong binData type '{}', expected type 'UUID'",
                        subtype_name(subtype)
                    )));
                }
                session = Some(bytes.try_into().map_err(|_| {
                    CommandError::new(
                        ErrorCode::InvalidUUID,
                        "uuid must be a 16-byte binary field with UUID (4) subtype",
                    )
                })?);
            }
            ("id", value) => {
                return Err(mismatch(format!(
                    "BSON field '{ID}' is the wrong type '{}', expected type 'binData'",
                    kind::name(&value)
                )));
            }
            // Parts of it that a router or a driver may add.
            ("uid" | "txnNumber" | "txnUUID", _) => {}
            (name, _) => {
                return Err(params::unknown_field("OperationSessionInfo.lsid", name));
            }
        }
    }
    session.ok_or_else(|| params::missing_field("OperationSessionInfo.lsid", "id"))
}

fn subtype_name(subtype: BinarySubtype) -> &'static str {
    match subtype {
        BinarySubtype::Generic => "general",
        BinarySubtype::Function => "function",
        BinarySubtype::UuidOld => "UUID",
        BinarySubtype::Md5 => "MD5",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_name_a_session_is_refused() {
        let uuid = |length: usize, subtype| Binary {
            subtype,
            bytes: vec![7; length],
        };
        let good = uuid(16, BinarySubtype::Uuid);
        let lsid = rawdoc! { "id": good.clone(), "uid": nobody() };
        assert_eq!(parse(&lsid).unwrap(), [7; 16]);
        let refused = [
            (rawdoc! {}, 40414),
            (rawdoc! { "id": 5 }, 14),
            (rawdoc! { "id": uuid(16, BinarySubtype::Generic) }, 14),
            (rawdoc! { "id": uuid(1, BinarySubtype::Uuid) }, 207),
            (rawdoc! { "id": good, "what": 1 }, 40415),
        ];
        for (lsid, code) in refused {
            assert_eq!(parse(&lsid).unwrap_err().code.code(), code, "{lsid:?}");
        }
    }
}
