//! What an upsert starts from: the equalities of the filter.

use std::ops::ControlFlow;

use banyan_document::element::{elements, field, items};
use banyan_document::path::Path;
use banyan_document::writer::DocumentWriter;
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};
use crate::filter::Filter;

/// Refuses `$expr`, at the top or in what is joined.
pub(super) fn check_filter(filter: &RawDocument) -> Result<(), QueryError> {
    match expression_in(filter) {
        ControlFlow::Break(Found::Expression) => {
            let message = "$expr is not allowed in the query predicate for an upsert";
            Err(QueryError::new(ErrorKind::QueryFeatureNotAllowed, message))
        }
        ControlFlow::Break(Found::Wrong) | ControlFlow::Continue(()) => Ok(()),
    }
}

/// What a look through a filter ends at.
enum Found {
    Expression,
    /// What is no filter, which whoever parses it says.
    Wrong,
}

fn expression_in(filter: &RawDocument) -> ControlFlow<Found> {
    for element in elements(filter) {
        match (element.name(), element.value()) {
            ("$expr", _) => return ControlFlow::Break(Found::Expression),
            ("$and" | "$or" | "$nor", RawBsonRef::Array(parts)) => {
                for part in items(parts) {
                    match part.value() {
                        RawBsonRef::Document(part) => expression_in(part)?,
                        _ => return ControlFlow::Break(Found::Wrong),
                    }
                }
            }
            _ => {}
        }
    }
    ControlFlow::Continue(())
}

/// The `_id` alone, for replacements.
pub(super) fn id_of(filter: &Filter) -> Result<RawDocumentBuf, QueryError> {
    let mut found: Vec<_> = filter.equalities();
    found.retain(|(path, _)| path.head() == "_id");
    build(&found)
}

/// All paths that the filter says are equal to something.
pub(super) fn equalities_of(filter: &Filter) -> Result<RawDocumentBuf, QueryError> {
    build(&filter.equalities())
}

fn build(equalities: &[(&Path, RawBsonRef<'_>)]) -> Result<RawDocumentBuf, QueryError> {
    refuse_overlaps(equalities)?;
    let mut writer = DocumentWriter::new();
    let paths: Vec<_> = equalities
        .iter()
        .map(|(path, value)| (path.parts(), *value))
        .collect();
    write_level(&paths, &mut writer);
    Ok(writer.finish())
}

fn refuse_overlaps(equalities: &[(&Path, RawBsonRef<'_>)]) -> Result<(), QueryError> {
    let mut paths: Vec<&Path> = equalities.iter().map(|(path, _)| *path).collect();
    // A path that lies above another stands right before one that it lies above.
    paths.sort_unstable();
    for pair in paths.windows(2) {
        let (short, long) = (pair[0], pair[1]);
        let message = if short == long {
            format!("cannot infer query fields to set, path '{short}' is matched twice")
        } else if short.is_prefix_of(long) {
            format!(
                "cannot infer query fields to set, both paths '{long}' and '{short}' are matched"
            )
        } else {
            continue;
        };
        return Err(QueryError::new(ErrorKind::NotSingleValueField, message));
    }
    Ok(())
}

/// Writes the fields in order of their names, as the filter's canonical form has them. Paths do
/// not overlap, and those with the same beginning lie together.
fn write_level(paths: &[(&[Box<str>], RawBsonRef<'_>)], writer: &mut DocumentWriter) {
    for group in paths.chunk_by(|(a, _), (b, _)| a.first() == b.first()) {
        match group {
            [([name], value)] => writer.append(name, *value),
            [([name, ..], _), ..] => {
                let below: Vec<_> = group
                    .iter()
                    .map(|(parts, value)| (&parts[1..], *value))
                    .collect();
                writer.begin_document(name);
                write_level(&below, writer);
                writer.end();
            }
            _ => {}
        }
    }
}

/// The document with its `_id`, a new one if it has none, in front.
pub(super) fn with_id_first(document: &RawDocument) -> RawDocumentBuf {
    if elements(document)
        .next()
        .is_some_and(|first| first.name() == "_id")
    {
        return document.to_owned();
    }
    let id = field(document, "_id").unwrap_or_else(|| RawBsonRef::ObjectId(ObjectId::new()));
    let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 32);
    writer.append("_id", id);
    for element in elements(document).filter(|element| element.name() != "_id") {
        writer.append_element(&element);
    }
    writer.finish()
}
