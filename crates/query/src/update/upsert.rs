//! What an upsert starts from: the equalities of the filter.

use banyan_document::element::{elements, field};
use banyan_document::path::Path;
use banyan_document::writer::DocumentWriter;
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};
use crate::filter::Filter;

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
    for (index, (path, _)) in equalities.iter().enumerate() {
        for (other, _) in &equalities[..index] {
            refuse_overlap(path, other)?;
        }
    }
    let mut writer = DocumentWriter::new();
    let paths: Vec<_> = equalities
        .iter()
        .map(|(path, value)| (path.parts(), *value))
        .collect();
    write_level(&paths, &mut writer);
    Ok(writer.finish())
}

fn refuse_overlap(path: &Path, other: &Path) -> Result<(), QueryError> {
    let message = if path == other {
        format!("cannot infer query fields to set, path '{path}' is matched twice")
    } else if path.is_prefix_of(other) || other.is_prefix_of(path) {
        let (long, short) = if path.is_prefix_of(other) {
            (other, path)
        } else {
            (path, other)
        };
        format!("cannot infer query fields to set, both paths '{long}' and '{short}' are matched")
    } else {
        return Ok(());
    };
    Err(QueryError::new(ErrorKind::NotSingleValueField, message))
}

/// Writes the fields in the order of their first mention. Paths do not overlap.
fn write_level(paths: &[(&[Box<str>], RawBsonRef<'_>)], writer: &mut DocumentWriter) {
    let mut written: Vec<&str> = Vec::new();
    for (parts, value) in paths {
        let Some((name, rest)) = parts.split_first() else {
            continue;
        };
        if written.contains(&&**name) {
            continue;
        }
        written.push(name);
        if rest.is_empty() {
            writer.append(name, *value);
            continue;
        }
        let below: Vec<_> = paths
            .iter()
            .filter(|(parts, _)| parts.first() == Some(name))
            .map(|(parts, value)| (&parts[1..], *value))
            .collect();
        writer.begin_document(name);
        write_level(&below, writer);
        writer.end();
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
