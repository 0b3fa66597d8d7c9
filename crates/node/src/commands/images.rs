//! The option `changeStreamPreAndPostImages` of `create` and `collMod`.
//!
//! The log keeps every document's earlier state anyway; the option says whether change streams may
//! show it.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::params::{self, Field};

pub const IMAGES: &str = "changeStreamPreAndPostImages";

/// Whether it turns the images on.
pub fn parse(database: &str, field: Field<'_>) -> Result<bool, CommandError> {
    let mut enabled = None;
    for (name, value) in field.document()?.iter().flatten() {
        match (name.as_str(), value) {
            ("enabled", RawBsonRef::Null | RawBsonRef::Undefined) => {}
            ("enabled", RawBsonRef::Boolean(value)) => enabled = Some(value),
            ("enabled", other) => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!(
                        "BSON field '{}.{IMAGES}.enabled' is the wrong type '{}', expected type \
                         'bool'",
                        field.command,
                        banyan_document::kind::name(&other)
                    ),
                ));
            }
            (other, _) => {
                let parser = format!("{}.{IMAGES}", field.command);
                return Err(params::unknown_field(&parser, other));
            }
        }
    }
    let Some(enabled) = enabled else {
        let parser = format!("{}.{IMAGES}", field.command);
        return Err(params::missing_field(&parser, "enabled"));
    };
    if enabled && matches!(database, "admin" | "config" | "local") {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            format!("{IMAGES} collection option is not supported on the {database} database"),
        ));
    }
    Ok(enabled)
}

/// Whether the field has the form that it has to have.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    parse("", field).map(drop)
}

pub fn append(options: &mut RawDocumentBuf) {
    options.append(
        cstr!("changeStreamPreAndPostImages"),
        rawdoc! { "enabled": true },
    );
}

/// What stands before them among the options of a collection.
const BEFORE: [&str; 5] = ["capped", "size", "max", "autoIndexId", "temp"];

/// A collection's options with the images turned on or off.
pub fn with(options: &RawDocument, keep: bool) -> RawDocumentBuf {
    let mut changed = RawDocumentBuf::new();
    let (before, behind): (Vec<_>, Vec<_>) = options
        .iter()
        .flatten()
        .filter(|(name, _)| name.as_str() != IMAGES)
        .partition(|(name, _)| BEFORE.contains(&name.as_str()));
    for (name, value) in before {
        changed.append(name, value);
    }
    if keep {
        append(&mut changed);
    }
    for (name, value) in behind {
        changed.append(name, value);
    }
    changed
}
