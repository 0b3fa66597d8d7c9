//! Options of the first stages that only the node can answer: what they have to be.

use std::borrow::Cow;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, Number, elements};

use super::source_name;
use super::specification::{Fields, Kind, wrong_type};
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, is_nullish, show, show_document, type_name};

/// The argument of a stage, which is a document.
pub(super) fn document<'a>(
    stage: &str,
    value: RawBsonRef<'a>,
) -> Result<&'a RawDocument, QueryError> {
    let nested = || {
        format!(
            "{stage} must take a nested object but found: {}",
            show(value)
        )
    };
    let options = || {
        let shown = show(value);
        format!("{stage} options must be specified in an object, but found: {shown}")
    };
    let empty = || format!("The {stage} stage specification must be an empty object");
    let argument = value.as_document();
    let (kind, message) = match (stage, argument) {
        (source_name::INDEX_STATS, Some(argument)) if !argument.is_empty() => {
            (ErrorKind::Location(28803), empty())
        }
        (source_name::LIST_CATALOG, Some(argument)) if !argument.is_empty() => {
            (ErrorKind::Location(6_200_600), empty())
        }
        (source_name::PLAN_CACHE_STATS, Some(argument)) if !argument.is_empty() => (
            ErrorKind::FailedToParse,
            format!("{stage} parameters object must be empty. Found: object"),
        ),
        (_, Some(argument)) => return Ok(argument),
        (source_name::COLL_STATS, None) => (ErrorKind::Location(5_447_000), nested()),
        (source_name::CHANGE_STREAM, None) => (ErrorKind::Location(6_188_500), nested()),
        (source_name::INDEX_STATS, None) => (ErrorKind::Location(28803), empty()),
        (source_name::LIST_CATALOG, None) => (ErrorKind::Location(6_200_600), empty()),
        (
            source_name::CURRENT_OP | source_name::LIST_LOCAL_SESSIONS | source_name::LIST_SESSIONS,
            None,
        ) => (ErrorKind::TypeMismatch, options()),
        (_, None) => (
            ErrorKind::FailedToParse,
            format!("the argument of {stage} must be an object"),
        ),
    };
    Err(QueryError::new(kind, message))
}

/// The argument of a stage as the node is to see it.
pub(super) fn checked<'a>(
    stage: &str,
    argument: &'a RawDocument,
) -> Result<Cow<'a, RawDocument>, QueryError> {
    match stage {
        source_name::COLL_STATS => coll_stats(argument).map(Cow::Owned),
        source_name::CURRENT_OP => current_op(argument).map(|()| Cow::Borrowed(argument)),
        _ => Ok(Cow::Borrowed(argument)),
    }
}

const PARTS: &[(&str, Kind)] = &[
    ("latencyStats", Kind::Document),
    ("storageStats", Kind::Document),
    ("count", Kind::Document),
    ("queryExecStats", Kind::Document),
];

/// The parts that are asked for: one that is null is not.
fn coll_stats(argument: &RawDocument) -> Result<bson::RawDocumentBuf, QueryError> {
    let parts = Fields::new("$collStats", argument, PARTS)?;
    if let Some(options) = parts.document("storageStats") {
        check_storage(options)?;
    }
    for part in ["count", "queryExecStats"] {
        if let Some(options) = parts.document(part).filter(|options| !options.is_empty()) {
            let found = show_document(options);
            return error(31170, format!("expected an empty object, but got {found}"));
        }
    }
    let mut asked = DocumentWriter::new();
    for part in elements(argument) {
        if !is_nullish(Some(part.value())) {
            asked.append_element(&part);
        }
    }
    Ok(asked.finish())
}

fn check_storage(options: &RawDocument) -> Result<(), QueryError> {
    for option in elements(options) {
        match (option.name(), option.value()) {
            ("scale", value) if !is_nullish(Some(value)) => check_scale(value)?,
            ("waitForLock" | "numericOnly", value) if value.as_bool().is_none() => {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    format!(
                        "Field '{}' should be a boolean value, but found: {}",
                        option.name(),
                        type_name(Some(value))
                    ),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_scale(value: RawBsonRef<'_>) -> Result<(), QueryError> {
    let Some(number) = Number::from_raw(value) else {
        let expected = "types '[long, int, decimal, double']";
        return Err(wrong_type("$collStats.storageStats.scale", value, expected));
    };
    let scale = number.to_i64_saturating();
    match scale {
        1.. => Ok(()),
        _ => error(
            51024,
            format!("BSON field 'scale' value must be >= 1, actual value '{scale}'"),
        ),
    }
}

/// Whether each option is known and a boolean. Those that decide who may ask come first.
fn current_op(argument: &RawDocument) -> Result<(), QueryError> {
    let is_of_rights = |name: &str| matches!(name, "allUsers" | "localOps");
    let of_rights = elements(argument).filter(|option| is_of_rights(option.name()));
    for option in of_rights {
        check_switch(option.name(), option.value(), ErrorKind::TypeMismatch)?;
    }
    for option in elements(argument).filter(|option| !is_of_rights(option.name())) {
        match option.name() {
            "backtrace" | "idleConnections" | "idleCursors" | "idleSessions" | "targetAllNodes"
            | "truncateOps" => {
                check_switch(option.name(), option.value(), ErrorKind::FailedToParse)?;
            }
            other => {
                return Err(QueryError::new(
                    ErrorKind::FailedToParse,
                    format!("Unrecognized option '{other}' in $currentOp stage."),
                ));
            }
        }
    }
    Ok(())
}

fn check_switch(name: &str, value: RawBsonRef<'_>, kind: ErrorKind) -> Result<(), QueryError> {
    match value {
        RawBsonRef::Boolean(_) => Ok(()),
        other => Err(QueryError::new(
            kind,
            format!(
                "The '{name}' parameter of the $currentOp stage must be a boolean value, but \
                 found: {}",
                type_name(Some(other))
            ),
        )),
    }
}
