//! The documents in a frame.

use banyan_document::validate::stated_length;
use bson::RawDocument;

use crate::error::ConvertError;

/// The documents of a payload, end to end.
pub fn documents(mut payload: &[u8]) -> impl Iterator<Item = Result<&[u8], ConvertError>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let document = next_document(&mut payload);
        if document.is_err() {
            payload = &[];
        }
        Some(document)
    })
}

/// Takes the document at the head of `rest`.
pub fn next_document<'p>(rest: &mut &'p [u8]) -> Result<&'p [u8], ConvertError> {
    let length = stated_length(rest).filter(|length| *length <= rest.len());
    let (document, after) = rest.split_at(length.ok_or(ConvertError::Malformed)?);
    *rest = after;
    Ok(document)
}

/// Raw bytes that the host was sent, as a document.
pub fn document(bytes: &[u8]) -> Result<&RawDocument, ConvertError> {
    RawDocument::from_bytes(bytes).map_err(|_| ConvertError::Malformed)
}

/// Completes the document that begins at `start`, with room for its length.
pub fn end_document(out: &mut Vec<u8>, start: usize) {
    out.push(0);
    let length = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
