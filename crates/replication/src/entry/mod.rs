//! The log entry: what one command batch does, as bytes.
//!
//! Operations are physical: they name records by id and carry documents, so that applying one
//! twice leaves what applying it once does, and a member needs nothing but the entry and the
//! catalog to work its effects out. A document's earlier state is part of the operation, since
//! index keys and counts follow from the difference; for an update it is written as what differs
//! from the later state, which for most updates is a handful of bytes.
//!
//! ```text
//! format u8 | first time u64 | operations u32 | wall clock ms i64
//! for each operation: tag u8 | fields
//! session flag u8 [lsid | txnNumber i64 | statements], or [histories] of other shards' sessions
//! length of the line before u32
//! ```
//!
//! Each operation has a time of its own: the first, and one more for each that follows. The leader
//! writes the first one when it appends the entry ([`seal`]); the entry's time is that of its last
//! operation. An operation on the catalog carries a document about what it found, for those who read
//! the log later, when the catalog has moved on.
//!
//! Integers in the header, and the length at the end, are little-endian; ids, lengths and counts are LEB128. Documents carry
//! their own length. A reader that meets a format or a tag it doesn't know must stop: the entry was
//! committed, so skipping it would lose data.

mod builder;
mod check;
mod header;
mod operation;
mod reader;
#[cfg(test)]
mod tests;

use banyan_storage::CollectionId;
use bson::Timestamp;

use crate::clock;
use crate::codec::{Reader, bad};
use crate::sessions::histories::History;
use crate::sessions::{SessionStamp, Statement};

pub use crate::codec::EntryError;
pub use builder::EntryBuilder;
pub use check::check;
use header::HEADER_BYTES;
pub use header::{FORMAT, Header, seal};
use operation::tag;
pub use operation::{Operation, Style, Tally};
use reader::Passed;

/// An entry as it was read from the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<'a> {
    pub header: Header,
    pub session: Option<SessionStamp>,
    /// What sessions did on another shard.
    pub histories: Vec<History>,
    operations: Reader<'a>,
}

impl<'a> Entry<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<Entry<'a>, EntryError> {
        let Some(header) = Header::read(bytes) else {
            return match bytes.first() {
                Some(&format) if format != FORMAT => {
                    bad(format!("format {format} is not known here"))
                }
                _ => bad("no header"),
            };
        };
        let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
        let Some((body, length)) = body.split_last_chunk() else {
            return bad("no end");
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(operations) = body.len().checked_sub(length) else {
            return bad(format!("{length} bytes of a session expected"));
        };
        let (operations, session) = body.split_at(operations);
        let mut reader = Reader { bytes: session };
        let mut histories = Vec::new();
        let session = match reader.u8()? {
            0 => None,
            1 => {
                let session = reader.session()?;
                let txn_number = i64::from_le_bytes(reader.array()?);
                let count = reader.varint()?;
                let statements = (0..count)
                    .map(|_| Statement::decode(&mut reader))
                    .collect::<Result<_, _>>()?;
                Some(SessionStamp {
                    session,
                    txn_number,
                    statements,
                })
            }
            2 => {
                for _ in 0..reader.varint()? {
                    histories.push(History::decode(&mut reader)?);
                }
                None
            }
            other => return bad(format!("session flag {other}")),
        };
        if !reader.bytes.is_empty() {
            return bad("a session that goes on");
        }
        Ok(Entry {
            header,
            session,
            histories,
            operations: Reader { bytes: operations },
        })
    }

    /// The time of the last operation.
    pub fn time(&self) -> Timestamp {
        clock::from_bits(self.header.time())
    }

    pub fn wall_ms(&self) -> i64 {
        self.header.wall_ms
    }

    /// The collections whose documents it changes, without reading the documents. `None`: it changes
    /// what exists.
    pub fn collections(&self) -> Result<Option<Vec<CollectionId>>, EntryError> {
        let mut reader = self.operations.clone();
        let mut collections = Vec::new();
        while !reader.bytes.is_empty() {
            match reader.pass_over()? {
                Passed::Document(id) if collections.last() == Some(&id) => {}
                Passed::Document(id) => collections.push(id),
                Passed::Noop => {}
                Passed::Definition => return Ok(None),
            }
        }
        Ok(Some(collections))
    }

    /// How many operations of each kind it has, without reading the documents.
    pub fn tally(&self) -> Result<Tally, EntryError> {
        let mut reader = self.operations.clone();
        let mut tally = Tally::default();
        let mut left = u64::from(self.header.operations);
        while let Some(kind) = reader.bytes.first() {
            let count = match *kind {
                tag::INSERT => &mut tally.inserts,
                tag::DELETE => &mut tally.deletes,
                tag::UPDATE | tag::REPLACE | tag::UPDATE_BY_PIPELINE => &mut tally.updates,
                _ => &mut tally.commands,
            };
            match reader.pass_over()? {
                Passed::Document(_) => *count += 1,
                Passed::Noop => {}
                // What changes the catalog is an entry of its own.
                Passed::Definition => {
                    *count += left;
                    break;
                }
            }
            left = left.saturating_sub(1);
        }
        Ok(tally)
    }

    pub fn operations(&self) -> impl Iterator<Item = Result<Operation<'a>, EntryError>> + use<'a> {
        let mut reader = self.operations.clone();
        std::iter::from_fn(move || {
            if reader.bytes.is_empty() {
                return None;
            }
            let operation = reader.operation();
            if operation.is_err() {
                reader.bytes = &[];
            }
            Some(operation)
        })
    }
}
