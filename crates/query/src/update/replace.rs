//! Updates that make the whole document: replacements and pipelines.

use banyan_document::element::{elements, field, raw_fields};
use banyan_document::writer::DocumentWriter;
use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};

use super::kind::{Transformed, UpdateContext};
use crate::error::{ErrorKind, QueryError};
use crate::pipeline::Pipeline;

const ZERO: Timestamp = Timestamp {
    time: 0,
    increment: 0,
};

/// Whether the document has an empty timestamp where [`with_timestamps`] fills it in.
pub fn lacks_timestamps(document: &RawDocument) -> bool {
    raw_fields(document).any(|field| {
        field.kind() == Some(ElementType::Timestamp)
            && field.value_bytes() == [0; 8]
            && field.name() != b"_id"
    })
}

/// The document with its empty timestamps filled in, each with one of its own: those among its own
/// fields, the `_id` aside.
pub fn with_timestamps(
    document: &RawDocument,
    mut next: impl FnMut() -> Timestamp,
) -> RawDocumentBuf {
    let mut writer = DocumentWriter::with_capacity(document.as_bytes().len());
    for element in elements(document) {
        match element.value() {
            RawBsonRef::Timestamp(ZERO) if element.name() != "_id" => {
                writer.append_timestamp(element.name(), next());
            }
            _ => writer.append_element(&element),
        }
    }
    writer.finish()
}

/// The replacement with the `_id` of the document, if it has none of its own, in front. Empty
/// timestamps are filled in.
pub(super) fn replace(
    document: &RawDocument,
    replacement: &RawDocument,
    context: &UpdateContext,
) -> RawDocumentBuf {
    let mut writer = DocumentWriter::with_capacity(replacement.as_bytes().len() + 32);
    if let Some(id) = field(replacement, "_id").or_else(|| field(document, "_id")) {
        writer.append("_id", id);
    }
    for element in elements(replacement) {
        match element.value() {
            _ if element.name() == "_id" => {}
            RawBsonRef::Timestamp(ZERO) => {
                writer.append_timestamp(element.name(), context.timestamp);
            }
            _ => writer.append_element(&element),
        }
    }
    writer.finish()
}

/// Runs one document through the pipeline. It keeps its `_id` unless a stage gives another; that
/// is in front, wherever the stages put it.
pub(super) fn run(pipeline: &Pipeline, document: &RawDocument) -> Result<Transformed, QueryError> {
    let input = std::iter::once(Ok::<_, QueryError>(document));
    let Some(result) = pipeline.run(input, None)?.next() else {
        let message = "the update's pipeline gave no document";
        return Err(QueryError::new(ErrorKind::InternalError, message));
    };
    let result: RawDocumentBuf = result?;
    let first = elements(&result).next();
    let as_it_is = |after| Transformed {
        after,
        is_written: false,
    };
    if first.is_some_and(|first| first.name() == "_id") {
        return Ok(as_it_is(result));
    }
    let Some(id) = field(&result, "_id").or_else(|| field(document, "_id")) else {
        return Ok(as_it_is(result));
    };
    let mut writer = DocumentWriter::with_capacity(result.as_bytes().len() + 32);
    writer.append("_id", id);
    for element in elements(&result).filter(|element| element.name() != "_id") {
        writer.append_element(&element);
    }
    Ok(Transformed {
        after: writer.finish(),
        is_written: true,
    })
}
