//! The documents in a frame.

use bson::RawDocument;

use crate::error::ConvertError;

/// The documents of a payload, end to end.
pub fn documents(mut payload: &[u8]) -> impl Iterator<Item = Result<&[u8], ConvertError>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let length = payload
            .first_chunk::<4>()
            .map(|bytes| i32::from_le_bytes(*bytes));
        let length = length.and_then(|length| usize::try_from(length).ok());
        match length {
            Some(length) if length >= 5 && length <= payload.len() => {
                let (document, rest) = payload.split_at(length);
                payload = rest;
                Some(Ok(document))
            }
            _ => {
                payload = &[];
                Some(Err(ConvertError::Malformed))
            }
        }
    })
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
