//! The messages between a data node and its script hosts.
//!
//! A frame is its payload's length (u32, little endian), a kind byte, and the payload. A host
//! has one control socket, whose end means that the node is gone, and one socket per lane. On a
//! lane, a job goes like this:
//!
//! ```text
//! node                                   lane
//! Job {map, reduce, finalize, scope}  →
//! Documents (BSON end to end) …       →
//! End                                 →
//!                                     ←  Partials (in key order) … RunEnd, any number of times
//!                                     ←  Mapped {counters}
//! Groups or LastGroups …              →
//!                                     ←  Reduced {_id, value} …, one frame for each of Groups
//! Done                                →
//! ```
//!
//! and a call of a function: Call {session (i64), request}, answered by Returned. The calls of a
//! session share a global object, until Done {session}. Before any answer there may be Print
//! {text}, and PrintsLeftOut {lines (u64), bytes (u64)} where a job prints more than is wanted. A
//! Failure may come in the place of any answer; the lane is of no more use then.

use std::io::{self, Read, Write};

/// No frame is longer; a longer one says that the other side is broken.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// Of what a job prints, or a session, so much is logged.
pub const PRINT_BYTES_MAX: usize = 64 << 10;
/// What a line takes in the log besides its text.
const LINE_BYTES: usize = 128;

/// What printing `text_bytes` in one line counts as.
pub fn print_bytes(text_bytes: usize) -> usize {
    text_bytes + LINE_BYTES
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Configure = b'O',
    Job = b'J',
    Documents = b'D',
    End = b'E',
    Groups = b'G',
    /// Those that are finalized, too.
    LastGroups = b'H',
    Done = b'Z',
    Call = b'A',
    Partials = b'P',
    RunEnd = b'R',
    Mapped = b'M',
    Reduced = b'g',
    Returned = b'a',
    Failure = b'F',
    Print = b'L',
    PrintsLeftOut = b'l',
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 16] = [
            Kind::Configure,
            Kind::Job,
            Kind::Documents,
            Kind::End,
            Kind::Groups,
            Kind::LastGroups,
            Kind::Done,
            Kind::Call,
            Kind::Partials,
            Kind::RunEnd,
            Kind::Mapped,
            Kind::Reduced,
            Kind::Returned,
            Kind::Failure,
            Kind::Print,
            Kind::PrintsLeftOut,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What comes before the payload.
pub const HEADER_BYTES: usize = 5;
/// A shorter payload is copied behind its header, so that both are written at once: the other side
/// wakes once.
const JOINED_BYTES_MAX: usize = 8 << 10;

pub fn write_frame(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let header = header(kind, payload.len())?;
    if payload.len() > JOINED_BYTES_MAX {
        to.write_all(&header)?;
        return to.write_all(payload);
    }
    let mut joined = Vec::with_capacity(header.len() + payload.len());
    joined.extend_from_slice(&header);
    joined.extend_from_slice(payload);
    to.write_all(&joined)
}

/// The header of a payload of so many bytes.
pub fn header(kind: Kind, payload_bytes: usize) -> io::Result<[u8; HEADER_BYTES]> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a frame is too long");
    let length = u32::try_from(payload_bytes).map_err(|_| too_long())?;
    if payload_bytes > FRAME_BYTES_MAX {
        return Err(too_long());
    }
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4] = kind as u8;
    Ok(header)
}

/// Reads one frame into `payload`. None: the other side is gone.
pub fn read_frame(from: &mut impl Read, payload: &mut Vec<u8>) -> io::Result<Option<Kind>> {
    let mut header = [0; HEADER_BYTES];
    let mut read = 0;
    while read < header.len() {
        match from.read(&mut header[read..]) {
            Ok(0) => return Ok(None),
            Ok(bytes) => read += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a frame");
    let kind = Kind::from_byte(header[4]).ok_or_else(broken)?;
    if length > FRAME_BYTES_MAX {
        return Err(broken());
    }
    payload.clear();
    payload.resize(length, 0);
    from.read_exact(payload)?;
    Ok(Some(kind))
}
