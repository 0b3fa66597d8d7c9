//! `expireAfterSeconds` of an index, in `createIndexes` and in `collMod`.

use banyan_document::key::KeyPattern;
use banyan_document::kind;
use banyan_storage::{Collection, Index};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::clustered::EXPIRE;
use crate::errors;
use crate::params::{self, Field};

/// The seconds of a new index, as they are kept. What is no number stands for the longest time.
pub fn of_new(field: Field<'_>, spec: &RawDocument) -> Result<i32, CommandError> {
    let Some(seconds) = params::number(field.value) else {
        let kind = kind::name(&field.value);
        let what = format!("must be numeric, but received a type of '{kind}'");
        return Err(refused(spec, &option(&what)));
    };
    if is_nan(field.value) {
        return Ok(i32::MAX);
    }
    if seconds < 0 {
        return Err(refused(spec, &option("cannot be less than 0")));
    }
    i32::try_from(seconds).map_err(|_| {
        let what = "must be within an acceptable range, try a lower number";
        refused(spec, &option(what))
    })
}

/// Whether an error of [`of_new`] or [`check_key`] shows the specification already.
pub fn names_specification(error: &CommandError) -> bool {
    error.message.starts_with("TTL index")
}

/// The seconds that a `collMod` gives an index: no more than the longest time.
pub fn of_change(field: Field<'_>) -> Result<i64, CommandError> {
    let seconds = field.i64()?;
    if seconds < 0 {
        return Err(invalid(&option("cannot be less than 0")));
    }
    Ok(seconds.min(i64::from(i32::MAX)))
}

/// Refuses a key that cannot tell when a document is over.
pub fn check_key(
    key: &RawDocument,
    pattern: &KeyPattern,
    spec: &RawDocument,
) -> Result<(), CommandError> {
    if pattern.is_wildcard() {
        let message = "Index type 'wildcard' cannot be a TTL index";
        return Err(CommandError::new(ErrorCode::CannotCreateIndex, message));
    }
    check_fields(spec, key)?;
    let mut fields = spec.get_document("key").unwrap_or(key).iter().flatten();
    match fields.next() {
        Some((name, order)) if name.as_str() == "_id" && params::number(order).is_some() => {
            Err(CommandError::new(
                ErrorCode::InvalidIndexSpecificationOption,
                format!(
                    "The field '{EXPIRE}' is not valid for an _id index specification. \
                     Specification: {}",
                    errors::shown(RawBsonRef::Document(spec))
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses several fields, whatever they are.
pub fn check_fields(spec: &RawDocument, key: &RawDocument) -> Result<(), CommandError> {
    let fields = spec.get_document("key").unwrap_or(key).iter();
    match fields.count() {
        0 | 1 => Ok(()),
        _ => Err(refused(spec, COMPOUND)),
    }
}

/// Refuses to give an index a time that it cannot have.
pub fn check_change(collection: &Collection, index: &Index) -> Result<(), CommandError> {
    let fields = index
        .spec
        .get_document("key")
        .into_iter()
        .flat_map(|key| key.iter());
    let fields = fields.flatten().map(|(name, _)| name.as_str());
    let fields: Vec<&str> = fields.collect();
    let expires = matches!(index.spec.get(EXPIRE), Ok(Some(_)));
    match fields[..] {
        // A text index of one field has others in its place.
        _ if expires => Ok(()),
        _ if collection.is_capped => Err(invalid(
            "TTL indexes are not supported for capped collections.",
        )),
        ["_id"] => Err(invalid("the _id field does not support TTL indexes")),
        [_] => Ok(()),
        _ => Err(invalid(COMPOUND)),
    }
}

/// A specification with another time.
pub fn with(spec: &RawDocument, seconds: Option<i64>) -> RawDocumentBuf {
    let mut changed = RawDocumentBuf::new();
    for (name, value) in spec.iter().flatten() {
        if name.as_str() != EXPIRE {
            changed.append(name, value);
        }
    }
    if let Some(seconds) = seconds {
        let kept = i32::try_from(seconds).unwrap_or(i32::MAX);
        changed.append(cstr!("expireAfterSeconds"), kept);
    }
    changed
}

const COMPOUND: &str = "TTL indexes are single-field indexes, compound indexes do not support TTL";

fn option(what: &str) -> String {
    format!("TTL index '{EXPIRE}' option {what}")
}

fn invalid(message: &str) -> CommandError {
    CommandError::new(ErrorCode::InvalidOptions, message)
}

fn refused(spec: &RawDocument, what: &str) -> CommandError {
    CommandError::new(
        ErrorCode::CannotCreateIndex,
        format!(
            "{what}. Index spec: {}",
            errors::shown(RawBsonRef::Document(spec))
        ),
    )
}

fn is_nan(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(value) => value.is_nan(),
        RawBsonRef::Decimal128(value) => value.to_string() == "NaN",
        _ => false,
    }
}
