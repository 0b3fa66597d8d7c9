//! Indexes over measurements: what they are over buckets, and what is shown of them.

use banyan_document::time_series::TimeSeries;
use banyan_document::time_series::index_keys::{self, NoIndex};
use banyan_document::{DocumentWriter, elements, is_true};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::super::clustered::EXPIRE;
use super::invalid;
use crate::errors;

/// A specification of `createIndexes` over buckets.
pub fn to_buckets(spec: &RawDocument, series: &TimeSeries) -> Result<RawDocumentBuf, CommandError> {
    let unsupported = |what: &str| {
        Err(invalid(format!(
            "{what} indexes are not supported on time-series collections"
        )))
    };
    let mut out = DocumentWriter::new();
    for element in elements(spec) {
        match (element.name(), element.value()) {
            ("unique", value) if is_true(value) => return unsupported("Unique"),
            ("sparse", value) if is_true(value) && measures(spec, series) => {
                return Err(invalid(
                    "Sparse indexes are not supported on time-series measurements".to_owned(),
                ));
            }
            (EXPIRE, _) => return unsupported("TTL"),
            ("partialFilterExpression", _) => {
                return Err(CommandError::new(
                    ErrorCode::NotImplemented,
                    "partial indexes on time-series collections are not supported",
                ));
            }
            ("key", other) if other.as_document().is_none() => {
                return Err(CommandError::new(
                    ErrorCode::Location(10065),
                    "invalid parameter: expected an object (key)",
                ));
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
                "Indexes on measurement fields must be ascending or descending (numbers only): \
                 {name}"
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

/// The specification of an index over buckets as it is shown to who uses the measurements. `None`: it
/// is one over buckets alone.
pub fn to_measurements(spec: &RawDocument, series: &TimeSeries) -> Option<RawDocumentBuf> {
    let mut out = DocumentWriter::new();
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
