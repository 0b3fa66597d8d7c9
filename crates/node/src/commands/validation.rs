//! `validator`, `validationLevel` and `validationAction` among the options of a collection.

use banyan_query::{Budget, Validator};
use banyan_replication::write::validation::{ACTION, Action, LEVEL, Level, VALIDATOR};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, cstr};

use crate::context::CommandContext;
use crate::errors;
use crate::params::Field;

/// Lets documents be that the validator does not accept.
pub const BYPASS: &str = "bypassDocumentValidation";

/// Whether a command's documents need not be what validators ask for.
pub fn is_bypassed(ctx: &CommandContext<'_>) -> Result<bool, CommandError> {
    ctx.field(BYPASS).map_or(Ok(false), |field| field.bool())
}

/// Hands on to a command that writes for this one whether validators count.
pub fn pass_on(ctx: &CommandContext<'_>, body: &mut RawDocumentBuf) -> Result<(), CommandError> {
    if is_bypassed(ctx)? {
        body.append(cstr!("bypassDocumentValidation"), true);
    }
    Ok(())
}

/// What a `create` or a `collMod` says of validation.
#[derive(Default)]
pub struct Asked<'a> {
    validator: Option<&'a RawDocument>,
    level: Option<&'a str>,
    action: Option<&'a str>,
}

impl<'a> Asked<'a> {
    pub fn parse(ctx: &'a CommandContext<'a>) -> Result<Asked<'a>, CommandError> {
        let validator = ctx.field(VALIDATOR).map(|field| field.document_or_null());
        Ok(Asked {
            validator: validator.transpose()?.flatten(),
            level: one_of(ctx.field(LEVEL), |name| Level::parse(name).is_some())?,
            action: one_of(ctx.field(ACTION), |name| Action::parse(name).is_some())?,
        })
    }

    /// Adds what is kept of it to the options of a new collection.
    pub fn append(&self, options: &mut RawDocumentBuf) {
        let validator = self.validator.filter(|validator| !validator.is_empty());
        append(options, validator, self.level, self.action);
    }

    /// A collection's options with what is asked for; one that changes any of it has all of it.
    pub fn with(&self, options: &RawDocument) -> RawDocumentBuf {
        if self.validator.is_none() && self.level.is_none() && self.action.is_none() {
            return options.to_owned();
        }
        let known = |name| options.get_str(name).ok();
        let validator = self.validator.or(options.get_document(VALIDATOR).ok());
        let validator = validator.filter(|validator| !validator.is_empty());
        let level = self.level.or(known(LEVEL)).or(Some("strict"));
        let action = self.action.or(known(ACTION)).or(Some("error"));
        let mut changed = RawDocumentBuf::new();
        let mut is_written = false;
        for (name, value) in options.iter().flatten() {
            match name.as_str() {
                VALIDATOR | LEVEL | ACTION => continue,
                "collation" | "clusteredIndex" | "expireAfterSeconds" if !is_written => {
                    is_written = true;
                    append(&mut changed, validator, level, action);
                }
                _ => {}
            }
            changed.append(name, value);
        }
        if !is_written {
            append(&mut changed, validator, level, action);
        }
        changed
    }
}

fn append(
    options: &mut RawDocumentBuf,
    validator: Option<&RawDocument>,
    level: Option<&str>,
    action: Option<&str>,
) {
    if let Some(validator) = validator {
        options.append(cstr!("validator"), validator.to_owned());
    }
    if let Some(level) = level {
        options.append(cstr!("validationLevel"), level);
    }
    if let Some(action) = action {
        options.append(cstr!("validationAction"), action);
    }
}

fn one_of<'a>(
    field: Option<Field<'a>>,
    is_known: impl Fn(&str) -> bool,
) -> Result<Option<&'a str>, CommandError> {
    let Some(field) = field.filter(|field| !field.is_null()) else {
        return Ok(None);
    };
    let name = field.str()?;
    match is_known(name) {
        true => Ok(Some(name)),
        false => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Enumeration value '{name}' for field '{}.{}' is not a valid value.",
                field.command, field.name
            ),
        )),
    }
}

/// What the fields that say how a validator counts have to be.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        LEVEL => one_of(Some(field), |name| Level::parse(name).is_some()).map(drop),
        ACTION => one_of(Some(field), |name| Action::parse(name).is_some()).map(drop),
        _ => Ok(()),
    }
}

/// Refuses options with a validator that the collection may not have.
pub fn check(namespace: &Namespace, options: &RawDocument) -> Result<(), CommandError> {
    let Ok(source) = options.get_document(VALIDATOR) else {
        return Ok(());
    };
    let refuse = |why: String| {
        let message = format!("Document validators are not allowed on {why}");
        Err(CommandError::new(ErrorCode::InvalidOptions, message))
    };
    let (database, collection) = (namespace.database(), namespace.collection());
    if matches!(database, "admin" | "local" | "config") {
        return refuse(format!(
            "collection {namespace} in the {database} internal database"
        ));
    }
    if collection.starts_with("system.") {
        return refuse(format!("system collection {namespace}"));
    }
    // How strings are compared does not change what may be asked.
    let context = banyan_query::Context {
        budget: Budget::allowance(PARSING_UNITS),
        ..banyan_query::Context::default()
    };
    let validator = Validator::parse(source, &context).map_err(errors::query)?;
    // Whether a value is encrypted only counts where what is not is refused.
    let is_refused = Action::of(options) == Action::Warn || Level::of(options) == Level::Moderate;
    match is_refused && validator.asks_for_encryption() {
        true => Err(CommandError::new(
            ErrorCode::QueryFeatureNotAllowed,
            "Encryption-related validator keywords are not allowed in this context",
        )),
        false => Ok(()),
    }
}

/// What reading a validator may cost: far more than one of a few megabytes does.
const PARSING_UNITS: u32 = 1 << 30;
