//! How a validator was written.

use banyan_document::element::items;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::error::QueryError;
use crate::filter;

/// The branches of a logical operator.
pub(super) fn branches(value: RawBsonRef<'_>) -> impl Iterator<Item = &RawDocument> {
    let array = value.as_array().into_iter();
    let items = array.flat_map(items);
    items.filter_map(|item| match item.value() {
        RawBsonRef::Document(branch) => Some(branch),
        _ => None,
    })
}

/// The operators of a field's condition, if it is one and not a value.
pub(super) fn operators(value: RawBsonRef<'_>) -> Option<&RawDocument> {
    match value {
        RawBsonRef::Document(document) if filter::is_condition(document) => Some(document),
        _ => None,
    }
}

/// `{name: value}`.
pub(super) fn written(name: &str, value: RawBsonRef<'_>) -> Result<RawDocumentBuf, QueryError> {
    let name = bson::raw::CString::try_from(name)
        .map_err(|_| QueryError::bad_value("a name with a zero byte"))?;
    let mut written = RawDocumentBuf::new();
    written.append(name, value);
    Ok(written)
}

/// What is told of a part that nothing can match.
pub(super) fn never(name: &str, specified_as: &RawDocument) -> RawDocumentBuf {
    rawdoc! {
        "operatorName": name,
        "specifiedAs": specified_as.to_owned(),
        "reason": "expression always evaluates to false",
    }
}
