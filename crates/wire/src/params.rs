//! Reading a command's fields as types, with MongoDB's words where the type is wrong.

use std::collections::HashSet;

use crate::{CommandError, ErrorCode};
use banyan_document::{Number, elements, kind};
use bson::spec::BinarySubtype;
use bson::{Binary, RawArray, RawBsonRef, RawDocument};

/// A field of a command, and whose it is.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    pub command: &'static str,
    pub name: &'a str,
    pub value: RawBsonRef<'a>,
}

impl<'a> Field<'a> {
    pub fn wrong_type(&self, expected: &str) -> CommandError {
        let actual = kind::name(&self.value);
        CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "BSON field '{}.{}' is the wrong type '{actual}', expected {expected}",
                self.command, self.name
            ),
        )
    }

    pub fn is_null(&self) -> bool {
        is_null(self.value)
    }

    /// A boolean, or a number that stands for one.
    pub fn bool(&self) -> Result<bool, CommandError> {
        match self.value {
            RawBsonRef::Boolean(value) => Ok(value),
            RawBsonRef::Int32(value) => Ok(value != 0),
            RawBsonRef::Int64(value) => Ok(value != 0),
            RawBsonRef::Double(value) => Ok(value != 0.0),
            RawBsonRef::Decimal128(_) => Ok(banyan_document::is_true(self.value)),
            RawBsonRef::Null | RawBsonRef::Undefined => Ok(false),
            _ => Err(self.wrong_type("types '[bool, long, int, decimal, double']")),
        }
    }

    /// A boolean and nothing that stands for one.
    pub fn strict_bool(&self) -> Result<bool, CommandError> {
        match self.value {
            RawBsonRef::Boolean(value) => Ok(value),
            other => Err(CommandError::new(
                ErrorCode::TypeMismatch,
                format!(
                    "Field '{}' should be a boolean value, but found: {}",
                    self.name,
                    kind::name(&other)
                ),
            )),
        }
    }

    /// An integer of any numeric type; a double loses its fraction, as MongoDB's parser has it.
    pub fn i64(&self) -> Result<i64, CommandError> {
        number(self.value).ok_or_else(|| self.wrong_type("types '[long, int, decimal, double']"))
    }

    pub fn i32(&self) -> Result<i32, CommandError> {
        i32::try_from(self.i64()?).map_err(|_| {
            CommandError::new(
                ErrorCode::BadValue,
                format!(
                    "'{}.{}' is out of range for an int",
                    self.command, self.name
                ),
            )
        })
    }

    /// An integer that must not be negative.
    pub fn unsigned(&self) -> Result<u64, CommandError> {
        let value = self.i64()?;
        u64::try_from(value).map_err(|_| {
            CommandError::new(
                ErrorCode::Location(51024),
                format!(
                    "BSON field '{}' value must be >= 0, actual value '{value}'",
                    self.name
                ),
            )
        })
    }

    pub fn str(&self) -> Result<&'a str, CommandError> {
        match self.value {
            RawBsonRef::String(value) => Ok(value),
            _ => Err(self.wrong_type("type 'string'")),
        }
    }

    pub fn document(&self) -> Result<&'a RawDocument, CommandError> {
        match self.value {
            RawBsonRef::Document(value) => Ok(value),
            _ => Err(self.wrong_type("type 'object'")),
        }
    }

    pub fn document_or_null(&self) -> Result<Option<&'a RawDocument>, CommandError> {
        if self.is_null() {
            Ok(None)
        } else {
            self.document().map(Some)
        }
    }

    pub fn array(&self) -> Result<&'a RawArray, CommandError> {
        match self.value {
            RawBsonRef::Array(value) => Ok(value),
            _ => Err(self.wrong_type("type 'array'")),
        }
    }
}

/// The fields of a command or of a document inside one; `command` is what errors call it.
pub fn fields<'a>(
    command: &'static str,
    document: &'a RawDocument,
) -> impl Iterator<Item = Field<'a>> {
    elements(document).map(move |element| Field {
        command,
        name: element.name(),
        value: element.value(),
    })
}

/// A number of any type as an integer; what is out of range stops at the range's end. A double goes
/// towards zero, a decimal to the nearest, as MongoDB has it.
pub fn number(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(value) => Some(i64::from(value)),
        RawBsonRef::Int64(value) => Some(value),
        RawBsonRef::Double(value) => Some(value as i64),
        RawBsonRef::Decimal128(value) => {
            let text = value.to_string();
            text.parse::<i64>()
                .ok()
                .or_else(|| text.parse::<f64>().ok().map(|v| v.round_ties_even() as i64))
        }
        _ => None,
    }
}

/// How long a command may take, as `maxTimeMS` says it.
pub fn max_time_ms(field: Field<'_>) -> Result<u64, CommandError> {
    let milliseconds = field
        .i64()
        .map_err(|_| CommandError::new(ErrorCode::BadValue, "maxTimeMS must be a number"))?;
    if let RawBsonRef::Double(value) = field.value
        && value.fract() != 0.0
    {
        let text = "maxTimeMS has non-integral value";
        return Err(CommandError::new(ErrorCode::BadValue, text));
    }
    if !(0..=i64::from(i32::MAX)).contains(&milliseconds) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            format!("{milliseconds} value for maxTimeMS is out of range"),
        ));
    }
    Ok(milliseconds.unsigned_abs())
}

/// The batch size in `cursor: {batchSize}`, as `aggregate` and the list commands have it.
pub fn cursor_batch_size(
    command: &'static str,
    body: &RawDocument,
) -> Result<Option<u64>, CommandError> {
    let Some(value) = banyan_document::field(body, "cursor") else {
        return Ok(None);
    };
    batch_size_of(Field {
        command,
        name: "cursor",
        value,
    })
}

/// The batch size that such a `cursor` says.
pub fn batch_size_of(cursor: Field<'_>) -> Result<Option<u64>, CommandError> {
    let mut size = None;
    for field in fields(cursor.command, cursor.document()?) {
        match field.name {
            "batchSize" if field.is_null() => {}
            "batchSize" => size = Some(field.unsigned()?),
            name => {
                return Err(CommandError::new(
                    ErrorCode::Location(40415),
                    format!("BSON field 'cursor.{name}' is an unknown field."),
                ));
            }
        }
    }
    Ok(size)
}

/// How many documents a `count` counts at most. A negative limit means the same as a positive one, as
/// it always has, and 0 none.
pub fn count_limit(field: Field<'_>) -> Result<Option<u64>, CommandError> {
    let refuse = |code| {
        let message = "the 'limit' of a count has to be a whole number";
        CommandError::new(code, message)
    };
    if field.value == RawBsonRef::Int64(i64::MIN) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "limit value for count cannot be min long",
        ));
    }
    let number = Number::from_raw(field.value).ok_or_else(|| refuse(ErrorCode::BadValue))?;
    match number.to_i64_exact() {
        None => Err(refuse(ErrorCode::FailedToParse)),
        // There is no such number without the sign.
        Some(i64::MIN) => Err(refuse(ErrorCode::BadValue)),
        Some(limit) => Ok(Some(limit.unsigned_abs()).filter(|limit| *limit > 0)),
    }
}

/// Whether a statement of a `delete` removes all documents that match, and not one; `None`: its
/// `limit` says neither.
pub fn deletes_all(limit: RawBsonRef<'_>) -> Option<bool> {
    // It is read as a double, and what is no number is none.
    let limit = Number::from_raw(limit).map_or(0.0, Number::to_f64);
    match limit {
        0.0 => Some(true),
        1.0 => Some(false),
        _ => None,
    }
}

/// A UUID as BSON has it.
pub fn uuid(bytes: &[u8; 16]) -> Binary {
    Binary {
        subtype: BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    }
}

/// Of a field it means that it is not there, of an item of a list that it is passed over.
pub fn is_null(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Null | RawBsonRef::Undefined)
}

/// A list that is null is no list, nor is it as if the field were not there.
pub fn no_array(name: &str) -> CommandError {
    CommandError::new(
        ErrorCode::Location(10065),
        format!("invalid parameter: expected an object ({name})"),
    )
}

/// The documents of an array; nulls among them are passed over.
pub fn documents(field: Field<'_>) -> Result<Vec<&RawDocument>, CommandError> {
    if field.is_null() {
        return Err(no_array(field.name));
    }
    let mut documents = Vec::new();
    for item in field.array()?.into_iter().flatten() {
        match item {
            RawBsonRef::Document(document) => documents.push(document),
            item if is_null(item) => {}
            _ => return Err(field.wrong_type("an array of documents")),
        }
    }
    Ok(documents)
}

pub fn unknown_field(parser: &str, name: &str) -> CommandError {
    CommandError::new(
        ErrorCode::Location(40415),
        format!("BSON field '{parser}.{name}' is an unknown field."),
    )
}

pub fn duplicate_field(parser: &str, name: &str) -> CommandError {
    CommandError::new(
        ErrorCode::Location(40413),
        format!("BSON field '{parser}.{name}' is a duplicate field"),
    )
}

/// Among so many fields a name that may have come before is compared with each of those; further names
/// are looked up in a set.
const FEW: usize = 32;

/// The names that were met.
struct Seen<'a> {
    document: &'a RawDocument,
    /// A bit for each name that was met. Names of most commands have different ones, so that none is
    /// compared with those before it.
    sketch: u64,
    many: Option<HashSet<&'a str>>,
}

impl<'a> Seen<'a> {
    /// Whether the name at this place was met before.
    fn has(&mut self, at: usize, name: &'a str) -> bool {
        let before = || elements(self.document).take(at).map(|field| field.name());
        if at >= FEW {
            return !self
                .many
                .get_or_insert_with(|| before().collect())
                .insert(name);
        }
        let byte = |at: usize| name.as_bytes().get(at).map_or(0, |byte| usize::from(*byte));
        let place = byte(0) + 7 * byte(name.len().wrapping_sub(1)) + 31 * name.len();
        let bit = 1 << (place % 64);
        let may_be = self.sketch & bit != 0;
        self.sketch |= bit;
        may_be && before().any(|other| other == name)
    }
}

/// The fields as [`fields`] has them, none of which may be named twice.
pub fn once<'a>(
    parser: &'static str,
    document: &'a RawDocument,
) -> impl Iterator<Item = Result<Field<'a>, CommandError>> {
    let mut seen = Seen {
        document,
        sketch: 0,
        many: None,
    };
    fields(parser, document)
        .enumerate()
        .map(move |(at, field)| match seen.has(at, field.name) {
            true => Err(duplicate_field(parser, field.name)),
            false => Ok(field),
        })
}

/// The fields of a document inside a command of which these are known. What is null is passed over, as if
/// it were not there; what is unknown or named twice is refused even so.
pub fn given<'a>(
    parser: &'static str,
    document: &'a RawDocument,
    known: &'static [&'static str],
) -> impl Iterator<Item = Result<Field<'a>, CommandError>> {
    once(parser, document).filter_map(move |field| match field {
        Ok(field) if !known.contains(&field.name) => Some(Err(unknown_field(parser, field.name))),
        Ok(field) if field.is_null() => None,
        field => Some(field),
    })
}

pub fn missing_field(parser: &str, name: &str) -> CommandError {
    CommandError::new(
        ErrorCode::Location(40414),
        format!("BSON field '{parser}.{name}' is missing but a required field"),
    )
}
