//! What a validator may not ask, and what it may only ask of some collections.

use banyan_document::element::{elements, items};
use bson::{RawBsonRef, RawDocument};

use super::source::{branches, operators};
use crate::error::{ErrorKind, QueryError};

/// Refuses what depends on more than the document: scripts, chance, and the order of a search.
pub(super) fn check(filter: &RawDocument) -> Result<(), QueryError> {
    for element in elements(filter) {
        match element.name() {
            "$and" | "$or" | "$nor" => branches(element.value()).try_for_each(check)?,
            "$where" => {
                return Err(QueryError::bad_value(
                    "$where is not allowed in this context",
                ));
            }
            "$expr" => check_expression(element.value())?,
            name if name.starts_with('$') => {}
            _ => {
                if let Some(condition) = operators(element.value()) {
                    check_condition(condition)?;
                }
            }
        }
    }
    Ok(())
}

fn check_condition(condition: &RawDocument) -> Result<(), QueryError> {
    for element in elements(condition) {
        match (element.name(), element.value()) {
            ("$near" | "$nearSphere" | "$geoNear", _) => {
                return Err(QueryError::new(
                    ErrorKind::Location(5_626_500),
                    "$geoNear, $near, and $nearSphere are not allowed in this context",
                ));
            }
            ("$not", RawBsonRef::Document(inner)) => check_condition(inner)?,
            ("$elemMatch", RawBsonRef::Document(inner)) => match operators(element.value()) {
                Some(inner) => check_condition(inner)?,
                None => check(inner)?,
            },
            _ => {}
        }
    }
    Ok(())
}

/// Looks through an expression, but not into values that are written out.
fn check_expression(value: RawBsonRef<'_>) -> Result<(), QueryError> {
    match value {
        RawBsonRef::Document(document) => {
            for element in elements(document) {
                let (code, message) = match element.name() {
                    "$literal" | "$const" => continue,
                    "$rand" => (3_040_500, "$rand not allowed inside collection validators"),
                    "$function" => (4_660_800, "$function cannot be used inside a validator."),
                    _ => {
                        check_expression(element.value())?;
                        continue;
                    }
                };
                return Err(QueryError::new(ErrorKind::Location(code), message));
            }
            Ok(())
        }
        RawBsonRef::Array(array) => {
            items(array).try_for_each(|item| check_expression(item.value()))
        }
        _ => Ok(()),
    }
}

pub(super) fn asks_for_encryption(filter: &RawDocument) -> bool {
    elements(filter).any(|element| match (element.name(), element.value()) {
        ("$and" | "$or" | "$nor", value) => branches(value).any(asks_for_encryption),
        ("$jsonSchema", RawBsonRef::Document(schema)) => schema_encrypts(schema),
        _ => false,
    })
}

fn schema_encrypts(schema: &RawDocument) -> bool {
    let of_each = |document: &RawDocument| {
        let mut values = elements(document).map(|element| element.value());
        values.any(value_encrypts)
    };
    elements(schema).any(|element| match (element.name(), element.value()) {
        ("encrypt" | "encryptMetadata", _) => true,
        ("properties" | "patternProperties" | "dependencies", RawBsonRef::Document(named)) => {
            of_each(named)
        }
        ("allOf" | "anyOf" | "oneOf" | "items", RawBsonRef::Array(schemas)) => {
            items(schemas).any(|item| value_encrypts(item.value()))
        }
        ("not" | "items" | "additionalItems" | "additionalProperties", value) => {
            value_encrypts(value)
        }
        _ => false,
    })
}

fn value_encrypts(value: RawBsonRef<'_>) -> bool {
    value.as_document().is_some_and(schema_encrypts)
}
