//! Reading a stage's argument that is a document of named fields, with MongoDB's messages.

use bson::{RawArray, RawBsonRef, RawDocument};

use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, is_nullish, items, type_name};

/// What a field has to be. Null counts as if the field were not there, but not for an array.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Any,
    String,
    Array,
    /// An array of strings.
    Strings,
    Document,
    /// An object that this finds nothing wrong with.
    Form(fn(&RawDocument) -> Result<(), QueryError>),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Any => "any",
            Kind::String => "string",
            Kind::Array | Kind::Strings => "array",
            Kind::Document | Kind::Form(_) => "object",
        }
    }

    fn is_of(self, value: RawBsonRef<'_>) -> bool {
        match self {
            Kind::Any => true,
            Kind::String => matches!(value, RawBsonRef::String(_)),
            Kind::Array | Kind::Strings => matches!(value, RawBsonRef::Array(_)),
            Kind::Document | Kind::Form(_) => matches!(value, RawBsonRef::Document(_)),
        }
    }

    /// Looks into a value that is of the kind.
    fn check_within(self, name: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        match (self, value) {
            (Kind::Form(check), RawBsonRef::Document(document)) => check(document),
            (Kind::Strings, RawBsonRef::Array(array)) => {
                for (index, item) in items(array).enumerate() {
                    if item.as_str().is_none() {
                        return Err(wrong_type(
                            &format!("{name}.{index}"),
                            item,
                            "type 'string'",
                        ));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The fields of an argument, each of which is known and of its kind. What is wrong is told of the
/// first field that is.
pub(super) struct Fields<'a> {
    values: Vec<(&'static str, RawBsonRef<'a>)>,
}

impl<'a> Fields<'a> {
    pub fn new(
        of: &'static str,
        document: &'a RawDocument,
        known: &[(&'static str, Kind)],
    ) -> Result<Fields<'a>, QueryError> {
        let mut values = Vec::with_capacity(known.len());
        for (name, value) in document.iter().map_while(Result::ok) {
            let Some((name, kind)) = known.iter().find(|(known, _)| *known == name.as_str()) else {
                return error(
                    40415,
                    format!("BSON field '{of}.{name}' is an unknown field."),
                );
            };
            match kind {
                Kind::Any => {}
                Kind::Array | Kind::Strings if is_nullish(Some(value)) => {
                    return error(
                        10065,
                        format!("invalid parameter: expected an object ({name})"),
                    );
                }
                _ if is_nullish(Some(value)) => continue,
                kind if kind.is_of(value) => kind.check_within(&format!("{of}.{name}"), value)?,
                kind => {
                    let expected = format!("type '{}'", kind.name());
                    return Err(wrong_type(&format!("{of}.{name}"), value, &expected));
                }
            }
            values.push((*name, value));
        }
        Ok(Fields { values })
    }

    pub fn get(&self, name: &str) -> Option<RawBsonRef<'a>> {
        let found = self.values.iter().rfind(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    pub fn string(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    pub fn array(&self, name: &str) -> Option<&'a RawArray> {
        self.get(name)?.as_array()
    }

    pub fn document(&self, name: &str) -> Option<&'a RawDocument> {
        self.get(name)?.as_document()
    }
}

pub(super) fn missing(name: &str) -> QueryError {
    QueryError::new(
        ErrorKind::Location(40414),
        format!("BSON field '{name}' is missing but a required field"),
    )
}

pub(super) fn wrong_type(name: &str, value: RawBsonRef<'_>, expected: &str) -> QueryError {
    QueryError::new(
        ErrorKind::TypeMismatch,
        format!(
            "BSON field '{name}' is the wrong type '{}', expected {expected}",
            type_name(Some(value))
        ),
    )
}
