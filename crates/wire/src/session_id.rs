//! What names a logical session: `lsid {id, uid}`.

use std::fmt;
use std::ops::Deref;

use banyan_document::kind;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bson::spec::BinarySubtype;
use bson::{Binary, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::{CommandError, ErrorCode, params};

/// SHA-256 of `user@database`, as `uid` names whose a session is.
pub type Uid = [u8; 32];

/// A logical session: what a client has drawn for it, and whose it is. The same `id` of another user
/// is another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// The UUID in `lsid`.
    pub id: [u8; 16],
    /// `None` where users do not count.
    pub user: Option<Uid>,
}

/// A session's bytes: its id, and behind that its user's, if there is one.
const BYTES_MAX: usize = 16 + 32;

impl SessionId {
    /// A session of nobody.
    pub fn shared(id: [u8; 16]) -> SessionId {
        SessionId { id, user: None }
    }

    /// What keys are made of: they sort as sessions do.
    pub fn bytes(&self) -> SessionBytes {
        let mut bytes = [0; BYTES_MAX];
        bytes[..16].copy_from_slice(&self.id);
        let length = match &self.user {
            None => 16,
            Some(user) => {
                bytes[16..].copy_from_slice(user);
                BYTES_MAX
            }
        };
        SessionBytes { bytes, length }
    }

    /// What [`SessionId::bytes`] made; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<SessionId> {
        let (id, user) = bytes.split_first_chunk()?;
        let user = match user {
            [] => None,
            user => Some(user.try_into().ok()?),
        };
        Some(SessionId { id: *id, user })
    }

    /// `uid` as documents show it.
    pub fn uid(&self) -> Binary {
        Binary {
            subtype: BinarySubtype::Generic,
            bytes: self.user.unwrap_or(NOBODY).to_vec(),
        }
    }

    /// `{id, uid}`, as MongoDB keeps sessions by.
    pub fn document(&self) -> RawDocumentBuf {
        rawdoc! { "id": params::uuid(&self.id), "uid": self.uid() }
    }
}

/// As messages name it.
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = bson::Uuid::from_bytes(self.id);
        let uid = BASE64_STANDARD.encode(self.user.unwrap_or(NOBODY));
        write!(f, "{id} - {uid} -  - ")
    }
}

/// A session's bytes, which are of one of two lengths.
pub struct SessionBytes {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl Deref for SessionBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// SHA-256 of no name at all: the `uid` of every session while nobody logs in.
const NOBODY: Uid = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// A session as a client names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lsid {
    pub id: [u8; 16],
    /// The user that it names, as only some may. Nobody's digest is no user.
    pub uid: Option<Option<Uid>>,
}

/// The session that `lsid` names, in the words of the command that it stands in.
pub fn parse(lsid: &RawDocument) -> Result<Lsid, CommandError> {
    parse_in(lsid, "OperationSessionInfo.lsid")
}

/// As [`parse`]; `place`: how messages name where it stands.
pub fn parse_in(lsid: &RawDocument, place: &str) -> Result<Lsid, CommandError> {
    let mismatch = |text| CommandError::new(ErrorCode::TypeMismatch, text);
    let (mut session, mut uid) = (None, None);
    for (name, value) in lsid.iter().flatten() {
        match (name.as_str(), value) {
            ("id" | "uid" | "txnNumber" | "txnUUID", value) if params::is_null(value) => {}
            ("id", RawBsonRef::Binary(RawBinaryRef { subtype, bytes })) => {
                if subtype != BinarySubtype::Uuid {
                    return Err(mismatch(format!(
                        "BSON field '{place}.id' is the wrong binData type '{}', expected type 'UUID'",
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
                    "BSON field '{place}.id' is the wrong type '{}', expected type 'binData'",
                    kind::name(&value)
                )));
            }
            ("uid", value) => uid = Some(parse_uid(value, place)?),
            // Parts of it that a router or a driver may add.
            ("txnNumber", RawBsonRef::Int64(_)) | ("txnUUID", RawBsonRef::Binary(_)) => {}
            ("txnNumber" | "txnUUID", value) => {
                return Err(mismatch(format!(
                    "BSON field '{place}.{}' is the wrong type '{}'",
                    name.as_str(),
                    kind::name(&value)
                )));
            }
            (name, _) => return Err(params::unknown_field(place, name)),
        }
    }
    let id = session.ok_or_else(|| params::missing_field(place, "id"))?;
    Ok(Lsid { id, uid })
}

/// A user's digest; `None` is that of nobody.
pub fn parse_uid(value: RawBsonRef<'_>, place: &str) -> Result<Option<Uid>, CommandError> {
    let RawBsonRef::Binary(RawBinaryRef { bytes, .. }) = value else {
        return Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "BSON field '{place}.uid' is the wrong type '{}', expected type 'binData'",
                kind::name(&value)
            ),
        ));
    };
    let digest = Uid::try_from(bytes).map_err(|_| {
        CommandError::new(
            ErrorCode::UnsupportedFormat,
            format!("Unsupported SHA256Block hash length: {}", bytes.len()),
        )
    })?;
    Ok((digest != NOBODY).then_some(digest))
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
        let named = |uid| Lsid { id: [7; 16], uid };
        let nobody = SessionId::shared([7; 16]);
        assert_eq!(parse(&nobody.document()).unwrap(), named(Some(None)));
        assert_eq!(parse(&rawdoc! { "id": good.clone() }).unwrap(), named(None));
        let refused = [
            (rawdoc! {}, 40414),
            (rawdoc! { "id": 5 }, 14),
            (rawdoc! { "id": uuid(16, BinarySubtype::Generic) }, 14),
            (rawdoc! { "id": uuid(1, BinarySubtype::Uuid) }, 207),
            (rawdoc! { "id": good.clone(), "what": 1 }, 40415),
            (rawdoc! { "id": good.clone(), "uid": 1 }, 14),
            (
                rawdoc! { "id": good, "uid": uuid(31, BinarySubtype::Generic) },
                12,
            ),
        ];
        for (lsid, code) in refused {
            assert_eq!(parse(&lsid).unwrap_err().code.code(), code, "{lsid:?}");
        }
    }

    #[test]
    fn a_users_session_is_no_other_ones() {
        let (shared, mine) = (
            SessionId::shared([7; 16]),
            SessionId {
                id: [7; 16],
                user: Some([8; 32]),
            },
        );
        for session in [shared, mine] {
            assert_eq!(SessionId::from_bytes(&session.bytes()), Some(session));
            let named = parse(&session.document()).unwrap();
            assert_eq!((named.id, named.uid), (session.id, Some(session.user)));
        }
        assert!(shared < mine && *shared.bytes() < *mine.bytes());
        for length in [0, 15, 17, 47, 49] {
            assert_eq!(SessionId::from_bytes(&vec![1; length]), None, "{length}");
        }
        assert_eq!(
            shared.to_string(),
            "07070707-0707-0707-0707-070707070707 - \
             47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= -  - "
        );
    }
}
