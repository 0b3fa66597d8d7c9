//! Where an expression runs: the document, the variables in scope, and the arena for results.

use bson::{RawBsonRef, RawDocument};
use bumpalo::Bump;

use banyan_document::DocumentWriter;

use super::value::Value;
use crate::error::{ErrorKind, QueryError};

/// The most that one evaluation may compute: six documents of the largest size.
const ARENA_BYTES_MAX: usize = 100 * 1024 * 1024;
/// The most that one value on the way may take; what leaves a pipeline is bounded by the size of
/// a document.
const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Memory for the values computed in one evaluation. Reset it between documents.
#[derive(Default)]
pub struct Arena {
    bump: Bump,
}

impl Arena {
    pub fn new() -> Arena {
        Arena { bump: Bump::new() }
    }

    pub fn reset(&mut self) {
        self.bump.reset();
    }

    fn check(&self, bytes: usize) -> Result<(), QueryError> {
        if self.bump.allocated_bytes().saturating_add(bytes) > ARENA_BYTES_MAX {
            return Err(QueryError::new(
                ErrorKind::ExceededMemoryLimit,
                format!("an expression computed more than {ARENA_BYTES_MAX} bytes of values"),
            ));
        }
        Ok(())
    }

    pub fn string(&self, text: &str) -> Result<&str, QueryError> {
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
        let mut writer = DocumentWriter::new();
        writer.append("", value);
        self.first_value(writer)
    }

    fn first_value<'a>(&'a self, writer: DocumentWriter) -> Result<Value<'a>, QueryError> {
        let document = self.document(writer)?;
        Ok(document
            .iter()
            .next()
            .and_then(Result::ok)
            .map(|(_, value)| value))
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
        let mut writer = DocumentWriter::new();
        writer.begin_array("");
        ArrayBuilder {
            writer,
            full: false,
        }
    }
}

impl ArrayBuilder {
    pub fn new() -> ArrayBuilder {
        ArrayBuilder::default()
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

/// The values of variables that were bound together, in slots one after the other, linked to those
/// bound before them. Slots are dealt out by the parser.
struct Frame<'a> {
    first: usize,
    values: &'a [Value<'a>],
    outer: Option<&'a Frame<'a>>,
}

/// The surroundings of an evaluation.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    pub root: &'a RawDocument,
    pub arena: &'a Arena,
    frame: Option<&'a Frame<'a>>,
}

impl<'a> Env<'a> {
    pub fn new(root: &'a RawDocument, arena: &'a Arena) -> Env<'a> {
        Env {
            root,
            arena,
            frame: None,
        }
    }

    /// This environment with one more variable.
    pub(super) fn bind(&self, slot: usize, value: Value<'a>) -> Env<'a> {
        self.bind_all(slot, &[value])
    }

    /// This environment with more variables, in slots from `first` on.
    pub(super) fn bind_all(&self, first: usize, values: &[Value<'a>]) -> Env<'a> {
        let frame = self.arena.bump.alloc(Frame {
            first,
            values: self.arena.bump.alloc_slice_copy(values),
            outer: self.frame,
        });
        Env {
            frame: Some(frame),
            ..*self
        }
    }

    pub(super) fn variable(&self, slot: usize) -> Value<'a> {
        let mut frame = self.frame;
        while let Some(current) = frame {
            let place = slot.checked_sub(current.first);
            if let Some(value) = place.and_then(|place| current.values.get(place)) {
                return *value;
            }
            frame = current.outer;
        }
        None
    }

    /// The same surroundings with an arena of their own, for steps whose intermediate values
    /// should not pile up.
    pub(super) fn with_arena<'b>(&self, arena: &'b Arena) -> Env<'b>
    where
        'a: 'b,
    {
        Env {
            root: self.root,
            arena,
            frame: self.frame,
        }
    }

    pub fn string(&self, text: &str) -> Result<Value<'a>, QueryError> {
        Ok(Some(RawBsonRef::String(self.arena.string(text)?)))
    }

    pub fn array(&self, builder: ArrayBuilder) -> Result<Value<'a>, QueryError> {
        builder.finish(self.arena)
    }

    pub fn array_of(
        &self,
        values: impl IntoIterator<Item = RawBsonRef<'a>>,
    ) -> Result<Value<'a>, QueryError> {
        let mut builder = ArrayBuilder::new();
        for value in values {
            builder.push(value);
        }
        self.array(builder)
    }

    pub fn document(&self, writer: DocumentWriter) -> Result<Value<'a>, QueryError> {
        Ok(Some(RawBsonRef::Document(self.arena.document(writer)?)))
    }
}
