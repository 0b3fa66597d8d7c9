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
//! session flag u8 [lsid 16 | txnNumber i64 | statements]
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

use std::borrow::Cow;

use banyan_query::update::Update;
use banyan_storage::{CatalogChange, CollectionId, IndexDefinition, Namespace, RecordId};
use bson::{RawDocument, RawDocumentBuf, Timestamp};

use super::sessions::{SessionId, Statement};
use crate::clock::{self, Clock};

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
    /// Nothing but a note and the passing of time.
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

/// Builds the body of an entry; the header is put before it when the entry is proposed.
#[derive(Debug, Default)]
pub struct EntryBuilder {
    operations: Vec<u8>,
    count: usize,
    pub session: Option<SessionStamp>,
}

impl EntryBuilder {
    pub fn new() -> EntryBuilder {
        EntryBuilder::default()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.session.is_none()
    }

    pub fn operations(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.operations.len()
    }

    pub fn insert(&mut self, collection: CollectionId, record: RecordId, document: &RawDocument) {
        self.start(tag::INSERT, collection, record);
        self.operations.extend_from_slice(document.as_bytes());
    }

    pub fn update(
        &mut self,
        collection: CollectionId,
        record: RecordId,
        before: &RawDocument,
        after: &RawDocument,
        style: &Style<'_>,
    ) {
        let tag = match style {
            Style::Modifiers { .. } => tag::UPDATE,
            Style::Replacement => tag::REPLACE,
            Style::Pipeline => tag::UPDATE_BY_PIPELINE,
        };
        self.start(tag, collection, record);
        let (before, after) = (before.as_bytes(), after.as_bytes());
        let prefix = common_prefix(before, after);
        let suffix = common_suffix(&before[prefix..], &after[prefix..]);
        let middle = &before[prefix..before.len() - suffix];
        let out = &mut self.operations;
        out.extend_from_slice(after);
        put_varint(out, prefix as u64);
        put_varint(out, suffix as u64);
        put_bytes(out, middle);
        if let Style::Modifiers { wholes } = style {
            put_varint(out, wholes.len() as u64);
            for path in wholes {
                put_bytes(out, path.as_bytes());
            }
        }
    }

    pub fn delete(&mut self, collection: CollectionId, record: RecordId, before: &RawDocument) {
        self.start(tag::DELETE, collection, record);
        self.operations.extend_from_slice(before.as_bytes());
    }

    pub fn noop(&mut self, document: &RawDocument) {
        self.document(tag::NOOP, document);
    }

    pub fn set_config(&mut self, document: &RawDocument) {
        self.document(tag::SET_CONFIG, document);
    }

    fn document(&mut self, tag: u8, document: &RawDocument) {
        self.operations.push(tag);
        self.operations.extend_from_slice(document.as_bytes());
        self.count += 1;
    }

    fn start(&mut self, tag: u8, collection: CollectionId, record: RecordId) {
        self.operations.push(tag);
        put_varint(&mut self.operations, collection.into());
        put_varint(&mut self.operations, record);
        self.count += 1;
    }

    pub fn drop_database(&mut self, name: &str) {
        self.operations.push(tag::DROP_DATABASE);
        put_bytes(&mut self.operations, name.as_bytes());
        self.count += 1;
    }

    /// `about` is for those who read the log; it changes nothing.
    pub fn catalog(&mut self, change: &CatalogChange, about: &RawDocument) {
        let out = &mut self.operations;
        let tag = match change {
            CatalogChange::CreateCollection { .. } => tag::CREATE_COLLECTION,
            CatalogChange::DropCollection { .. } => tag::DROP_COLLECTION,
            CatalogChange::RenameCollection { .. } => tag::RENAME_COLLECTION,
            CatalogChange::SetOptions { .. } => tag::SET_OPTIONS,
            CatalogChange::CreateIndex { .. } => tag::CREATE_INDEX,
            CatalogChange::DropIndex { .. } => tag::DROP_INDEX,
            CatalogChange::SetIndexSpec { .. } => tag::SET_INDEX_SPEC,
        };
        out.push(tag);
        put_varint(out, change.collection().into());
        out.extend_from_slice(about.as_bytes());
        match change {
            CatalogChange::CreateCollection {
                namespace,
                uuid,
                options,
                indexes,
                ..
            } => {
                put_bytes(out, namespace.as_str().as_bytes());
                out.extend_from_slice(uuid);
                out.extend_from_slice(options.as_bytes());
                put_varint(out, indexes.len() as u64);
                for index in indexes {
                    put_index(out, index);
                }
            }
            CatalogChange::DropCollection { .. } => {}
            CatalogChange::RenameCollection { to, .. } => put_bytes(out, to.as_str().as_bytes()),
            CatalogChange::SetOptions { options, .. } => out.extend_from_slice(options.as_bytes()),
            CatalogChange::CreateIndex { index, .. }
            | CatalogChange::SetIndexSpec { index, .. } => put_index(out, index),
            CatalogChange::DropIndex { index, .. } => put_varint(out, (*index).into()),
        }
        self.count += 1;
    }

    /// The entry as it is proposed, to be sealed.
    pub fn encode(&self, wall_ms: i64) -> Vec<u8> {
        let session_bytes = self
            .session
            .as_ref()
            .map_or(0, |s| 64 + 32 * s.statements.len());
        let mut out = Vec::with_capacity(HEADER_BYTES + 1 + session_bytes + self.operations.len());
        out.push(FORMAT);
        out.extend_from_slice(&0_u64.to_le_bytes());
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&wall_ms.to_le_bytes());
        match &self.session {
            None => out.push(0),
            Some(stamp) => {
                out.push(1);
                out.extend_from_slice(&stamp.session);
                out.extend_from_slice(&stamp.txn_number.to_le_bytes());
                put_varint(&mut out, stamp.statements.len() as u64);
                for statement in &stamp.statements {
                    statement.encode(&mut out);
                }
            }
        }
        out.extend_from_slice(&self.operations);
        out
    }
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

fn put_index(out: &mut Vec<u8>, index: &IndexDefinition) {
    put_varint(out, index.id.into());
    out.extend_from_slice(index.spec.as_bytes());
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 16;
    let steps = a
        .chunks_exact(STEP)
        .zip(b.chunks_exact(STEP))
        .take_while(|(a, b)| a == b)
        .count();
    let start = steps * STEP;
    start
        + a[start..]
            .iter()
            .zip(&b[start..])
            .take_while(|(a, b)| a == b)
            .count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 16;
    let steps = a
        .rchunks_exact(STEP)
        .zip(b.rchunks_exact(STEP))
        .take_while(|(a, b)| a == b)
        .count();
    let (a, b) = (&a[..a.len() - steps * STEP], &b[..b.len() - steps * STEP]);
    let rest = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    steps * STEP + rest
}

/// An entry as it was read from the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<'a> {
    pub header: Header,
    pub session: Option<SessionStamp>,
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
            other => return bad(format!("session flag {other}")),
        };
        Ok(Entry {
            header,
            session,
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
                Passed::Note => {}
                Passed::Definition => return Ok(None),
            }
        }
        Ok(Some(collections))
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

/// What an operation is about.
enum Passed {
    Document(CollectionId),
    Note,
    Definition,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], EntryError> {
        let Some((head, rest)) = self.bytes.split_at_checked(count) else {
            return bad(format!("{count} bytes expected, {} left", self.bytes.len()));
        };
        self.bytes = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], EntryError> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<N>() else {
            return bad(format!("{N} bytes expected, {} left", self.bytes.len()));
        };
        self.bytes = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, EntryError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn varint(&mut self) -> Result<u64, EntryError> {
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

    fn id(&mut self) -> Result<u32, EntryError> {
        let value = self.varint()?;
        u32::try_from(value).or_else(|_| bad(format!("id {value} is too large")))
    }

    fn length(&mut self) -> Result<usize, EntryError> {
        let value = self.varint()?;
        usize::try_from(value).or_else(|_| bad(format!("length {value} is too large")))
    }

    pub(super) fn length_and_bytes(&mut self) -> Result<&'a [u8], EntryError> {
        let length = self.length()?;
        self.take(length)
    }

    pub(super) fn document(&mut self) -> Result<&'a RawDocument, EntryError> {
        let Some(length) = self.bytes.first_chunk::<4>() else {
            return bad("a document without a length");
        };
        let length = u32::from_le_bytes(*length) as usize;
        let bytes = self.take(length)?;
        RawDocument::from_bytes(bytes).or_else(|error| bad(error.to_string()))
    }

    fn namespace(&mut self) -> Result<Namespace, EntryError> {
        let bytes = self.length_and_bytes()?;
        let text = std::str::from_utf8(bytes).ok().and_then(Namespace::parse);
        text.map_or_else(|| bad("a namespace that is none"), Ok)
    }

    fn index(&mut self) -> Result<IndexDefinition, EntryError> {
        Ok(IndexDefinition {
            id: self.id()?,
            spec: self.document()?.to_owned(),
        })
    }

    fn pass_over(&mut self) -> Result<Passed, EntryError> {
        let tag = self.u8()?;
        match tag {
            tag::SET_CONFIG | tag::NOOP => {
                self.document()?;
                return Ok(Passed::Note);
            }
            tag::INSERT | tag::DELETE => {}
            tag::UPDATE | tag::REPLACE | tag::UPDATE_BY_PIPELINE => {}
            _ => return Ok(Passed::Definition),
        }
        let collection = self.id()?;
        self.varint()?;
        self.document()?;
        if !matches!(tag, tag::INSERT | tag::DELETE) {
            self.length()?;
            self.length()?;
            self.length_and_bytes()?;
            self.style(tag)?;
        }
        Ok(Passed::Document(collection))
    }

    fn operation(&mut self) -> Result<Operation<'a>, EntryError> {
        let tag = self.u8()?;
        match tag {
            tag::SET_CONFIG => {
                return Ok(Operation::SetConfig {
                    document: self.document()?,
                });
            }
            tag::NOOP => {
                return Ok(Operation::Noop {
                    document: self.document()?,
                });
            }
            tag::DROP_DATABASE => {
                let name = std::str::from_utf8(self.length_and_bytes()?);
                return name.map_or_else(
                    |_| bad("a database's name that is none"),
                    |name| Ok(Operation::DropDatabase { name }),
                );
            }
            _ => {}
        }
        let id = self.id()?;
        Ok(match tag {
            tag::INSERT => {
                let record = self.varint()?;
                Operation::Insert {
                    collection: id,
                    record,
                    document: self.document()?,
                }
            }
            tag::UPDATE | tag::REPLACE | tag::UPDATE_BY_PIPELINE => self.update(tag, id)?,
            tag::DELETE => {
                let record = self.varint()?;
                Operation::Delete {
                    collection: id,
                    record,
                    before: self.document()?,
                }
            }
            _ => {
                let about = self.document()?;
                Operation::Catalog(self.catalog_change(tag, id)?, about)
            }
        })
    }

    fn update(&mut self, tag: u8, collection: CollectionId) -> Result<Operation<'a>, EntryError> {
        let record = self.varint()?;
        let after = self.document()?;
        let prefix = self.length()?;
        let suffix = self.length()?;
        let middle = self.length_and_bytes()?;
        let bytes = after.as_bytes();
        let (Some(head), Some(tail)) = (
            bytes.get(..prefix),
            bytes
                .len()
                .checked_sub(suffix)
                .and_then(|at| bytes.get(at..)),
        ) else {
            return bad("a difference larger than its document");
        };
        let before = RawDocumentBuf::from_bytes([head, middle, tail].concat())
            .or_else(|error| bad(error.to_string()))?;
        Ok(Operation::Update {
            collection,
            record,
            before: Cow::Owned(before),
            after,
            style: self.style(tag)?,
        })
    }

    fn style(&mut self, tag: u8) -> Result<Style<'a>, EntryError> {
        Ok(match tag {
            tag::REPLACE => Style::Replacement,
            tag::UPDATE_BY_PIPELINE => Style::Pipeline,
            _ => {
                let count = self.varint()?;
                let path = |_| {
                    let bytes = self.length_and_bytes()?;
                    std::str::from_utf8(bytes).or_else(|_| bad("a path that is no text"))
                };
                let wholes = (0..count).map(path).collect::<Result<_, _>>()?;
                Style::Modifiers { wholes }
            }
        })
    }

    fn catalog_change(&mut self, tag: u8, id: u32) -> Result<CatalogChange, EntryError> {
        Ok(match tag {
            tag::CREATE_COLLECTION => CatalogChange::CreateCollection {
                id,
                namespace: self.namespace()?,
                uuid: self.array()?,
                options: self.document()?.to_owned(),
                indexes: {
                    let count = self.varint()?;
                    (0..count).map(|_| self.index()).collect::<Result<_, _>>()?
                },
            },
            tag::DROP_COLLECTION => CatalogChange::DropCollection { id },
            tag::RENAME_COLLECTION => CatalogChange::RenameCollection {
                id,
                to: self.namespace()?,
            },
            tag::SET_OPTIONS => CatalogChange::SetOptions {
                id,
                options: self.document()?.to_owned(),
            },
            tag::CREATE_INDEX => CatalogChange::CreateIndex {
                collection: id,
                index: self.index()?,
                multikey: false,
            },
            tag::DROP_INDEX => CatalogChange::DropIndex {
                collection: id,
                index: self.id()?,
            },
            tag::SET_INDEX_SPEC => CatalogChange::SetIndexSpec {
                collection: id,
                index: self.index()?,
            },
            other => return bad(format!("tag {other} is not known here")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::sessions::StatementOutcome;
    use bson::rawdoc;
    use proptest::prelude::*;

    /// Later than any clock on a wall.
    const LATE: Timestamp = Timestamp {
        time: 4_000_000_000,
        increment: 3,
    };

    fn changes() -> Vec<CatalogChange> {
        let index = |id| IndexDefinition {
            id,
            spec: rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" },
        };
        vec![
            CatalogChange::CreateCollection {
                id: 300,
                namespace: Namespace::new("db", "with.dots"),
                uuid: [9; 16],
                options: rawdoc! { "capped": false },
                indexes: vec![index(1), index(u32::MAX)],
            },
            CatalogChange::DropCollection { id: 1 },
            CatalogChange::RenameCollection {
                id: 1,
                to: Namespace::new("other", "name"),
            },
            CatalogChange::SetOptions {
                id: 2,
                options: rawdoc! {},
            },
            CatalogChange::CreateIndex {
                collection: 1,
                index: index(7),
                multikey: false,
            },
            CatalogChange::DropIndex {
                collection: 1,
                index: 70_000,
            },
            CatalogChange::SetIndexSpec {
                collection: 1,
                index: index(8),
            },
        ]
    }

    #[test]
    fn every_operation_reads_back() {
        let (a, b) = (
            rawdoc! { "_id": 1, "n": 5 },
            rawdoc! { "_id": 1, "n": 6, "more": "x" },
        );
        let mut builder = EntryBuilder::new();
        builder.insert(5, u64::MAX, &a);
        let wholes = vec!["n", "more.$[]"];
        let style = Style::Modifiers { wholes };
        builder.update(5, 128, &a, &b, &style);
        builder.delete(5, 7, &b);
        builder.noop(&rawdoc! { "msg": "hello" });
        builder.set_config(&rawdoc! { "_id": "set" });
        for change in changes() {
            builder.catalog(&change, &rawdoc! { "ns": "a.b" });
        }
        builder.session = Some(SessionStamp {
            session: [3; 16],
            txn_number: 12,
            statements: vec![
                Statement {
                    first: 4,
                    count: 1000,
                    outcome: StatementOutcome::Insert,
                },
                Statement::new(
                    -1,
                    StatementOutcome::Update {
                        matched: 1,
                        modified: 0,
                        upserted: Some(rawdoc! { "_id": "new" }),
                    },
                ),
                Statement::new(
                    6,
                    StatementOutcome::Update {
                        matched: 300,
                        modified: 299,
                        upserted: None,
                    },
                ),
                Statement::new(7, StatementOutcome::Delete { deleted: 1 }),
                Statement::new(
                    8,
                    StatementOutcome::FindAndModify {
                        reply: rawdoc! { "value": null },
                    },
                ),
            ],
        });
        builder.drop_database("gone");
        builder.update(5, 128, &b, &a, &Style::Replacement);
        let clock = Clock::new();
        clock.observe(LATE);
        let mut bytes = builder.encode(-5);
        seal(&mut bytes, &clock);
        let entry = Entry::decode(&bytes).unwrap();
        assert_eq!(entry.header.first_time, clock::to_bits(LATE) + 1);
        assert_eq!((entry.time(), entry.wall_ms()), (clock.now(), -5));
        assert_eq!(entry.session, builder.session);
        assert_eq!(entry.collections(), Ok(None));
        let operations: Vec<_> = entry.operations().map(Result::unwrap).collect();
        assert_eq!(operations.len(), builder.operations());
        assert_eq!(
            operations[0],
            Operation::Insert {
                collection: 5,
                record: u64::MAX,
                document: &a
            }
        );
        assert_eq!(
            operations[1],
            Operation::Update {
                collection: 5,
                record: 128,
                before: Cow::Borrowed(&a),
                after: &b,
                style,
            }
        );
        let (rest, last) = operations[5..].split_at(changes().len());
        let read: Vec<_> = rest
            .iter()
            .map(|operation| match operation {
                Operation::Catalog(change, about) => {
                    assert_eq!(about.get_str("ns").unwrap(), "a.b");
                    change.clone()
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(last[0], Operation::DropDatabase { name: "gone" });
        assert!(matches!(
            last[1],
            Operation::Update {
                style: Style::Replacement,
                ..
            }
        ));
        assert_eq!(read, changes());
    }

    /// The bytes are what other members and later versions have to read: a change here needs a
    /// new format number.
    #[test]
    fn the_format_stays() {
        let mut builder = EntryBuilder::new();
        builder.insert(1, 2, &rawdoc! { "_id": 1 });
        let style = Style::Modifiers { wholes: vec!["n"] };
        builder.update(
            1,
            300,
            &rawdoc! { "n": 1_i32 },
            &rawdoc! { "n": 2_i32 },
            &style,
        );
        let mut bytes = builder.encode(1);
        let clock = Clock::new();
        clock.observe(LATE);
        seal(&mut bytes, &clock);
        let expected = concat!(
            "02",
            "0400000000286bee",
            "02000000",
            "0100000000000000",
            "00",
            "0101020e000000105f69640001000000",
            "00",
            "0201ac020c000000106e00",
            "0200000000",
            "07",
            "04",
            "01",
            "01",
            "01016e",
        );
        let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_entry_says_whose_documents_it_changes() {
        let (a, b) = (rawdoc! { "_id": 1 }, rawdoc! { "_id": 1, "n": 6 });
        let mut builder = EntryBuilder::new();
        let wholes = vec!["n"];
        builder.noop(&a);
        builder.insert(5, 1, &a);
        builder.update(5, 1, &a, &b, &Style::Modifiers { wholes });
        builder.update(6, 1, &b, &a, &Style::Replacement);
        builder.update(6, 1, &a, &b, &Style::Pipeline);
        builder.delete(7, 1, &b);
        let bytes = builder.encode(0);
        let entry = Entry::decode(&bytes).unwrap();
        assert_eq!(entry.collections(), Ok(Some(vec![5, 6, 7])));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let good = EntryBuilder::new().encode(0);
        let mut other_format = good.clone();
        other_format[0] = 9;
        assert!(Entry::decode(&other_format).is_err());
        let mut other_tag = good;
        other_tag.extend_from_slice(&[99, 1]);
        let entry = Entry::decode(&other_tag).unwrap();
        assert!(entry.operations().next().unwrap().is_err());
    }

    proptest! {
        #[test]
        fn an_update_carries_both_documents(
            head in "[ab]{0,40}", before in "[ab]{0,40}", after in "[ab]{0,40}", tail in "[ab]{0,40}"
        ) {
            let a = rawdoc! { "x": format!("{head}{before}{tail}"), "y": before.as_str() };
            let b = rawdoc! { "x": format!("{head}{after}{tail}"), "y": after.as_str() };
            let mut builder = EntryBuilder::new();
            builder.update(1, 1, &a, &b, &Style::Pipeline);
            let bytes = builder.encode(0);
            let entry = Entry::decode(&bytes).unwrap();
            let read = entry.operations().next().unwrap().unwrap();
            let expected = Operation::Update {
                collection: 1, record: 1, before: Cow::Borrowed(&*a), after: &b,
                style: Style::Pipeline,
            };
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn damaged_entries_do_not_panic(
            cut in 0..400_usize, position in 0..400_usize, byte in any::<u8>()
        ) {
            let mut builder = EntryBuilder::new();
            builder.insert(1, 2, &rawdoc! { "_id": 1 });
            let style = Style::Modifiers { wholes: vec!["a", "b.c"] };
            builder.update(
                1, 2, &rawdoc! { "_id": 1, "a": 1 }, &rawdoc! { "_id": 1, "a": 2 }, &style
            );
            for change in changes() {
                builder.catalog(&change, &rawdoc! {});
            }
            let mut bytes = builder.encode(0);
            if let Some(changed) = bytes.get_mut(position) {
                *changed = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(entry) = Entry::decode(&bytes) {
                let _ = entry.collections();
                let _ = entry.operations().count();
            }
        }
    }
}
