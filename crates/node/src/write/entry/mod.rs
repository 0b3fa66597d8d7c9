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
//! session flag u8 [lsid 16 | txnNumber i64 | statements], or [histories] of other shards' sessions
//! then until the end: tag u8 | fields
//! ```
//!
//! Each operation has a time of its own: the first, and one more for each that follows. The leader
//! writes the first one when it appends the entry ([`seal`]); the entry's time is that of its last
//! operation. An operation on the catalog carries a document about what it found, for those who read
//! the log later, when the catalog has moved on.
//!
//! Integers in the header are little-endian; ids, lengths and counts are LEB128. Documents carry
//! their own length. A reader that meets a format or a tag it doesn't know must stop: the entry was
//! committed, so skipping it would lose data.

mod builder;
mod reader;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use banyan_query::update::Update;
use banyan_storage::{CatalogChange, CollectionId, RecordId};
use bson::{RawDocument, Timestamp};

use super::histories::History;
use super::sessions::{SessionId, Statement};
use crate::clock::{self, Clock};

pub use builder::EntryBuilder;
pub(super) use builder::put_varint;
use reader::Passed;
pub(super) use reader::Reader;

pub const FORMAT: u8 = 2;

/// One change. `Cow`s borrow from the entry's bytes where they can.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation<'a> {
    Insert {
        collection: CollectionId,
        record: RecordId,
        document: &'a RawDocument,
    },
    Update {
        collection: CollectionId,
        record: RecordId,
        before: Cow<'a, RawDocument>,
        after: &'a RawDocument,
        style: Style<'a>,
    },
    Delete {
        collection: CollectionId,
        record: RecordId,
        before: &'a RawDocument,
    },
    /// Changes the catalog. A new index on a collection with records is built when this is
    /// applied. The document is about what it found ([`about`]).
    Catalog(CatalogChange, &'a RawDocument),
    /// The operations before have emptied the database of this name.
    DropDatabase { name: &'a str },
    /// Replaces the replica set's configuration.
    SetConfig { document: &'a RawDocument },
    /// Nothing but a message and the passing of time.
    Noop { document: &'a RawDocument },
}

/// How an update's statement was written, for those who describe the change later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style<'a> {
    /// With operators. The paths are those of which the whole value is told
    /// ([`banyan_query::update::Update::wholes`]).
    Modifiers { wholes: Vec<&'a str> },
    /// As the whole document.
    Replacement,
    /// As a pipeline.
    Pipeline,
}

impl<'a> Style<'a> {
    pub fn of(update: &'a Update) -> Style<'a> {
        if update.is_replacement() {
            Style::Replacement
        } else if update.is_pipeline() {
            Style::Pipeline
        } else {
            let wholes = update.wholes().iter().map(String::as_str).collect();
            Style::Modifiers { wholes }
        }
    }
}

/// Numbers of operations by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub inserts: u64,
    pub updates: u64,
    pub deletes: u64,
    /// Changes of the catalog.
    pub commands: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.inserts += other.inserts;
        self.updates += other.updates;
        self.deletes += other.deletes;
        self.commands += other.commands;
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("log entry: {0}")]
pub struct EntryError(String);

impl EntryError {
    pub(super) fn unknown(what: &str, tag: u8) -> EntryError {
        EntryError(format!("{what} tag {tag} is not known here"))
    }
}

fn bad<T>(what: impl Into<String>) -> Result<T, EntryError> {
    Err(EntryError(what.into()))
}

/// Statements of one session that the entry settles.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStamp {
    pub session: SessionId,
    pub txn_number: i64,
    pub statements: Vec<Statement>,
}

mod tag {
    pub const INSERT: u8 = 1;
    pub const UPDATE: u8 = 2;
    pub const DELETE: u8 = 3;
    pub const SET_CONFIG: u8 = 4;
    pub const NOOP: u8 = 5;
    pub const REPLACE: u8 = 6;
    pub const UPDATE_BY_PIPELINE: u8 = 7;
    pub const CREATE_COLLECTION: u8 = 16;
    pub const DROP_COLLECTION: u8 = 17;
    pub const RENAME_COLLECTION: u8 = 18;
    pub const SET_OPTIONS: u8 = 19;
    pub const CREATE_INDEX: u8 = 20;
    pub const DROP_INDEX: u8 = 21;
    pub const SET_INDEX_SPEC: u8 = 22;
    pub const DROP_DATABASE: u8 = 23;
}

/// Up to the session flag.
const HEADER_BYTES: usize = 21;

/// The header of an entry, read without the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The time of the first operation, as [`clock::to_bits`]; 0 until the entry is sealed.
    pub first_time: u64,
    pub operations: u32,
    pub wall_ms: i64,
}

impl Header {
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let (format, rest) = bytes.split_first()?;
        if *format != FORMAT {
            return None;
        }
        let (first_time, rest) = rest.split_first_chunk()?;
        let (operations, rest) = rest.split_first_chunk()?;
        let (wall_ms, _) = rest.split_first_chunk()?;
        Some(Header {
            first_time: u64::from_le_bytes(*first_time),
            operations: u32::from_le_bytes(*operations),
            wall_ms: i64::from_le_bytes(*wall_ms),
        })
    }

    /// The entry's time: that of its last operation.
    pub fn time(&self) -> u64 {
        let after_first = u64::from(self.operations.max(1)) - 1;
        self.first_time.saturating_add(after_first)
    }
}

/// Gives an entry its times, in place of whatever it had.
pub fn seal(bytes: &mut [u8], clock: &Clock) {
    let Some(header) = Header::read(bytes) else {
        return;
    };
    let first = clock::to_bits(clock.tick_many(header.operations));
    if let Some(place) = bytes.get_mut(1..9) {
        place.copy_from_slice(&first.to_le_bytes());
    }
}

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
        let mut reader = Reader {
            bytes: bytes.get(HEADER_BYTES..).unwrap_or_default(),
        };
        let mut histories = Vec::new();
        let session = match reader.u8()? {
            0 => None,
            1 => {
                let session = reader.array()?;
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
        Ok(Entry {
            header,
            session,
            histories,
            operations: reader,
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
