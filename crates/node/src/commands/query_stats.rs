//! `$queryStats`: how often queries of a shape were run, and what that took.

use banyan_query::pipeline::outside_admin;
use banyan_query::query_stats::Transform;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf};

use crate::context::CommandContext;
use crate::errors;

pub const STAGE: &str = "$queryStats";

pub fn documents(
    ctx: &CommandContext<'_>,
    collection: Option<&str>,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    check_place(ctx, STAGE, collection)?;
    let transform = Transform::parse(argument).map_err(errors::query)?;
    let as_of = ctx.node.replica.machine.operation_time();
    Ok(ctx.node.parameters.query_stats.documents(&transform, as_of))
}

/// What is told of the whole server is asked of no collection.
pub fn check_place(
    ctx: &CommandContext<'_>,
    stage: &str,
    collection: Option<&str>,
) -> Result<(), CommandError> {
    match (ctx.database(), collection) {
        ("admin", None) => Ok(()),
        _ => Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            outside_admin(stage),
        )),
    }
}
