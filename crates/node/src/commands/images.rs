//! The options `changeStreamPreAndPostImages` and `recordPreImages` of `create` and `collMod`.
//!
//! The log keeps every document's earlier state anyway; the option says whether change streams may
//! show it.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::context::CommandContext;
use crate::params::{self, Field};

pub const IMAGES: &str = "changeStreamPreAndPostImages";
/// What its forerunner asked for; it is kept and shown, and means nothing any more.
pub const RECORD_IMAGES: &str = "recordPreImages";

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

/// What `create` or `collMod` asks for.
#[derive(Clone, Copy)]
pub struct Asked {
    images: Option<bool>,
    records: Option<bool>,
}

pub fn asked(ctx: &CommandContext<'_>) -> Result<Asked, CommandError> {
    let given = |name| ctx.field(name).filter(|field: &Field<'_>| !field.is_null());
    let images = given(IMAGES).map(|field| parse(ctx.database(), field));
    let records = given(RECORD_IMAGES).map(|field| field.bool());
    let asked = Asked {
        images: images.transpose()?,
        records: records.transpose()?,
    };
    let refuse = |text: String| Err(CommandError::new(ErrorCode::InvalidOptions, text));
    match (asked.images, asked.records) {
        (Some(true), Some(true)) => refuse(format!(
            "'{IMAGES}.enabled' and '{RECORD_IMAGES}' cannot be set to 'true' simultaneously"
        )),
        (_, Some(true)) if ctx.database() == "local" => refuse(format!(
            "{RECORD_IMAGES} collection option is not supported on the local database"
        )),
        _ => Ok(asked),
    }
}

impl Asked {
    pub fn append(self, options: &mut RawDocumentBuf) {
        if self.images == Some(true) {
            let enabled = rawdoc! { "enabled": true };
            options.append(cstr!("changeStreamPreAndPostImages"), enabled);
        }
        if self.records == Some(true) {
            options.append(cstr!("recordPreImages"), true);
        }
    }

    /// A collection's options with what is asked for: of the two options one is on at most.
    pub fn over(self, options: &RawDocument) -> RawDocumentBuf {
        let is_on = options.get_document(IMAGES);
        let is_on = is_on.and_then(|option| option.get_bool("enabled"));
        let after = Asked {
            images: Some(match (self.images, self.records) {
                (Some(images), _) => images,
                (None, Some(true)) => false,
                _ => is_on.unwrap_or(false),
            }),
            // Every change that does not ask for it takes it away.
            records: Some(self.records.unwrap_or(false)),
        };
        let mut changed = RawDocumentBuf::new();
        let (before, behind): (Vec<_>, Vec<_>) = options
            .iter()
            .flatten()
            .filter(|(name, _)| ![IMAGES, RECORD_IMAGES].contains(&name.as_str()))
            .partition(|(name, _)| BEFORE.contains(&name.as_str()));
        for (name, value) in before {
            changed.append(name, value);
        }
        after.append(&mut changed);
        for (name, value) in behind {
            changed.append(name, value);
        }
        changed
    }
}

/// What stands before them among the options of a collection.
const BEFORE: [&str; 5] = ["capped", "size", "max", "autoIndexId", "temp"];
