//! Documents made of others.

use banyan_document::elements;
use bson::{RawDocument, RawDocumentBuf};

/// A copy of a document without some of its fields.
pub fn without(document: &RawDocument, dropped: &[&str]) -> RawDocumentBuf {
    let mut rest = RawDocumentBuf::new();
    for element in elements(document) {
        if !dropped.contains(&element.name())
            && let Ok(name) = bson::raw::CString::try_from(element.name())
        {
            rest.append(&name, element.value());
        }
    }
    rest
}
