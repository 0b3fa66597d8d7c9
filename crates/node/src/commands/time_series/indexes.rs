//! Indexes over measurements: what they are over buckets, and what is shown of them.

use std::collections::BTreeSet;

use banyan_document::time_series::TimeSeries;
use banyan_document::time_series::index_keys::{self, NoIndex};
use banyan_document::{Collator, DocumentWriter, Number, elements, is_true};
use banyan_query::Context;
use banyan_query::time_series::partial_filter as partial_filter_of_buckets;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::super::clustered::EXPIRE;
use super::super::geo_indexes;
use super::super::index_specification as specification;
use super::invalid;
use crate::errors;
use crate::params;

/// Where the specification is kept that is shown to who uses the measurements.
pub const ORIGINAL: &str = "originalSpec";
const PARTIAL: &str = "partialFilterExpression";

/// A specification of `createIndexes` over buckets.
pub fn to_buckets(
    spec: &RawDocument,
    series: &TimeSeries,
    collator: Option<&Collator>,
) -> Result<RawDocumentBuf, CommandError> {
    let unsupported = |what: &str| {
        Err(invalid(format!(
            "{what} indexes are not supported on time-series collections"
        )))
    };
    let mut out = DocumentWriter::new();
    for element in elements(spec) {
        match (element.name(), element.value()) {
            ("unique", value) if is_true(value) => return unsupported("Unique"),
            ("sparse", _) => {
                match spec.get("key").ok().flatten() {
                    Some(RawBsonRef::Document(_) | RawBsonRef::Array(_)) => {}
                    _ => return Err(no_object("key")),
                }
                if measures(spec, series) {
                    return Err(invalid(
                        "Sparse indexes are not supported on time-series measurements".to_owned(),
                    ));
                }
                out.append_element(&element);
            }
            (EXPIRE, _) => return unsupported("TTL"),
            (PARTIAL, _) if matches!(spec.get("collation"), Ok(Some(_))) => {
                return Err(CommandError::new(
                    ErrorCode::IndexOptionsConflict,
                    "On a time-series collection, partialFilterExpression and collation arguments \
                     are incompatible",
                ));
            }
            (PARTIAL, RawBsonRef::Document(filter)) => {
                out.append_doc(PARTIAL, &partial_filter(filter, series, collator)?);
            }
            // That it is no document is told later.
            (PARTIAL, RawBsonRef::Array(_)) => out.append_element(&element),
            // Read as the document that it is in bytes.
            ("key", RawBsonRef::Array(given)) => {
                let given = RawDocument::from_bytes(given.as_bytes())
                    .map_err(|error| invalid(error.to_string()))?;
                out.append_doc("key", &key_of_buckets(given, series)?);
            }
            (name @ ("key" | PARTIAL), other) if other.as_document().is_none() => {
                return Err(no_object(name));
            }
            ("key", RawBsonRef::Document(given)) => {
                let text = RawBsonRef::String(banyan_text::PLUGIN);
                if elements(given).any(|field| field.value() == text) {
                    return unsupported("Text");
                }
                out.append_doc("key", &key_of_buckets(given, series)?);
            }
            _ => out.append_element(&element),
        }
    }
    Ok(out.finish())
}

fn no_object(name: &str) -> CommandError {
    CommandError::new(
        ErrorCode::Location(10065),
        format!("invalid parameter: expected an object ({name})"),
    )
}

fn partial_filter(
    filter: &RawDocument,
    series: &TimeSeries,
    collator: Option<&Collator>,
) -> Result<RawDocumentBuf, CommandError> {
    let context = Context {
        collator: collator.cloned(),
        ..Context::default()
    };
    let untold = |why: &str| {
        CommandError::new(
            ErrorCode::Location(5916301),
            format!(
                "Error translating non-metadata time-series predicate to operate on buckets: {why}: \
                 {}",
                errors::shown(RawBsonRef::Document(filter))
            ),
        )
    };
    if elements(filter).any(|element| element.name() == "$expr") {
        let mut paths = BTreeSet::new();
        let parsed = errors::parse_filter(filter)?;
        let is_meta = |path: &String| series.meta_path(path).is_some();
        return match parsed.dependencies(&mut paths) && paths.iter().all(is_meta) {
            // Why no index may have it is told as of any other.
            true => Ok(filter.to_owned()),
            false => Err(untold("can't handle this predicate")),
        };
    }
    let parsed = specification::parse_partial_filter_in(filter, &context)?;
    let translated = partial_filter_of_buckets(&parsed, series, &context.budget);
    translated.map_err(errors::query)?.map_err(untold)
}

/// Keeps beside what is over buckets what was asked for, where that says more than the other way round
/// can be told from it.
pub fn with_original(
    mut kept: RawDocumentBuf,
    asked: &RawDocument,
    series: &TimeSeries,
) -> RawDocumentBuf {
    let has_partial = matches!(asked.get(PARTIAL), Ok(Some(_)));
    if !has_partial && !measures(asked, series) {
        return kept;
    }
    let mut original = DocumentWriter::new();
    let version = kept.get("v").ok().flatten();
    let mut has_version = false;
    for element in elements(asked) {
        has_version |= element.name() == "v";
        match (element.name(), kept.get("collation")) {
            // It is kept of no index.
            ("ns", _) => {}
            ("collation", Ok(Some(RawBsonRef::Document(collation)))) => {
                // Of the simple one nothing is kept.
                if *collation != *specification::simple() {
                    original.append_doc("collation", collation);
                }
            }
            _ => original.append_element(&element),
        }
    }
    if let Some(version) = version.filter(|_| !has_version) {
        original.append("v", version);
    }
    let original = original.finish();
    kept.append(cstr!("originalSpec"), original);
    kept
}

/// The key pattern over buckets of an index that should be there. Where none can be none is.
pub fn key_of_known(
    key: &RawDocument,
    series: &TimeSeries,
) -> Result<RawDocumentBuf, CommandError> {
    key_of_buckets(key, series).map_err(|error| CommandError {
        code: ErrorCode::IndexNotFound,
        ..error
    })
}

/// A key pattern over buckets.
pub fn key_of_buckets(
    key: &RawDocument,
    series: &TimeSeries,
) -> Result<RawDocumentBuf, CommandError> {
    index_keys::to_buckets(key, series).map_err(|found| {
        let why = match found {
            NoIndex::Time(name) => format!(
                "Indexes on the time field must be ascending or descending (numbers only): {name}"
            ),
            NoIndex::Field(name) => format!(
                "Indexes on measurement fields must be ascending or descending (numbers only), \
                 or '2dsphere': {name}"
            ),
        };
        CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "Invalid index spec for time-series collection: {}. {why}",
                errors::shown(RawBsonRef::Document(key))
            ),
        )
    })
}

/// Whether an index is over anything but times and metadata.
fn measures(spec: &RawDocument, series: &TimeSeries) -> bool {
    let key = spec.get_document("key").into_iter();
    let mut names = key.flat_map(elements);
    names.any(|field| field.name() != series.time_field && series.meta_path(field.name()).is_none())
}

/// An option as it is shown: of the type that it has, whatever it was asked as.
fn typed<'a>(option: &str, value: RawBsonRef<'a>) -> RawBsonRef<'a> {
    let number = Number::from_raw(value);
    match (option, number) {
        ("background" | "dropDups" | "prepareUnique" | "sparse" | "unique", _) => {
            RawBsonRef::Boolean(is_true(value))
        }
        (
            "v"
            | "textIndexVersion"
            | "2dsphereIndexVersion"
            | "bits"
            | geo_indexes::COARSEST
            | geo_indexes::FINEST,
            Some(_),
        ) => {
            let number = params::number(value).unwrap_or_default();
            RawBsonRef::Int32(geo_indexes::clamped(number))
        }
        ("min" | "max", Some(number)) => RawBsonRef::Double(geo_indexes::kept_bound(number)),
        _ => value,
    }
}

/// The specification of an index over buckets as it is shown to who uses the measurements. `None`: it
/// is one over buckets alone.
pub fn to_measurements(spec: &RawDocument, series: &TimeSeries) -> Option<RawDocumentBuf> {
    let mut out = DocumentWriter::new();
    let is_hidden = spec.get_bool("hidden").unwrap_or(false);
    if let Ok(original) = spec.get_document(ORIGINAL) {
        for element in elements(original) {
            match element.name() {
                "hidden" if is_hidden || is_true(element.value()) => {}
                name => out.append(name, typed(name, element.value())),
            }
        }
        // That of the collection, where none was asked for.
        if let (Err(_), Ok(collation)) = (
            original.get_document("collation"),
            spec.get_document("collation"),
        ) {
            out.append_doc("collation", collation);
        }
        // It may have changed since.
        if is_hidden {
            out.append_bool("hidden", true);
        }
        return Some(out.finish());
    }
    for element in elements(spec) {
        match (element.name(), element.value()) {
            ("key", RawBsonRef::Document(key)) => {
                out.append_doc("key", &index_keys::to_measurements(key, series)?);
            }
            _ => out.append_element(&element),
        }
    }
    Some(out.finish())
}
