//! A value in a shape: its type in place of it.

use std::borrow::Cow;

use banyan_document::DocumentWriter;
use banyan_document::element::{elements, items};
use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

/// `?number`, `?array<?string>`: what stands for a value.
pub fn literal(value: RawBsonRef<'_>) -> Cow<'static, str> {
    match value {
        RawBsonRef::Array(array) => of_array(array),
        other => Cow::Borrowed(scalar(other)),
    }
}

/// The same as a value.
pub(super) fn constant(value: RawBsonRef<'_>) -> RawBson {
    RawBson::String(literal(value).into_owned())
}

/// Options whose names are the server's, without their values.
pub(super) fn constants(options: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(options) {
        out.append_str(element.name(), &literal(element.value()));
    }
    out.finish()
}

/// An array is as long as it likes: only what its items have in common counts.
fn of_array(array: &RawArray) -> Cow<'static, str> {
    let mut types = items(array).map(|item| scalar(item.value()));
    let Some(first) = types.next() else {
        return Cow::Borrowed("[]");
    };
    match types.all(|other| other == first) {
        true => Cow::Owned(format!("?array<{first}>")),
        false => Cow::Borrowed("?array<>"),
    }
}

fn scalar(value: RawBsonRef<'_>) -> &'static str {
    match value {
        RawBsonRef::Double(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Decimal128(_) => "?number",
        RawBsonRef::String(_) => "?string",
        RawBsonRef::Array(_) => "?array",
        RawBsonRef::Document(_) => "?object",
        RawBsonRef::Boolean(_) => "?bool",
        RawBsonRef::Null => "?null",
        RawBsonRef::Undefined => "?undefined",
        RawBsonRef::ObjectId(_) => "?objectId",
        RawBsonRef::DateTime(_) => "?date",
        RawBsonRef::Timestamp(_) => "?timestamp",
        RawBsonRef::Binary(_) => "?binData",
        RawBsonRef::RegularExpression(_) => "?regex",
        RawBsonRef::JavaScriptCode(_) => "?javascript",
        RawBsonRef::JavaScriptCodeWithScope(_) => "?javascriptWithScope",
        RawBsonRef::Symbol(_) => "?symbol",
        RawBsonRef::DbPointer(_) => "?dbPointer",
        RawBsonRef::MinKey => "?minKey",
        RawBsonRef::MaxKey => "?maxKey",
    }
}
