//! Values as the messages of updates show them: `{ a: [ 1, "x" ] }`.

use banyan_document::element::{Element, elements, field, items};
use bson::{RawBsonRef, RawDocument};

use crate::expression::value::describe;

pub(super) fn value(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::Document(inner) => document(inner),
        RawBsonRef::Array(array) if array.is_empty() => "[]".to_string(),
        RawBsonRef::Array(array) => {
            let shown: Vec<_> = items(array).map(|item| self::value(item.value())).collect();
            format!("[ {} ]", shown.join(", "))
        }
        other => describe(Some(other)),
    }
}

pub(super) fn document(document: &RawDocument) -> String {
    if document.is_empty() {
        return "{}".to_string();
    }
    let shown: Vec<_> = elements(document)
        .map(|element| self::element(&element))
        .collect();
    format!("{{ {} }}", shown.join(", "))
}

/// `a: 5`
pub(super) fn element(element: &Element<'_>) -> String {
    named(element.name(), element.value())
}

pub(super) fn named(name: &str, value: RawBsonRef<'_>) -> String {
    format!("{name}: {}", self::value(value))
}

/// `_id: 1`
pub(super) fn id(document: &RawDocument) -> String {
    field(document, "_id").map_or_else(|| "no id".to_string(), |id| named("_id", id))
}
