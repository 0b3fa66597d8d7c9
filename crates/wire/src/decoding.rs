//! What messages of all opcodes are read and written with.

use banyan_document::validate::{Invalid, MAX_DEPTH, validate_with_depth};
use bytes::{Buf, Bytes};

use crate::codes::ErrorCode;
use crate::compression::CompressionError;
use crate::error::CommandError;
use crate::frame::HEADER_BYTES;
use crate::request::{Doc, split_document};

pub const OP_REPLY: i32 = 1;
pub const OP_UPDATE: i32 = 2001;
pub const OP_INSERT: i32 = 2002;
pub const OP_QUERY: i32 = 2004;
pub const OP_GET_MORE: i32 = 2005;
pub const OP_DELETE: i32 = 2006;
pub const OP_KILL_CURSORS: i32 = 2007;
pub const OP_COMPRESSED: i32 = 2012;
pub const OP_MSG: i32 = 2013;

/// A command wraps the documents it carries, so its own nesting may go deeper than theirs.
pub const COMMAND_DEPTH_MAX: usize = MAX_DEPTH + 20;

/// Why bytes could not be made a request.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The peer does not speak the protocol: the connection ends.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// The message is well formed and not acceptable: the reply says so and the connection lives.
    #[error("refused message {request_id}: {error}")]
    Refused {
        request_id: i32,
        error: CommandError,
        form: ReplyForm,
    },
}

pub(crate) fn malformed(what: impl Into<String>) -> DecodeError {
    DecodeError::Malformed(what.into())
}

impl From<CompressionError> for DecodeError {
    fn from(error: CompressionError) -> DecodeError {
        malformed(error.to_string())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub length: i32,
    pub request_id: i32,
    pub response_to: i32,
    pub opcode: i32,
}

impl Header {
    /// Reads the first 16 bytes; `None` if there are fewer.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let mut head: &[u8] = bytes.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            length: head.get_i32_le(),
            request_id: head.get_i32_le(),
            response_to: head.get_i32_le(),
            opcode: head.get_i32_le(),
        })
    }
}

/// How the reply to a request has to be put on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    /// OP_MSG, with a checksum if the request carried one.
    Msg { checksum: bool },
    /// OP_REPLY holding the command's reply as its one document.
    Command,
    /// The same for a query that is to be explained.
    Explained,
    /// OP_REPLY holding a cursor's batch.
    Cursor,
    /// The same, as `system.namespaces` once showed collections.
    Namespaces,
    /// The same, as `system.indexes` once showed indexes.
    Indexes,
    /// The request takes no reply.
    None,
}

pub(crate) type Refuse<'a> = &'a dyn Fn(ErrorCode, String) -> DecodeError;

/// Takes a zero-terminated string off the head.
pub(crate) fn read_cstring(bytes: &mut Bytes) -> Result<String, DecodeError> {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .ok_or_else(|| malformed("a string without an end"))?;
    let text = bytes.split_to(end);
    bytes.advance(1);
    String::from_utf8(text.into()).map_err(|_| malformed("a name that is not UTF-8"))
}

/// Takes a document off the head and validates it all the way down.
pub(crate) fn read_document(
    bytes: &mut Bytes,
    depth_max: usize,
    refuse: Refuse<'_>,
) -> Result<Doc, DecodeError> {
    let (document, _) =
        split_document(bytes).ok_or_else(|| malformed("a document lies about its length"))?;
    let length = document.as_bytes().len();
    match validate_with_depth(document.as_bytes(), depth_max) {
        Ok(_) => {}
        Err(Invalid::TooDeep { .. }) => {
            let text = format!("BSONObj exceeds maximum nested object depth: {depth_max}");
            return Err(refuse(ErrorCode::Overflow, text));
        }
        Err(invalid) => return Err(malformed(invalid.to_string())),
    }
    let document = bytes.split_to(length);
    Doc::new(document).ok_or_else(|| malformed("a document lies about its length"))
}

/// Where a message starts in `out`, so that its length can be written once it is known.
pub(crate) fn begin(out: &mut Vec<u8>, request_id: i32, response_to: i32, opcode: i32) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&request_id.to_le_bytes());
    out.extend_from_slice(&response_to.to_le_bytes());
    out.extend_from_slice(&opcode.to_le_bytes());
    start
}

pub(crate) fn finish(out: &mut [u8], start: usize) {
    let length = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
