//! The options that collections and indexes have for storage engines. They are checked as MongoDB's
//! engine has them; this one has no use for any.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument};

use crate::params::Field;

const ENGINE: &str = "wiredTiger";
const CONFIGURATION: &str = "configString";

/// A document with a document for each engine.
pub fn parse(field: Field<'_>) -> Result<&RawDocument, CommandError> {
    let engines = field.document()?;
    for (engine, options) in engines.iter().flatten() {
        let engine = engine.as_str();
        let RawBsonRef::Document(options) = options else {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                format!("'storageEngine.{engine}' has to be an embedded document."),
            ));
        };
        check(engine, options)?;
    }
    Ok(engines)
}

fn check(engine: &str, options: &RawDocument) -> Result<(), CommandError> {
    let refuse = |message| Err(CommandError::new(ErrorCode::InvalidOptions, message));
    for (name, value) in options.iter().flatten() {
        if name.as_str() == CONFIGURATION {
            check_configuration(value)?;
        }
    }
    if engine != ENGINE {
        return refuse(format!(
            "{engine} is not a registered storage engine for this server"
        ));
    }
    let mut names = options.iter().flatten().map(|(name, _)| name.as_str());
    match names.find(|name| *name != CONFIGURATION) {
        Some(other) => refuse(format!("'{other}' is not a supported option.")),
        None => Ok(()),
    }
}

fn check_configuration(value: RawBsonRef<'_>) -> Result<(), CommandError> {
    match value {
        RawBsonRef::String(text) if text.contains('\0') => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "malformed 'configString' value.",
        )),
        RawBsonRef::String(_) => Ok(()),
        _ => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            "'configString' must be a string.",
        )),
    }
}
