//! $unwind: a document for each element of an array

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::spec::ElementType;
use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, Element, elements};

use super::dependencies::Dependencies;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::FieldPath;
use crate::expression::value::{error, type_name};
use crate::memory::{Holding, consumer};

#[derive(Clone, Debug)]
pub struct Unwind {
    pub path: FieldPath,
    pub include_array_index: Option<FieldPath>,
    pub preserve_null_and_empty_arrays: bool,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(Unwind::parse(value)?));
    Ok(())
}

impl Unwind {
    pub(super) fn parse(value: RawBsonRef<'_>) -> Result<Unwind, QueryError> {
        let (mut path, mut index, mut preserve) = ("", None, false);
        match value {
            RawBsonRef::String(text) => path = text,
            RawBsonRef::Document(document) => {
                for (name, value) in document.iter().map_while(Result::ok) {
                    option(name.as_str(), value, &mut path, &mut index, &mut preserve)?;
                }
            }
            other => {
                return error(
                    15981,
                    format!(
                        "expected either a string or an object as specification for $unwind stage, \
                     got {}",
                        type_name(Some(other))
                    ),
                );
            }
        }
        if path.is_empty() {
            return error(28812, "no path specified to $unwind stage");
        }
        let Some(path) = path.strip_prefix('$') else {
            return error(
                28818,
                format!("path option to $unwind stage should be prefixed with a '$': {path}"),
            );
        };
        if path.contains('\0') {
            return error(
                16419,
                "field path must not contain embedded null characters",
            );
        }
        Ok(Unwind {
            path: FieldPath::parse(path)?,
            include_array_index: index.map(FieldPath::parse).transpose()?,
            preserve_null_and_empty_arrays: preserve,
        })
    }
}

fn option<'a>(
    name: &str,
    value: RawBsonRef<'a>,
    path: &mut &'a str,
    index: &mut Option<&'a str>,
    preserve: &mut bool,
) -> Result<(), QueryError> {
    match (name, value) {
        ("path", RawBsonRef::String(text)) => *path = text,
        ("path", other) => {
            return error(
                28808,
                format!(
                    "expected a string as the path for $unwind stage, got {}",
                    type_name(Some(other))
                ),
            );
        }
        ("preserveNullAndEmptyArrays", RawBsonRef::Boolean(value)) => *preserve = value,
        ("preserveNullAndEmptyArrays", other) => {
            return error(
                28809,
                format!(
                    "expected a boolean for the preserveNullAndEmptyArrays option to $unwind \
                     stage, got {}",
                    type_name(Some(other))
                ),
            );
        }
        ("includeArrayIndex", RawBsonRef::String(text)) if !text.is_empty() => {
            if text.starts_with('$') {
                return error(
                    28822,
                    format!(
                        "includeArrayIndex option to $unwind stage should not be prefixed with a \
                         '$': {text}"
                    ),
                );
            }
            *index = Some(text);
        }
        ("includeArrayIndex", other) => {
            return error(
                28810,
                format!(
                    "expected a non-empty string for the includeArrayIndex  option to $unwind \
                     stage, got {}",
                    type_name(Some(other))
                ),
            );
        }
        (other, _) => {
            return error(
                28811,
                format!("unrecognized option to $unwind stage: {other}"),
            );
        }
    }
    Ok(())
}

impl Stage for Unwind {
    fn name(&self) -> &'static str {
        "$unwind"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        out.append_str("path", &format!("${}", self.path));
        if let Some(index) = &self.include_array_index {
            out.append_str("includeArrayIndex", &index.to_string());
        }
        if self.preserve_null_and_empty_arrays {
            out.append_bool("preserveNullAndEmptyArrays", true);
        }
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        paths.insert(self.path.to_string());
        Reads::AndPasses
    }

    fn changes(&self) -> Changes {
        let index = self.include_array_index.as_ref().map(FieldPath::first);
        Changes::at([self.path.first()].into_iter().chain(index))
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        if self.path.parts().len() == 1 && self.include_array_index.is_none() {
            return Ok(Box::new(FlatRun {
                name: self.path.first().into(),
                preserve: self.preserve_null_and_empty_arrays,
                needed: start.needed.clone(),
                scratch: Vec::new(),
                tail: Vec::new(),
                rest: None,
                holding: start.budget.holding(&consumer::UNWIND),
            }));
        }
        Ok(Box::new(DeepRun {
            unwind: self,
            rest: None,
            holding: start.budget.holding(&consumer::UNWIND),
        }))
    }
}

/// What is left of an array when the results are full.
struct Rest {
    /// The array as a document; what is gone is overwritten by the length of what is left.
    bytes: Vec<u8>,
    start: usize,
}

impl Rest {
    fn new(array: &RawArray, gone: usize) -> Rest {
        let mut rest = Rest {
            bytes: array.as_bytes().to_vec(),
            start: 0,
        };
        rest.advance(gone);
        rest
    }

    /// Leaves out so many bytes of elements. The length of what is left takes the place of theirs
    /// and of the length before.
    fn advance(&mut self, gone: usize) {
        self.start += gone;
        let left = self.bytes.len() - self.start;
        if let Some(length) = self.bytes.get_mut(self.start..self.start + 4) {
            length.copy_from_slice(&(left as u32).to_le_bytes());
        }
    }

    fn array(&self) -> Result<&RawDocument, QueryError> {
        RawDocument::from_bytes(&self.bytes[self.start..]).map_err(crate::expression::malformed)
    }
}

/// How far the elements of an array were handed on.
struct Emitted {
    flow: Flow,
    bytes: usize,
    /// All of them were, or none is needed any more.
    done: bool,
}

/// Hands on element after element, until the results are full.
fn emit_each<'a>(
    array: &'a RawDocument,
    mut emit: impl FnMut(&Element<'a>) -> Result<Flow, QueryError>,
) -> Result<Emitted, QueryError> {
    let mut bytes = 0;
    let mut items = elements(array).peekable();
    while let Some(item) = items.next() {
        let flow = emit(&item)?;
        bytes += item.bytes().len();
        let done = flow == Flow::Stop || items.peek().is_none();
        if done || flow == Flow::Full {
            return Ok(Emitted { flow, bytes, done });
        }
    }
    Ok(Emitted {
        flow: Flow::Continue,
        bytes,
        done: true,
    })
}

fn as_document(array: &RawArray) -> Result<&RawDocument, QueryError> {
    RawDocument::from_bytes(array.as_bytes()).map_err(crate::expression::malformed)
}

/// The array is a field of the document itself. Its other fields are laid out once and each
/// element is put between them; those that no later stage reads are left out.
struct FlatRun {
    name: Box<str>,
    preserve: bool,
    needed: Dependencies,
    /// The document under construction: length, fields before, the element, fields after.
    scratch: Vec<u8>,
    tail: Vec<u8>,
    rest: Option<Rest>,
    holding: Holding,
}

impl StageRun for FlatRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while self.rest.is_some() {
            if self.resume(next)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&[0; 4]);
        self.tail.clear();
        let mut field = None;
        for element in elements(document) {
            if field.is_none() && *self.name == *element.name() {
                field = Some(element);
            } else if self.needed.needs(element.name()) {
                let part = if field.is_none() {
                    &mut self.scratch
                } else {
                    &mut self.tail
                };
                part.extend_from_slice(element.bytes());
            }
        }
        let value = field.map(|element| element.value());
        let Some(RawBsonRef::Array(array)) = value else {
            return self.push_other(document, value, next);
        };
        if array.is_empty() {
            return match self.preserve {
                true => self.emit(None, next),
                false => Ok(Flow::Continue),
            };
        }
        let emitted = self.emit_each(as_document(array)?, next)?;
        if !emitted.done {
            self.holding.set(array.as_bytes().len())?;
            self.rest = Some(Rest::new(array, emitted.bytes));
        }
        Ok(emitted.flow)
    }

    fn resume(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let Some(mut rest) = self.rest.take() else {
            return Ok(Flow::Continue);
        };
        let emitted = self.emit_each(rest.array()?, next)?;
        if emitted.done {
            self.holding.set(0)?;
        } else {
            rest.advance(emitted.bytes);
            self.rest = Some(rest);
        }
        Ok(emitted.flow)
    }
}

impl FlatRun {
    fn emit_each(
        &mut self,
        array: &RawDocument,
        next: &mut Next<'_>,
    ) -> Result<Emitted, QueryError> {
        emit_each(array, |item| {
            self.emit(Some((item.kind(), item.value_bytes())), next)
        })
    }

    /// No array: a plain value counts as an array of one, a null one is dropped or kept.
    fn push_other(
        &mut self,
        document: &RawDocument,
        value: Option<RawBsonRef<'_>>,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        match value {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) if !self.preserve => {
                Ok(Flow::Continue)
            }
            _ => next.push(document),
        }
    }

    fn emit(
        &mut self,
        item: Option<(ElementType, &[u8])>,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        let head = self.scratch.len();
        if let Some((kind, bytes)) = item {
            self.scratch.push(kind as u8);
            self.scratch.extend_from_slice(self.name.as_bytes());
            self.scratch.push(0);
            self.scratch.extend_from_slice(bytes);
        }
        self.scratch.extend_from_slice(&self.tail);
        self.scratch.push(0);
        let length = (self.scratch.len() as u32).to_le_bytes();
        self.scratch[..4].copy_from_slice(&length);
        let document =
            RawDocument::from_bytes(&self.scratch).map_err(crate::expression::malformed)?;
        let flow = next.push(document);
        self.scratch.truncate(head);
        flow
    }
}

/// The array lies deeper, or its positions are asked for.
struct DeepRun {
    unwind: Arc<Unwind>,
    rest: Option<DeepRest>,
    holding: Holding,
}

struct DeepRest {
    document: RawDocumentBuf,
    array: Rest,
    /// Of the first element that is left.
    index: i64,
}

/// What stands at the unwound path in one result.
#[derive(Clone, Copy)]
struct Place<'a> {
    value: Option<RawBsonRef<'a>>,
    index: Option<i64>,
}

impl StageRun for DeepRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while self.rest.is_some() {
            if self.resume(next)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        let preserve = self.unwind.preserve_null_and_empty_arrays;
        // A path through an array leads nowhere: $unwind does not expand on the way.
        let value = self.unwind.path.read_plain(document).unwrap_or(None);
        let Some(RawBsonRef::Array(array)) = value else {
            return match value {
                None | Some(RawBsonRef::Null | RawBsonRef::Undefined) if !preserve => {
                    Ok(Flow::Continue)
                }
                None => self.emit(
                    document,
                    Place {
                        value: None,
                        index: None,
                    },
                    false,
                    next,
                ),
                _ => self.emit(document, Place { value, index: None }, true, next),
            };
        };
        if array.is_empty() {
            return match preserve {
                true => self.emit(
                    document,
                    Place {
                        value: None,
                        index: None,
                    },
                    true,
                    next,
                ),
                false => Ok(Flow::Continue),
            };
        }
        let mut index = 0;
        let emitted = self.emit_each(document, as_document(array)?, &mut index, next)?;
        if !emitted.done {
            let held = document.as_bytes().len() + array.as_bytes().len();
            self.holding.set(held)?;
            self.rest = Some(DeepRest {
                document: document.to_owned(),
                array: Rest::new(array, emitted.bytes),
                index,
            });
        }
        Ok(emitted.flow)
    }

    fn resume(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let Some(mut rest) = self.rest.take() else {
            return Ok(Flow::Continue);
        };
        let array = rest.array.array()?;
        let emitted = self.emit_each(&rest.document, array, &mut rest.index, next)?;
        if emitted.done {
            self.holding.set(0)?;
        } else {
            rest.array.advance(emitted.bytes);
            self.rest = Some(rest);
        }
        Ok(emitted.flow)
    }
}

impl DeepRun {
    fn emit_each(
        &self,
        document: &RawDocument,
        array: &RawDocument,
        index: &mut i64,
        next: &mut Next<'_>,
    ) -> Result<Emitted, QueryError> {
        emit_each(array, |item| {
            let place = Place {
                value: Some(item.value()),
                index: Some(*index),
            };
            *index += 1;
            // The whole document is copied for each of them.
            next.budget.spend_bytes(document.as_bytes().len())?;
            self.emit(document, place, true, next)
        })
    }

    fn emit(
        &self,
        document: &RawDocument,
        place: Place<'_>,
        replace: bool,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 32);
        if replace {
            write_replaced(document, self.unwind.path.parts(), place.value, &mut writer);
        } else {
            writer.append_all(document);
        }
        let replaced = writer.finish();
        let Some(index) = &self.unwind.include_array_index else {
            return next.push(&replaced);
        };
        let value = place.index.map_or(RawBsonRef::Null, RawBsonRef::Int64);
        let mut writer = DocumentWriter::with_capacity(replaced.as_bytes().len() + 32);
        write_set(Some(&replaced), index.parts(), Some(value), &mut writer);
        next.push(&writer.finish())
    }
}

/// Copies `document` with the value at `parts` replaced, or left out for `None`.
fn write_replaced(
    document: &RawDocument,
    parts: &[Box<str>],
    value: Option<RawBsonRef<'_>>,
    writer: &mut DocumentWriter,
) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    for element in elements(document) {
        if *element.name() != **first {
            writer.append_element(&element);
        } else if rest.is_empty() {
            if let Some(value) = value {
                writer.append(first, value);
            }
        } else if let RawBsonRef::Document(inner) = element.value() {
            writer.begin_document(first);
            write_replaced(inner, rest, value, writer);
            writer.end();
        } else {
            writer.append_element(&element);
        }
    }
}

/// Copies `document` without what stands at a path.
pub(super) fn write_without(document: &RawDocument, path: &FieldPath, writer: &mut DocumentWriter) {
    write_replaced(document, path.parts(), None, writer);
}

/// Copies `document` with a value at a path; what is no document on the way gives way to one.
pub(super) fn write_at(
    document: &RawDocument,
    path: &FieldPath,
    value: RawBsonRef<'_>,
    writer: &mut DocumentWriter,
) {
    write_set(Some(document), path.parts(), Some(value), writer);
}

/// The same, of a value that may be missing: then it is missing there, in the documents on the way.
pub(super) fn write_maybe_at(
    document: &RawDocument,
    path: &FieldPath,
    value: Option<RawBsonRef<'_>>,
    writer: &mut DocumentWriter,
) {
    write_set(Some(document), path.parts(), value, writer);
}

/// Copies `document` with `parts` set to `value`, making the documents on the way.
fn write_set(
    document: Option<&RawDocument>,
    parts: &[Box<str>],
    value: Option<RawBsonRef<'_>>,
    writer: &mut DocumentWriter,
) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    let mut found = false;
    let set = |inner: Option<&RawDocument>, writer: &mut DocumentWriter| {
        if rest.is_empty() {
            if let Some(value) = value {
                writer.append(first, value);
            }
        } else {
            writer.begin_document(first);
            write_set(inner, rest, value, writer);
            writer.end();
        }
    };
    for element in document.into_iter().flat_map(elements) {
        if *element.name() == **first {
            found = true;
            let inner = match element.value() {
                RawBsonRef::Document(inner) => Some(inner),
                _ => None,
            };
            set(inner, writer);
        } else {
            writer.append_element(&element);
        }
    }
    if !found {
        set(None, writer);
    }
}
