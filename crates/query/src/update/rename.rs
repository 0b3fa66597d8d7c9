//! What a `$rename` may not do, checked before anything is moved.

use banyan_document::path::{Path, position};
use banyan_document::{field, items};
use bson::RawBsonRef;

use super::show;
use crate::error::{ErrorKind, QueryError};
use crate::names::Finder;

/// One `$rename`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rename {
    pub from: Path,
    pub to: Path,
}

impl Rename {
    /// Fields of documents are moved, not items of arrays, and nothing onto an `_id`.
    pub fn check(&self, document: &Finder<'_>) -> Result<(), QueryError> {
        if !exists(document, self.from.parts()) {
            return Ok(());
        }
        refuse_array_on(&self.from, "source", document)?;
        refuse_array_on(&self.to, "destination", document)?;
        if self.to.head() == "_id" && document.field("_id").is_some() {
            let message = format!(
                "Performing an update on the path '{}' would modify the immutable field '_id'",
                self.to
            );
            return Err(QueryError::new(ErrorKind::ImmutableField, message));
        }
        Ok(())
    }
}

/// Whether there is something at the path, items of arrays included.
fn exists(document: &Finder<'_>, parts: &[Box<str>]) -> bool {
    match parts {
        [] => true,
        [last] => document.element(last).is_some(),
        [first, rest @ ..] => match document.below(first) {
            Some(below) => exists(&below, rest),
            None => document
                .field(first)
                .is_some_and(|value| exists_within(value, rest)),
        },
    }
}

fn exists_within(value: RawBsonRef<'_>, parts: &[Box<str>]) -> bool {
    let Some((part, rest)) = parts.split_first() else {
        return true;
    };
    let next = match value {
        RawBsonRef::Document(document) => field(document, part),
        RawBsonRef::Array(array) => position(part)
            .and_then(|at| items(array).nth(at))
            .map(|item| item.value()),
        _ => None,
    };
    next.is_some_and(|next| exists_within(next, rest))
}

fn refuse_array_on(path: &Path, which: &str, document: &Finder<'_>) -> Result<(), QueryError> {
    let Some((_, above)) = path.parts().split_last() else {
        return Ok(());
    };
    refuse_array_at(path, which, above, document, document)
}

fn refuse_array_at(
    path: &Path,
    which: &str,
    above: &[Box<str>],
    inner: &Finder<'_>,
    document: &Finder<'_>,
) -> Result<(), QueryError> {
    let Some((part, rest)) = above.split_first() else {
        return Ok(());
    };
    if let Some(below) = inner.below(part) {
        return refuse_array_at(path, which, rest, &below, document);
    }
    match inner.field(part) {
        Some(RawBsonRef::Array(_)) => Err(QueryError::bad_value(format!(
            "The {which} field cannot be an array element, '{path}' in doc with {} has an array \
             field called '{part}'",
            show::id(document.document())
        ))),
        _ => Ok(()),
    }
}
