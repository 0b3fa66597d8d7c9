//! Integers, documents and names as entries and sessions' records hold them: fixed integers are
//! little-endian; ids, lengths and counts are LEB128; documents carry their own length.

use banyan_storage::{IndexDefinition, Namespace};
use banyan_wire::SessionId;
use bson::RawDocument;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("log entry: {0}")]
pub struct EntryError(String);

impl EntryError {
    pub(crate) fn unknown(what: &str, tag: u8) -> EntryError {
        EntryError(format!("{what} tag {tag} is not known here"))
    }
}

pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, EntryError> {
    Err(EntryError(what.into()))
}

/// What is left to be read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], EntryError> {
        let Some((head, rest)) = self.bytes.split_at_checked(count) else {
            return bad(format!("{count} bytes expected, {} left", self.bytes.len()));
        };
        self.bytes = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], EntryError> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<N>() else {
            return bad(format!("{N} bytes expected, {} left", self.bytes.len()));
        };
        self.bytes = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, EntryError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// What [`put_session`] wrote.
    pub(crate) fn session(&mut self) -> Result<SessionId, EntryError> {
        let length = self.varint()?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match SessionId::from_bytes(self.take(length)?) {
            Some(session) => Ok(session),
            None => bad(format!("a session of {length} bytes")),
        }
    }

    pub(crate) fn varint(&mut self) -> Result<u64, EntryError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        bad("an integer of more than 64 bits")
    }

    pub(crate) fn id(&mut self) -> Result<u32, EntryError> {
        let value = self.varint()?;
        u32::try_from(value).or_else(|_| bad(format!("id {value} is too large")))
    }

    pub(crate) fn length(&mut self) -> Result<usize, EntryError> {
        let value = self.varint()?;
        usize::try_from(value).or_else(|_| bad(format!("length {value} is too large")))
    }

    pub(crate) fn length_and_bytes(&mut self) -> Result<&'a [u8], EntryError> {
        let length = self.length()?;
        self.take(length)
    }

    pub(crate) fn document(&mut self) -> Result<&'a RawDocument, EntryError> {
        let Some(length) = self.bytes.first_chunk::<4>() else {
            return bad("a document without a length");
        };
        let length = u32::from_le_bytes(*length) as usize;
        let bytes = self.take(length)?;
        RawDocument::from_bytes(bytes).or_else(|error| bad(error.to_string()))
    }

    pub(crate) fn namespace(&mut self) -> Result<Namespace, EntryError> {
        let bytes = self.length_and_bytes()?;
        let text = std::str::from_utf8(bytes).ok().and_then(Namespace::parse);
        text.map_or_else(|| bad("a namespace that is none"), Ok)
    }

    pub(crate) fn index(&mut self) -> Result<IndexDefinition, EntryError> {
        Ok(IndexDefinition {
            id: self.id()?,
            spec: self.document()?.to_owned(),
        })
    }

    pub(crate) fn indexes(&mut self) -> Result<Vec<IndexDefinition>, EntryError> {
        let count = self.varint()?;
        (0..count).map(|_| self.index()).collect()
    }
}

/// A session: how long its bytes are, and these.
pub(crate) fn put_session(out: &mut Vec<u8>, session: &SessionId) {
    let bytes = session.bytes();
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(&bytes);
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
