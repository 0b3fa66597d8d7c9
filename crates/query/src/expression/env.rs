//! Where an expression runs: the document, the variables in scope, and the arena for results.

use bson::{RawArray, RawBson, RawBsonRef, RawDocument};
use bumpalo::Bump;

use std::cmp::Ordering;

use banyan_document::{Collator, DocumentWriter, MAX_DOCUMENT_BYTES, compare_collated};

use super::value::Value;
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};
use crate::variables::Variables;

/// The most that one evaluation may compute: six documents of the largest size.
const ARENA_BYTES_MAX: usize = 100 * 1024 * 1024;
/// The most that one value on the way may take; what leaves a pipeline is bounded by the size of
/// a document.
const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The most elements that an operator may look at at once: each takes some tens of bytes.
const ELEMENTS_MAX: usize = 4 * 1024 * 1024;

/// Memory for the values computed in one evaluation. Reset it between documents.
pub struct Arena {
    bump: Bump,
    bytes_max: usize,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

impl Arena {
    pub fn new() -> Arena {
        Arena {
            bump: Bump::new(),
            bytes_max: ARENA_BYTES_MAX,
        }
    }

    /// An arena beside this one, for values on the way to one of this one's. It may hold what this
    /// one has left.
    pub(super) fn beside(&self) -> Arena {
        Arena {
            bump: Bump::new(),
            bytes_max: self.bytes_max.saturating_sub(self.bump.allocated_bytes()),
        }
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

/// The values of variables that were bound together, in slots one after the other.
enum Bound<'a> {
    One(Value<'a>),
    Several(&'a [Value<'a>]),
}

/// Variables with their values, linked to those bound before them. Slots are dealt out by the
/// parser.
pub(super) struct Frame<'a> {
    first: usize,
    bound: Bound<'a>,
    outer: Option<&'a Frame<'a>>,
}

/// The surroundings of an evaluation.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    pub root: &'a RawDocument,
    pub arena: &'a Arena,
    /// Every loop over a value's parts counts what it does.
    pub budget: &'a Budget,
    /// How strings are compared; without one, by their bytes.
    pub collator: Option<&'a Collator>,
    frame: Option<&'a Frame<'a>>,
    /// The variables of the `$lookup` stages around.
    outer: &'a Variables,
    /// A constant is being worked out: those inside it need not be kept.
    in_constant: bool,
}

impl<'a> Env<'a> {
    pub fn new(root: &'a RawDocument, arena: &'a Arena, budget: &'a Budget) -> Env<'a> {
        Env {
            root,
            arena,
            budget,
            collator: None,
            frame: None,
            outer: Variables::NONE,
            in_constant: false,
        }
    }

    /// This environment with a collation.
    pub fn with_collator(self, collator: Option<&'a Collator>) -> Env<'a> {
        Env { collator, ..self }
    }

    /// The order of two values.
    pub(super) fn compare(&self, a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
        compare_collated(a, b, self.collator)
    }

    /// The order of two values; a missing one counts as undefined.
    pub(super) fn compare_values(&self, a: Value<'_>, b: Value<'_>) -> Ordering {
        compare_collated(
            a.unwrap_or(RawBsonRef::Undefined),
            b.unwrap_or(RawBsonRef::Undefined),
            self.collator,
        )
    }

    /// This environment inside a `$lookup`.
    pub fn with_outer(self, outer: &'a Variables) -> Env<'a> {
        Env { outer, ..self }
    }

    /// The value of a variable of a `$lookup` around.
    pub(super) fn outer(&self, slot: usize) -> Result<Value<'a>, QueryError> {
        match self.outer.get(slot) {
            Some(value) => Ok(value.as_ref().map(RawBson::as_raw_bson_ref)),
            None => Err(QueryError::new(
                ErrorKind::InternalError,
                format!("the variable in slot {slot} is not bound"),
            )),
        }
    }

    /// This environment with more variables, in slots from `first` on.
    pub(super) fn bind_all(&self, first: usize, values: &[Value<'a>]) -> Env<'a> {
        let frame = self.arena.bump.alloc(Frame {
            first,
            bound: Bound::Several(self.arena.bump.alloc_slice_copy(values)),
            outer: self.frame,
        });
        Env {
            frame: Some(frame),
            ..*self
        }
    }

    /// A variable that is bound for a while only: see [`Env::within`].
    pub(super) fn frame<'b>(&self, slot: usize, value: Value<'b>) -> Frame<'b>
    where
        'a: 'b,
    {
        Frame {
            first: slot,
            bound: Bound::One(value),
            outer: self.frame,
        }
    }

    /// This environment with the frame's variable.
    pub(super) fn within<'b>(&self, frame: &'b Frame<'b>) -> Env<'b>
    where
        'a: 'b,
    {
        Env {
            frame: Some(frame),
            ..*self
        }
    }

    pub(super) fn variable(&self, slot: usize) -> Value<'a> {
        let mut frame = self.frame;
        while let Some(current) = frame {
            let values = match &current.bound {
                Bound::One(value) => std::slice::from_ref(value),
                Bound::Several(values) => values,
            };
            let place = slot.checked_sub(current.first);
            if let Some(value) = place.and_then(|place| values.get(place)) {
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
            arena,
            budget: self.budget,
            ..*self
        }
    }

    /// This environment, for working out a constant.
    pub(super) fn in_constant(self) -> Env<'a> {
        Env {
            in_constant: true,
            ..self
        }
    }

    pub(super) fn is_in_constant(&self) -> bool {
        self.in_constant
    }

    /// The elements of an array, to look at several times or in another order.
    pub(super) fn elements(&self, array: &'a RawArray) -> Result<Vec<RawBsonRef<'a>>, QueryError> {
        let mut elements = Vec::new();
        self.collect(array, &mut elements)?;
        Ok(elements)
    }

    /// Adds the elements of an array to others.
    pub(super) fn collect(
        &self,
        array: &'a RawArray,
        elements: &mut Vec<RawBsonRef<'a>>,
    ) -> Result<(), QueryError> {
        for item in super::value::items(array) {
            self.budget.spend(1)?;
            self.check_elements(elements.len())?;
            elements.push(item);
        }
        Ok(())
    }

    /// Refuses more elements than an operator may look at at once.
    pub(super) fn check_elements(&self, count: usize) -> Result<(), QueryError> {
        if count > ELEMENTS_MAX {
            return Err(QueryError::new(
                ErrorKind::ExceededMemoryLimit,
                format!("an operator was given more than {ELEMENTS_MAX} elements"),
            ));
        }
        Ok(())
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
            self.budget.spend_bytes(byte_len(value))?;
            builder.push(value);
        }
        self.array(builder)
    }

    pub fn document(&self, writer: DocumentWriter) -> Result<Value<'a>, QueryError> {
        Ok(Some(RawBsonRef::Document(self.arena.document(writer)?)))
    }
}
