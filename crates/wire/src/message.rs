//! Messages: the header, OP_MSG in both directions, and the envelope OP_COMPRESSED.

use banyan_document::validate::MAX_DEPTH;
use bson::{RawBsonRef, RawDocument};
use bytes::{Buf, Bytes};

use crate::codes::ErrorCode;
use crate::compression::{CompressionError, Compressor};
pub use crate::decoding::{
    COMMAND_DEPTH_MAX, DecodeError, Header, OP_COMPRESSED, OP_DELETE, OP_GET_MORE, OP_INSERT,
    OP_KILL_CURSORS, OP_MSG, OP_QUERY, OP_REPLY, OP_UPDATE, ReplyForm,
};
use crate::decoding::{Refuse, malformed, read_cstring, read_document};
pub(crate) use crate::decoding::{begin, finish};
use crate::error::CommandError;
use crate::frame::HEADER_BYTES;
use crate::legacy;
use crate::request::{Doc, Origin, Request, Sequence, first_name};

pub const FLAG_CHECKSUM: u32 = 1;
pub const FLAG_MORE_TO_COME: u32 = 1 << 1;
pub const FLAG_EXHAUST_ALLOWED: u32 = 1 << 16;
/// The flags below this bit must be understood by whoever reads the message.
const FLAGS_REQUIRED: u32 = 0xffff;

const SECTION_BODY: u8 = 0;
const SECTION_SEQUENCE: u8 = 1;

/// A decoded request and what to remember until its reply leaves.
#[derive(Debug)]
pub struct Incoming {
    pub request: Request,
    pub form: ReplyForm,
    /// The request came compressed with this, so the reply may be.
    pub compressor: Option<Compressor>,
}

/// Makes a request of a whole message.
pub fn decode(message: Bytes) -> Result<Incoming, DecodeError> {
    let header = Header::read(&message).ok_or_else(|| malformed("no header"))?;
    if header.opcode != OP_COMPRESSED {
        return decode_plain(header, &message, HEADER_BYTES, None);
    }
    let (opcode, compressor, plain) = decompress(&message)?;
    decode_plain(Header { opcode, ..header }, &plain, 0, Some(compressor))
}

/// The name of a message's command, read without looking at anything else; `None` where that takes
/// more than a look, as it does for what is compressed.
pub fn peek_name(message: &[u8]) -> Option<&str> {
    const BODY_AT: usize = HEADER_BYTES + 5;
    let text = |at: usize| {
        let rest = message.get(at..)?;
        let end = rest.iter().take(256).position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    };
    let body_at = match Header::read(message)?.opcode {
        OP_MSG if message.get(BODY_AT - 1) == Some(&SECTION_BODY) => BODY_AT,
        OP_QUERY => {
            let namespace = text(HEADER_BYTES + 4).filter(|name| name.ends_with(".$cmd"))?;
            // Flags, the namespace and its terminator, how many to skip and to return.
            HEADER_BYTES + 4 + namespace.len() + 1 + 8
        }
        _ => return None,
    };
    // The document's length, the first element's type.
    text(body_at + 5)
}

/// About how many bytes decoding a message goes through.
pub(crate) fn plain_size(message: &[u8]) -> usize {
    const SIZE_AT: usize = HEADER_BYTES + 4;
    let compressed = Header::read(message).is_some_and(|head| head.opcode == OP_COMPRESSED);
    let announced = message.get(SIZE_AT..SIZE_AT + 4).filter(|_| compressed);
    let announced = announced.map_or(0, |mut size| size.get_i32_le());
    message.len().max(usize::try_from(announced).unwrap_or(0))
}

/// Unwraps an OP_COMPRESSED message: the opcode within and its bytes after the header.
pub fn decompress(message: &Bytes) -> Result<(i32, Compressor, Bytes), DecodeError> {
    const ENVELOPE_BYTES: usize = HEADER_BYTES + 9;
    let mut head = message
        .get(HEADER_BYTES..ENVELOPE_BYTES)
        .ok_or_else(|| malformed("the compressed message is too short"))?;
    let opcode = head.get_i32_le();
    let claimed = head.get_i32_le();
    let compressor = Compressor::from_id(head.get_u8())?;
    if opcode == OP_COMPRESSED {
        return Err(malformed(
            "a compressed message within a compressed message",
        ));
    }
    let mut plain = Vec::new();
    compressor.decompress(&message[ENVELOPE_BYTES..], claimed, &mut plain)?;
    Ok((opcode, compressor, plain.into()))
}

/// `offset` is where the opcode's own bytes begin.
fn decode_plain(
    header: Header,
    message: &Bytes,
    offset: usize,
    compressor: Option<Compressor>,
) -> Result<Incoming, DecodeError> {
    if header.opcode != OP_MSG {
        let (request, form) = legacy::decode(header, &message.slice(offset..))?;
        return Ok(Incoming {
            request,
            form,
            compressor,
        });
    }
    let mut message = message.clone();
    let flags = message
        .get(offset..offset + 4)
        .map(|mut bytes| bytes.get_u32_le())
        .ok_or_else(|| malformed("OP_MSG without flags"))?;
    let checksum = flags & FLAG_CHECKSUM != 0;
    if checksum {
        // The checksum covers the header too, which a compressed message no longer has.
        verify_checksum(&mut message, offset == HEADER_BYTES)?;
    }
    let sections = message
        .get(offset + 4..)
        .map(|_| message.slice(offset + 4..));
    let sections = sections.ok_or_else(|| malformed("OP_MSG without sections"))?;
    let form = if flags & FLAG_MORE_TO_COME == 0 {
        ReplyForm::Msg {
            checksum: checksum && compressor.is_none(),
        }
    } else {
        ReplyForm::None
    };
    let refuse = |code, text: String| DecodeError::Refused {
        request_id: header.request_id,
        error: CommandError::new(code, text),
        form,
    };
    let unknown = flags & FLAGS_REQUIRED & !(FLAG_CHECKSUM | FLAG_MORE_TO_COME);
    if unknown != 0 {
        let text = format!("Message contains illegal flags value: Ob{unknown:b}");
        return Err(refuse(ErrorCode::IllegalOpMsgFlag, text));
    }
    let (body, sequences) = read_sections(sections, &refuse)?;
    let name = first_name(&body).ok_or_else(|| {
        refuse(
            ErrorCode::FailedToParse,
            "An empty command document".to_owned(),
        )
    })?;
    let name = name.to_owned();
    let database = match banyan_document::field(&body, "$db") {
        Some(RawBsonRef::String(database)) => database.to_owned(),
        Some(_) => {
            let text = "BSON field 'OP_MSG.$db' is the wrong type, expected type 'string'";
            return Err(refuse(ErrorCode::TypeMismatch, text.to_owned()));
        }
        None => {
            let text = "OP_MSG requests require a $db argument".to_owned();
            return Err(refuse(ErrorCode::Location(40571), text));
        }
    };
    let request = Request {
        request_id: header.request_id,
        database,
        name,
        body,
        sequences,
        more_to_come: flags & FLAG_MORE_TO_COME != 0,
        exhaust_allowed: flags & FLAG_EXHAUST_ALLOWED != 0,
        origin: Origin::Msg,
    };
    Ok(Incoming {
        request,
        form,
        compressor,
    })
}

fn verify_checksum(message: &mut Bytes, covers_message: bool) -> Result<(), DecodeError> {
    let length = message.len();
    let split = length
        .checked_sub(4)
        .ok_or_else(|| malformed("no room for a checksum"))?;
    let tail = message.split_off(split);
    let sent = (&tail[..]).get_u32_le();
    if covers_message && crc32c::crc32c(message) != sent {
        return Err(malformed("the checksum does not match"));
    }
    Ok(())
}

fn read_sections(
    mut sections: Bytes,
    refuse: Refuse<'_>,
) -> Result<(Doc, Vec<Sequence>), DecodeError> {
    let mut body = None;
    let mut sequences: Vec<Sequence> = Vec::new();
    while let Some(&kind) = sections.first() {
        sections.advance(1);
        match kind {
            SECTION_BODY => {
                if body.is_some() {
                    let text = "Multiple body sections in message".to_owned();
                    return Err(refuse(ErrorCode::Location(40430), text));
                }
                body = Some(read_document(&mut sections, COMMAND_DEPTH_MAX, refuse)?);
            }
            SECTION_SEQUENCE => {
                let sequence = read_sequence(&mut sections, refuse)?;
                if sequences
                    .iter()
                    .any(|known| known.identifier == sequence.identifier)
                {
                    let text = format!("Duplicate document sequence: {}", sequence.identifier);
                    return Err(refuse(ErrorCode::Location(40431), text));
                }
                sequences.push(sequence);
            }
            other => return Err(malformed(format!("unknown section kind {other}"))),
        }
    }
    let body = body.ok_or_else(|| {
        refuse(
            ErrorCode::Location(40587),
            "OP_MSG messages must have a body".to_owned(),
        )
    })?;
    Ok((body, sequences))
}

fn read_sequence(sections: &mut Bytes, refuse: Refuse<'_>) -> Result<Sequence, DecodeError> {
    let size = (sections.remaining() >= 4)
        .then(|| sections.clone().get_i32_le())
        .and_then(|size| usize::try_from(size).ok())
        .filter(|&size| size >= 5 && size <= sections.len())
        .ok_or_else(|| malformed("a document sequence lies about its size"))?;
    let mut section = sections.split_to(size);
    section.advance(4);
    let identifier = read_cstring(&mut section)?;
    let documents = section.clone();
    let mut count = 0;
    while !section.is_empty() {
        read_document(&mut section, MAX_DEPTH, refuse)?;
        count += 1;
    }
    Ok(Sequence::new(identifier, documents, count))
}

/// Appends an OP_MSG with one body section.
pub fn encode_msg(
    out: &mut Vec<u8>,
    request_id: i32,
    response_to: i32,
    flags: u32,
    body: &RawDocument,
) {
    out.reserve(body.as_bytes().len() + HEADER_BYTES + 9);
    let start = begin_msg(out, request_id, response_to, flags);
    out.extend_from_slice(body.as_bytes());
    if flags & FLAG_CHECKSUM == 0 {
        finish(out, start);
        return;
    }
    out.extend_from_slice(&[0; 4]);
    finish(out, start);
    let end = out.len() - 4;
    let sum = crc32c::crc32c(&out[start..end]);
    out[end..].copy_from_slice(&sum.to_le_bytes());
}

/// Appends what comes before the body of an OP_MSG without a checksum. The body follows it to the
/// socket from where it lies.
pub fn encode_msg_head(out: &mut Vec<u8>, request_id: i32, response_to: i32, body: &RawDocument) {
    let start = begin_msg(out, request_id, response_to, 0);
    let length = out.len() - start + body.as_bytes().len();
    out[start..start + 4].copy_from_slice(&(length as i32).to_le_bytes());
}

/// Appends the head of an OP_MSG up to the body.
fn begin_msg(out: &mut Vec<u8>, request_id: i32, response_to: i32, flags: u32) -> usize {
    let start = begin(out, request_id, response_to, OP_MSG);
    out.extend_from_slice(&flags.to_le_bytes());
    out.push(SECTION_BODY);
    start
}

/// Appends a document sequence section; the caller fixes the message's length afterwards.
pub(crate) fn encode_sequence<'a>(
    out: &mut Vec<u8>,
    identifier: &str,
    documents: impl Iterator<Item = &'a [u8]>,
) {
    out.push(SECTION_SEQUENCE);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(identifier.as_bytes());
    out.push(0);
    for document in documents {
        out.extend_from_slice(document);
    }
    finish(out, start);
}

/// Wraps the message that starts at `start` into OP_COMPRESSED.
pub(crate) fn compress_in_place(
    out: &mut Vec<u8>,
    start: usize,
    compressor: Compressor,
) -> Result<(), CompressionError> {
    let plain = out.split_off(start);
    let (head, payload) = plain.split_at(HEADER_BYTES);
    let envelope = begin(out, 0, 0, OP_COMPRESSED);
    out[envelope + 4..envelope + 12].copy_from_slice(&head[4..12]);
    out.extend_from_slice(&head[12..16]);
    out.extend_from_slice(&(payload.len() as i32).to_le_bytes());
    out.push(compressor as u8);
    compressor.compress(payload, out)?;
    finish(out, envelope);
    Ok(())
}
