//! Where an expression runs: the document, the variables in scope, and the arena for results.

use std::cmp::Ordering;

use banyan_document::{Collator, DocumentWriter, compare_collated};
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::arena::{Arena, ArrayBuilder, Root, byte_len};
use super::value::Value;
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};
use crate::variables::Variables;

/// The most elements that an operator may look at at once: each takes some tens of bytes.
const ELEMENTS_MAX: usize = 4 * 1024 * 1024;

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
    root: Root<'a>,
    pub arena: &'a Arena,
    /// Every loop over a value's parts counts what it does.
    pub budget: &'a Budget,
    /// How strings are compared; without one, by their bytes.
    pub collator: Option<&'a Collator>,
    frame: Option<&'a Frame<'a>>,
    /// The variables of the `$lookup` stages around.
    outer: &'a Variables,
    /// A constant is being evaluated: those inside it need not be kept.
    in_constant: bool,
}

impl<'a> Env<'a> {
    pub fn new(root: Root<'a>, budget: &'a Budget) -> Env<'a> {
        Env {
            root,
            arena: root.arena,
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

    /// `$$ROOT`.
    pub(super) fn root(&self) -> &'a RawDocument {
        self.root.document()
    }

    /// The value of a direct field of the root.
    #[inline]
    pub(super) fn field(&self, name: &str) -> Result<Value<'a>, QueryError> {
        self.root.field(name, self.budget)
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
