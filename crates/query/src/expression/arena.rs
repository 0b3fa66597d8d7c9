//! The memory for what expressions compute, and the documents that they are evaluated over.

use std::cell::{Cell, RefCell};

use banyan_document::{DocumentWriter, FieldIndex, MAX_DOCUMENT_BYTES, field, first_value};
use bson::{RawBsonRef, RawDocument};
use bumpalo::Bump;

use super::value::Value;
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};

/// The most that one evaluation may compute: six documents of the largest size.
const ARENA_BYTES_MAX: usize = 100 * 1024 * 1024;
/// The most that one value on the way may take; what leaves a pipeline is bounded by the size of
/// a document.
const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Memory for the values computed in one evaluation. Reset it between documents.
pub struct Arena {
    pub(super) bump: Bump,
    bytes_max: usize,
    /// How many roots were made with it.
    roots: Cell<u64>,
    known: RefCell<KnownFields>,
}

/// Where the fields of a root are, once that is worth knowing.
#[derive(Default)]
struct KnownFields {
    /// The number of the root.
    root: u64,
    /// How often fields of the root were read.
    reads: u32,
    is_indexed: bool,
    index: FieldIndex,
}

/// So many reads of a document's fields are worth an index of them.
const INDEXED_READS_MIN: u32 = 8;
/// So many are worth one halfway through, when it was not known that there would be as many.
const UNEXPECTED_READS_MIN: u32 = 32;
/// A document of fewer bytes has few fields.
const INDEXED_BYTES_MIN: usize = 256;

/// The document that expressions are evaluated over, as `$$ROOT`. What one of them has found out
/// about its fields serves the others.
#[derive(Clone, Copy)]
pub struct Root<'a> {
    document: &'a RawDocument,
    pub(super) arena: &'a Arena,
    /// No other root of the arena has it.
    number: u64,
    /// How many reads of its fields are expected.
    reads: u32,
}

impl<'a> Root<'a> {
    /// This root, of which so many fields are to be read.
    pub fn expecting(self, reads: u32) -> Root<'a> {
        Root { reads, ..self }
    }

    pub fn document(&self) -> &'a RawDocument {
        self.document
    }

    /// The value of a direct field.
    pub(super) fn field(&self, name: &str, budget: &Budget) -> Result<Value<'a>, QueryError> {
        let bytes = self.document.as_bytes().len();
        if bytes >= INDEXED_BYTES_MIN {
            let known = &mut *self.arena.known.borrow_mut();
            if self.is_indexed(known, budget)? {
                budget.spend(1)?;
                return Ok(known.index.field(self.document, name));
            }
        }
        // The field may be the last one.
        budget.spend_bytes(bytes)?;
        Ok(field(self.document, name))
    }

    /// Whether the index is one of this document.
    fn is_indexed(&self, known: &mut KnownFields, budget: &Budget) -> Result<bool, QueryError> {
        if known.root != self.number {
            known.root = self.number;
            known.reads = 0;
            known.is_indexed = false;
        }
        if known.is_indexed {
            return Ok(true);
        }
        known.reads = known.reads.saturating_add(1);
        let begins = match self.reads >= INDEXED_READS_MIN {
            true => 1,
            false => UNEXPECTED_READS_MIN,
        };
        if known.reads == begins {
            budget.spend_bytes(4 * self.document.as_bytes().len())?;
            known.is_indexed = known.index.fill(self.document);
        }
        Ok(known.is_indexed)
    }
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

impl Arena {
    pub fn new() -> Arena {
        Arena::of(ARENA_BYTES_MAX)
    }

    fn of(bytes_max: usize) -> Arena {
        Arena {
            bump: Bump::new(),
            bytes_max,
            roots: Cell::new(0),
            known: RefCell::default(),
        }
    }

    /// A document to evaluate expressions over, with their values in this arena.
    pub fn root<'a>(&'a self, document: &'a RawDocument) -> Root<'a> {
        let number = self.roots.get() + 1;
        self.roots.set(number);
        Root {
            document,
            arena: self,
            number,
            reads: 0,
        }
    }

    /// An arena beside this one, for values on the way to one of this one's. It may hold what this
    /// one has left.
    pub(super) fn beside(&self) -> Arena {
        Arena::of(self.bytes_max.saturating_sub(self.bump.allocated_bytes()))
    }

    pub fn reset(&mut self) {
        self.bump.reset();
    }

    fn check(&self, bytes: usize) -> Result<(), QueryError> {
        if self.bump.allocated_bytes().saturating_add(bytes) > self.bytes_max {
            return Err(QueryError::new(
                ErrorKind::ExceededMemoryLimit,
                format!("an expression computed more than {ARENA_BYTES_MAX} bytes of values"),
            ));
        }
        Ok(())
    }

    pub fn string(&self, text: &str) -> Result<&str, QueryError> {
        if text.len() > MAX_DOCUMENT_BYTES {
            return Err(QueryError::new(
                ErrorKind::Location(16493),
                "Tried to create string longer than 16MB",
            ));
        }
        self.check(text.len())?;
        Ok(self.bump.alloc_str(text))
    }

    pub fn bytes(&self, bytes: &[u8]) -> Result<&[u8], QueryError> {
        self.check(bytes.len())?;
        Ok(self.bump.alloc_slice_copy(bytes))
    }

    pub fn document(&self, writer: DocumentWriter) -> Result<&RawDocument, QueryError> {
        let document = writer.finish();
        let bytes = self.bytes(document.as_bytes())?;
        RawDocument::from_bytes(bytes).map_err(|_| {
            QueryError::new(
                ErrorKind::InternalError,
                "an expression built a malformed document",
            )
        })
    }

    /// Copies a value in, for use beyond the life of what it borrows from.
    pub fn copy<'a>(&'a self, value: Value<'_>) -> Result<Value<'a>, QueryError> {
        let Some(value) = value else { return Ok(None) };
        Ok(Some(match value {
            RawBsonRef::Double(value) => RawBsonRef::Double(value),
            RawBsonRef::Int32(value) => RawBsonRef::Int32(value),
            RawBsonRef::Int64(value) => RawBsonRef::Int64(value),
            RawBsonRef::Boolean(value) => RawBsonRef::Boolean(value),
            RawBsonRef::Null => RawBsonRef::Null,
            RawBsonRef::DateTime(value) => RawBsonRef::DateTime(value),
            RawBsonRef::ObjectId(value) => RawBsonRef::ObjectId(value),
            RawBsonRef::String(text) => {
                self.check(text.len())?;
                RawBsonRef::String(self.bump.alloc_str(text))
            }
            value => {
                let mut writer = DocumentWriter::with_capacity(byte_len(value) + 64);
                writer.append("", value);
                return self.first_value(writer);
            }
        }))
    }

    fn first_value<'a>(&'a self, writer: DocumentWriter) -> Result<Value<'a>, QueryError> {
        Ok(first_value(self.document(writer)?))
    }
}

/// The bytes of what a value holds, where they can be many.
#[inline]
pub(crate) fn byte_len(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::String(text) => text.len(),
        RawBsonRef::Document(document) => document.as_bytes().len(),
        RawBsonRef::Array(array) => array.as_bytes().len(),
        RawBsonRef::Binary(binary) => binary.bytes.len(),
        _ => 0,
    }
}

/// Refuses a value under construction that no document could hold any more.
pub(crate) fn check_size(bytes: usize) -> Result<(), QueryError> {
    if bytes > VALUE_BYTES_MAX {
        return Err(QueryError::new(
            ErrorKind::BsonObjectTooLarge,
            format!("a computed value is larger than {VALUE_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

/// An array being built. It is wrapped in a document, because a raw array can only be read out
/// of one.
pub struct ArrayBuilder {
    pub writer: DocumentWriter,
    /// Values were left out because the array is too large; `finish` says so.
    full: bool,
}

impl Default for ArrayBuilder {
    fn default() -> ArrayBuilder {
        ArrayBuilder::with_capacity(128)
    }
}

impl ArrayBuilder {
    pub fn new() -> ArrayBuilder {
        ArrayBuilder::default()
    }

    /// With room for so many bytes.
    pub fn with_capacity(bytes: usize) -> ArrayBuilder {
        let mut writer = DocumentWriter::with_capacity(bytes);
        writer.begin_array("");
        ArrayBuilder {
            writer,
            full: false,
        }
    }

    pub fn push(&mut self, value: RawBsonRef<'_>) {
        if self.writer.len() > VALUE_BYTES_MAX {
            self.full = true;
            return;
        }
        self.writer.push(value);
    }

    pub fn push_str(&mut self, text: &str) {
        self.push(RawBsonRef::String(text));
    }

    pub fn finish(self, arena: &Arena) -> Result<Value<'_>, QueryError> {
        if self.full {
            check_size(usize::MAX)?;
        }
        arena.first_value(self.writer)
    }
}
