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
    // Parts of an `_id` do not say what it is as a whole.
    if let Some((path, _)) = found.iter().find(|(path, _)| path.parts().len() > 1) {
        let message =
            format!("field at '_id' must be exactly specified, field at sub-path '{path}'found");
        return Err(QueryError::new(ErrorKind::NotExactValueField, message));
    }
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

/// The document with its `_id` in front; if it has none, with the one that was generated for it, or a
/// new one.
pub(super) fn with_id_first(document: &RawDocument, generated: Option<ObjectId>) -> RawDocumentBuf {
    if elements(document)
        .next()
        .is_some_and(|first| first.name() == "_id")
    {
        return document.to_owned();
    }
    // The default of an id is a new one.
    let generated = || RawBsonRef::ObjectId(generated.unwrap_or_default());
    let id = field(document, "_id").unwrap_or_else(generated);
    let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 32);
    writer.append("_id", id);
    for element in elements(document).filter(|element| element.name() != "_id") {
        writer.append_element(&element);
    }
    writer.finish()
}
