//! Updates that make the whole document: replacements and pipelines.

use banyan_document::element::{elements, field};
use banyan_document::writer::DocumentWriter;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};

use super::UpdateContext;
use crate::error::{ErrorKind, QueryError};
use crate::pipeline::Pipeline;

const ZERO: Timestamp = Timestamp {
    time: 0,
    increment: 0,
};

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

/// Runs one document through the pipeline. It keeps its `_id` unless a stage gives another.
pub(super) fn run(
    pipeline: &Pipeline,
    document: &RawDocument,
) -> Result<RawDocumentBuf, QueryError> {
    let input = std::iter::once(Ok::<_, QueryError>(document));
    let Some(result) = pipeline.run(input, None)?.next() else {
        let message = "the update's pipeline gave no document";
        return Err(QueryError::new(ErrorKind::InternalError, message));
    };
    let result: RawDocumentBuf = result?;
    match field(document, "_id") {
        Some(id) if field(&result, "_id").is_none() => {
            let mut writer = DocumentWriter::with_capacity(result.as_bytes().len() + 32);
            writer.append("_id", id);
            writer.append_all(&result);
            Ok(writer.finish())
        }
        _ => Ok(result),
    }
}
