//! Reads of views that one shard alone cannot answer.

use banyan_query::QueryError;
use banyan_query::view::Resolved;
use bson::{RawDocument, RawDocumentBuf};

use super::aggregate;
use crate::context::{CommandResult, Context};
use crate::errors::query_error;
use crate::fields;
use crate::views::Told;

/// What makes the aggregation of a command.
pub type Rewrite = fn(&Resolved, &RawDocument) -> Result<RawDocumentBuf, QueryError>;

/// Answers a command on its collection: with the outcome of sending it to its shards, or, if that is
/// a shard's word of the view that it names, with the aggregation that this comes to.
pub async fn or_view(
    context: &Context<'_>,
    outcome: CommandResult,
    rewrite: Rewrite,
) -> CommandResult {
    let namespace = context.namespace()?;
    let Some(told) = Told::of_outcome(&outcome).filter(|told| told.view == namespace) else {
        return outcome;
    };
    let body = rewrite(&told.resolved, &context.request.body).map_err(query_error)?;
    aggregate::of_view(context, &namespace, body).await
}

/// The same for a command that answers with the one document in which its aggregation ends.
/// `Err`: it is no view, and the outcome is the answer.
pub async fn one_of_view(
    context: &Context<'_>,
    outcome: CommandResult,
    rewrite: Rewrite,
) -> Result<Option<RawDocumentBuf>, CommandResult> {
    if Told::of_outcome(&outcome).is_none() {
        return Err(outcome);
    }
    let reply = match or_view(context, outcome, rewrite).await {
        Ok(reply) if fields::is_ok(&reply) => reply,
        failed => return Err(failed),
    };
    let cursor = reply.get_document("cursor");
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    Ok(batch
        .ok()
        .and_then(|batch| Some(batch.get_document(0).ok()?.to_owned())))
}
