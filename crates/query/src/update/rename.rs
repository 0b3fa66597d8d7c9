//! What a `$rename` may not do, checked before anything is moved.

use banyan_document::path::{Path, position};
use banyan_document::{field, items};
use bson::{RawBsonRef, RawDocument};

use super::modifier::bad;
use super::show;
use crate::error::{ErrorKind, QueryError};

/// One `$rename`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rename {
    pub from: Path,
    pub to: Path,
}

impl Rename {
    /// Fields of documents are moved, not items of arrays, and nothing onto an `_id`.
    pub fn check(&self, document: &RawDocument) -> Result<(), QueryError> {
        if !exists(RawBsonRef::Document(document), self.from.parts()) {
            return Ok(());
        }
        refuse_array_on(&self.from, "source", document)?;
        refuse_array_on(&self.to, "destination", document)?;
        if self.to.head() == "_id" && field(document, "_id").is_some() {
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
fn exists(value: RawBsonRef<'_>, parts: &[Box<str>]) -> bool {
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
    next.is_some_and(|next| exists(next, rest))
}

fn refuse_array_on(path: &Path, which: &str, document: &RawDocument) -> Result<(), QueryError> {
    let mut inner = document;
    let Some((_, above)) = path.parts().split_last() else {
        return Ok(());
    };
    for part in above {
        match field(inner, part) {
            Some(RawBsonRef::Document(next)) => inner = next,
            Some(RawBsonRef::Array(_)) => {
                return Err(bad(format!(
                    "The {which} field cannot be an array element, '{path}' in doc with {} has an \
                     array field called '{part}'",
                    show::id(document)
                )));
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}
