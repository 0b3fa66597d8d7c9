//! Reading a stage's argument that is a document of named fields, with MongoDB's messages.

use bson::{RawArray, RawBsonRef, RawDocument};

use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, is_nullish, type_name};

/// The fields of an argument, each of which is known.
pub(super) struct Fields<'a> {
    of: &'static str,
    values: Vec<(&'static str, RawBsonRef<'a>)>,
}

impl<'a> Fields<'a> {
    pub fn new(
        of: &'static str,
        document: &'a RawDocument,
        known: &[&'static str],
    ) -> Result<Fields<'a>, QueryError> {
        let mut values = Vec::with_capacity(known.len());
        for (name, value) in document.iter().map_while(Result::ok) {
            let Some(name) = known.iter().find(|known| **known == name.as_str()) else {
                return error(
                    40415,
                    format!("BSON field '{of}.{name}' is an unknown field."),
                );
            };
            values.push((*name, value));
        }
        Ok(Fields { of, values })
    }

    pub fn get(&self, name: &str) -> Option<RawBsonRef<'a>> {
        let found = self.values.iter().rfind(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    pub fn string(&self, name: &str) -> Result<Option<&'a str>, QueryError> {
        self.typed(name, "string", |value| value.as_str())
    }

    pub fn array(&self, name: &str) -> Result<Option<&'a RawArray>, QueryError> {
        self.typed(name, "array", |value| value.as_array())
    }

    pub fn document(&self, name: &str) -> Result<Option<&'a RawDocument>, QueryError> {
        self.typed(name, "object", |value| value.as_document())
    }

    fn typed<T>(
        &self,
        name: &str,
        kind: &str,
        read: impl FnOnce(RawBsonRef<'a>) -> Option<T>,
    ) -> Result<Option<T>, QueryError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        if is_nullish(Some(value)) {
            return match kind {
                "array" => error(
                    10065,
                    format!("invalid parameter: expected an object ({name})"),
                ),
                // As if it were not there.
                _ => Ok(None),
            };
        }
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => {
                let name = format!("{}.{name}", self.of);
                Err(wrong_type(&name, value, &format!("type '{kind}'")))
            }
        }
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
