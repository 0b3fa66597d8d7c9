//! Field paths in expressions: `$a.b` reads through documents and, one level deep, arrays.

use std::fmt;
use std::sync::Arc;

use banyan_document::field;
use bson::{RawArray, RawBsonRef, RawDocument};

use super::arena::{Arena, ArrayBuilder};
use super::value::{Value, error, items};
use crate::error::QueryError;
use crate::metadata::Metadata;
use crate::text::TEXT_SCORE_FIELD;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    parts: Arc<[Box<str>]>,
}

/// Deeper than a document can be.
const PARTS_MAX: usize = 200;

/// Whether a field of what an expression makes, or a part of a path, may have this name.
pub(crate) fn check_name(name: &str) -> Result<(), QueryError> {
    if name.is_empty() {
        return error(15998, "FieldPath field names may not be empty strings.");
    }
    if name.starts_with('$') && !matches!(name, "$id" | "$ref" | "$db") {
        return error(
            16410,
            "FieldPath field names may not start with '$'. \
             Consider using $getField or $setField.",
        );
    }
    if name.contains('\0') {
        return error(16411, "FieldPath field names may not contain '\\0'.");
    }
    if name.contains('.') {
        return error(
            16412,
            "FieldPath field names may not contain '.'. \
             Consider using $getField or $setField.",
        );
    }
    Ok(())
}

impl FieldPath {
    pub fn parse(path: &str) -> Result<FieldPath, QueryError> {
        if path.is_empty() {
            return error(40352, "FieldPath cannot be constructed with empty string");
        }
        if path.ends_with('.') {
            return error(40353, "FieldPath must not end with a '.'.");
        }
        let mut parts = Vec::new();
        for part in path.split('.') {
            check_name(part)?;
            parts.push(part.into());
        }
        if parts.len() > PARTS_MAX {
            return error(5984700, "FieldPath is too long");
        }
        Ok(FieldPath {
            parts: parts.into(),
        })
    }

    /// Where documents have the score of a search.
    pub(crate) fn text_score() -> FieldPath {
        FieldPath {
            parts: Arc::from([Box::<str>::from(TEXT_SCORE_FIELD)]),
        }
    }

    /// Where documents have what is known of them.
    pub(crate) fn metadata(metadata: Metadata) -> FieldPath {
        FieldPath {
            parts: Arc::from([Box::<str>::from(metadata.field())]),
        }
    }

    pub fn parts(&self) -> &[Box<str>] {
        &self.parts
    }

    pub fn first(&self) -> &str {
        self.parts.first().map_or("", |part| part)
    }

    /// Reads what is left of the path from the value of its first part.
    pub(super) fn read_below<'a>(
        &self,
        first: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Value<'a>, QueryError> {
        match self.parts.split_first() {
            Some((_, rest)) if !rest.is_empty() => below(rest, first, arena),
            _ => Ok(first),
        }
    }

    /// Reads the path from a value: nothing unless it is a document or an array of them.
    pub(super) fn read_from<'a>(
        &self,
        value: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Value<'a>, QueryError> {
        below(&self.parts, value, arena)
    }

    /// The value where no array lies on the way and so nothing has to be built; `None` inside
    /// the result when the path is missing.
    pub fn read_plain<'a>(&self, document: &'a RawDocument) -> Result<Value<'a>, NeedsArena> {
        let mut document = document;
        let Some((last, front)) = self.parts.split_last() else {
            return Ok(None);
        };
        for part in front {
            match field(document, part) {
                Some(RawBsonRef::Document(inner)) => document = inner,
                Some(RawBsonRef::Array(_)) => return Err(NeedsArena),
                _ => return Ok(None),
            }
        }
        Ok(field(document, last))
    }
}

/// The path crosses an array and its value must be built.
#[derive(Debug)]
pub struct NeedsArena;

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join("."))
    }
}

fn read<'a>(
    parts: &[Box<str>],
    document: &'a RawDocument,
    arena: &'a Arena,
) -> Result<Value<'a>, QueryError> {
    let Some((first, rest)) = parts.split_first() else {
        return Ok(Some(RawBsonRef::Document(document)));
    };
    let value = field(document, first);
    if rest.is_empty() {
        return Ok(value);
    }
    below(rest, value, arena)
}

fn below<'a>(
    parts: &[Box<str>],
    value: Value<'a>,
    arena: &'a Arena,
) -> Result<Value<'a>, QueryError> {
    match value {
        Some(RawBsonRef::Document(document)) => read(parts, document, arena),
        Some(RawBsonRef::Array(array)) => read_each(parts, array, arena),
        _ => Ok(None),
    }
}

/// The path's values in the documents of an array; elements of other types are passed over.
fn read_each<'a>(
    parts: &[Box<str>],
    array: &'a RawArray,
    arena: &'a Arena,
) -> Result<Value<'a>, QueryError> {
    let mut builder = ArrayBuilder::new();
    for item in items(array) {
        if let RawBsonRef::Document(document) = item
            && let Some(value) = read(parts, document, arena)?
        {
            builder.push(value);
        }
    }
    builder.finish(arena)
}
