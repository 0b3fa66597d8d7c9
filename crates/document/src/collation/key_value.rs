//! Values with their strings replaced by key strings.

use std::fmt::Write as _;

use bson::{RawBson, RawBsonRef};

use super::Collator;
use crate::element::{Element, elements, items};
use crate::writer::DocumentWriter;

/// Whether a value of this type is or may hold a string, so that collations differ about it.
pub fn holds_strings(value: &RawBsonRef<'_>) -> bool {
    matches!(
        value,
        RawBsonRef::String(_)
            | RawBsonRef::Symbol(_)
            | RawBsonRef::Document(_)
            | RawBsonRef::Array(_)
    )
}

/// The value whose place in the simple order is that of `value` in the order of the collation.
pub fn key_value(value: RawBsonRef<'_>, collator: &Collator) -> RawBson {
    if let RawBsonRef::String(text) | RawBsonRef::Symbol(text) = value {
        return RawBson::String(collator.key_string(text));
    }
    if !holds_strings(&value) {
        return value.into();
    }
    let mut writer = DocumentWriter::new();
    write("", value, collator, &mut writer);
    let holder = writer.finish();
    crate::element::first_value(&holder).map_or(RawBson::Null, Into::into)
}

fn write(name: &str, value: RawBsonRef<'_>, collator: &Collator, out: &mut DocumentWriter) {
    let each = |element: Element<'_>, out: &mut DocumentWriter| {
        write(element.name(), element.value(), collator, out);
    };
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => {
            out.append_str(name, &collator.key_string(text));
        }
        RawBsonRef::Document(document) => {
            out.begin_document(name);
            elements(document).for_each(|element| each(element, out));
            out.end();
        }
        RawBsonRef::Array(array) => {
            out.begin_array(name);
            items(array).for_each(|item| each(item, out));
            out.end();
        }
        other => out.append(name, other),
    }
}

/// As `explain` writes a string of a collated index: its sort key in hexadecimal.
pub fn describe_key_string(text: &str) -> String {
    let mut shown = String::from("CollationKey(0x");
    for character in text.chars() {
        // Writing to a string cannot fail.
        let _ = write!(shown, "{:02x}", u32::from(character));
    }
    shown.push(')');
    shown
}
