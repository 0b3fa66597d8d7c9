//! What has to be right of an index that `createIndexes` is asked for before it is looked at what
//! its options say: that they are known, go together and are of their types, the first of which that
//! is not being told.

use banyan_document::is_true;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::clustered::{CLUSTERED_OPTION, EXPIRE};
use super::geo_indexes;
use super::index_expiry;
use super::index_key;
use super::index_specification as specification;
use crate::errors;
use crate::params::{self, Field};

const OPTIONS: &[&str] = &[
    "2dsphereIndexVersion",
    "_id",
    "background",
    "bits",
    CLUSTERED_OPTION,
    "collation",
    "default_language",
    "dropDups",
    EXPIRE,
    geo_indexes::COARSEST,
    geo_indexes::FINEST,
    "hidden",
    "key",
    "language_override",
    "max",
    "min",
    "name",
    "ns",
    "partialFilterExpression",
    "prepareUnique",
    "sparse",
    "storageEngine",
    "textIndexVersion",
    "unique",
    "v",
    "weights",
    "wildcardProjection",
];
/// Those of an index by which a collection is clustered.
const CLUSTERED_OPTIONS: &[&str] = &["v", "key", "name", "unique", CLUSTERED_OPTION];
/// Those of the index over `_id`.
const ID_OPTIONS: &[&str] = &["_id", "v", "key", "name", "ns", "collation"];

/// Checks a specification, and makes of it what is kept.
pub fn normalize(
    spec: &RawDocument,
    ignores_unknown: bool,
) -> Result<RawDocumentBuf, CommandError> {
    check(spec, ignores_unknown)?;
    specification::normalize(spec)
}

pub fn check(spec: &RawDocument, ignores_unknown: bool) -> Result<(), CommandError> {
    let (key, name) = check_form(spec, ignores_unknown)?;
    let is_id = specification::is_id_key(key);
    if is_id {
        check_id_options(spec)?;
        specification::check_id_key(key)?;
    }
    specification::check_name(name, is_id)
}

/// When documents are over, if the index is to tell.
pub fn check_expiry(spec: &RawDocument) -> Result<(), CommandError> {
    let Some(value) = spec.get(EXPIRE).ok().flatten() else {
        return Ok(());
    };
    let field = Field {
        command: "createIndexes.indexes",
        name: EXPIRE,
        value,
    };
    index_expiry::of_new(field, spec)?;
    match spec.get_document("key") {
        Ok(key) => index_expiry::check_fields(spec, key),
        Err(_) => Ok(()),
    }
}

/// What strings are compared by, if the index says so.
pub fn check_collation(spec: &RawDocument) -> Result<(), CommandError> {
    let Some(value) = spec.get("collation").ok().flatten() else {
        return Ok(());
    };
    // Whatever it says.
    if spec
        .get("v")
        .is_ok_and(|v| v.and_then(params::number) == Some(1))
    {
        return Err(specification::collation_of_old_format());
    }
    let field = Field {
        command: "createIndexes.indexes",
        name: "collation",
        value,
    };
    specification::completed_collation(field).map(drop)
}

/// The specification without the options that no index has. `clustered` is among them: it belongs to
/// the collection.
pub fn without_unknown(spec: &RawDocument) -> RawDocumentBuf {
    let mut known = RawDocumentBuf::new();
    for (option, value) in spec.iter().flatten() {
        let name = option.as_str();
        if OPTIONS.contains(&name) && name != CLUSTERED_OPTION {
            known.append(option, value);
        }
    }
    known
}

/// What has to be right of every index: its key and its name, if it is.
pub fn check_form(
    spec: &RawDocument,
    ignores_unknown: bool,
) -> Result<(&RawDocument, &str), CommandError> {
    let names = || spec.iter().flatten().map(|(name, _)| name.as_str());
    if !ignores_unknown && let Some(unknown) = names().find(|name| !OPTIONS.contains(name)) {
        return Err(not_valid(spec, unknown, "an index specification"));
    }
    if names().any(|name| name == CLUSTERED_OPTION)
        && let Some(other) = names().find(|name| !CLUSTERED_OPTIONS.contains(name))
    {
        return Err(not_valid(spec, other, "a clustered index specification"));
    }
    let (mut key, mut name) = (None, None);
    for (option, value) in spec.iter().flatten() {
        let field = Field {
            command: "createIndexes.indexes",
            name: option.as_str(),
            value,
        };
        match field.name {
            "key" => {
                let given = field.document()?;
                index_key::check_repeated(given)?;
                match index_key::is_of_text(given) {
                    true => index_key::check_text_form(given)?,
                    false => index_key::check_pattern_form(given)?,
                }
                key = Some(given);
            }
            "name" => name = Some(field.str()?),
            "unique" | "sparse" | "background" | "prepareUnique" | "dropDups"
            | CLUSTERED_OPTION => {
                specification::flag(field)?;
            }
            "hidden" if !matches!(value, RawBsonRef::Boolean(_)) => {
                return Err(field.wrong_type("type 'bool'"));
            }
            "partialFilterExpression" => {
                specification::parse_partial_filter(field.document()?)?;
            }
            "collation" => {
                specification::check_collation_form(field)?;
            }
            "wildcardProjection" => specification::check_wildcard_projection(field, spec)?,
            "2dsphereIndexVersion" => {
                field.i64()?;
            }
            "weights" if matches!(value, RawBsonRef::String(_) | RawBsonRef::Array(_)) => {}
            "weights" => {
                field.document()?;
            }
            "default_language" | "language_override" => {
                field.str()?;
            }
            "textIndexVersion" => {
                geo_indexes::whole(field)?;
            }
            geo_indexes::COARSEST | geo_indexes::FINEST => {
                geo_indexes::level(field)?;
            }
            "bits" | "min" | "max" => {
                geo_indexes::plane_option(field)?;
            }
            "v" => {
                specification::format_version(field)?;
            }
            _ => {}
        }
    }
    let required = |name: &str| {
        CommandError::new(
            ErrorCode::FailedToParse,
            format!("The '{name}' field is a required property of an index specification"),
        )
    };
    let key = key.ok_or_else(|| required("key"))?;
    let name = name.ok_or_else(|| required("name"))?;
    let clusters = spec.get(CLUSTERED_OPTION).ok().flatten();
    if let Some(value) = clusters {
        specification::clustered_flag(Field {
            command: "createIndexes.indexes",
            name: CLUSTERED_OPTION,
            value,
        })?;
    }
    if clusters.is_some_and(is_true) && !spec.get_bool("unique").unwrap_or(false) {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            "The 'unique' field is required when 'clustered' is specified",
        ));
    }
    Ok((key, name))
}

/// Whether the index over `_id` has none but the options that it may have.
pub fn check_id_options(spec: &RawDocument) -> Result<(), CommandError> {
    let names = || spec.iter().flatten().map(|(name, _)| name.as_str());
    match names().find(|name| !ID_OPTIONS.contains(name)) {
        // One by which the collection is clustered is over `_id`, too.
        Some(CLUSTERED_OPTION | "unique") if names().any(|name| name == CLUSTERED_OPTION) => Ok(()),
        Some("weights") => Err(specification::weights_of_no_text(spec)),
        Some(option) => Err(not_valid(spec, option, "an _id index specification")),
        None => Ok(()),
    }
}

fn not_valid(spec: &RawDocument, option: &str, of: &str) -> CommandError {
    CommandError::new(
        ErrorCode::InvalidIndexSpecificationOption,
        format!(
            "The field '{option}' is not valid for {of}. Specification: {}",
            errors::shown(RawBsonRef::Document(spec))
        ),
    )
}
