//! Reading the fields of users', roles' and privileges' documents.

use bson::{RawArray, RawBsonRef, RawDocument};

/// What is wrong with the definition of a user, a role or a privilege.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// A field is missing, stands twice in meaning, or is of no known name.
    #[error("{0}")]
    Invalid(String),
    /// A field holds a value of another type.
    #[error("{field} must be {expected}, not {found:?}")]
    Type {
        field: String,
        expected: &'static str,
        found: bson::spec::ElementType,
    },
    /// `resource` names nothing that can be protected.
    #[error("{0}")]
    Resource(String),
    /// An action that does not exist.
    #[error("Unrecognized action: {0}")]
    Action(String),
    /// A restriction that restricts nothing.
    #[error("At least one of 'clientSource' or 'serverAddress' must be set")]
    Empty,
    /// A field that a command does not know.
    #[error("BSON field '{0}' is an unknown field.")]
    Unknown(String),
    /// An address that is none.
    #[error("{0}")]
    Address(String),
}

pub(crate) fn wrong_type(
    field: &str,
    expected: &'static str,
    value: RawBsonRef<'_>,
) -> DefinitionError {
    DefinitionError::Type {
        field: field.to_owned(),
        expected,
        found: value.element_type(),
    }
}

pub(crate) fn string<'a>(field: &str, value: RawBsonRef<'a>) -> Result<&'a str, DefinitionError> {
    value
        .as_str()
        .ok_or_else(|| wrong_type(field, "a string", value))
}

pub(crate) fn document<'a>(
    field: &str,
    value: RawBsonRef<'a>,
) -> Result<&'a RawDocument, DefinitionError> {
    value
        .as_document()
        .ok_or_else(|| wrong_type(field, "an object", value))
}

pub(crate) fn array<'a>(
    field: &str,
    value: RawBsonRef<'a>,
) -> Result<&'a RawArray, DefinitionError> {
    value
        .as_array()
        .ok_or_else(|| wrong_type(field, "an array", value))
}

/// The fields of a document that has been validated before.
pub(crate) fn fields(
    document: &RawDocument,
) -> impl Iterator<Item = Result<(&str, RawBsonRef<'_>), DefinitionError>> {
    document.iter().map(|field| match field {
        Ok((name, value)) => Ok((name.as_str(), value)),
        Err(error) => Err(DefinitionError::Invalid(error.to_string())),
    })
}

/// The elements of an array that has been validated before.
pub(crate) fn elements(
    array: &RawArray,
) -> impl Iterator<Item = Result<RawBsonRef<'_>, DefinitionError>> {
    array
        .into_iter()
        .map(|value| value.map_err(|error| DefinitionError::Invalid(error.to_string())))
}

pub(crate) fn unknown(what: &str, field: &str) -> DefinitionError {
    DefinitionError::Invalid(format!("unknown field {field:?} in {what}"))
}

pub(crate) fn missing(what: &str, field: &str) -> DefinitionError {
    DefinitionError::Invalid(format!("{what} has no field {field:?}"))
}
