//! Values as messages and the bounds of `explain` show them.

use std::fmt::Write;

use banyan_document::collation::describe_key_string;
use banyan_document::{elements, items};
use bson::spec::BinarySubtype;
use bson::{RawArray, RawBinaryRef, RawBsonRef, RawDocument};

use crate::expression::value::general_format;

/// `collated`: strings are keys of a collation.
pub fn describe_value(value: RawBsonRef<'_>, collated: bool) -> String {
    match value {
        RawBsonRef::MinKey => "MinKey".into(),
        RawBsonRef::MaxKey => "MaxKey".into(),
        RawBsonRef::Null => "null".into(),
        RawBsonRef::Undefined => "undefined".into(),
        RawBsonRef::String(text) if collated && !text.is_empty() => describe_key_string(text),
        RawBsonRef::String(text) => format!("\"{text}\""),
        RawBsonRef::Double(number) => describe_double(number),
        RawBsonRef::Int32(number) => number.to_string(),
        RawBsonRef::Int64(number) => number.to_string(),
        RawBsonRef::Boolean(value) => value.to_string(),
        RawBsonRef::ObjectId(id) => format!("ObjectId('{id}')"),
        RawBsonRef::Binary(binary) => describe_binary(binary),
        RawBsonRef::DateTime(date) => format!("new Date({})", date.timestamp_millis()),
        RawBsonRef::Document(document) => describe_document(document, collated),
        RawBsonRef::Array(array) => describe_array(array, collated),
        RawBsonRef::RegularExpression(regex) => format!("/{}/{}", regex.pattern, regex.options),
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            let scope = describe_document(code.scope, collated);
            format!("CodeWScope( {}, {scope})", code.code)
        }
        other => bson::Bson::try_from(other)
            .map(|bson| bson.to_string())
            .unwrap_or_default(),
    }
}

fn describe_double(number: f64) -> String {
    let shown = match number {
        _ if number.is_nan() => "nan".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        number => general_format(number, 16),
    };
    match shown.contains('.') {
        true => shown,
        false => shown + ".0",
    }
}

fn describe_binary(binary: RawBinaryRef<'_>) -> String {
    let (subtype, bytes) = (u8::from(binary.subtype), binary.bytes);
    let mut shown = String::with_capacity(2 * bytes.len() + 16);
    let is_uuid = binary.subtype == BinarySubtype::Uuid && bytes.len() == 16;
    for (at, byte) in bytes.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = match is_uuid {
            true if matches!(at, 4 | 6 | 8 | 10) => write!(shown, "-{byte:02x}"),
            true => write!(shown, "{byte:02x}"),
            false => write!(shown, "{byte:02X}"),
        };
    }
    match is_uuid {
        true => format!("UUID(\"{shown}\")"),
        false => format!("BinData({subtype}, {shown})"),
    }
}

fn describe_document(document: &RawDocument, collated: bool) -> String {
    let fields = elements(document).map(|element| {
        let value = describe_value(element.value(), collated);
        format!("{}: {value}", element.name())
    });
    match fields.collect::<Vec<_>>() {
        fields if fields.is_empty() => "{}".into(),
        fields => format!("{{ {} }}", fields.join(", ")),
    }
}

fn describe_array(array: &RawArray, collated: bool) -> String {
    let items = items(array).map(|item| describe_value(item.value(), collated));
    match items.collect::<Vec<_>>() {
        items if items.is_empty() => "[]".into(),
        items => format!("[ {} ]", items.join(", ")),
    }
}
