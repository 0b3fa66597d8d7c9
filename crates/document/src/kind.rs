//! Names and numbers of BSON types, as error messages and `$type` use them.

use bson::RawBsonRef;
use bson::spec::ElementType;

/// The types by number, with the names that `$type` takes.
const KINDS: [(i32, &str, ElementType); 21] = [
    (1, "double", ElementType::Double),
    (2, "string", ElementType::String),
    (3, "object", ElementType::EmbeddedDocument),
    (4, "array", ElementType::Array),
    (5, "binData", ElementType::Binary),
    (6, "undefined", ElementType::Undefined),
    (7, "objectId", ElementType::ObjectId),
    (8, "bool", ElementType::Boolean),
    (9, "date", ElementType::DateTime),
    (10, "null", ElementType::Null),
    (11, "regex", ElementType::RegularExpression),
    (12, "dbPointer", ElementType::DbPointer),
    (13, "javascript", ElementType::JavaScriptCode),
    (14, "symbol", ElementType::Symbol),
    (
        15,
        "javascriptWithScope",
        ElementType::JavaScriptCodeWithScope,
    ),
    (16, "int", ElementType::Int32),
    (17, "timestamp", ElementType::Timestamp),
    (18, "long", ElementType::Int64),
    (19, "decimal", ElementType::Decimal128),
    (-1, "minKey", ElementType::MinKey),
    (127, "maxKey", ElementType::MaxKey),
];

/// The name of a value's type.
pub fn name(value: &RawBsonRef<'_>) -> &'static str {
    name_of(value.element_type())
}

/// The name of a type.
pub fn name_of(kind: ElementType) -> &'static str {
    KINDS
        .iter()
        .find(|(_, _, k)| *k == kind)
        .map_or("missing", |(_, name, _)| name)
}

/// The type of a name.
pub fn by_name(name: &str) -> Option<ElementType> {
    KINDS
        .iter()
        .find(|(_, n, _)| *n == name)
        .map(|(_, _, kind)| *kind)
}

/// The type of a number.
pub fn by_number(number: i32) -> Option<ElementType> {
    KINDS
        .iter()
        .find(|(n, _, _)| *n == number)
        .map(|(_, _, kind)| *kind)
}

/// The number of a type.
pub fn number(kind: ElementType) -> i32 {
    KINDS
        .iter()
        .find(|(_, _, k)| *k == kind)
        .map_or(0, |(number, _, _)| *number)
}
