//! Stages that MongoDB knows and refuses here as it does where nothing was set up for them.

use std::sync::Arc;

use bson::RawBsonRef;

use super::stage::Stage;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::error;

pub(super) const NAMES: &[&str] = &[
    "$listCachedAndActiveUsers",
    "$listSearchIndexes",
    "$queue",
    "$search",
    "$searchMeta",
    "$setVariableFromSubPipeline",
    "$vectorSearch",
];

/// Needs a search server beside this one.
pub(super) fn parse_search(
    _: RawBsonRef<'_>,
    _: &Context,
    _: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    Err(QueryError::new(
        ErrorKind::Location(31082),
        "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires \
         additional configuration, and so do $search, $searchMeta and $vectorSearch",
    ))
}

/// Is put into pipelines by servers alone.
pub(super) fn parse_internal(
    _: RawBsonRef<'_>,
    _: &Context,
    _: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    error(5_491_300, "the stage is not allowed in user requests")
}

pub(super) fn parse_disabled(
    _: RawBsonRef<'_>,
    _: &Context,
    _: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    Err(QueryError::new(
        ErrorKind::QueryFeatureNotAllowed,
        "the stage is not allowed with the current configuration. You may need to enable the \
         corresponding feature flag",
    ))
}
