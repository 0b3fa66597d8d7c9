//! Reading one field of a configuration, refusing in MongoDB's words. Whatever is wrong with the
//! form of a configuration has one code, `InvalidReplicaSetConfig`.

use banyan_document::kind;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_wire::params;

pub(super) fn invalid(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InvalidReplicaSetConfig, message)
}

pub(super) struct Field<'a> {
    /// The document's name in messages.
    pub of: &'static str,
    pub name: &'a str,
    pub value: RawBsonRef<'a>,
}

impl<'a> Field<'a> {
    fn wrong_type(&self, expected: &str) -> CommandError {
        invalid(format!(
            "BSON field '{}.{}' is the wrong type '{}', expected {expected}",
            self.of,
            self.name,
            kind::name(&self.value)
        ))
    }

    pub fn unknown(&self) -> CommandError {
        invalid(format!(
            "BSON field '{}.{}' is an unknown field.",
            self.of, self.name
        ))
    }

    /// Left out, as far as MongoDB's parser is concerned.
    pub fn is_null(&self) -> bool {
        matches!(self.value, RawBsonRef::Null | RawBsonRef::Undefined)
    }

    /// An integer; a fraction is cut off.
    pub fn integer(&self) -> Result<i64, CommandError> {
        params::number(self.value)
            .ok_or_else(|| self.wrong_type("types '[long, int, decimal, double']"))
    }

    /// An integer; a fraction is refused.
    pub fn exact(&self) -> Result<i64, CommandError> {
        let number = params::number(self.value).ok_or_else(|| {
            invalid(format!(
                "Expected a number, got value of type {} for field {}",
                kind::name(&self.value),
                self.name
            ))
        })?;
        match self.value {
            RawBsonRef::Double(value) if value != number as f64 => Err(invalid(format!(
                "Expected field \"{0}\" to have a value exactly representable as a 64-bit \
                 integer, but found {0}: {value}",
                self.name
            ))),
            _ => Ok(number),
        }
    }

    pub fn out_of_range(&self, bound: &str, actual: impl std::fmt::Display) -> CommandError {
        invalid(format!(
            "BSON field '{}' value must be {bound}, actual value '{actual}'",
            self.name
        ))
    }

    pub fn at_least(&self, lowest: i64, number: i64) -> Result<i64, CommandError> {
        if number < lowest {
            return Err(self.out_of_range(&format!(">= {lowest}"), number));
        }
        Ok(number)
    }

    pub fn at_most(&self, highest: i64, number: i64) -> Result<i64, CommandError> {
        if number > highest {
            return Err(self.out_of_range(&format!("<= {highest}"), number));
        }
        Ok(number)
    }

    pub fn positive(&self, number: i64) -> Result<i64, CommandError> {
        if number <= 0 {
            return Err(self.out_of_range("> 0", number));
        }
        Ok(number)
    }

    pub fn double(&self) -> Result<f64, CommandError> {
        match self.value {
            RawBsonRef::Double(value) => Ok(value),
            _ => Ok(self.integer()? as f64),
        }
    }

    pub fn flag(&self) -> Result<bool, CommandError> {
        match self.value {
            RawBsonRef::Boolean(value) => Ok(value),
            RawBsonRef::Double(value) => Ok(value != 0.0),
            value => match params::number(value) {
                Some(number) => Ok(number != 0),
                None => Err(self.wrong_type("types '[bool, long, int, decimal, double']")),
            },
        }
    }

    pub fn text(&self) -> Result<&'a str, CommandError> {
        self.value
            .as_str()
            .ok_or_else(|| self.wrong_type("type 'string'"))
    }

    pub fn document(&self) -> Result<&'a RawDocument, CommandError> {
        self.value
            .as_document()
            .ok_or_else(|| self.wrong_type("type 'object'"))
    }

    pub fn object_id(&self) -> Result<bson::oid::ObjectId, CommandError> {
        match self.value {
            RawBsonRef::ObjectId(id) => Ok(id),
            _ => Err(self.wrong_type("type 'objectId'")),
        }
    }

    pub fn array(&self) -> Result<&'a bson::RawArray, CommandError> {
        self.value
            .as_array()
            .ok_or_else(|| self.wrong_type("type 'array'"))
    }
}

/// The fields of a document, one after the other.
pub(super) fn fields<'a>(
    of: &'static str,
    document: &'a RawDocument,
) -> impl Iterator<Item = Result<Field<'a>, CommandError>> {
    document.iter().map(move |element| {
        let (name, value) = element.map_err(|error| invalid(error.to_string()))?;
        Ok(Field {
            of,
            name: name.as_str(),
            value,
        })
    })
}

pub(super) fn missing(of: &str, name: &str) -> CommandError {
    invalid(format!(
        "BSON field '{of}.{name}' is missing but a required field"
    ))
}

/// Integers are written as the 32-bit kind where they fit, as MongoDB does.
pub(in crate::set) fn small(value: i64) -> bson::RawBson {
    i32::try_from(value).map_or(bson::RawBson::Int64(value), bson::RawBson::Int32)
}

/// Tags and modes by name; an absent document is an empty one.
pub(super) fn owned(document: Option<&RawDocument>) -> RawDocumentBuf {
    document.map_or_else(RawDocumentBuf::new, RawDocument::to_owned)
}
